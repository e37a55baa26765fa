"""Many seeds of tabular HyperAgent in one compiled call, against the same algorithm as a plain numpy loop."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import numpy_loop


@dataclasses.dataclass(frozen=True)
class Config:
    """What is run both ways.

    Attributes:
        num_seeds: seeds of the compiled call.
        num_episodes: episodes of every seed.
        num_states: S.
        num_actions: A.
        horizon: H.
        index_dim: M.
        numpy_seeds: seeds of the numpy loop, whose time per seed counts for all.
    """

    num_seeds: int = 1000
    num_episodes: int = 1000
    num_states: int = 20
    num_actions: int = 2
    horizon: int = 10
    index_dim: int = 16
    numpy_seeds: int = 10

    def __post_init__(self):
        base.check_positive(self, *(field.name for field in dataclasses.fields(self)))


def run(config: Config) -> dict[str, list[dict]]:
    """`bench`: seconds of both for the same number of seeds, and their ratio."""
    size = base.Size(config.num_states, config.num_actions, config.horizon)
    mdp = mdps.dirichlet(jax.random.key(0), *dataclasses.astuple(size), beta=3.0)
    settings = hyperagent.Config(0.01, 0.1, float(config.horizon), config.index_dim)
    agent = hyperagent.make_agent(settings, size)
    many = base.compile_many(agent, mdp, jnp.arange(config.num_seeds), config.num_episodes, base.episode_return)
    loop = lambda: [  # noqa: E731
        numpy_loop.run(settings, mdp, seed, config.num_episodes) for seed in range(config.numpy_seeds)
    ]
    rows, returns = [], []
    for name, function, seeds in (("numpy loop", loop, config.numpy_seeds), ("compiled", many, config.num_seeds)):
        begin = time.perf_counter()
        result = np.asarray(function())
        seconds = time.perf_counter() - begin
        returns.append(result[:, -100:].mean())
        rows.append({"what": name, "seeds_run": seeds, "seconds_run": seconds,
                     "seconds_for_all_seeds": seconds * config.num_seeds / seeds,
                     "us_per_episode": 1e6 * seconds / (seeds * config.num_episodes),
                     "mean_return_at_the_end": returns[-1]})
    for row in rows:
        row["times_the_numpy_loop"] = rows[0]["seconds_for_all_seeds"] / row["seconds_for_all_seeds"]
    return {"bench": rows}
