"""Fixed priors: random functions that are added to a network and never trained.

A prior is passed to a network as `prior=`. The network passes it what it needs: its torso, unless the prior has
its own, the number of actions, the dimension of the index, and the observations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import coefficients
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import torsos


class PriorInputs(NamedTuple):
    """The inputs that a network passes to its prior.

    Attributes:
        torso: the network's torso, for a prior without its own.
        num_actions: number of actions.
        index_dim: M.
        observation: an example observation.
        num_states: number of states for integer observations. The prior is then evaluated once for every state and
            stored as a table [num_states, num_actions, M + 1], with the same values. As usual in JAX, indexing
            clamps states that are out of range.
    """

    torso: Any
    num_actions: int
    index_dim: int
    observation: Any
    num_states: int | None = None


class Prior(NamedTuple):
    """A fixed prior.

    Attributes:
        build: maps PriorInputs to the coefficients that the prior adds.
        name: name of the function that built it.
    """

    build: Callable[[PriorInputs], coefficients.CoefficientFn]
    name: str


def require_prior(prior: Any) -> None:
    """Raises ValueError unless `prior` is a Prior."""
    if not isinstance(prior, Prior):
        raise ValueError(f"prior must come from hyper_prior, ensemble_prior or no_prior, got {prior!r}")


def _scaled(
    function: coefficients.CoefficientFn, scale: float, num_states: int | None
) -> coefficients.CoefficientFn:
    """Scales a prior; for integer observations, its values at all states become its parameters."""

    def scaled(params: types.Params, o: Any) -> types.Array:
        return scale * function.apply(params, o)

    if num_states is None:
        return coefficients.CoefficientFn(function.init, scaled)
    return coefficients.CoefficientFn(
        lambda key: jax.vmap(scaled, (None, 0))(function.init(key), jnp.arange(num_states)),
        lambda table, o: table[o],
    )


def _own_torso(torso: Any, inputs: PriorInputs) -> Any:
    if torso is None:
        return inputs.torso
    torsos.feature_shape(torso, inputs.observation)  # rejects incompatible torsos
    return torso


def hyper_prior(
    scale: float = 1.0,
    *,
    radius: float = 1.0,
    mean_init: str = "sphere",
    unit_norm: bool = False,
    independent: bool = False,
    torso: Any = None,
) -> Prior:
    """Returns HyperAgent's prior: a linear hypermodel on the last layer of a separate torso (eq. 13).

    Args:
        scale: factor of the prior.
        radius: radius of the spheres from which the last layer is drawn.
        mean_init: initialisation of b_0: as one vector on a "sphere", or "xavier".
        unit_norm: whether to scale the coefficients of every state and action to norm 1 and omit the mean: the
            prior sigma_0 z_0(s, a) of the tabular analysis, with sigma_0 = `scale`.
        independent: with `unit_norm` and a network's `num_states`, whether these coefficients are drawn
            independently for every state and action, as in that analysis, instead of by a network. The values of a
            network share a large component, which learning at some states removes from all of them.
        torso: the prior's torso; by default a copy of the network's torso with new random weights.
    """
    checks.require_finite(scale=scale, radius=radius)
    if independent and not unit_norm:
        raise ValueError("independent=True needs unit_norm=True: use both, or neither")
    kernel_init = heads.prior_init(mean_init, radius)

    def build(inputs: PriorInputs) -> coefficients.CoefficientFn:
        if independent and inputs.num_states is not None:
            return _independent(inputs.num_actions, inputs.index_dim, inputs.num_states, scale)
        head = heads.HyperLinear(inputs.num_actions, inputs.index_dim, kernel_init)
        prior = coefficients.with_head(_own_torso(torso, inputs), head, inputs.observation)
        if unit_norm:
            network = prior.apply
            prior = coefficients.CoefficientFn(prior.init, lambda params, o: _unit_norm(network(params, o)))
        return _scaled(prior, scale, inputs.num_states)

    return Prior(build, "hyper_prior")


def _independent(num_actions: int, index_dim: int, num_states: int, scale: float) -> coefficients.CoefficientFn:
    """Builds a prior of zero mean whose coefficients [M] are uniform on a sphere for every state and action."""

    def init(key: types.PRNGKey) -> types.Array:
        directions = indices.sphere(index_dim).sample(key, (num_states, num_actions))
        return scale * jnp.pad(directions, ((0, 0), (0, 0), (0, 1)))

    return coefficients.CoefficientFn(init, lambda table, o: table[o])


def _unit_norm(values: types.Array) -> types.Array:
    """Scales the coefficients [num_actions, M + 1] of every action to norm 1 and zero mean."""
    without_mean = values.at[:, -1].set(0.0)
    norm = jnp.linalg.norm(without_mean, axis=-1, keepdims=True)
    return without_mean / jnp.maximum(norm, 1e-20)


def ensemble_prior(scale: float = 1.0, *, torso: Any = None) -> Prior:
    """Returns a prior of one fixed random network per coordinate of the index, its weight (Ensemble+ and epinets).

    Args:
        scale: factor of the prior.
        torso: the prior's torso; by default copies of the network's torso with new random weights.
    """
    checks.require_finite(scale=scale)

    def build(inputs: PriorInputs) -> coefficients.CoefficientFn:
        members = coefficients.ensemble(
            _own_torso(torso, inputs), inputs.num_actions, inputs.index_dim, inputs.observation
        )
        return _scaled(members, scale, inputs.num_states)

    return Prior(build, "ensemble_prior")


def no_prior() -> Prior:
    """Returns the prior that is zero everywhere."""

    def build(inputs: PriorInputs) -> coefficients.CoefficientFn:
        shape = (inputs.num_actions, inputs.index_dim + 1)
        return coefficients.CoefficientFn(lambda key: (), lambda params, o: jnp.zeros(shape))

    return Prior(build, "no_prior")
