"""Feature networks phi_w, written for one observation, and adapters for those of other frameworks.

A torso is any of
- a flax.linen module;
- a pair (init, apply): a tuple, or an object with these two attributes, with init(key, observation) -> params and
  apply(params, observation) -> features [H]. dm-haiku's `transform` returns such a pair;
- `from_nnx(lambda rngs: Module(...))` for flax.nnx, `from_equinox(lambda key: Module(...))` for equinox;
- a function of the observation without parameters.
"""

from collections.abc import Callable, Sequence
import functools
import inspect
import math
from typing import Any, ClassVar, NamedTuple

from flax import nnx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import rows
from hyperagent_jax import types
from hyperagent_jax.networks import checks

# The released code initialises torso weights as Xavier normal, not truncated, and biases as zero.
xavier_normal = nn.initializers.variance_scaling(1.0, "fan_avg", "normal")

# Name of the parameter that holds one row per integer state.
ROWS = "rows"
# Names of those that hold statistics of the observations.
_OBSERVATION_MEAN, _OBSERVATION_STD = "observation_mean", "observation_std"


class Mlp(nn.Module):
    """ReLU network on a flattened observation."""

    features: Sequence[int] = (64, 64)

    @nn.compact
    def __call__(self, observation: types.Array) -> types.Array:
        x = observation.reshape(-1).astype(jnp.float32)
        for i, width in enumerate(self.features):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


def _wave_kernel_init(low: float, high: float) -> nn.initializers.Initializer:
    """Draws a normal direction for every wave, and its frequency log-uniformly in [low, high]."""

    def init(key: types.PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> types.Array:
        direction, frequency = jax.random.split(key)
        logarithms = jax.random.uniform(frequency, shape[1:], dtype, math.log(low), math.log(high))
        return jax.random.normal(direction, shape, dtype) * jnp.exp(logarithms)

    return init


def _phase_init(key: types.PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> types.Array:
    return jax.random.uniform(key, shape, dtype, 0.0, 2 * math.pi)


def wave(x: types.Array) -> types.Array:
    """Returns the cosine to within 0.02 by a cubic: XLA's own takes three times as long on a CPU."""
    turns = x / (2 * math.pi)
    distance = jnp.abs(turns - jnp.round(turns))  # to the nearest crest, at most a half
    return 1 - 8 * distance**2 * (3 - 4 * distance)


class WaveMlp(nn.Module):
    """ReLU network on random waves cos(w x + b) of a standardised observation x.

    A linear function of the waves is a random function without a preferred place (Rahimi and Recht, 2007). Random
    ReLU layers without biases give one that hardly changes along an observation's direction, or along an entry
    that is small compared with others. Mean and standard deviation of the observations are parameters without a
    gradient, 0 and 1 until `standardize` sets them.

    Attributes:
        features: widths of the ReLU layers; none for the waves themselves.
        num_waves: number of waves.
        frequencies: lowest and highest frequency of the waves, per standard deviation; log-uniform between them.
    """

    features: Sequence[int]
    num_waves: int
    frequencies: tuple[float, float]

    @nn.compact
    def __call__(self, observation: types.Array) -> types.Array:
        x = observation.reshape(-1).astype(jnp.float32)
        mean = self.param(_OBSERVATION_MEAN, nn.initializers.zeros, x.shape)
        std = self.param(_OBSERVATION_STD, nn.initializers.ones, x.shape)
        x = (x - jax.lax.stop_gradient(mean)) / jax.lax.stop_gradient(std)
        kernel_init = _wave_kernel_init(*self.frequencies)
        x = wave(nn.Dense(self.num_waves, kernel_init=kernel_init, bias_init=_phase_init, name="waves")(x))
        for i, width in enumerate(self.features):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


def needs_standardizing(tree: Any) -> bool:
    """Whether parameters, or what else has them as parts, have a mean and a standard deviation of observations."""
    return any(_name(path) == _OBSERVATION_MEAN for path, _ in jax.tree_util.tree_leaves_with_path(tree))


def standardize(tree: Any, mean: types.Array, std: types.Array) -> Any:
    """Sets the mean and the standard deviation of observations wherever parameters have them."""
    values = {_OBSERVATION_MEAN: mean, _OBSERVATION_STD: std}
    return jax.tree_util.tree_map_with_path(lambda path, leaf: values.get(_name(path), leaf), tree)


def _name(path: tuple[Any, ...]) -> str:
    return str(getattr(path[-1], "key", "")) if path else ""


def look_up_row(
    module: nn.Module, init: nn.initializers.Initializer, shape: tuple[int, int], state: types.Array
) -> types.Array:
    """Returns row `state` of the table `ROWS` of a module, which is initialised with the given shape.

    A learner may later substitute a shorter table that contains only the rows that a batch looks up.
    """
    if module.has_variable("params", ROWS):  # any number of rows, so its shape is not checked
        return rows.look_up(module.get_variable("params", ROWS), state)
    return rows.look_up(module.param(ROWS, init, shape), state)


class OneHot(nn.Module):
    """One-hot encoding of an integer state, without parameters: the features of the tabular analysis."""

    num_states: int

    def __call__(self, state: types.Array) -> types.Array:
        return nn.one_hot(state, self.num_states)


class OneHotMlp(nn.Module):
    """`Mlp` on the one-hot encoding of an integer state, without forming the one-hot vector.

    The first layer is a row lookup (see `look_up_row`); all other parameters have the shapes of `Mlp`. As usual in
    JAX, indexing clamps states that are out of range.
    """

    num_states: int
    features: Sequence[int] = (64, 64)

    @nn.compact
    def __call__(self, state: types.Array) -> types.Array:
        row = look_up_row(self, xavier_normal, (self.num_states, self.features[0]), state)
        x = nn.relu(row + self.param("bias", nn.initializers.zeros, (self.features[0],)))
        for i, width in enumerate(self.features[1:], start=1):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


class TransposedDense(nn.Module):
    """`nn.Dense` for one vector, with its kernel as [features, inputs].

    In this layout, the kernel's second derivatives, which a gradient penalty takes, need no transposition.
    """

    features: int

    @nn.compact
    def __call__(self, x: types.Array) -> types.Array:
        kernel = self.param("kernel", xavier_normal, (self.features, x.shape[0]))
        return kernel @ x + self.param("bias", nn.initializers.zeros, (self.features,))


class SmallConv(nn.Module):
    """A 3 x 3 convolution of 16 channels on a small image, then dense layers: Young and Tian's network for
    MinAtar.

    Images are [height, width, channels] of booleans, or of whole numbers up to about ten, such as MiniGrid's
    symbols. The convolution is written as patches and one product: XLA's convolution is several times slower in a
    loop on CPU.

    Attributes:
        features: widths of the dense layers.
        channels: channels of the convolution.
        dtype: dtype of the convolution's activations; None for float32.
    """

    SMALLEST_SIDE: ClassVar[int] = 3

    features: Sequence[int] = (128,)
    channels: int = 16
    dtype: Any = None

    @nn.compact
    def __call__(self, picture: types.Array) -> types.Array:
        height, width = picture.shape[0] - 2, picture.shape[1] - 2
        x = picture.astype(jnp.float32)
        if picture.dtype != jnp.bool_ and jnp.issubdtype(picture.dtype, jnp.integer):
            x = x / 10.0
        patches = [x[i : i + height, j : j + width] for i in range(3) for j in range(3)]
        x = jnp.concatenate(patches, axis=-1).reshape(height * width, -1)
        x = nn.Dense(self.channels, kernel_init=xavier_normal, dtype=self.dtype, name="conv")(x)
        x = nn.relu(x).reshape(-1).astype(jnp.float32)
        for i, width in enumerate(self.features):
            x = nn.relu(nn.Dense(width, kernel_init=xavier_normal, name=f"layer_{i}")(x))
        return x


class AtariConv(nn.Module):
    """The convolutional network of DQN on [height, width, channels] pixels in 0..255.

    As in the released code, pixels are not scaled, and the flattened output of the convolutions is scaled to
    [0, 1] per example before the dense layer. Height and width must be at least `SMALLEST_SIDE`.

    Attributes:
        dense: width of the dense layer; None for none.
        dtype: dtype of the convolutions' activations; None for float32.
    """

    SMALLEST_SIDE: ClassVar[int] = 36

    dense: int | None = 256
    dtype: Any = None

    @nn.compact
    def __call__(self, pixels: types.Array) -> types.Array:
        x = pixels.astype(jnp.float32)
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            conv = nn.Conv(
                channels,
                (kernel, kernel),
                (stride, stride),
                padding="VALID",
                kernel_init=xavier_normal,
                dtype=self.dtype,
            )
            x = nn.relu(conv(x))
        x = min_max_normalize(x.reshape(-1).astype(jnp.float32))
        return x if self.dense is None else nn.relu(TransposedDense(self.dense)(x))


def min_max_normalize(x: types.Array) -> types.Array:
    """Scales the entries of one example to [0, 1]; a constant example becomes all zeros."""
    low, high = jnp.min(x), jnp.max(x)
    return (x - low) / jnp.maximum(high - low, 1e-8)


class Torso(NamedTuple):
    """A torso as pure functions.

    Attributes:
        init: maps (key, observation) to params.
        apply: maps (params, observation) to features [H].
    """

    init: Callable[[types.PRNGKey, Any], types.Params]
    apply: Callable[[types.Params, Any], types.Array]


def from_nnx(make: Callable[[nnx.Rngs], nnx.Module]) -> Torso:
    """Turns a flax.nnx module into a torso.

    Args:
        make: maps nnx.Rngs to a module, for example `lambda rngs: MyTorso(64, rngs=rngs)`. All variables of the
            module must be nnx.Param.
    """

    def split(module: nnx.Module) -> tuple[Any, nnx.State]:
        graph, params, *others = nnx.split(module, nnx.Param, ...)
        if jax.tree.leaves(others):
            raise ValueError(
                "a torso may only have variables of type nnx.Param: remove Dropout, BatchNorm and recurrent state"
            )
        return graph, params

    graph, _ = split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))
    return Torso(
        lambda key, observation: split(make(nnx.Rngs(key)))[1],
        lambda params, observation: nnx.merge(graph, params)(observation),
    )


def _is_float_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)


def from_equinox(make: Callable[[types.PRNGKey], Any]) -> Torso:
    """Turns an equinox module into a torso; its floating-point arrays are the parameters.

    Args:
        make: maps a key to a module, for example `lambda key: eqx.nn.MLP(8, 64, 64, 2, key=key)`.
    """
    fixed = jax.tree.map(lambda leaf: None if _is_float_array(leaf) else leaf, make(jax.random.key(0)))

    def init(key: types.PRNGKey, observation: Any) -> types.Params:
        return jax.tree.map(lambda leaf: leaf if _is_float_array(leaf) else None, make(key))

    def apply(params: types.Params, observation: Any) -> types.Array:
        module = jax.tree.map(
            lambda leaf, other: other if leaf is None else leaf, params, fixed, is_leaf=lambda leaf: leaf is None
        )
        return module(observation)

    return Torso(init, apply)


def apply_linen(module: nn.Module, params: types.Params, *inputs: Any) -> Any:
    """Applies a flax.linen module that has only parameters and no other variables."""
    return module.apply({"params": params}, *inputs)


def _from_linen(module: nn.Module) -> Torso:
    def init(key: types.PRNGKey, observation: Any) -> types.Params:
        variables = module.init(key, observation)
        if others := sorted(set(variables) - {"params"}):
            raise ValueError(
                f"a torso may only have params, this one also has {', '.join(others)}: remove Dropout, "
                "BatchNorm and recurrent state"
            )
        return variables.get("params", {})

    return Torso(init, functools.partial(apply_linen, module))


def _from_pair(init: Callable[..., Any], apply: Callable[..., Any]) -> Torso:
    names = list(inspect.signature(apply).parameters)
    if names[1:2] == ["state"]:
        raise ValueError("a torso may not have state: use hk.transform instead of hk.transform_with_state")
    if names[1:2] == ["rng"]:  # hk.transform without hk.without_apply_rng
        return Torso(init, lambda params, observation: apply(params, None, observation))
    return Torso(init, apply)


def is_linen_or_function(torso: Any) -> bool:
    """Returns whether the torso can be a submodule of a flax.linen module: a linen module, or a function."""
    return isinstance(torso, nn.Module) or not (isinstance(torso, tuple) or hasattr(torso, "init"))


def as_torso(torso: Any) -> Torso:
    """Converts any kind of torso to pure functions; raises ValueError for anything else."""
    if isinstance(torso, nn.Module):
        return _from_linen(torso)
    classes = torso.__mro__ if inspect.isclass(torso) else type(torso).__mro__
    packages = {cls.__module__.split(".")[0] for cls in classes if cls.__name__ == "Module"}
    if nnx.Module in classes:
        raise ValueError(
            "a flax.nnx module holds its own weights, which would not be trained: use "
            "torsos.from_nnx(lambda rngs: MyTorso(..., rngs=rngs))"
        )
    if "equinox" in packages:
        raise ValueError(
            "an equinox module holds its own weights, which would not be trained: use "
            "torsos.from_equinox(lambda key: MyTorso(..., key=key))"
        )
    if inspect.isclass(torso):
        raise ValueError(f"a torso must be an instance, got the class {torso.__name__}: use {torso.__name__}(...)")
    if callable(getattr(torso, "init", None)) and callable(getattr(torso, "apply", None)):
        return _from_pair(torso.init, torso.apply)
    if isinstance(torso, tuple) and len(torso) == 2 and all(map(callable, torso)):
        return _from_pair(*torso)
    if not callable(torso):
        raise ValueError(f"a torso must be a flax.linen module, a pair (init, apply) or a function, got {torso!r}")
    return Torso(lambda key, observation: {}, lambda params, observation: torso(observation))


def feature_shape(torso: Any, observation: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of a torso's features; raises ValueError unless the shape is [H].

    Args:
        torso: any kind of torso.
        observation: an example observation.
    """
    functions = as_torso(torso)

    def features(key: types.PRNGKey) -> types.Array:
        return functions.apply(functions.init(key, observation), observation)

    try:
        shape = jax.eval_shape(features, jax.random.key(0))
    except ValueError as error:
        if str(error).startswith("a torso may"):
            raise
        raise _refusal(observation, error) from error
    except Exception as error:  # torsos of any framework may raise anything
        raise _refusal(observation, error) from error
    if not isinstance(shape, jax.ShapeDtypeStruct):
        raise ValueError(f"features must be one array [H], the torso returned {shape!r}")
    if len(shape.shape) != 1:
        raise ValueError(
            f"features must be [H], the torso returned {list(shape.shape)} for an observation "
            f"{checks.describe(observation)}: flatten it, and give one example observation without a batch axis"
        )
    return shape


def _refusal(observation: Any, error: Exception) -> ValueError:
    hint = ""
    is_array = isinstance(observation, jax.Array)
    if is_array and jnp.issubdtype(observation.dtype, jnp.integer) and not observation.ndim:
        hint = "; for integer states use torsos.OneHotMlp or an embedding"
    first_line = (str(error).strip().splitlines() or [""])[0]
    return ValueError(
        f"the torso fails on an observation {checks.describe(observation)}{hint} "
        f"({type(error).__name__}: {first_line})"
    )
