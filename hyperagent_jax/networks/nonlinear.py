"""Networks that are not linear in their index: the epinet, and the hypermodel of all layers.

Both come in two modules. The first sees only the state, so its result is the belief; the second adds an index.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import torsos


class NonlinearBelief(NamedTuple):
    """A belief of these networks.

    Attributes:
        coefficients: the part that is linear in the index, [num_actions, M + 1].
        hidden: what the second module needs of the state.
    """

    coefficients: types.Array
    hidden: types.Array


class EpinetInput(nn.Module):
    """What features and observation bring to the epinet's first layer.

    Attributes:
        width: width of the layer.
        kernel_init: start of the layer's weights.
        num_states: with integer observations, their number; the epinet's input is then their one-hot code.
    """

    width: int
    kernel_init: nn.initializers.Initializer
    num_states: int | None = None

    @nn.compact
    def __call__(self, features: types.Array, observation: types.Array) -> types.Array:
        """Maps features [H] and an observation to [width]."""
        inputs = features if self.num_states else jnp.concatenate([features, observation.reshape(-1)])
        x = inputs @ self.param("kernel", self.kernel_init, (inputs.size, self.width))
        if self.num_states:
            x += torsos.look_up_row(self, self.kernel_init, (self.num_states, self.width), observation)
        return x


class EpinetOutput(nn.Module):
    """The epinet from the index's part of its first layer on.

    Attributes:
        hidden_sizes: widths of the layers after the first.
        num_actions: number of actions.
        kernel_init: start of the first layer's weights.
    """

    hidden_sizes: Sequence[int]
    num_actions: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, first: types.Array, index: types.Array) -> types.Array:
        """Maps the first layer without index [width] and an index [M] to values [num_actions]."""
        x = nn.relu(first + index @ self.param("index_kernel", self.kernel_init, (index.size, first.size)))
        for width in self.hidden_sizes:
            x = nn.relu(nn.Dense(width, use_bias=False, kernel_init=torsos.xavier_normal)(x))
        x = nn.Dense(self.num_actions * index.size, use_bias=False, kernel_init=torsos.xavier_normal)(x)
        return x.reshape(self.num_actions, index.size) @ index


def make_epinet_network(
    torso: nn.Module,
    num_actions: int,
    index: indices.IndexDistribution,
    observation: types.Array,
    *,
    hidden_sizes: Sequence[int],
    prior: epistemic.LinearFunction,
    posterior_scale: float = 1.0,
    num_states: int | None = None,
) -> epistemic.EpistemicNetwork:
    """ENNDQN's network: a plain one plus an epinet on [features, observation, index] plus a prior.

    The epinet does not train the torso: the features it sees pass no gradient. It has no biases.

    Args:
        torso: flax module that maps one observation to features.
        num_actions: number of actions.
        index: distribution of the index.
        observation: an example observation.
        hidden_sizes: widths of the epinet's hidden layers.
        prior: the fixed prior.
        posterior_scale: factor of the learnable part.
        num_states: with integer observations, their number.
    """
    features = jnp.zeros(jax.eval_shape(torso.init_with_output, jax.random.key(0), observation)[0].shape)
    # Xavier of the first layer as one: its inputs are features, observation and index.
    num_inputs = features.size + (num_states or jnp.size(observation)) + index.dim
    first_init = nn.initializers.normal(math.sqrt(2 / (num_inputs + hidden_sizes[0])))
    head = heads.plain_linear(num_actions)
    epinet_input = EpinetInput(hidden_sizes[0], first_init, num_states)
    epinet_output = EpinetOutput(tuple(hidden_sizes[1:]), num_actions, first_init)

    def init(key):
        keys = {name: types.fold_in_tag(key, name) for name in ("torso", "head", "input", "output")}
        return {
            "torso": torso.init(keys["torso"], observation)["params"],
            "head": head.init(keys["head"], features)["params"],
            "epinet_input": epinet_input.init(keys["input"], features, observation)["params"],
            "epinet_output": epinet_output.init(keys["output"], jnp.zeros(hidden_sizes[0]), jnp.zeros(index.dim))[
                "params"
            ],
        }

    def posterior(params, o, prior_belief):
        features = torso.apply({"params": params["torso"]}, o)
        mean = posterior_scale * head.apply({"params": params["head"]}, features)[:, 0]
        hidden = epinet_input.apply({"params": params["epinet_input"]}, jax.lax.stop_gradient(features), o)
        return NonlinearBelief(prior_belief.at[:, -1].add(mean), hidden)

    def learnable(params, hidden, index):
        return posterior_scale * epinet_output.apply({"params": params["epinet_output"]}, hidden, index)

    return _make_nonlinear_network(init, prior, posterior, learnable, index)


def _make_nonlinear_network(init, prior, posterior, learnable, index) -> epistemic.EpistemicNetwork:
    """A network of which `learnable`(params, hidden, index) is added to the linear part of a belief."""

    def value(params, belief, index):
        linear = epistemic.evaluate_coefficients(belief.coefficients, index)
        return linear + learnable(params, belief.hidden, index)

    init = epistemic.with_prior(init, prior)
    return epistemic.EpistemicNetwork(init, prior.apply, posterior, value, index, is_linear=False)


def generated_init(index: indices.IndexDistribution) -> nn.initializers.Initializer:
    """Start of generated weights A xi + b [M + 1, in, out]: A xi and b each have Xavier's variance."""
    scale = 1.0 / math.sqrt(index.dim * index.second_moment)

    def init(key, shape, dtype=jnp.float32):
        kernels = jax.vmap(lambda k: torsos.xavier_normal(k, shape[1:], dtype))(jax.random.split(key, shape[0]))
        return kernels * jnp.append(jnp.full(shape[0] - 1, scale), 1.0)[:, None, None]

    return init


class GeneratedInput(nn.Module):
    """A generated first layer, before an index is chosen.

    Attributes:
        width: width of the layer.
        index: distribution of the index.
        num_states: with integer observations, their number.
    """

    width: int
    index: indices.IndexDistribution
    num_states: int | None = None

    @nn.compact
    def __call__(self, observation: types.Array) -> types.Array:
        """Maps an observation to coefficients [M + 1, width]."""
        init, shape = generated_init(self.index), (self.index.dim + 1, self.width)
        bias = self.param("bias", nn.initializers.zeros, shape)

        def flat_init(key, flat_shape, dtype=jnp.float32):
            kernels = init(key, (shape[0], flat_shape[0], self.width), dtype)
            return jnp.moveaxis(kernels, 0, 1).reshape(flat_shape)

        if self.num_states:
            x = torsos.look_up_row(self, flat_init, (self.num_states, bias.size), observation)
        else:
            inputs = observation.reshape(-1)
            x = inputs @ self.param("kernel", flat_init, (inputs.size, bias.size))
        return x.reshape(shape) + bias


class GeneratedOutput(nn.Module):
    """The further generated layers and the last-layer hypermodel.

    <A xi + b, x> is one product of [xi_1 x, .., xi_M x, x] with [A_1, .., A_M, b]: no generated weights exist.

    Attributes:
        hidden_sizes: widths of the hidden layers after the first.
        index: distribution of the index.
        num_actions: number of actions.
        head_init: start of the last layer's weights, [H, num_actions, M + 1].
    """

    hidden_sizes: Sequence[int]
    index: indices.IndexDistribution
    num_actions: int
    head_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, first: types.Array, index: types.Array) -> types.Array:
        """Maps the first layer's coefficients [M + 1, width] and an index [M] to values [num_actions]."""
        extended = jnp.append(index, 1.0)

        def generated(x, kernel):  # kernel [M + 1, in, out]
            weighted = jnp.concatenate([*[index[j] * x for j in range(index.size)], x])
            return weighted @ kernel.reshape(weighted.size, -1)

        x = nn.relu(extended @ first)
        for i, width in enumerate(self.hidden_sizes):
            kernel = self.param(f"kernel_{i}", generated_init(self.index), (extended.size, x.size, width))
            bias = self.param(f"bias_{i}", nn.initializers.zeros, (extended.size, width))
            x = nn.relu(generated(x, kernel) + extended @ bias)
        head = self.param("head", self.head_init, (x.size, self.num_actions, extended.size))
        return generated(x, jnp.moveaxis(head, -1, 0))


def make_hypermodel_network(
    hidden_sizes: Sequence[int],
    num_actions: int,
    index: indices.IndexDistribution,
    observation: types.Array,
    *,
    prior: epistemic.LinearFunction,
    prior_std: float = 1.0,
    mean_init: str = "sphere",
    posterior_scale: float = 1.0,
    num_states: int | None = None,
) -> epistemic.EpistemicNetwork:
    """HyperModel: an MLP all of whose weights and biases are linear functions of the index, plus a prior.

    Args:
        hidden_sizes: widths of the hidden layers.
        num_actions: number of actions.
        index: distribution of the index; its second moment must be isotropic.
        observation: an example observation.
        prior: the fixed prior.
        prior_std: as in `make_hyper_network`, for the start of the last layer.
        mean_init: likewise.
        posterior_scale: factor of the learnable part.
        num_states: with integer observations, their number.
    """
    first = GeneratedInput(hidden_sizes[0], index, num_states)
    head_init = heads.learnable_init(mean_init, prior_std)
    rest = GeneratedOutput(tuple(hidden_sizes[1:]), index, num_actions, head_init)

    def init(key):
        coefficients = jnp.zeros((index.dim + 1, hidden_sizes[0]))
        return {
            "first": first.init(types.fold_in_tag(key, "first"), observation)["params"],
            "rest": rest.init(types.fold_in_tag(key, "rest"), coefficients, jnp.zeros(index.dim))["params"],
        }

    def posterior(params, o, prior_belief):
        return NonlinearBelief(prior_belief, first.apply({"params": params["first"]}, o))

    def learnable(params, hidden, index):
        return posterior_scale * rest.apply({"params": params["rest"]}, hidden, index)

    return _make_nonlinear_network(init, prior, posterior, learnable, index)
