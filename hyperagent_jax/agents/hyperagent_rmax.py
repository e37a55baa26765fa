"""HyperAgent's uncertainty in place of R-max's counts: whatever was never tried is worth the same.

On DeepSea an agent must try almost all N^2 pairs of cell and action, N in an episode. How many episodes that takes
depends on how evenly untried pairs attract it. Where the value of an untried pair is drawn at random, by an index
or by how the network happens to generalise, some look poor and are passed by again and again, until they are all
that is left: about N log N episodes. Where all are worth the same, the nearest is tried next, and episodes are
linear in N. So this agent
- acts on, and bootstraps from, `unknown_value` where the uncertainty is still close to the prior's, and the mean
  where it is gone, so that what little is left of it does not add up along a path either;
- has a prior that is drawn for every state and action by itself, so that uncertainty is not learned away where
  nothing was tried (observations that are not integers have a network's);
- has a lower discount, so that a nearer untried pair is better by more than the error of the values;
- learns as `hyperagent_prioritized` does.
It is for environments with little randomness: one visit makes an action known. BUILD_NOTES.md has what was
measured.
"""

import dataclasses
import functools

from hyperagent_jax import types
from hyperagent_jax.agents import base
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents import hyperagent_prioritized
from hyperagent_jax.networks import epistemic


@dataclasses.dataclass(frozen=True)
class Config(hyperagent_prioritized.Config):
    """The settings of `hyperagent_prioritized`, without sampled optimism.

    Attributes:
        unknown_value: what an unknown action is taken to be worth: the largest return there is.
        known_below: an action is known when no more than this share of its prior uncertainty is left.
        unknown_above: and unknown from this share on; in between its value is on the line that joins both.
    """

    unknown_value: float = 1.0
    known_below: float = 0.2
    unknown_above: float = 0.4
    num_ois: int = 1
    independent_prior: bool = True
    discount: float = 0.985

    def __post_init__(self):
        if not self.unit_prior:
            raise ValueError("hyperagent_rmax compares uncertainties with the prior's norm: use unit_prior=True")
        if self.network not in ("last_layer", "last_layer_bias"):
            raise ValueError("hyperagent_rmax needs values that are linear in the index: use network=last_layer")
        super().__post_init__()


def make_agent(config: Config, spec: types.EnvironmentSpec) -> base.Agent:
    """Makes the agent for an environment."""
    adapt = functools.partial(
        epistemic.with_unknown_value,
        unknown_value=config.unknown_value,
        prior_norm=config.prior_scale,
        known_below=config.known_below,
        unknown_above=config.unknown_above,
    )
    return hyperagent.make_agent(config, spec, adapt)
