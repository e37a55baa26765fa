"""LMC-LSVI (Ishfaq et al., 2024) in the tabular case: value iteration by Langevin steps, warm-started.

In episode k the weights of every stage take J_k steps
    w <- w - eta grad L(w) + sqrt(2 eta T) g,    L(w) = sum over visits (r + V(x') - w)^2 + beta w^2,
with eta = 1 / (4 lambda_max) and J_k = 2 kappa_k log(4 H K d), where lambda_max and kappa_k are the largest
eigenvalue and the condition number of the stage's Gram matrix, here max(N) + beta and its ratio to min(N) + beta.
kappa_k grows with k as long as some pair is never visited, which gives the paper's O(K) per step.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import solvers


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of LMC-LSVI.

    Attributes:
        num_episodes: K of the formula for the number of Langevin steps.
        beta: regularisation of the weights, towards zero.
        sigma: the temperature T is 2 sigma^2, which makes sigma^2 / (N + beta) the variance of the weight of a
            pair with N visits, as in HyperAgent, up to the error of finite steps.
        is_stepwise: whether to take the steps one at a time, as in the published algorithm. Otherwise the
            result is sampled directly: the steps are linear, so its distribution is a known Gaussian.
    """

    num_episodes: int = 1000
    beta: float = 3.0
    sigma: float = 1.0
    is_stepwise: bool = False


class State(NamedTuple):
    """Attributes: the `statistics` of all pairs and their `weights`, [H, S, A]."""

    statistics: closed_form.Statistics
    weights: types.Array


def num_steps(config: Config, visits: types.Array, size: base.Size) -> types.Array:
    """Calculates J_k of one stage with these visits [S, A]."""
    condition = (jnp.max(visits) + config.beta) / (jnp.min(visits) + config.beta)
    log = math.log(4.0 * size.horizon * config.num_episodes * size.num_states * size.num_actions)
    return jnp.ceil(2.0 * condition * log)


def langevin(
    config: Config,
    weights: types.Array,
    targets: types.Array,
    visits: types.Array,
    steps: types.Array,
    key: types.PRNGKey,
) -> types.Array:
    """Samples the weights [S, A] of one stage after `steps` Langevin steps.

    Args:
        config: the settings.
        weights: weights before the steps.
        targets: sums of r + V(x') over the visits.
        visits: N.
        steps: number of steps.
        key: random key.
    """
    curvature = visits + config.beta
    eta = 0.25 / jnp.max(curvature)
    temperature = 2.0 * config.sigma**2
    if config.is_stepwise:

        def step(i: types.Array, w: types.Array) -> types.Array:
            g = jax.random.normal(jax.random.fold_in(key, i), w.shape)
            return w - 2.0 * eta * (curvature * w - targets) + jnp.sqrt(2.0 * eta * temperature) * g

        return jax.lax.fori_loop(0, steps.astype(jnp.int32), step, weights)
    decay = 1.0 - 2.0 * eta * curvature  # factor of the distance to the mean per step
    mean = targets / curvature
    variance = 2.0 * eta * temperature * (1.0 - decay ** (2.0 * steps)) / (1.0 - decay**2)
    return mean + decay**steps * (weights - mean) + jnp.sqrt(variance) * jax.random.normal(key, weights.shape)


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds LMC-LSVI, whose Q-values are the weights, clipped to the range of the remaining rewards."""
    most = size.horizon - jnp.arange(size.horizon, dtype=jnp.result_type(float))

    def init(key: types.PRNGKey) -> State:
        del key
        return State(closed_form.no_statistics(size.pairs), jnp.zeros(size.pairs))

    def policy(state: State, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        del rewards, key
        return base.Policy(jnp.clip(state.weights, 0.0, most[:, None, None]))

    def update(state: State, rewards: types.Array, episode: base.Episode, key: types.PRNGKey) -> State:
        statistics = base.count(state.statistics, episode)

        def backup(stage: Any, next_values: types.Array) -> types.Array:
            (visits, moves), rewards, weights, _, key = stage
            targets = visits * rewards + moves @ next_values
            return langevin(config, weights, targets, visits, num_steps(config, visits, size), key)

        def values(weights: types.Array, stage: Any) -> types.Array:
            return jnp.max(jnp.clip(weights, 0.0, stage[3]), -1)

        stages = (statistics, rewards, state.weights, most, jax.random.split(key, size.horizon))
        return State(statistics, solvers.backward_induction(backup, stages, size.num_states, values))

    return base.Agent(init, policy, update)
