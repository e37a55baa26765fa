"""Tests the lemma of incremental posterior approximation in runs that depend on the perturbations themselves."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import mdps


@dataclasses.dataclass(frozen=True)
class Config:
    """How to compare |m~|^2 with (1 +- epsilon) sigma^2 / (N + beta).

    Attributes:
        num_states: S of the Dirichlet MDPs.
        num_actions: A.
        horizon: H.
        num_episodes: K.
        num_seeds: number of runs, each in its own MDP.
        beta: beta of Assumption 2.
        sigma: level of perturbation; it affects the visited pairs but not the ratio.
        epsilon: relative error that the lemma allows.
        delta: probability of a larger error that the lemma allows.
        index_dims: values of M to try besides the bound; by default powers of two.
        seeds_per_group: seeds vmapped together on a device; None for 32 on CPU and an even share per device on
            accelerators.
    """

    num_states: int = 4
    num_actions: int = 2
    horizon: int = 4
    num_episodes: int = 500
    num_seeds: int = 200
    beta: float = 3.0
    sigma: float = 0.5
    epsilon: float = 0.5
    delta: float = 0.1
    index_dims: tuple[int, ...] = ()
    seeds_per_group: int | None = None

    def __post_init__(self) -> None:
        checks.finite(self)
        checks.counts(self, "num_states", "num_actions", "horizon", "num_episodes", "num_seeds")
        checks.positive(self, "seeds_per_group")
        checks.real_number("beta", self.beta, 0.0, is_open=True)
        checks.real_number("epsilon", self.epsilon, 0.0, is_open=True)
        checks.real_number("delta", self.delta, 0.0, 1.0, is_open=True)
        for index_dim in (self.bound, *self.index_dims):
            hyperagent.Config(self.beta, self.sigma, index_dim=index_dim)

    @property
    def size(self) -> base.Size:
        """The numbers of states, actions and stages."""
        return base.Size(self.num_states, self.num_actions, self.horizon)

    @property
    def bound(self) -> int:
        """M(epsilon)."""
        return closed_form.index_dim_of_lemma(
            math.prod(self.size.pairs), self.num_episodes, self.beta, epsilon=self.epsilon, delta=self.delta
        )


def run(config: Config) -> dict[str, list[dict]]:
    """Returns `results`: how often the lemma's event fails, by M; `curve`: |m~|^2 (N + beta) / sigma^2 by N."""
    keys = jax.random.split(jax.random.key(0), config.num_seeds)
    environments = jax.vmap(
        lambda key: mdps.dirichlet(key, config.num_states, config.num_actions, config.horizon, config.beta)
    )(keys)
    # Powers of two, except one that would almost equal the bound.
    powers = itertools.takewhile(lambda m: 1.5 * m < config.bound, (2**i for i in itertools.count()))
    tried = config.index_dims or powers
    results, curve = [], []
    for index_dim in (*tried, config.bound):
        visits, ratios = _ratios(config, index_dim, environments)
        is_failed = np.any(np.abs(ratios - 1.0) >= config.epsilon, (1, 2))
        results.append(
            {
                "index_dim": index_dim,
                "is_bound": index_dim == config.bound,
                "seeds": config.num_seeds,
                "failures": int(is_failed.sum()),
                "failure_frequency": is_failed.mean(),
                "smallest_ratio": ratios.min(),
                "largest_ratio": ratios.max(),
            }
        )
        for n in np.unique(np.geomspace(1, config.num_episodes, 25).round()):
            here = ratios[visits == n]
            if len(here) >= 50:
                low, median, high = np.quantile(here, [0.01, 0.5, 0.99])
                curve.append(
                    {
                        "index_dim": index_dim,
                        "visits": int(n),
                        "pairs": len(here),
                        "quantile_01": low,
                        "median": median,
                        "quantile_99": high,
                    }
                )
    return {"results": results, "curve": curve}


def _ratios(config: Config, index_dim: int, environments: mdps.FiniteMdp) -> tuple[np.ndarray, np.ndarray]:
    """Returns visits and ratios after every episode of the pairs it visited, [num_seeds, K, H]."""
    prior = hyperagent.Config(config.beta, config.sigma, float(config.horizon), index_dim)

    def record(
        task: base.Task, policy: base.Policy, episode: base.Episode, state: hyperagent.State
    ) -> tuple[types.Array, types.Array]:
        del task, policy
        visits = state.statistics.visits[episode.pairs]
        m = state.m[episode.pairs]
        return visits, closed_form.norm_ratio(m, visits, sigma=config.sigma, beta=config.beta)

    agent = hyperagent.make_agent(prior, config.size)
    seeds = jnp.arange(config.num_seeds)
    return base.run_many(
        agent, environments, seeds, config.num_episodes, record, seeds_per_group=config.seeds_per_group
    )
