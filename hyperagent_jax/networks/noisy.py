"""Networks with noisy dense layers: Noisy-Net, Rainbow, SANE. The noise is the index.

The noise of a layer with p inputs and q outputs has rank one, f(e_q) f(e_p)^T with f(x) = sign(x) sqrt|x| and
normal e_p, e_q (https://arxiv.org/abs/1706.10295), so the index has p + q entries per layer, and index 0 gives the
network without noise. The torso, which depends only on the observation, is the belief.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks as value_checks
from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import initializers
from hyperagent_jax.networks import torsos

NOISES = ("factorised", "state", "none")
DUELING = ("none", "shared", "separate")
NOISE_DISTRIBUTIONS = ("gaussian", "truncated_gaussian")


def factor(x: types.Array) -> types.Array:
    """Calculates f(x) = sign(x) sqrt|x|."""
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))


class NoisyDense(nn.Module):
    """A dense layer with factorised Gaussian noise on weights and biases, for one vector.

    W = mu_W + sigma_W f(e_p) f(e_q)^T and b = mu_b + sigma_b f(e_q). The noise of the weights is never formed.

    Attributes:
        features: number of outputs q.
        noise_std: sigma_0; every sigma is initially sigma_0 / sqrt(p).
    """

    features: int
    noise_std: float

    @nn.compact
    def __call__(self, x: types.Array, factors_in: types.Array, factors_out: types.Array) -> types.Array:
        """Maps inputs [p] and the factors f(e_p), f(e_q) of the noise to outputs [q]."""
        shape = (x.shape[-1], self.features)
        mean_init = initializers.uniform_fan_in(shape[0])
        noise_init = nn.initializers.constant(self.noise_std / shape[0] ** 0.5)
        kernel = self.param("kernel", mean_init, shape)
        bias = self.param("bias", mean_init, shape[1:])
        kernel_noise = self.param("kernel_noise", noise_init, shape)
        bias_noise = self.param("bias_noise", noise_init, shape[1:])
        return x @ kernel + bias + factors_out * ((x * factors_in) @ kernel_noise + bias_noise)


class StateNoiseDense(nn.Module):
    """SANE's dense layer, for one vector: W = mu_W + sigma(s) f(e_p) f(e_q)^T, b = mu_b + sigma(s) f(e_q).

    With one scalar sigma(s) for all entries, the noise of xW + b is sigma(s) (x f(e_p) + 1) f(e_q).

    Attributes:
        features: number of outputs q.
    """

    features: int

    @nn.compact
    def __call__(
        self, x: types.Array, factors_in: types.Array, factors_out: types.Array, scale: types.Array
    ) -> types.Array:
        """Maps inputs [p], the factors f(e_p), f(e_q) of the noise and sigma(s) to outputs [q]."""
        glorot = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", glorot, (x.shape[-1], self.features))
        # The released code draws biases as a kernel [1, q].
        bias = self.param("bias", lambda key, shape: glorot(key, (1, *shape))[0], (self.features,))
        return x @ kernel + bias + scale * (jnp.dot(x, factors_in) + 1.0) * factors_out


class NoiseScale(nn.Module):
    """SANE's scale of the noise, a signed scalar sigma(s): one hidden layer on the torso's features.

    Attributes:
        width: width of the hidden layer.
    """

    width: int

    @nn.compact
    def __call__(self, features: types.Array) -> types.Array:
        """Maps features [H] to sigma(s)."""
        kernel_init = nn.initializers.variance_scaling(2.0, "fan_in", "truncated_normal")
        x = nn.relu(nn.Dense(self.width, kernel_init=kernel_init)(features))
        return nn.Dense(1, kernel_init=kernel_init)(x)[0]


def chains(
    num_features: int, hidden_sizes: Sequence[int], num_actions: int, num_atoms: int, dueling: str
) -> list[list[int]]:
    """Returns the widths of the dense layers, input first: a trunk and, if it splits, its streams."""
    outputs = num_actions * num_atoms
    widths = [num_features, *hidden_sizes]
    if dueling == "none":
        return [[*widths, outputs]]
    split = len(widths) - 1 if dueling == "shared" else max(len(widths) - 2, 0)
    return [widths[: split + 1], [*widths[split:], outputs], [*widths[split:], num_atoms]]


def noise_dim(layers: list[list[int]]) -> int:
    """Returns the size of the index that these layers need: the inputs and outputs of every layer."""
    return sum(p + q for chain in layers for p, q in zip(chain[:-1], chain[1:], strict=True))


class DenseHead(nn.Module):
    """Dense layers from features to values, or to logits of a return distribution over atoms.

    Attributes:
        hidden_sizes: widths of the hidden layers.
        num_actions: number of actions.
        num_atoms: number of atoms; 1 for values.
        dueling: "none"; "shared" for streams of advantages and state values, each a single layer on the hidden
            layers; "separate" if each stream has its own last hidden layer.
        noise: kind of the layers: "factorised", "state" or "none".
        noise_std: see `NoisyDense`.
    """

    hidden_sizes: Sequence[int]
    num_actions: int
    num_atoms: int
    dueling: str
    noise: str
    noise_std: float

    @nn.compact
    def __call__(self, features: types.Array, scale: types.Array | None, index: types.Array) -> types.Array:
        """Maps features [H], sigma(s) if there is one, and an index to [num_actions, num_atoms]."""
        layers = chains(features.shape[-1], self.hidden_sizes, self.num_actions, self.num_atoms, self.dueling)
        place = 0

        def dense(x: types.Array, width: int, name: str) -> types.Array:
            nonlocal place
            if self.noise == "none":
                return nn.Dense(width, kernel_init=nn.initializers.glorot_uniform(), name=name)(x)
            split, end = place + x.shape[-1], place + x.shape[-1] + width
            factors = factor(index[place:split]), factor(index[split:end])
            place = end
            if self.noise == "state":
                assert scale is not None
                return StateNoiseDense(width, name=name)(x, *factors, scale)
            return NoisyDense(width, self.noise_std, name=name)(x, *factors)

        def stack(x: types.Array, chain: list[int], name: str, *, ends_linear: bool) -> types.Array:
            for i, width in enumerate(chain[1:]):
                x = dense(x, width, f"{name}_{i}")
                if not ends_linear or i < len(chain) - 2:
                    x = nn.relu(x)
            return x

        if self.dueling == "none":
            return stack(features, layers[0], "layer", ends_linear=True).reshape(self.num_actions, self.num_atoms)
        trunk = stack(features, layers[0], "layer", ends_linear=False)
        advantage = stack(trunk, layers[1], "advantage", ends_linear=True)
        advantage = advantage.reshape(self.num_actions, self.num_atoms)
        value = stack(trunk, layers[2], "value", ends_linear=True)
        return value + advantage - jnp.mean(advantage, axis=0)


class NoisyBelief(NamedTuple):
    """The belief of a noisy network about a state, before noise is applied.

    Attributes:
        features: the torso's features, [H].
        scale: SANE's sigma(s); None for other noises.
    """

    features: types.Array
    scale: types.Array | None


def make_noisy_network(
    torso: Any,
    num_actions: int,
    observation: Any,
    *,
    hidden_sizes: Sequence[int] = (512,),
    noise: str = "factorised",
    noise_std: float = 0.5,
    noise_distribution: str = "gaussian",
    scale_width: int = 256,
    num_atoms: int = 1,
    v_max: float = 10.0,
    dueling: str = "none",
) -> epistemic.EpistemicNetwork:
    """Builds a network from a plain torso and noisy dense layers, without a prior.

    Args:
        torso: maps one observation to features [H], as in `epistemic.make_hyper_network`.
        num_actions: number of actions.
        observation: an example observation.
        hidden_sizes: widths of the dense hidden layers on the features; may be empty.
        noise: "factorised" Gaussian noise with learned scales (Noisy-Net, Rainbow), "state" for noise with a
            single scale that is a function of the state (SANE), "none" for a network without index.
        noise_std: sigma_0 of factorised noise.
        noise_distribution: distribution of the index: "gaussian", or "truncated_gaussian" at +-2.
        scale_width: width of the hidden layer of SANE's scale.
        num_atoms: number of atoms of the return distribution (C51, https://arxiv.org/abs/1707.06887); 1 for plain
            values.
        v_max: atoms are evenly spaced in [-v_max, v_max].
        dueling: see `DenseHead`.

    Returns:
        The network, whose prior's belief is an empty array.
    """
    value_checks.one_of("noise", noise, NOISES)
    value_checks.one_of("noise_distribution", noise_distribution, NOISE_DISTRIBUTIONS)
    value_checks.one_of("dueling", dueling, DUELING)
    value_checks.whole_number("num_atoms", num_atoms, 1)
    checks.require_num_actions(num_actions)
    if len(hidden_sizes):
        checks.require_widths("hidden_sizes", hidden_sizes)
    checks.require_finite(noise_std=noise_std, v_max=v_max)
    observation, functions = checks.example_observation(observation), torsos.as_torso(torso)
    num_features = torsos.feature_shape(torso, observation).shape[0]
    layers = chains(num_features, hidden_sizes, num_actions, num_atoms, dueling)
    index = indices.no_index() if noise == "none" else indices.make(noise_distribution, noise_dim(layers))
    head = DenseHead(tuple(hidden_sizes), num_actions, num_atoms, dueling, noise, noise_std)
    noise_scale = NoiseScale(scale_width)

    def init(key: types.PRNGKey) -> types.Variables:
        features, scale = jnp.zeros(num_features), jnp.zeros(())
        params = {
            "torso": functions.init(types.fold_in_tag(key, "torso"), observation),
            "head": head.init(types.fold_in_tag(key, "head"), features, scale, jnp.zeros(index.dim))["params"],
        }
        if noise == "state":
            params["scale"] = noise_scale.init(types.fold_in_tag(key, "scale"), features)["params"]
        return types.Variables(params, ())

    def prior(prior: types.Params, o: Any) -> types.Array:
        del prior, o
        return jnp.zeros(0)

    def posterior(params: types.Params, o: Any, prior_belief: types.Array) -> NoisyBelief:
        del prior_belief
        features = functions.apply(params["torso"], o)
        scale = torsos.apply_linen(noise_scale, params["scale"], features) if noise == "state" else None
        return NoisyBelief(features, scale)

    def outputs(params: types.Params, belief: NoisyBelief, index: types.Array) -> types.Array:
        return torsos.apply_linen(head, params["head"], belief.features, belief.scale, index)

    atoms: np.ndarray | None = None
    distribution: Callable[..., types.Array] | None = None
    if num_atoms == 1:

        def value(params: types.Params, belief: NoisyBelief, index: types.Array) -> types.Array:
            return outputs(params, belief, index)[:, 0]

    else:
        atoms, distribution = np.linspace(-v_max, v_max, num_atoms, dtype=np.float32), outputs

        def value(params: types.Params, belief: NoisyBelief, index: types.Array) -> types.Array:
            return jax.nn.softmax(outputs(params, belief, index)) @ jnp.asarray(atoms)

    return epistemic.EpistemicNetwork(
        init, prior, posterior, value, index, False, observation, distribution, atoms
    )
