"""Output layers: map the features phi(s) of one state to coefficients, from which an index makes Q-values."""

from collections.abc import Callable
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import torsos

Initializer = Callable[..., types.Array]


def _joined(weight_init: Initializer, mean_init: Initializer) -> Initializer:
    """Combines an initialiser of A on [H * actions, M] and one of b on [H, actions] for a single array."""

    def init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
        features, actions, width = shape
        key_a, key_b = jax.random.split(key)
        a = weight_init(key_a, (features * actions, width - 1), dtype)
        b = mean_init(key_b, (features, actions), dtype)
        return jnp.concatenate([a.reshape(features, actions, width - 1), b[..., None]], axis=-1)

    return init


def sphere_rows(radius: float) -> Initializer:
    """Samples every row [M] uniformly from the sphere of that radius."""

    def init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
        return radius * indices.sphere(shape[1]).sample(key, shape[:1]).astype(dtype)

    return init


def sphere_vector(radius: float) -> Initializer:
    """Samples the whole flattened array uniformly from the sphere of that radius."""

    def init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
        return radius * indices.sphere(math.prod(shape)).sample(key, ()).reshape(shape).astype(dtype)

    return init


def _mean_init(name: str, radius: float) -> Initializer:
    inits = {"sphere": sphere_vector(radius), "xavier": torsos.xavier_normal}
    if name not in inits:
        raise ValueError(f"unknown mean_init {name!r}; choose one of {', '.join(inits)}")
    return inits[name]


def learnable_init(mean_init: str = "sphere", radius: float = 1.0) -> Initializer:
    """Returns the released code's initialiser of the learnable hypermodel.

    A is Xavier normal on [H * actions, M].

    Args:
        mean_init: initialisation of b: as one vector on a "sphere", or "xavier".
        radius: radius of the sphere.
    """
    return _joined(torsos.xavier_normal, _mean_init(mean_init, radius))


def prior_init(mean_init: str = "sphere", radius: float = 1.0) -> Initializer:
    """Returns the released code's initialiser of the fixed prior, which draws every row of A_0 on a sphere.

    Args:
        mean_init: initialisation of b_0, as in `learnable_init`.
        radius: radius of all spheres.
    """
    return _joined(sphere_rows(radius), _mean_init(mean_init, radius))


def hyperdqn_init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
    """Initialises as HyperDQN's code does on DeepSea: A normal with standard deviation 1 / sqrt(H), b zero."""
    normal = nn.initializers.normal(1.0 / math.sqrt(shape[0]))
    return _joined(normal, nn.initializers.zeros)(key, shape, dtype)


class HyperLinear(nn.Module):
    """Last-layer linear hypermodel `<A xi + b, phi>` (eq. 3), contracted over features first.

    phi A and phi b are the coefficients of a function that is linear in xi, so every additional index costs one
    small product, and the generated weights [H, num_actions] are never formed. With M = 0 it is a plain linear
    layer.

    Attributes:
        num_actions: number of actions.
        index_dim: M.
        kernel_init: initialises the array [H, num_actions, M + 1] that contains A followed by b.
        bias_init: initialises the array [1, num_actions, M + 1] of a generated bias A_2 xi + b_2; None for no
            bias, as in HyperAgent.
    """

    num_actions: int
    index_dim: int
    kernel_init: Initializer = learnable_init()
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self, features: types.Array) -> types.Array:
        """Maps features [H] to coefficients [num_actions, M + 1]."""
        shape = (features.shape[-1], self.num_actions, self.index_dim + 1)
        kernel = self.param("kernel", self.kernel_init, shape)
        flat = features @ kernel.reshape(shape[0], -1)
        coefficients = flat.reshape(shape[1:])
        if self.bias_init is not None:
            coefficients += self.param("bias", self.bias_init, (1, *shape[1:]))[0]
        return coefficients


def hyperdqn_linear(num_actions: int, index_dim: int) -> HyperLinear:
    """Builds HyperDQN's head, which also generates the last layer's bias, initialised to zero."""
    return HyperLinear(num_actions, index_dim, hyperdqn_init, nn.initializers.zeros)


def _plain_init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
    return torsos.xavier_normal(key, shape[:2], dtype)[..., None]


def plain_linear(num_actions: int) -> HyperLinear:
    """Builds a linear layer with bias and without index, from features [H] to [num_actions, 1]."""
    return HyperLinear(num_actions, 0, _plain_init, nn.initializers.zeros)


def zero_linear(num_actions: int, index_dim: int) -> HyperLinear:
    """Makes a linear layer that starts at zero and has no mean: features [H] to [num_actions, index_dim]."""
    return HyperLinear(num_actions, index_dim - 1, nn.initializers.zeros)
