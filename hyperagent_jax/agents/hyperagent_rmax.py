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
hyperagent_optimistic.py builds an agent for all others on it.
"""

import dataclasses
import functools

import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.networks import checks
from hyperagent_jax.networks import epistemic


@dataclasses.dataclass(frozen=True)
class Config(hyperagent.Config):
    """HyperAgent's settings and those of R-max; needs unit_prior=True, as in the preset.

    Attributes:
        unknown_value: value of an unknown action: the largest possible return.
        known_below: an action is known if at most this fraction of its prior uncertainty is left.
        unknown_above: an action is unknown from this fraction upwards; in between, its value is interpolated.
    """

    unknown_value: float = 1.0
    known_below: float = 0.2
    unknown_above: float = 0.4

    def __post_init__(self) -> None:
        if not self.unit_prior:
            raise ValueError("hyperagent_rmax compares uncertainty with the prior's norm: use unit_prior=True")
        if self.network not in ("last_layer", "last_layer_bias"):
            raise ValueError("hyperagent_rmax needs a network that is linear in the index: use network=last_layer")
        super().__post_init__()
        checks.require_finite(unknown_value=self.unknown_value)


def unknown_weight(
    belief: types.Array, *, prior_norm: float, known_below: types.Array | float, unknown_above: types.Array | float
) -> types.Array:
    """Returns how unknown every action is, from 0 for known to 1, [num_actions].

    With coefficients m of an action, u = |m| / prior_norm is the fraction of its prior uncertainty that is left.

    Args:
        belief: coefficients [num_actions, M + 1].
        prior_norm: norm of the prior's coefficients, the same for all states and actions.
        known_below: an action is known up to this u.
        unknown_above: an action is unknown from this u upwards; in between, the weight is interpolated linearly.
    """
    left = jnp.sqrt(jnp.sum(belief[:, :-1] ** 2, axis=-1)) / prior_norm
    return jnp.clip((left - known_below) / (unknown_above - known_below), 0.0, 1.0)


def rmax_values(belief: types.Array, weight: types.Array, unknown_value: float) -> types.Array:
    """Returns the values of R-max (Brafman and Tennenholtz, 2002), [num_actions].

    The value of a known action is its mean, that of an unknown one the larger of its mean and unknown_value; it
    does not depend on the index. So all untried actions have the same value, however the network generalises to
    them.

    Args:
        belief: coefficients [num_actions, M + 1], the means in the last column.
        weight: how unknown every action is, from `unknown_weight`.
        unknown_value: value of an unknown action.
    """
    mean = belief[:, -1]
    return mean + weight * jnp.maximum(unknown_value - mean, 0.0)


def require_rmax(network: epistemic.EpistemicNetwork, config: Config) -> None:
    """Raises ValueError unless R-max values can be formed of a network with these settings."""
    if not network.is_linear:
        raise ValueError("unknown_value needs a network that is linear in its index")
    if not config.prior_scale > 0:
        raise ValueError(f"unknown_value needs a prior of positive norm, got prior_scale={config.prior_scale}")
    if not 0 <= config.known_below < config.unknown_above:
        raise ValueError(
            "known_below must be at least 0 and less than unknown_above, "
            f"got {config.known_below} and {config.unknown_above}"
        )


def with_rmax_values(network: epistemic.EpistemicNetwork, config: Config) -> epistemic.EpistemicNetwork:
    """Makes the values of a network that is linear in its index those of R-max."""
    require_rmax(network, config)
    limits = dict(
        prior_norm=config.prior_scale, known_below=config.known_below, unknown_above=config.unknown_above
    )

    def value(params: types.Params, belief: types.Array, index: types.Array) -> types.Array:
        del params, index
        return rmax_values(belief, unknown_weight(belief, **limits), config.unknown_value)

    return network._replace(value=value)


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Builds the agent for an environment."""
    return hyperagent.make_agent(config, spec, functools.partial(with_rmax_values, config=config))
