"""Epistemic networks: Q-values as a function of an observation and an index."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import coefficients
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos


class EpistemicNetwork(NamedTuple):
    """A network whose Q-values depend on an index; every function is for one example.

    The part that depends only on the observation (the belief) is separate from the part that depends on the index,
    so that any number of indices shares one pass through the torso.

    Attributes:
        init: maps a key to Variables(params, prior).
        prior: maps (prior, observation) to the fixed prior's belief, which never changes.
        posterior: maps (params, observation, prior belief) to the belief.
        value: maps (params, belief, index) to the Q-values [num_actions] to act on and to bootstrap from.
        index: distribution of the index.
        is_linear: whether beliefs are the coefficients [num_actions, index_dim + 1] of a function that is linear
            in the index, whose value is their product with [index, 1]; the exact loss needs this.
        observation: zeros in the shape of one observation; None if unknown.
        distribution: maps (params, belief, index) to the logits [num_actions, num_atoms] of the return
            distribution, whose mean is `value`; None for networks without one.
        atoms: the atoms of the return distribution, [num_atoms]; None likewise.
        summary: maps a belief to coefficients [..., num_actions, index_dim + 1] that say what is known of the
            values, for networks that act on something else; None for others.
        belief: method that maps (variables, observation) to the belief: `prior` and `posterior` in one call.
        coefficients: method that maps a belief to its coefficients [..., num_actions, index_dim + 1], if it has
            any.
        apply: method that maps (variables, observation, index) to Q-values [num_actions].
    """

    init: Callable[[types.PRNGKey], types.Variables]
    prior: Callable[[types.Params, Any], types.Belief]
    posterior: Callable[[types.Params, Any, types.Belief], types.Belief]
    value: Callable[[types.Params, types.Belief, types.Array], types.Array]
    index: indices.IndexDistribution  # type: ignore[assignment]  # hides tuple.index
    is_linear: bool
    observation: Any = None
    distribution: Callable[[types.Params, types.Belief, types.Array], types.Array] | None = None
    atoms: np.ndarray | None = None
    summary: Callable[[types.Belief], types.Array] | None = None

    def belief(self, variables: types.Variables, observation: Any) -> types.Belief:
        """Returns the belief of one observation, which does not depend on the index."""
        prior = self.prior(variables.prior, observation)
        return self.posterior(variables.params, observation, prior)

    def coefficients(self, belief: types.Belief) -> types.Array | None:
        """Returns the coefficients [..., num_actions, index_dim + 1] of a belief; None if it has none."""
        if self.summary is not None:
            return self.summary(belief)
        return belief if self.is_linear else None

    def apply(self, variables: types.Variables, observation: Any, index: types.Array) -> types.Array:
        """Returns the Q-values [num_actions] of one observation for one index (eq. 3)."""
        return self.value(variables.params, self.belief(variables, observation), index)


def evaluate_coefficients(coefficients: types.Array, index: types.Array) -> types.Array:
    """Returns the Q-values [num_actions] of linear coefficients [num_actions, M + 1] at an index [M]."""
    if index.shape != (coefficients.shape[-1] - 1,):
        expected = (coefficients.shape[-1] - 1,)
        raise ValueError(f"the network's index has shape {expected}, got {index.shape}")
    # M is small, and on a CPU a sum of scaled columns is fused with its neighbours, unlike a matrix product.
    values = coefficients[:, -1]
    for i in range(index.shape[-1]):
        values += coefficients[:, i] * index[i]
    return values


def init_with_prior(
    init: Callable[[types.PRNGKey], types.Params], prior: coefficients.CoefficientFn
) -> Callable[[types.PRNGKey], types.Variables]:
    """Returns the `init` of a network with a prior."""
    return lambda key: types.Variables(
        params=init(types.fold_in_tag(key, "params")), prior=prior.init(types.fold_in_tag(key, "prior"))
    )


def make_linear_network(
    learnable: coefficients.CoefficientFn,
    prior: coefficients.CoefficientFn,
    index: indices.IndexDistribution,
    posterior_scale: float = 1.0,
    observation: Any = None,
) -> EpistemicNetwork:
    """Builds a network whose Q-values are linear in the index.

    Args:
        learnable: the learnable part.
        prior: the fixed prior.
        index: distribution of the index.
        posterior_scale: factor of the learnable part.
        observation: an example observation, if known.
    """
    indices.require_distribution(index)
    checks.require_finite(posterior_scale=posterior_scale)

    def posterior(params: types.Params, o: Any, prior_belief: types.Array) -> types.Array:
        return posterior_scale * learnable.apply(params, o) + prior_belief

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del params
        return evaluate_coefficients(belief, index)

    init = init_with_prior(learnable.init, prior)
    return EpistemicNetwork(init, prior.apply, posterior, value, index, True, observation)


class NonlinearBelief(NamedTuple):
    """A belief of a network that is not linear in its index.

    Attributes:
        coefficients: the part that is linear in the index, [num_actions, M + 1].
        hidden: the state-dependent input of the nonlinear part.
    """

    coefficients: types.Array
    hidden: types.Array


def make_nonlinear_network(
    init: Callable[[types.PRNGKey], types.Params],
    prior: coefficients.CoefficientFn,
    posterior: Callable[[types.Params, Any, types.Array], NonlinearBelief],
    learnable: Callable[[types.Params, types.Array, types.Array], types.Array],
    index: indices.IndexDistribution,
    observation: Any = None,
) -> EpistemicNetwork:
    """Builds a network with a part that is not linear in the index.

    Args:
        init: maps a key to the learnable parameters.
        prior: the fixed prior.
        posterior: maps (params, observation, the prior's coefficients) to a NonlinearBelief.
        learnable: maps (params, belief.hidden, index) to the nonlinear part of the Q-values, [num_actions].
        index: distribution of the index.
        observation: an example observation, if known.
    """

    def value(params: types.Params, belief: NonlinearBelief, index: types.Array) -> types.Array:
        linear = evaluate_coefficients(belief.coefficients, index)
        return linear + learnable(params, belief.hidden, index)

    with_prior = init_with_prior(init, prior)
    return EpistemicNetwork(with_prior, prior.apply, posterior, value, index, False, observation)


def check_inputs(
    torso: Any,
    num_actions: int,
    index: indices.IndexDistribution,
    observation: Any,
    prior: priors.Prior,
    num_states: int | None,
) -> priors.PriorInputs:
    """Checks the arguments of a network, and returns the inputs of its prior."""
    checks.require_num_actions(num_actions)
    indices.require_distribution(index)
    priors.require_prior(prior)
    observation = checks.example_observation(observation, num_states)
    torsos.feature_shape(torso, observation)
    return priors.PriorInputs(torso, num_actions, index.dim, observation, num_states)


def make_hyper_network(
    torso: Any,
    num_actions: int,
    index: indices.IndexDistribution,
    observation: Any,
    *,
    prior: priors.Prior | None = None,
    head: nn.Module | None = None,
    posterior_scale: float = 1.0,
    num_states: int | None = None,
    uncertainty_torso: Any = None,
) -> EpistemicNetwork:
    """Builds HyperAgent's network: a linear hypermodel on the last layer plus a fixed prior (eq. 3, 13).

    Args:
        torso: maps one observation to features [H]: a flax.linen module or any other kind listed in torsos.py.
        num_actions: number of actions.
        index: distribution of the index.
        observation: an example observation (only its shape and dtype are used).
        prior: the fixed prior; by default `priors.hyper_prior()`.
        head: flax.linen module that maps features [H] to coefficients [num_actions, index_dim + 1]; by default
            `heads.HyperLinear(num_actions, index.dim)`.
        posterior_scale: factor of the learnable part.
        num_states: number of states for integer observations; the prior is then stored as a table.
        uncertainty_torso: a torso of its own for the coefficients that the index multiplies; the mean is then a
            plain network on `torso`, unaffected by prior and uncertainty. By default both are linear in the
            features of `torso`.

    Returns:
        The network, whose beliefs are coefficients [num_actions, index_dim + 1].
    """
    prior = priors.hyper_prior() if prior is None else prior
    inputs = check_inputs(torso, num_actions, index, observation, prior, num_states)
    head = heads.HyperLinear(num_actions, index.dim) if head is None else head
    if uncertainty_torso is None:
        learnable = coefficients.with_head(torso, head, inputs.observation)
    else:
        torsos.feature_shape(uncertainty_torso, inputs.observation)  # refuses what does not fit
        learnable = coefficients.mean_and_uncertainty(
            torso, uncertainty_torso, num_actions, index.dim, inputs.observation
        )
        inputs = inputs._replace(torso=uncertainty_torso)
    return make_linear_network(learnable, prior.build(inputs), index, posterior_scale, inputs.observation)


def make_plain_network(torso: Any, num_actions: int, observation: Any) -> EpistemicNetwork:
    """Builds a network without index and prior: a torso and a linear layer.

    Args:
        torso: maps one observation to features [H], as in `make_hyper_network`.
        num_actions: number of actions.
        observation: an example observation.
    """
    index, prior = indices.no_index(), priors.no_prior()
    inputs = check_inputs(torso, num_actions, index, observation, prior, None)
    learnable = coefficients.with_head(torso, heads.plain_linear(num_actions), inputs.observation)
    return make_linear_network(learnable, prior.build(inputs), index, observation=inputs.observation)


def make_ensemble_network(
    torso: Any,
    num_actions: int,
    num_members: int,
    observation: Any,
    *,
    prior: priors.Prior | None = None,
    num_states: int | None = None,
) -> EpistemicNetwork:
    """Builds an ensemble of separate networks; index e_i selects member i, so it is also linear in the index.

    Args:
        torso: maps one observation to features [H], as in `make_hyper_network`.
        num_actions: number of actions.
        num_members: M.
        observation: an example observation.
        prior: the fixed prior, such as `priors.ensemble_prior(30.0)`; by default none.
        num_states: number of states for integer observations; the prior is then stored as a table.
    """
    prior, index = priors.no_prior() if prior is None else prior, indices.make("coordinate", num_members)
    inputs = check_inputs(torso, num_actions, index, observation, prior, num_states)
    members = coefficients.ensemble(torso, num_actions, num_members, inputs.observation)
    return make_linear_network(members, prior.build(inputs), index, observation=inputs.observation)
