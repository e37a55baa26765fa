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
        value: maps (params, belief, index) to the Q-values [num_actions] to act on and to bootstrap from.
        index: distribution of the index.
        is_linear: whether beliefs are coefficients [num_actions, index_dim + 1] of a function that is linear in
            the index, their product with [index, 1]; the exact loss needs it.
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

    def apply(self, variables: types.Variables, observation: types.Array, index: types.Array) -> types.Array:
        """Q-values [num_actions] of one observation for one index (eq. 3)."""
        return self.value(variables.params, self.belief(variables, observation), index)


def evaluate_coefficients(coefficients: types.Array, index: types.Array) -> types.Array:
    """Q-values [num_actions] of linear coefficients [num_actions, M + 1] at an index [M]."""
    if index.shape != (coefficients.shape[-1] - 1,):
        expected = (coefficients.shape[-1] - 1,)
        raise ValueError(f"the network's index has the shape {expected}, not {index.shape}")
    values = coefficients[:, -1]
    for i in range(index.shape[-1]):
        values += coefficients[:, i] * index[i]
    return values


class TorsoAndHead(nn.Module):
    """Features of an observation and the output layer on them."""

    torso: nn.Module
    head: nn.Module

    def __call__(self, observation):
        return self.head(self.torso(observation))


class LinearFunction(NamedTuple):
    """A function of observation and index that is linear in the index; fixed priors are such.

    Attributes:
        init: maps a key to its parameters.
        apply: maps (parameters, observation) to coefficients [num_actions, M + 1].
    """

    init: Callable[[types.PRNGKey], types.Params]
    apply: Callable[[types.Params, types.Array], types.Array]


def _linear_function(module: nn.Module, observation: types.Array) -> LinearFunction:
    return LinearFunction(
        lambda key: module.init(key, observation)["params"],
        lambda params, o: module.apply({"params": params}, o),
    )


def _scaled_prior(function: LinearFunction, scale: float, num_states: int | None) -> LinearFunction:
    """Scales a prior; for integer observations its values at all of them become its parameters."""

    def scaled(params, o):
        return scale * function.apply(params, o)

    if num_states is None:
        return LinearFunction(function.init, scaled)
    return LinearFunction(
        lambda key: jax.vmap(scaled, (None, 0))(function.init(key), jnp.arange(num_states)),
        lambda table, o: table[o],
    )


def make_hyper_prior(
    torso: nn.Module,
    num_actions: int,
    index_dim: int,
    observation: types.Array,
    *,
    scale: float,
    std: float = 1.0,
    mean_init: str = "sphere",
    has_unit_norm: bool = False,
    is_independent: bool = False,
    num_states: int | None = None,
) -> LinearFunction:
    """HyperAgent's prior: a linear hypermodel on the last layer of a torso of its own (eq. 13).

    Args:
        torso: the prior's torso.
        num_actions: number of actions.
        index_dim: M.
        observation: an example observation.
        scale: factor of the prior.
        std: radius of the spheres the last layer is drawn from.
        mean_init: how b_0 is drawn, "sphere" or "xavier".
        has_unit_norm: whether to scale the coefficients of every state and action to norm 1 and leave out the
            mean: the prior sigma_0 z_0(s, a) of the tabular analysis, with sigma_0 = `scale`.
        is_independent: whether these coefficients are drawn by themselves for every integer state and action, as
            there, instead of by a network, whose values have a large part in common: learning at some states
            takes that part away from all.
        num_states: with integer observations, their number. The prior is then evaluated once for
            every state and kept as a table, which is what its network would return.
    """
    if is_independent and num_states is not None:
        return _make_independent_prior(num_actions, index_dim, num_states, scale)
    network = TorsoAndHead(torso, heads.HyperLinear(num_actions, index_dim, heads.prior_init(mean_init, std)))
    prior = _linear_function(network, observation)
    if has_unit_norm:
        prior = LinearFunction(prior.init, lambda params, o: _with_unit_norm(network.apply({"params": params}, o)))
    return _scaled_prior(prior, scale, num_states)


def _make_independent_prior(num_actions: int, index_dim: int, num_states: int, scale: float) -> LinearFunction:
    """A prior without mean whose coefficients [M] are uniform on a sphere for every state and action."""

    def init(key):
        directions = indices.sphere(index_dim).sample(key, (num_states, num_actions))
        return scale * jnp.pad(directions, ((0, 0), (0, 0), (0, 1)))

    return LinearFunction(init, lambda table, o: table[o])


def _with_unit_norm(coefficients: types.Array) -> types.Array:
    """Scales the coefficients [num_actions, M + 1] of every action to norm 1, without a mean."""
    without_mean = coefficients.at[:, -1].set(0.0)
    norm = jnp.linalg.norm(without_mean, axis=-1, keepdims=True)
    return without_mean / jnp.maximum(norm, 1e-20)


def _make_ensemble(
    torso: nn.Module, num_actions: int, num_members: int, observation: types.Array
) -> LinearFunction:
    """Separate plain networks, one per coordinate of the index; parameters have a leading axis of members."""
    member = _linear_function(TorsoAndHead(torso, heads.plain_linear(num_actions)), observation)

    def init(key):
        return jax.vmap(member.init)(jax.random.split(key, num_members))

    def apply(params, o):
        values = jax.vmap(lambda p: member.apply(p, o)[:, 0], out_axes=1)(params)
        return jnp.pad(values, ((0, 0), (0, 1)))

    return LinearFunction(init, apply)


def make_ensemble_prior(
    torso: nn.Module,
    num_actions: int,
    index_dim: int,
    observation: types.Array,
    *,
    scale: float,
    num_states: int | None = None,
) -> LinearFunction:
    """One fixed random network per coordinate of the index, weighted by it (Ensemble+ and epinets)."""
    return _scaled_prior(_make_ensemble(torso, num_actions, index_dim, observation), scale, num_states)


def no_prior(num_actions: int, index_dim: int) -> LinearFunction:
    """The prior that is zero everywhere."""
    return LinearFunction(lambda key: (), lambda params, o: jnp.zeros((num_actions, index_dim + 1)))


def make_linear_network(
    learnable: LinearFunction,
    prior: LinearFunction,
    index: indices.IndexDistribution,
    posterior_scale: float = 1.0,
) -> EpistemicNetwork:
    """A network whose Q-values are linear in the index.

    Args:
        learnable: the learnable part.
        prior: the fixed prior.
        index: distribution of the index.
        posterior_scale: factor of the learnable part.
    """

    def posterior(params, o, prior_belief):
        return posterior_scale * learnable.apply(params, o) + prior_belief

    def value(params, belief, index):
        del params
        return evaluate_coefficients(belief, index)

    init = with_prior(learnable.init, prior)
    return EpistemicNetwork(init, prior.apply, posterior, value, index, is_linear=True)


def with_unknown_value(
    network: EpistemicNetwork, unknown_value: float, *, prior_norm: float, known_below: float, unknown_above: float
) -> EpistemicNetwork:
    """R-max (Brafman and Tennenholtz, 2002) with a hypermodel's uncertainty in place of counts.

    With mean mu and coefficients m of an action, u = |m| / prior_norm is the share of its prior uncertainty that
    is left. Its value is mu where u <= known_below, the larger of mu and unknown_value where u >= unknown_above,
    and in between on the line that joins them; no index changes it. So all actions that were never tried are worth
    the same, however the network generalises to them, and all that were tried what is known of them.

    Args:
        network: a network that is linear in its index.
        unknown_value: what an unknown action is worth.
        prior_norm: norm of the prior's coefficients, the same for all states and actions.
        known_below: up to this share an action is known.
        unknown_above: from this share on it is unknown.
    """
    if not network.is_linear:
        raise ValueError("unknown_value needs a network that is linear in its index")
    if not prior_norm > 0:
        raise ValueError(f"unknown_value needs a prior that tells what is unknown, got the scale {prior_norm}")
    if not 0 <= known_below < unknown_above:
        raise ValueError(
            f"known_below must be at least 0 and less than unknown_above, got {known_below} and {unknown_above}"
        )

    def value(params, belief, index):
        del params, index
        mean = belief[:, -1]
        left = jnp.sqrt(jnp.sum(belief[:, :-1] ** 2, axis=-1)) / prior_norm
        weight = jnp.clip((left - known_below) / (unknown_above - known_below), 0.0, 1.0)
        return mean + weight * jnp.maximum(unknown_value - mean, 0.0)

    return network._replace(value=value)


def with_prior(
    init: Callable[[types.PRNGKey], types.Params], prior: LinearFunction
) -> Callable[[types.PRNGKey], types.Variables]:
    """The `init` of a network with a prior."""
    return lambda key: types.Variables(
        params=init(types.fold_in_tag(key, "params")), prior=prior.init(types.fold_in_tag(key, "prior"))
    )


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
    has_unit_prior: bool = False,
    has_independent_prior: bool = False,
    has_bias: bool = False,
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
        has_unit_prior: whether the prior has mean zero and coefficients of norm `prior_scale` everywhere.
        has_independent_prior: whether, for integer observations, they are drawn without a network.
        has_bias: HyperDQN's form: the last layer's bias is generated too, from zero on, and the learnable
            hypermodel starts as HyperDQN's.
        num_states: with integer observations, their number; the prior is then kept as a table.

    Returns:
        The network; its beliefs are coefficients [num_actions, index_dim + 1].
    """
    if has_bias:
        head = heads.HyperLinear(num_actions, index.dim, heads.hyperdqn_init, nn.initializers.zeros)
    else:
        head = heads.HyperLinear(num_actions, index.dim, heads.learnable_init(mean_init, prior_std))
    prior = make_hyper_prior(
        prior_torso or torso,
        num_actions,
        index.dim,
        observation,
        scale=prior_scale,
        std=prior_std,
        mean_init=mean_init,
        has_unit_norm=has_unit_prior,
        is_independent=has_independent_prior,
        num_states=num_states,
    )
    learnable = _linear_function(TorsoAndHead(torso, head), observation)
    return make_linear_network(learnable, prior, index, posterior_scale)


def make_plain_network(torso: nn.Module, num_actions: int, observation: types.Array) -> EpistemicNetwork:
    """A network without index and prior: a torso and a linear layer."""
    learnable = _linear_function(TorsoAndHead(torso, heads.plain_linear(num_actions)), observation)
    return make_linear_network(learnable, no_prior(num_actions, 0), indices.no_index())


def make_ensemble_network(
    torso: nn.Module,
    num_actions: int,
    num_members: int,
    observation: types.Array,
    *,
    prior_scale: float = 0.0,
    num_states: int | None = None,
) -> EpistemicNetwork:
    """An ensemble of whole networks; the index e_i chooses member i, so it is linear in the index too.

    Args:
        torso: flax module that maps one observation to features.
        num_actions: number of actions.
        num_members: M.
        observation: an example observation.
        prior_scale: factor of every member's own fixed prior network; 0 for no priors.
        num_states: with integer observations, their number; the prior is then kept as a table.
    """
    ensemble = _make_ensemble(torso, num_actions, num_members, observation)
    prior = no_prior(num_actions, num_members)
    if prior_scale:
        prior = make_ensemble_prior(
            torso, num_actions, num_members, observation, scale=prior_scale, num_states=num_states
        )
    return make_linear_network(ensemble, prior, indices.coordinate(num_members))
