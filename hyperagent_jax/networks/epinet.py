"""The epinet: a small network on features, observation and index that is added to a plain network.

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


def is_pixels(observation: types.Array) -> bool:
    """Returns whether observations are frames of bytes, of which an epinet only gets the features."""
    return observation.dtype == jnp.uint8


class EpinetInput(nn.Module):
    """The part of the epinet's first layer that depends on features and observation.

    Attributes:
        width: width of the layer.
        kernel_init: initialiser of the layer's weights.
        num_states: number of states for integer observations, which the epinet then gets as one-hot vectors.
    """

    width: int
    kernel_init: nn.initializers.Initializer
    num_states: int | None = None

    @nn.compact
    def __call__(self, features: types.Array, observation: types.Array) -> types.Array:
        """Maps features [H] and an observation to [width]."""
        sees_observation = not self.num_states and not is_pixels(observation)
        inputs = jnp.concatenate([features, observation.reshape(-1)]) if sees_observation else features
        x = inputs @ self.param("kernel", self.kernel_init, (inputs.size, self.width))
        if self.num_states:
            x += torsos.look_up_row(self, self.kernel_init, (self.num_states, self.width), observation)
        return x


class EpinetOutput(nn.Module):
    """The rest of the epinet: the part of its first layer that depends on the index, and all later layers.

    Attributes:
        hidden_sizes: widths of the layers after the first.
        num_actions: number of actions.
        kernel_init: initialiser of the first layer's weights.
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
    torso: Any,
    num_actions: int,
    index: indices.IndexDistribution,
    observation: Any,
    *,
    hidden_sizes: Sequence[int] = (50,),
    prior: priors.Prior | None = None,
    posterior_scale: float = 1.0,
    num_states: int | None = None,
) -> epistemic.EpistemicNetwork:
    """Builds ENNDQN's network: a plain network plus an epinet on [features, observation, index] plus a prior.

    The epinet does not train the torso: no gradient flows through its input features. It has no biases.

    Args:
        torso: maps one observation to features [H], as in `epistemic.make_hyper_network`.
        num_actions: number of actions.
        index: distribution of the index.
        observation: an example observation.
        hidden_sizes: widths of the epinet's hidden layers.
        prior: the fixed prior; by default `priors.ensemble_prior()`.
        posterior_scale: factor of the learnable part.
        num_states: number of states for integer observations.
    """
    checks.require_widths("hidden_sizes", hidden_sizes)
    checks.require_finite(posterior_scale=posterior_scale)
    prior = priors.ensemble_prior() if prior is None else prior
    inputs = epistemic.check_inputs(torso, num_actions, index, observation, prior, num_states)
    observation, functions = inputs.observation, torsos.as_torso(torso)
    features = jnp.zeros(torsos.feature_shape(torso, observation).shape)
    # Xavier initialisation of the whole first layer, whose inputs are features, observation and index.
    num_seen = num_states or (0 if is_pixels(observation) else jnp.size(observation))
    num_inputs = features.size + num_seen + index.dim
    first_init = nn.initializers.normal(math.sqrt(2 / (num_inputs + hidden_sizes[0])))
    head = heads.plain_linear(num_actions)
    epinet_input = EpinetInput(hidden_sizes[0], first_init, num_states)
    epinet_output = EpinetOutput(tuple(hidden_sizes[1:]), num_actions, first_init)

    def init(key: types.PRNGKey) -> types.Params:
        keys = {name: types.fold_in_tag(key, name) for name in ("torso", "head", "input", "output")}
        return {
            "torso": functions.init(keys["torso"], observation),
            "head": head.init(keys["head"], features)["params"],
            "epinet_input": epinet_input.init(keys["input"], features, observation)["params"],
            "epinet_output": epinet_output.init(keys["output"], jnp.zeros(hidden_sizes[0]), jnp.zeros(index.dim))[
                "params"
            ],
        }

    def posterior(params: types.Params, o: Any, prior_belief: types.Array) -> epistemic.NonlinearBelief:
        features = functions.apply(params["torso"], o)
        mean = posterior_scale * torsos.apply_linen(head, params["head"], features)[:, 0]
        hidden = torsos.apply_linen(epinet_input, params["epinet_input"], jax.lax.stop_gradient(features), o)
        means = jnp.pad(mean[:, None], ((0, 0), (index.dim, 0)))  # an indexed sum would be a scatter on a TPU
        return epistemic.NonlinearBelief(prior_belief + means, hidden)

    def learnable(params: types.Params, hidden: types.Array, index: types.Array) -> types.Array:
        return posterior_scale * torsos.apply_linen(epinet_output, params["epinet_output"], hidden, index)

    return epistemic.make_nonlinear_network(init, prior.build(inputs), posterior, learnable, index, observation)
