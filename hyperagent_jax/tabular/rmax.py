"""R-max (Brafman and Tennenholtz, 2002): what was tried too seldom is worth more than anything else."""

import dataclasses

import jax.numpy as jnp

from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of R-max.

    Attributes:
        unknown_value: what an unknown action is worth: the largest return there is.
        min_visits: visits that make an action known; one where outcomes are not random.
    """

    unknown_value: float
    min_visits: int = 1

    def __post_init__(self):
        base.check_positive(self, "min_visits")


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """R-max with known rewards; known actions have the transitions that were seen."""

    def backup(stage, next_values):
        rewards, visits, moves = stage
        seen = rewards + moves @ next_values / jnp.maximum(visits, 1.0)
        return jnp.where(visits >= config.min_visits, seen, config.unknown_value)

    def policy(statistics, rewards, key):
        del key
        return base.Policy(solvers.backward_induction(backup, (rewards, *statistics), size.num_states))

    def update(statistics, rewards, episode, key):
        del rewards, key
        return base.count(statistics, episode)

    return base.Agent(lambda key: closed_form.no_statistics(size.pairs), policy, update)
