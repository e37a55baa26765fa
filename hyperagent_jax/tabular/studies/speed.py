"""Times many seeds of tabular HyperAgent, compiled and on all devices, against a loop in numpy."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import numpy_loop


@dataclasses.dataclass(frozen=True)
class Config:
    """The runs to time with both.

    Attributes:
        num_seeds: number of seeds in the compiled call.
        num_episodes: number of episodes of every seed.
        num_states: S.
        num_actions: A.
        horizon: H.
        index_dim: M.
        numpy_seeds: number of seeds in the numpy loops, whose time is extrapolated to all seeds; at most num_seeds
            are run.
    """

    num_seeds: int = 1000
    num_episodes: int = 1000
    num_states: int = 20
    num_actions: int = 2
    horizon: int = 10
    index_dim: int = 16
    numpy_seeds: int = 10

    def __post_init__(self) -> None:
        checks.counts(self, *(field.name for field in dataclasses.fields(self)))


def run(config: Config) -> dict[str, list[dict]]:
    """Returns the table `bench`: seconds of each, as run and for all seeds, and relative to the compiled call."""
    size = base.Size(config.num_states, config.num_actions, config.horizon)
    mdp = mdps.dirichlet(jax.random.key(0), size.num_states, size.num_actions, size.horizon, beta=3.0)
    settings = hyperagent.Config(0.01, 0.1, float(config.horizon), config.index_dim)
    agent = hyperagent.make_agent(settings, size)
    many = base.compile_many(agent, mdp, jnp.arange(config.num_seeds), config.num_episodes, base.episode_return)
    devices = {group.device for group in base.groups(config.num_seeds)}

    def loop(is_tuned: bool) -> list[np.ndarray]:
        return [
            numpy_loop.run(settings, mdp, seed, config.num_episodes, is_tuned=is_tuned)
            for seed in range(min(config.numpy_seeds, config.num_seeds))
        ]

    functions = {"compiled": many, "plain numpy": lambda: loop(False), "tuned numpy": lambda: loop(True)}
    rows = []
    for name, function in functions.items():
        begin = time.perf_counter()
        returns = np.asarray(function())
        seconds = time.perf_counter() - begin
        rows.append(
            {
                "what": name,
                "devices": len(devices) if name == "compiled" else 1,
                "seeds_run": len(returns),
                "seconds_run": seconds,
                "seconds_for_all_seeds": seconds * config.num_seeds / len(returns),
                "us_per_episode": 1e6 * seconds / returns.size,
                "mean_return_at_the_end": returns[:, -100:].mean(),
            }
        )
    for row in rows:
        row["times_the_compiled"] = row["us_per_episode"] / rows[0]["us_per_episode"]
    return {"bench": rows}
