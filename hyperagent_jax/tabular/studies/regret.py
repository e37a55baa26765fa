"""Bayesian regret of all agents with the theorem's bound, and the cost of a step by number of episodes."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import prng
from hyperagent_jax import timing
from hyperagent_jax import types
from hyperagent_jax.tabular import agents as agents_lib
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import lmc_lsvi
from hyperagent_jax.tabular import mdps

DIRICHLET = "dirichlet"
RIVER_SWIM = "river_swim"
# Episodes per compiled call in measurements of cost.
_PER_CALL = 10


@dataclasses.dataclass(frozen=True)
class Config(agents_lib.Settings):
    """Agents, environments and the lengths of their runs.

    Attributes:
        environments: "dirichlet" (an MDP of Assumption 2 for every seed), "river_swim", or npz files with the
            arrays transitions [H, S, A, S], rewards [H, S, A] and start [S].
        agents: names of agents.
        num_seeds: number of runs of each agent in each environment.
        first_seed: seed of the first run.
        num_states: S of the Dirichlet MDPs.
        num_actions: A of the Dirichlet MDPs.
        horizon: H of the Dirichlet MDPs.
        cost_episodes: numbers of episodes after which the cost of a step is measured.
        seeds_per_group: seeds vmapped together on a device; None for 32 on CPU and an even share per device on
            accelerators.
    """

    environments: tuple[str, ...] = (DIRICHLET, RIVER_SWIM)
    agents: tuple[str, ...] = tuple(agents_lib.AGENTS)
    num_seeds: int = 30
    first_seed: int = 100
    num_states: int = 6
    num_actions: int = 3
    horizon: int = 6
    cost_episodes: tuple[int, ...] = (10, 100, 1000, 3000)
    seeds_per_group: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "num_seeds", "num_states", "num_actions", "horizon")
        checks.positive(self, "seeds_per_group")
        checks.not_empty(self, "agents", "environments")
        checks.seeds(self, "first_seed", self.num_seeds)
        if min(self.cost_episodes, default=1) < 1:
            raise ValueError(f"cost_episodes must be at least 1, got {min(self.cost_episodes)}")
        agents_lib.check_names(self.agents)
        for name in self.agents:
            # The theory preset rejects some sizes; others hold arrays that may be larger than the memory.
            size = self.size if name == "hyperagent_theory" else base.Size(1, 1, 1)
            agents_lib.AGENTS[name](self, size)
        for name in self.environments:
            if name not in (DIRICHLET, RIVER_SWIM):
                try:
                    mdps.load(name)
                except ValueError as error:
                    raise ValueError(f"environments: {error}") from error

    @property
    def size(self) -> base.Size:
        """The size of the Dirichlet MDPs."""
        return base.Size(self.num_states, self.num_actions, self.horizon)


def run(config: Config) -> dict[str, list[dict]]:
    """Returns `results`: regret of every seed; `curve`: its mean by episode; `bench`: the cost of a step."""
    seeds = config.first_seed + jnp.arange(config.num_seeds)
    episodes = np.unique(np.geomspace(1, config.num_episodes, 60).round().astype(int))
    results, curve = [], []
    for environment in config.environments:
        mdp, size = _environment(config, environment, seeds)
        if environment == DIRICHLET:
            bound = closed_form.regret_bound(
                size.num_states, size.num_actions, size.horizon, episodes, config.beta
            )
            for name, most in (("theorem", bound), ("most", size.horizon * episodes)):
                curve += [_point(environment, name, int(k), float(x)) for k, x in zip(episodes, most, strict=True)]
        for name in config.agents:
            agent = agents_lib.AGENTS[name](config, size)
            regret = base.run_many(
                agent, mdp, seeds, config.num_episodes, seeds_per_group=config.seeds_per_group
            ).astype(np.float64)
            total = regret.cumsum(1)
            error = total.std(0, ddof=1) / np.sqrt(len(total)) if len(total) > 1 else np.zeros(config.num_episodes)
            curve += [_point(environment, name, int(k), total[:, k - 1].mean(), error[k - 1]) for k in episodes]
            last = regret[:, -max(1, config.num_episodes // 10) :].mean(1)
            results += [
                {"environment": environment, "agent": name, "seed": int(seed), "regret": x, "last_tenth": y}
                for seed, x, y in zip(seeds, total[:, -1], last, strict=True)
            ]
            print(
                f"{environment}, {name}: regret {total[:, -1].mean():.1f} after {config.num_episodes} episodes, "
                f"{last.mean():.3f} per episode in the last tenth",
                flush=True,
            )
    return {"results": results, "curve": curve, "bench": _costs(config)}


def _point(environment: str, agent: str, episode: int, regret: float, error: float = 0.0) -> dict[str, Any]:
    return {
        "environment": environment,
        "agent": agent,
        "episode": episode,
        "regret": regret,
        "standard_error": error,
    }


def _dirichlet(config: Config, seed: types.Array | int) -> mdps.FiniteMdp:
    return mdps.dirichlet(jax.random.key(seed), config.num_states, config.num_actions, config.horizon, config.beta)


def _environment(config: Config, name: str, seeds: types.Array) -> tuple[mdps.FiniteMdp, base.Size]:
    if name == DIRICHLET:
        return jax.vmap(lambda seed: _dirichlet(config, seed))(seeds), config.size
    mdp = mdps.river_swim() if name == RIVER_SWIM else mdps.load(name)
    return mdp, base.size_of(mdp)


def _costs(config: Config) -> list[dict]:
    """Measures microseconds per step, acting and learning, of one seed on a Dirichlet MDP after many episodes.

    The settings have K equal to that number of episodes, on which hyperagent_theory's M and lmc_lsvi's number of
    Langevin steps depend.
    """
    task = base.make_task(_dirichlet(config, 0))
    key = prng.hash_key(jax.random.key(0))

    def compiled(agent: base.Agent, num_episodes: int) -> Callable[[Any, int], tuple[Any, Any]]:
        record = base.episode_return
        return jax.jit(lambda state, k: base.advance(agent, task, state, key, k, num_episodes, record))

    rows = []
    for name in config.agents:
        learn = None
        for num_episodes in sorted(config.cost_episodes):
            settings = dataclasses.replace(config, num_episodes=num_episodes)
            if learn is None or name in ("hyperagent_theory", "lmc_lsvi"):
                agent = agents_lib.AGENTS[name](settings, config.size)
                learn, per_call, done, state = compiled(agent, _PER_CALL), _PER_CALL, 0, agent.init(key)
                timed = learn
            while done < num_episodes:
                state, _ = learn(state, done)
                done += _PER_CALL
            if name == "lmc_lsvi":  # timed as published: one Langevin step after the other
                steps = lmc_lsvi.Config(num_episodes, 1.0, config.lmc_sigma, is_stepwise=True)
                timed, per_call = compiled(lmc_lsvi.make_agent(steps, config.size), 1), 1
            seconds = timing.fastest(functools.partial(timed, state, done), seconds=0.5)
            rows.append(
                {"agent": name, "episodes": num_episodes, "step_us": 1e6 * seconds / (per_call * config.horizon)}
            )
    return rows
