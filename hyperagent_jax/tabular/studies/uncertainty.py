"""How the posterior over Q shrinks while a tabular agent learns DeepSea."""

import dataclasses

import jax
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.tabular import agents as agents_lib
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import mdps


@dataclasses.dataclass(frozen=True)
class Config(agents_lib.Settings):
    """Agents, size, and how the spread is measured.

    Attributes:
        size: N of the N x N grid.
        agents: names of agents that sample their values.
        num_samples: number of samples of Q over which to take the standard deviation.
        seed: seed of the runs and of the action mapping.
    """

    num_episodes: int = 256
    practical_beta: float = 1e-4
    sigma: float = 0.01
    prior_mean: str = "0"
    index_dim: int = 4
    size: int = 10
    agents: tuple[str, ...] = ("hyperagent", "rlsvi", "psrl")
    num_samples: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "size", "num_samples")
        checks.not_empty(self, "agents")
        checks.seeds(self, "seed")
        agents_lib.check_names(self.agents)

    @property
    def recorded(self) -> list[int]:
        """Numbers of episodes after which the spread is measured: 0, powers of two, and the last."""
        powers = [2**i for i in range(self.num_episodes.bit_length())]
        return sorted({0, *powers, self.num_episodes})


def run(config: Config) -> dict[str, list[dict]]:
    """Returns the table `results`: visits, mean and spread of the greedy value of every cell over training."""
    task = base.make_task(mdps.deep_sea(config.size, config.seed))
    key = prng.hash_key(jax.random.key(config.seed))
    rows = []
    for name in config.agents:
        agent = agents_lib.AGENTS[name](config, base.size_of(task.mdp))
        state, done = agent.init(types.fold_in_tag(key, "init")), 0
        visits = np.zeros((config.size, config.size), int)
        play = jax.jit(lambda state, k, agent=agent: base.advance(agent, task, state, key, k, 1, _states))
        values = jax.jit(
            lambda state, agent=agent: jax.vmap(lambda key: agent.policy(state, task.mdp.rewards, key).q.max(-1))(
                jax.random.split(types.fold_in_tag(key, "samples"), config.num_samples)
            )
        )
        for episodes in config.recorded:
            for k in range(done, episodes):
                state, states = play(state, k)
                visits[np.arange(config.size), np.asarray(states)[0, :-1]] += 1
            done = episodes
            sampled = np.asarray(values(state), np.float64)
            mean, spread = sampled.mean(0), sampled.std(0)
            rows += [
                {
                    "agent": name,
                    "episodes": episodes,
                    "row": row,
                    "column": column,
                    "visits": visits[row, column],
                    "mean": mean[row, column],
                    "standard_deviation": spread[row, column],
                }
                for row, column in zip(*np.tril_indices(config.size), strict=True)
            ]
    return {"results": rows}


def _states(task: base.Task, policy: base.Policy, episode: base.Episode, state: object) -> types.Array:
    """Records the states of an episode."""
    del task, policy, state
    return episode.states
