"""R-max (Brafman and Tennenholtz, 2002): actions that were tried too rarely have the largest value."""

import dataclasses

import jax.numpy as jnp

from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of R-max.

    Attributes:
        unknown_value: value of an unknown action: the largest possible return.
        min_visits: number of visits that make an action known; one if outcomes are not random.
    """

    unknown_value: float
    min_visits: int = 1

    def __post_init__(self) -> None:
        checks.positive(self, "min_visits")


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds R-max with known rewards; known actions use the observed transitions."""

    def backup(stage: tuple[types.Array, types.Array, types.Array], next_values: types.Array) -> types.Array:
        rewards, visits, moves = stage
        seen = rewards + moves @ next_values / jnp.maximum(visits, 1.0)
        return jnp.where(visits >= config.min_visits, seen, config.unknown_value)

    def policy(statistics: closed_form.Statistics, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        del key
        return base.Policy(solvers.backward_induction(backup, (rewards, *statistics), size.num_states))

    return base.Agent(lambda key: closed_form.no_statistics(size.pairs), policy, base.count_only)
