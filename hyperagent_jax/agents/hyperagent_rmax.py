"""R-max with HyperAgent's uncertainty in place of counts: all untried actions have the same value.

On DeepSea an agent must try almost all N^2 pairs of cell and action, N per episode. The number of episodes depends
on how evenly untried pairs attract the agent. If the value of an untried pair is random, because of an index or
because of how the network happens to generalise, the unlucky ones are skipped until only they remain: about N log
N episodes. If all have the same value, the nearest one is tried next, and the number of episodes is linear in N.
So this agent acts on, and bootstraps from, `unknown_value` where the uncertainty is still close to the prior's,
and the mean where it is small, so that small remaining uncertainties do not add up along a path. presets.py has
its other settings: a prior drawn independently for every state and action (by a network if observations are not
integers), a lower discount, and the replay of `hyperagent_prioritized`.

With sigma alone, one visit makes an action known, so `hyperagent_rmax` is for environments with little randomness.
`hyperagent_optimistic` also perturbs by the TD error (`residual`), so an action with random outcomes becomes known
only as fast as the error of their mean falls. See BUILD_NOTES.md for measurements.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import losses
from hyperagent_jax import rows
from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic

# The parameter that tracks the median fraction of prior uncertainty left at tried actions.
_TRIED_SHARE = "tried_share"


@dataclasses.dataclass(frozen=True)
class Config(hyperagent.Config):
    """HyperAgent's settings and those of R-max; needs unit_prior=True, as in the preset.

    Attributes:
        unknown_value: value of an unknown action: the largest possible return.
        known_below: an action is known if at most this fraction of its prior uncertainty is left.
        unknown_above: an action is unknown from this fraction upwards; in between, its value is interpolated.
        tried_factor: if positive, an action is also known if its fraction is at most this many times the median
            fraction over the actions in the replay, and unknown_above shifts accordingly. Uncertainty that a
            network cannot reduce does then not count as unknown.
    """

    unknown_value: float = 1.0
    known_below: float = 0.2
    unknown_above: float = 0.4
    tried_factor: float = 0.0

    def __post_init__(self) -> None:
        if not self.unit_prior:
            raise ValueError("hyperagent_rmax compares uncertainty with the prior's norm: use unit_prior=True")
        if self.network not in ("last_layer", "last_layer_bias"):
            raise ValueError("hyperagent_rmax needs a network that is linear in the index: use network=last_layer")
        super().__post_init__()
        self.require(0, "tried_factor")
        checks.require_finite(unknown_value=self.unknown_value)


def with_rmax_values(
    network: epistemic.EpistemicNetwork,
    unknown_value: float,
    *,
    prior_norm: float,
    known_below: float,
    unknown_above: float,
    tried_factor: float = 0.0,
) -> epistemic.EpistemicNetwork:
    """Makes a network's values those of R-max (Brafman and Tennenholtz, 2002), with uncertainty in place of
    counts.

    With mean mu and coefficients m of an action, u = |m| / prior_norm is the fraction of its prior uncertainty
    that is left. Its value is mu where u <= known_below, the larger of mu and unknown_value where u >=
    unknown_above, and interpolated linearly in between; it does not depend on the index. So all untried actions
    have the same value, however the network generalises to them, and the value of every tried action is its mean.

    Args:
        network: a network that is linear in its index.
        unknown_value: value of an unknown action.
        prior_norm: norm of the prior's coefficients, the same for all states and actions.
        known_below: an action is known up to this fraction.
        unknown_above: an action is unknown from this fraction upwards.
        tried_factor: see `Config`; adds a parameter to the network, which `with_tried_share` trains.
    """
    if not network.is_linear:
        raise ValueError("unknown_value needs a network that is linear in its index")
    if not prior_norm > 0:
        raise ValueError(f"unknown_value needs a prior of positive norm, got prior_scale={prior_norm}")
    if not 0 <= known_below < unknown_above:
        raise ValueError(
            f"known_below must be at least 0 and less than unknown_above, got {known_below} and {unknown_above}"
        )

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del index
        mean, low = belief[:, -1], jnp.asarray(known_below)
        if tried_factor:
            low = jnp.maximum(low, tried_factor * params[_TRIED_SHARE])
        weight = jnp.clip((_share_left(belief, prior_norm) - low) / (unknown_above - known_below), 0.0, 1.0)
        return mean + weight * jnp.maximum(unknown_value - mean, 0.0)

    if not tried_factor:
        return network._replace(value=value)

    def init(key: types.PRNGKey) -> types.Variables:
        variables = network.init(key)
        return variables._replace(params={**variables.params, _TRIED_SHARE: jnp.zeros(())})

    def posterior(params: types.Params, observation: Any, prior: types.Belief) -> types.Belief:
        inner = {name: value for name, value in params.items() if name != _TRIED_SHARE}
        return network.posterior(inner, observation, prior)

    return network._replace(value=value, init=init, posterior=posterior)


def _share_left(belief: types.Array, prior_norm: float) -> types.Array:
    """Returns the fraction of prior uncertainty left for every action, [num_actions]."""
    return jnp.sqrt(jnp.sum(belief[:, :-1] ** 2, axis=-1)) / prior_norm


def with_tried_share(loss: losses.Loss, network: epistemic.EpistemicNetwork, prior_norm: float) -> losses.Loss:
    """Adds the training of the median fraction of prior uncertainty left at tried actions.

    The parameter tracks the fractions of the transitions in a batch by gradient steps on the distance, which is
    smallest at the median: a few actions that stay uncertain because their outcomes are random do not move it.
    This changes neither the loss of a transition, which is its priority, nor any other gradient.
    """

    def tracked(apply: Callable[..., Any]) -> Callable[..., Any]:
        def apply_tracked(
            params: types.Params,
            target_params: types.Params,
            transition: types.Transition,
            prior_tm1: types.Belief,
            *others: Any,
        ) -> Any:
            result = apply(params, target_params, transition, prior_tm1, *others)
            belief = network.posterior(jax.lax.stop_gradient(params), transition.o_tm1, prior_tm1)
            share = rows.of_action(_share_left(belief, prior_norm), transition.a_tm1)
            distance = jnp.abs(params[_TRIED_SHARE] - share)  # its mean is smallest at the median
            follow = distance - jax.lax.stop_gradient(distance)  # zero with a nonzero gradient
            return (result[0] + follow, *result[1:]) if isinstance(result, tuple) else result + follow

        return apply_tracked

    with_value = None if loss.apply_with_value is None else tracked(loss.apply_with_value)
    return loss._replace(apply=tracked(loss.apply), apply_with_value=with_value)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    adapt = functools.partial(
        with_rmax_values,
        unknown_value=config.unknown_value,
        prior_norm=config.prior_scale,
        known_below=config.known_below,
        unknown_above=config.unknown_above,
        tried_factor=config.tried_factor,
    )
    if not config.tried_factor:
        return hyperagent.make_agent(config, spec, adapt)
    track = functools.partial(with_tried_share, prior_norm=config.prior_scale)
    return hyperagent.make_agent(config, spec, adapt, track)
