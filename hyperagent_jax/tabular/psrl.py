"""PSRL: acts optimally in an MDP drawn from the Dirichlet posterior (Assumption 2)."""

import dataclasses

from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PSRL.

    Attributes:
        beta: sum of the prior's parameters, with beta / S for each next state.
    """

    beta: float = 3.0

    def __post_init__(self) -> None:
        if not self.beta > 0.0:
            raise ValueError(f"beta must be above 0, got {self.beta}")


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds PSRL with known rewards."""

    def policy(statistics: closed_form.Statistics, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        stages = (rewards, mdps.dirichlet_rows(key, config.beta / size.num_states + statistics.moves))
        return base.Policy(solvers.backward_induction(solvers.expected_backup, stages, size.num_states))

    return base.Agent(lambda key: closed_form.no_statistics(size.pairs), policy, base.count_only)
