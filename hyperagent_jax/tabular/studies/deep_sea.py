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
        seeds_per_group: seeds vmapped together on a device; None for all on CPU and an even share per device on
            accelerators.
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
    seeds_per_group: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "num_seeds", "window")
        checks.positive(self, "seeds_per_group")
        checks.not_empty(self, "agents", "sizes")
        checks.seeds(self, "first_seed", self.num_seeds)
        agents_lib.check_names(self.agents)
        if min(self.sizes, default=0) < 1:
            raise ValueError("sizes must be whole numbers of at least 1")
        if "hyperagent" in self.agents:
            checks.not_empty(self, "index_dims", "prior_means")
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(agents_lib.Settings)}
        for changes in self.variants():
            agents_lib.Settings(**{**shared, **changes})  # checks the values

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


class _Group:
    """Seeds that are vmapped together, and how far they have come."""

    def __init__(self, settings: Config, name: str, size: int, seeds: range, device: jax.Device):
        environments = [mdps.deep_sea(size, seed) for seed in seeds]
        agent = agents_lib.AGENTS[name](settings, base.size_of(environments[0]))
        tasks = jax.vmap(base.make_task)(jax.tree.map(lambda *x: jnp.stack(x), *environments))
        keys = jax.vmap(lambda seed: prng.hash_key(jax.random.key(seed)))(jnp.asarray(seeds))
        tasks, keys = jax.device_put((tasks, keys), device)
        self._states = jax.vmap(agent.init)(keys)

        @functools.partial(jax.jit, donate_argnums=0)
        def advance(states: Any, first: int) -> tuple[Any, types.Array]:
            one = lambda task, state, key: base.advance(  # noqa: E731
                agent, task, state, key, first, _CHUNK, base.regret
            )
            return jax.vmap(one)(tasks, states, keys)

        self._advance, self._settings = advance, settings
        self._regret = np.zeros((len(seeds), 0))
        self._more: types.Array | None = None
        self.learned: list[int | None] = [None] * len(seeds)

    @property
    def is_done(self) -> bool:
        """Whether all seeds have learned or played all episodes."""
        return None not in self.learned or self._regret.shape[1] >= self._settings.num_episodes

    def dispatch(self) -> None:
        """Starts the next episodes on the device."""
        self._states, self._more = self._advance(self._states, self._regret.shape[1])

    def collect(self) -> None:
        """Waits for these episodes."""
        assert self._more is not None
        self._regret = np.concatenate([self._regret, self._more], 1)[:, : self._settings.num_episodes]
        self.learned = [first_window(x < _OPTIMAL, self._settings.window) for x in self._regret]


def _episodes_to_learn(settings: Config, name: str, size: int) -> list[int | None]:
    seeds = range(settings.first_seed, settings.first_seed + settings.num_seeds)
    groups = [
        _Group(settings, name, size, seeds[own], device)
        for own, device in base.groups(len(seeds), settings.seeds_per_group, on_cpu=len(seeds))
    ]
    while running := [group for group in groups if not group.is_done]:
        for group in running:
            group.dispatch()
        for group in running:
            group.collect()
    return sum((group.learned for group in groups), [])
