"""HyperAgent in closed form, with or without optimistic index sampling, and RLSVI, its counterpart."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import checks
from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import solvers

INDEX_MAPS = ("state", "episode")


@dataclasses.dataclass(frozen=True)
class PriorConfig:
    """The Gaussian belief about Bellman backups that both agents share; a practical preset.

    Attributes:
        beta: prior regularisation: the weight of the prior, counted in visits.
        sigma: level of perturbation; a pair with N visits has noise of variance sigma^2 / (N + beta).
        prior_mean: mu_0, the prior mean of an unknown pair's value.
    """

    beta: float = 3.0
    sigma: float = 1.0
    prior_mean: float = 1.0

    def __post_init__(self) -> None:
        if not self.beta > 0.0:
            raise ValueError(f"beta must be above 0, got {self.beta}")
        if not self.sigma >= 0.0:
            raise ValueError(f"sigma must be at least 0, got {self.sigma}")


@dataclasses.dataclass(frozen=True)
class Config(PriorConfig):
    """Settings of HyperAgent.

    Attributes:
        index_dim: M.
        num_ois: number of indices over which values are maximised; 1 is plain HyperAgent.
        index_map: "state" draws a separate index for every stage and state of an episode, as in the analysis;
            "episode" draws a single index.
    """

    index_dim: int = 8
    num_ois: int = 1
    index_map: str = "state"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "index_dim", "num_ois")
        if self.index_map not in INDEX_MAPS:
            raise ValueError(f"index_map must be one of {', '.join(INDEX_MAPS)}, got {self.index_map!r}")


def theory(size: base.Size, num_episodes: int, beta: float = 3.0, delta: float = 0.1) -> Config:
    """Returns the preset of the regret bound (Table "Hyper-parameters of our Tabular-HyperAgent").

    Args:
        size: size of the MDP.
        num_episodes: K.
        beta: beta of Assumption 2.
        delta: delta in M(1/2), which the paper does not specify.
    """
    if not beta >= 3.0:
        raise ValueError(f"beta must be at least 3 with the theory preset (Assumption 2), got {beta:g}")
    index_dim = closed_form.index_dim_of_lemma(math.prod(size.pairs), num_episodes, beta, epsilon=0.5, delta=delta)
    return Config(beta, sigma=math.sqrt(6.0) * size.horizon, prior_mean=float(size.horizon), index_dim=index_dim)


def plan(
    config: PriorConfig, statistics: closed_form.Statistics, rewards: types.Array, noise: types.Array
) -> types.Array:
    """Returns the Q-values [H, S, A] to which the stochastic Bellman iteration with noise [H, S, A] converges."""

    def backup(
        stage: tuple[closed_form.Statistics, types.Array, types.Array], next_values: types.Array
    ) -> types.Array:
        seen, stage_rewards, stage_noise = stage
        return closed_form.bellman(
            seen, stage_rewards, stage_noise, next_values, prior_mean=config.prior_mean, beta=config.beta
        )

    return solvers.backward_induction(backup, (statistics, rewards, noise), rewards.shape[1])


class State(NamedTuple):
    """The agent's state.

    Attributes:
        statistics: statistics of all pairs.
        m: perturbations m~ of all pairs, [H, S, A, M].
        factor: triangular root of m~ m~^T over the actions of every state, [A, A, H, S]; see `state_noise`.
    """

    statistics: closed_form.Statistics
    m: types.Array
    factor: types.Array


def triangular_root(m: types.Array) -> types.Array:
    """Calculates lower triangular L, [A, A, ...], with L L^T = m m^T for m [..., A, M], even if singular."""
    num_actions = m.shape[-2]
    gram = jnp.moveaxis(m @ jnp.swapaxes(m, -1, -2), (-2, -1), (0, 1))
    rows = [[jnp.zeros(m.shape[:-2])] * num_actions for _ in range(num_actions)]
    for j in range(num_actions):
        square = gram[j, j] - sum(x * x for x in rows[j][:j])
        # The rounding error that is left of a linearly dependent row is set to zero.
        is_new = square > 1e-5 * gram[j, j]
        rows[j][j] = jnp.where(is_new, jnp.sqrt(jnp.maximum(square, 0.0)), 0.0)
        for i in range(j + 1, num_actions):
            rest = gram[i, j] - sum(x * y for x, y in zip(rows[i][:j], rows[j][:j], strict=True))
            rows[i][j] = jnp.where(is_new, rest / jnp.where(is_new, rows[j][j], 1.0), 0.0)
    return jnp.stack([jnp.stack(row) for row in rows])


def state_noise(factor: types.Array, num_ois: int, key: types.PRNGKey) -> types.Array:
    """Samples m~^T xi_k(s), [H, S, A], with a separate index at every state; returns the largest of `num_ois`.

    Given m~, the noise at the actions of one state is Gaussian with covariance m~ m~^T, so L g with A standard
    normals g has the same distribution as m~ xi with M of them, for any M. The maximum is that of OIS (eq. OIS),
    because the mean is the same for all indices.
    """
    num_actions, _, horizon, num_states = factor.shape
    g = jax.random.normal(key, (num_ois, num_actions, horizon * num_states))
    root = factor.reshape(num_actions, num_actions, -1)
    noise = jnp.max(sum(root[:, b] * g[:, b, None] for b in range(num_actions)), 0)
    return jnp.moveaxis(noise.reshape(num_actions, horizon, num_states), 0, -1)


def episode_noise(m: types.Array, num_ois: int, key: types.PRNGKey) -> types.Array:
    """Samples m~^T xi_k, [H, S, A], with one index for all states; returns the largest of `num_ois`."""
    return jnp.max(m @ indices.gaussian(m.shape[-1]).sample(key, (num_ois,)).T, -1)


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds tabular HyperAgent, or its optimistic variant if `num_ois` is above 1."""
    sphere = indices.sphere(config.index_dim)

    def init(key: types.PRNGKey) -> State:
        m = config.sigma / math.sqrt(config.beta) * sphere.sample(key, size.pairs)
        return State(closed_form.no_statistics(size.pairs), m, triangular_root(m))

    def policy(state: State, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        if config.index_map == "state":
            noise = state_noise(state.factor, config.num_ois, key)
        else:
            noise = episode_noise(state.m, config.num_ois, key)
        return base.Policy(plan(config, state.statistics, rewards, noise))

    def update(state: State, rewards: types.Array, episode: base.Episode, key: types.PRNGKey) -> State:
        del rewards
        z = sphere.sample(key, (size.horizon,))
        # A stage is visited once per episode, so the rows of an episode are distinct.
        stages, states, _ = episode.pairs
        visits = state.statistics.visits[episode.pairs]
        new = closed_form.perturb(state.m[episode.pairs], visits, z, sigma=config.sigma, beta=config.beta)
        m = state.m.at[episode.pairs].set(new)
        factor = state.factor.at[:, :, stages, states].set(triangular_root(m[stages, states]))
        return State(base.count(state.statistics, episode), m, factor)

    return base.Agent(init, policy, update)


def make_rlsvi(config: PriorConfig, size: base.Size) -> base.Agent:
    """Builds RLSVI: the same iteration with new independent noise N(0, sigma^2 / (N + beta)) in every episode."""

    def policy(statistics: closed_form.Statistics, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        spread = config.sigma / jnp.sqrt(statistics.visits + config.beta)
        return base.Policy(plan(config, statistics, rewards, spread * jax.random.normal(key, size.pairs)))

    return base.Agent(lambda key: closed_form.no_statistics(size.pairs), policy, base.count_only)
