"""Epistemic networks: Q-values as a function of an observation and an index."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import heads


class EpistemicNetwork(NamedTuple):
    """A network whose Q-values depend on an index; every function is for one example.

    What depends on the observation alone (the belief) is kept apart from what the index adds, so
    that any number of indices shares one pass through the torso.

    Attributes:
        init: maps a key to Variables(params, prior).
        prior: maps (prior, observation) to the fixed prior's belief, which never changes.
        posterior: maps (params, observation, prior belief) to the belief.
        value: maps (params, belief, index) to Q-values [num_actions].
        index: distribution of the index.
        is_linear: whether beliefs are coefficients [num_actions, index_dim + 1] and `value` is their
            product with [index, 1]; the exact loss needs it.
    """

    init: Callable[[types.PRNGKey], types.Variables]
    prior: Callable[[types.Params, types.Array], types.Belief]
    posterior: Callable[[types.Params, types.Array, types.Belief], types.Belief]
    value: Callable[[types.Params, types.Belief, types.Array], types.Array]
    index: indices.IndexDistribution
    is_linear: bool

    def belief(self, variables: types.Variables, observation: types.Array) -> types.Belief:
        """Everything about one observation that does not depend on the index."""
        prior = self.prior(variables.prior, observation)
        return self.posterior(variables.params, observation, prior)

    def apply(
        self, variables: types.Variables, observation: types.Array, index: types.Array
    ) -> types.Array:
        """Q-values [num_actions] of one observation for one index (eq. 3)."""
        return self.value(variables.params, self.belief(variables, observation), index)


def evaluate_coefficients(coefficients: types.Array, index: types.Array) -> types.Array:
    """Q-values [num_actions] of linear coefficients [num_actions, M + 1] at an index [M]."""
    values = coefficients[:, -1]
    for i in range(index.shape[-1]):
        values += coefficients[:, i] * index[i]
    return values


class _TorsoAndHead(nn.Module):
    torso: nn.Module
    head: nn.Module

    def __call__(self, observation):
        return self.head(self.torso(observation))


def make_hyper_network(
    torso: nn.Module,
    num_actions: int,
    index: indices.IndexDistribution,
    observation: types.Array,
    *,
    prior_torso: nn.Module | None = None,
    prior_scale: float = 1.0,
    posterior_scale: float = 1.0,
    prior_std: float = 1.0,
    mean_init: str = "sphere",
    num_states: int | None = None,
) -> EpistemicNetwork:
    """HyperAgent's network: a linear hypermodel on the last layer plus a fixed prior (eq. 3, 13).

    Args:
        torso: flax module that maps one observation to features [H].
        num_actions: number of actions.
        index: distribution of the index.
        observation: an example observation (its shape and type are used, not its value).
        prior_torso: the prior's own torso; by default a second draw of `torso`.
        prior_scale: factor of the fixed prior.
        posterior_scale: factor of the learnable part.
        prior_std: radius of the spheres the prior's last layer is drawn from.
        mean_init: how b and b_0 start, "sphere" or "xavier".
        num_states: with integer observations, their number. The prior is then evaluated once for
            every state and kept as a table, which is what its network would return.

    Returns:
        The network; its beliefs are coefficients [num_actions, index_dim + 1].
    """
    learnable = _TorsoAndHead(
        torso, heads.HyperLinear(num_actions, index.dim, heads.learnable_init(mean_init, prior_std))
    )
    fixed = _TorsoAndHead(
        prior_torso or torso,
        heads.HyperLinear(num_actions, index.dim, heads.prior_init(mean_init, prior_std)),
    )

    def fixed_coefficients(variables, o):
        return prior_scale * fixed.apply(variables, o)

    def init(key):
        prior = fixed.init(types.fold_in_tag(key, "prior"), observation)
        if num_states is not None:
            prior = jax.vmap(fixed_coefficients, (None, 0))(prior, jnp.arange(num_states))
        return types.Variables(
            params=learnable.init(types.fold_in_tag(key, "params"), observation)["params"], prior=prior
        )

    def prior(variables, o):
        return variables[o] if num_states is not None else fixed_coefficients(variables, o)

    def posterior(params, o, prior_belief):
        return posterior_scale * learnable.apply({"params": params}, o) + prior_belief

    def value(params, belief, index):
        del params
        return evaluate_coefficients(belief, index)

    return EpistemicNetwork(init, prior, posterior, value, index, is_linear=True)
