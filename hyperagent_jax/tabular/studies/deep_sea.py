"""Episodes to learn on DeepSea in the tabular case, without network, replay or gradient steps."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.tabular import agents as agents_lib
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import mdps

# Episodes between checks of whether all seeds are done.
_CHUNK = 250
# Policies with less regret than this are optimal: one useless step to the right costs more, and float32 sums
# differ by about 1e-7.
_OPTIMAL = 1e-5


@dataclasses.dataclass(frozen=True)
class Config(agents_lib.Settings):
    """Agents, sizes, and when a run counts as solved.

    Attributes:
        sizes: N of the N x N grids.
        agents: names of agents.
        index_dims: values of M for hyperagent, one line each; index_dim is for hyperagent_ois.
        prior_means: values of mu_0 for hyperagent, one line each; prior_mean is for the others.
        num_seeds: number of runs, each with its own action mapping.
        first_seed: seed of the first run.
        window: a run is solved once the policies of this many consecutive episodes are all optimal; the number of
            episodes before these is the episodes to learn.
    """

    num_episodes: int = 3000
    practical_beta: float = 1e-4
    sigma: float = 0.01
    prior_mean: str = "0"
    sizes: tuple[int, ...] = (10, 20, 30, 40, 50)
    agents: tuple[str, ...] = ("hyperagent", "hyperagent_ois", "rlsvi", "bayes_ucbvi", "rmax", "q_learning")
    index_dims: tuple[int, ...] = (1, 4)
    prior_means: tuple[str, ...] = ("0", "1")
    num_seeds: int = 5
    first_seed: int = 100
    window: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "num_seeds", "window")
        checks.not_empty(self, "agents", "sizes")
        checks.whole_number("first_seed", self.first_seed, 0)
        agents_lib.check_names(self.agents)
        if min(self.sizes, default=0) < 1:
            raise ValueError("sizes must be whole numbers of at least 1")
        for changes in self.variants():
            dataclasses.replace(self, index_dims=(), **changes)  # checks the values

    def variants(self) -> list[dict]:
        """Returns the settings that differ between the lines of hyperagent."""
        return [
            {"index_dim": index_dim, "prior_mean": prior_mean}
            for prior_mean in self.prior_means
            for index_dim in self.index_dims
        ]


def run(config: Config) -> dict[str, list[dict]]:
    """Returns the table `results`, with one row per run like those of run_deepsea.py."""
    rows = []
    for name in config.agents:
        for changes in config.variants() if name == "hyperagent" else ({},):
            settings = dataclasses.replace(config, **changes)
            for size in config.sizes:
                learned = _episodes_to_learn(settings, name, size)
                for seed, episodes in enumerate(learned, config.first_seed):
                    ran = config.num_episodes if episodes is None else episodes + config.window
                    rows.append(
                        {
                            "agent": name,
                            "size": size,
                            "seed": seed,
                            "index_dim": "",
                            "prior_mean": "",
                            **changes,
                            "solved": episodes is not None,
                            "episodes_to_learn": "" if episodes is None else episodes,
                            "interactions": ran * size,
                        }
                    )
                named = "".join(f", {key} {value}" for key, value in changes.items())
                print(f"{name}{named}, size {size}: {learned}", flush=True)
                if all(episodes is None for episodes in learned):
                    break  # it would not learn a larger size either
    return {"results": rows}


def first_window(is_optimal: np.ndarray, window: int) -> int | None:
    """Returns the start of the first `window` consecutive true values, or None."""
    total = np.concatenate([[0], np.cumsum(is_optimal)])
    starts = np.flatnonzero(total[window:] - total[:-window] == window)
    return int(starts[0]) if len(starts) else None


def _episodes_to_learn(settings: Config, name: str, size: int) -> list[int | None]:
    seeds = range(settings.first_seed, settings.first_seed + settings.num_seeds)
    environments = [mdps.deep_sea(size, seed) for seed in seeds]
    agent = agents_lib.AGENTS[name](settings, base.size_of(environments[0]))
    tasks = jax.vmap(base.make_task)(jax.tree.map(lambda *x: jnp.stack(x), *environments))
    keys = jax.vmap(lambda seed: prng.hash_key(jax.random.key(seed)))(jnp.asarray(seeds))
    states = jax.vmap(agent.init)(keys)

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(states: Any, first: int) -> tuple[Any, types.Array]:
        one = lambda task, state, key: base.advance(agent, task, state, key, first, _CHUNK, base.regret)  # noqa: E731
        return jax.vmap(one)(tasks, states, keys)

    regret = np.zeros((settings.num_seeds, 0))
    learned: list[int | None] = [None] * settings.num_seeds
    while None in learned and regret.shape[1] < settings.num_episodes:
        states, more = advance(states, regret.shape[1])
        regret = np.concatenate([regret, more], 1)[:, : settings.num_episodes]
        learned = [first_window(x < _OPTIMAL, settings.window) for x in regret]
    return learned
