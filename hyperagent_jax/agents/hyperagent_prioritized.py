"""HyperAgent that learns from what is new at once: optimistic, with prioritised replay and four updates per step.

On DeepSea the paper's settings repeat for many episodes what they have just learned to be in vain, the more the
fuller the replay is: with uniform samples a transition is drawn 128 / k times in episode k, so news from the
frontier arrive at the start ever later, and episodes to learn grow faster than the size. Also, a seed is stuck for
good when an action that it must try looks bad for every index. Four settings, none of which depends on the size,
mend that:
- half of every batch is drawn in proportion to the transitions' last errors and a quarter prefers the recent;
- four updates per step, because values must travel back through as many states as an episode has steps;
- optimistic index sampling;
- a prior with mean zero and the same spread everywhere, at any size, as in the paper's analysis.
BUILD_NOTES.md has the measurements behind them.
"""

import dataclasses

from hyperagent_jax.agents import hyperagent_ois

make_agent = hyperagent_ois.make_agent


@dataclasses.dataclass(frozen=True)
class Config(hyperagent_ois.Config):
    """The settings of HyperAgent with OIS, with more and better chosen updates and an even prior."""

    updates_per_step: int = 4
    recent_fraction: float = 0.25
    priority_fraction: float = 0.5
    unit_prior: bool = True
    prior_scale: float = 0.5
