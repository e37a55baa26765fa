"""HyperAgent's update in closed form (section "Tabular representations"), and the theory's statements about it."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy.typing as npt

from hyperagent_jax import types


class Statistics(NamedTuple):
    """Counts for every pair.

    Attributes:
        visits: N, [..., S, A].
        moves: N P^, the number of transitions to each next state, [..., S, A, S].
    """

    visits: types.Array
    moves: types.Array


def no_statistics(shape: tuple[int, ...]) -> Statistics:
    """Returns the statistics before any episode; `shape` is that of the pairs, [..., S, A]."""
    return Statistics(jnp.zeros(shape), jnp.zeros((*shape, shape[-2])))


def bellman(
    statistics: Statistics,
    rewards: types.Array,
    noise: types.Array,
    next_values: types.Array,
    *,
    prior_mean: types.Array | float,
    beta: float,
    discount: float = 1.0,
) -> types.Array:
    """Calculates F_k Q (eq. bellman-hyperfqi), the stochastic Bellman operator.

    Args:
        statistics: statistics of the pairs [S, A].
        rewards: r, [S, A].
        noise: m~^T xi(s), [S, A].
        next_values: V_Q, [S].
        prior_mean: mu_0.
        beta: prior regularisation, sigma^2 / sigma_0^2.
        discount: gamma.
    """
    n, moves = statistics
    total = beta * prior_mean + n * rewards + discount * (moves @ next_values)
    return total / (n + beta) + noise


def perturb(m: types.Array, visits: types.Array, z: types.Array, *, sigma: float, beta: float) -> types.Array:
    """Calculates m~ after one more visit (eq. noise-incremental), in O(M).

    Args:
        m: m~ before the visit, [..., M].
        visits: N before the visit, [...].
        z: the perturbation of the new visit, [..., M].
        sigma: level of perturbation.
        beta: prior regularisation.
    """
    weight = jnp.asarray(visits + beta)[..., None]
    return (weight * m + sigma * z) / (weight + 1.0)


def perturbation_of_history(z_0: types.Array, z: types.Array, *, sigma: float, beta: float) -> types.Array:
    """Calculates m~ [M] of a pair from its history: the prior z_0 [M] and the perturbations z [N, M] of visits.

    The prior is sigma_0 z_0 with sigma_0 = sigma / sqrt(beta).
    """
    return sigma * (jnp.sum(z, 0) + math.sqrt(beta) * z_0) / (z.shape[0] + beta)


def residual_perturbation(outcomes: types.Array, z: types.Array) -> types.Array:
    """Calculates m of one pair [M] when perturbed by its own residuals: the mean of (y_i - mean y) z_i.

    It minimises the average of |(y_i - mu) z_i - m|^2, as the loss with `residual=1` and sigma=0 does, with mu the
    mean outcome. This is the multiplier bootstrap of a mean.

    Args:
        outcomes: y, what the N visits were worth, [N].
        z: their perturbations, [N, M].
    """
    return jnp.mean((outcomes - jnp.mean(outcomes))[:, None] * z, axis=0)


def residual_std(outcomes: types.Array) -> types.Array:
    """Calculates the standard deviation of m^T xi over z and xi for m of `residual_perturbation`: s / sqrt(N).

    s is the standard deviation of the N outcomes [N], so this is the standard error of their mean. It holds for
    independent z and xi with zero mean and E[(xi^T z)^2] = 1, such as z on the sphere of radius sqrt(M) and xi on
    the unit sphere.
    """
    return jnp.std(outcomes) / math.sqrt(outcomes.shape[0])


def norm_ratio(m: types.Array, visits: types.Array, *, sigma: float, beta: float) -> types.Array:
    """Calculates |m~|^2 over sigma^2 / (N + beta), which by the lemma is in [1 - epsilon, 1 + epsilon]."""
    return jnp.sum(m * m, -1) * (visits + beta) / sigma**2


def index_dim_of_lemma(
    num_pairs: int, num_episodes: int, beta: float, *, epsilon: float = 0.5, delta: float = 0.1
) -> int:
    """Calculates M(epsilon) (eq. M-selection-tabular), a dimension that is sufficient for the lemma.

    Args:
        num_pairs: |S| |A| = S H A, all pairs of all stages.
        num_episodes: K.
        beta: prior regularisation.
        epsilon: relative error of the posterior's variance.
        delta: probability that the error is ever larger, at any pair.
    """
    if not 0.0 < epsilon < 1.0 or not 0.0 < delta < 1.0:
        raise ValueError(f"epsilon and delta must be between 0 and 1, got {epsilon} and {delta}")
    logarithms = math.log(num_pairs / delta) + math.log(1.0 + num_episodes / beta)
    return math.ceil(16.0 * (1.0 + epsilon) / epsilon**2 * logarithms)


def regret_bound(
    num_states: int, num_actions: int, horizon: int, num_episodes: npt.ArrayLike, beta: float
) -> types.Array:
    """Calculates the theorem's bound on Bayesian regret; `num_episodes` may be an array."""
    s, a, h, k = num_states, num_actions, horizon, jnp.asarray(num_episodes, jnp.result_type(float))

    def log_plus(x: types.Array) -> types.Array:
        return jnp.maximum(1.0, jnp.log(x))

    return 18 * h**2 * jnp.sqrt(beta * s * a * k * log_plus(1 + s * a * h * k)) * log_plus(1 + k / (s * a))
