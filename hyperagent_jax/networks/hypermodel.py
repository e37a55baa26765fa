"""The hypermodel of all layers: a network whose weights are all linear functions of the index.

It consists of two modules. The first depends only on the state, so its output is part of the belief; the second
adds the index.
"""

from collections.abc import Sequence
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos


def generated_init(index: indices.IndexDistribution) -> nn.initializers.Initializer:
    """Initialises generated weights A xi + b [M + 1, in, out]: A xi and b each have Xavier's variance."""
    assert index.second_moment is not None  # make_hypermodel_network rejects others
    scale = 1.0 / math.sqrt(index.dim * index.second_moment)

    def init(key: types.PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> types.Array:
        kernels = jax.vmap(lambda k: torsos.xavier_normal(k, shape[1:], dtype))(jax.random.split(key, shape[0]))
        return kernels * jnp.append(jnp.full(shape[0] - 1, scale), 1.0)[:, None, None]

    return init


class GeneratedInput(nn.Module):
    """A generated first layer, before an index is applied.

    Attributes:
        width: width of the layer.
        index: distribution of the index.
        num_states: number of states for integer observations.
    """

    width: int
    index: indices.IndexDistribution
    num_states: int | None = None

    @nn.compact
    def __call__(self, observation: types.Array) -> types.Array:
        """Maps an observation to coefficients [M + 1, width]."""
        init, shape = generated_init(self.index), (self.index.dim + 1, self.width)
        bias = self.param("bias", nn.initializers.zeros, shape)

        def flat_init(key: types.PRNGKey, flat_shape: tuple[int, int], dtype: Any = jnp.float32) -> types.Array:
            kernels = init(key, (shape[0], flat_shape[0], self.width), dtype)
            return jnp.moveaxis(kernels, 0, 1).reshape(flat_shape)

        if self.num_states:
            x = torsos.look_up_row(self, flat_init, (self.num_states, bias.size), observation)
        else:
            inputs = observation.reshape(-1)
            x = inputs @ self.param("kernel", flat_init, (inputs.size, bias.size))
        return x.reshape(shape) + bias


class GeneratedOutput(nn.Module):
    """The other generated layers and the last-layer hypermodel.

    `<A xi + b, x>` is one product of [xi_1 x, .., xi_M x, x] with [A_1, .., A_M, b]: generated weights are
    never formed.

    Attributes:
        hidden_sizes: widths of the hidden layers after the first.
        index: distribution of the index.
        num_actions: number of actions.
        head_init: initialiser of the last layer's weights, [H, num_actions, M + 1].
    """

    hidden_sizes: Sequence[int]
    index: indices.IndexDistribution
    num_actions: int
    head_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, first: types.Array, index: types.Array) -> types.Array:
        """Maps the first layer's coefficients [M + 1, width] and an index [M] to values [num_actions]."""
        extended = jnp.append(index, 1.0)

        def generated(x: types.Array, kernel: types.Array) -> types.Array:  # kernel [M + 1, in, out]
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
    observation: Any,
    *,
    prior: priors.Prior | None = None,
    head_init: heads.Initializer | None = None,
    posterior_scale: float = 1.0,
    num_states: int | None = None,
) -> epistemic.EpistemicNetwork:
    """Builds HyperModel: an MLP all of whose weights and biases are linear functions of the index, plus a prior.

    Args:
        hidden_sizes: widths of the hidden layers.
        num_actions: number of actions.
        index: distribution of the index; its second moment must be isotropic.
        observation: an example observation.
        prior: the fixed prior; by default `priors.hyper_prior()`. Unless it has its own torso, it uses a plain MLP
            with these hidden layers.
        head_init: initialiser of the last layer [H, num_actions, M + 1]; by default `heads.learnable_init()`.
        posterior_scale: factor of the learnable part.
        num_states: with integer observations, their number.
    """
    checks.require_widths("hidden_sizes", hidden_sizes)
    checks.require_finite(posterior_scale=posterior_scale)
    prior = priors.hyper_prior() if prior is None else prior
    mlp = torsos.OneHotMlp(num_states, hidden_sizes) if num_states else torsos.Mlp(hidden_sizes)
    inputs = epistemic.check_inputs(mlp, num_actions, index, observation, prior, num_states)
    observation = inputs.observation
    if index.second_moment is None:
        raise ValueError(f"the index must have an isotropic second moment; {index.name!r} does not: use sphere")
    first = GeneratedInput(hidden_sizes[0], index, num_states)
    rest = GeneratedOutput(tuple(hidden_sizes[1:]), index, num_actions, head_init or heads.learnable_init())

    def init(key: types.PRNGKey) -> types.Params:
        coefficients = jnp.zeros((index.dim + 1, hidden_sizes[0]))
        return {
            "first": first.init(types.fold_in_tag(key, "first"), observation)["params"],
            "rest": rest.init(types.fold_in_tag(key, "rest"), coefficients, jnp.zeros(index.dim))["params"],
        }

    def posterior(params: types.Params, o: Any, prior_belief: types.Array) -> epistemic.NonlinearBelief:
        return epistemic.NonlinearBelief(prior_belief, torsos.apply_linen(first, params["first"], o))

    def learnable(params: types.Params, hidden: types.Array, index: types.Array) -> types.Array:
        return posterior_scale * torsos.apply_linen(rest, params["rest"], hidden, index)

    return epistemic.make_nonlinear_network(init, prior.build(inputs), posterior, learnable, index, observation)
