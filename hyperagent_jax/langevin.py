"""Optimisers that sample: Adam with Langevin noise, as optax transformations whose `update` takes a random key.

Both are from LMC-LSVI (https://arxiv.org/abs/2305.18246): an agent that is greedy with respect to the parameters
of such an optimiser explores only through its noise. Step and noise are added before they update a weight: in
float32, noise on a scale of 1e-8 would be lost if it were added to a weight separately.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyperagent_jax import checks
from hyperagent_jax import types

NOISES = ("normal", "signs")

# The step of one array, and the factor of its noise.
_DriftAndNoise = tuple[types.Array, types.Array]


class LangevinState(NamedTuple):
    """State of both optimisers.

    Attributes:
        count: number of updates so far.
        mu: first moments.
        nu: second moments.
    """

    count: types.Array  # type: ignore[assignment]  # hides tuple.count
    mu: types.Params
    nu: types.Params


class StochasticTransformation(NamedTuple):
    """An optax transformation whose update needs a random key; `learner.make_learner` gives it one.

    Attributes:
        init: maps parameters to the optimiser's state.
        update: maps (gradient, state, params, key=key) to (updates, state).
    """

    init: Callable[[types.Params], Any]
    update: Callable[..., tuple[types.Params, Any]]


def _noise_like(key: types.PRNGKey, tree: types.Params, noise: str) -> types.Params:
    """Returns independent numbers of mean 0 and variance 1 with the structure of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    draw = jax.random.normal if noise == "normal" else jax.random.rademacher
    keys = [jax.random.fold_in(key, i) for i in range(len(leaves))]
    drawn = [draw(k, leaf.shape, dtype=leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def _make(
    step: Callable[..., _DriftAndNoise],
    noise_scale: float,
    b1: float,
    b2: float,
    max_grad_norm: float,
    noise: str,
) -> StochasticTransformation:
    """Makes an optimiser from `step`, which maps (count, gradient, mu, nu) of an array to (step, noise factor)."""
    checks.real_number("noise_scale", noise_scale, 0)
    checks.one_of("noise", noise, NOISES)
    clip = optax.identity() if max_grad_norm == math.inf else optax.clip_by_global_norm(max_grad_norm)

    def init(params: types.Params) -> LangevinState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return LangevinState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.copy, zeros))

    def update(
        gradient: types.Params,
        state: LangevinState,
        params: types.Params | None = None,
        *,
        key: types.PRNGKey,
        **extra_args: Any,
    ) -> tuple[types.Params, LangevinState]:
        del params, extra_args
        gradient, _ = clip.update(gradient, clip.init(gradient))
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, gradient)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * g**2, state.nu, gradient)
        drawn = _noise_like(key, gradient, noise)

        def leaf_update(g: types.Array, m: types.Array, v: types.Array, n: types.Array) -> types.Array:
            drift, factor = step(count, g, m, v)
            return noise_scale * factor * n - drift

        return jax.tree.map(leaf_update, gradient, mu, nu, drawn), LangevinState(count, mu, nu)

    return StochasticTransformation(init, update)


def langevin_adam(
    learning_rate: float,
    noise_scale: float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    max_grad_norm: float = math.inf,
    noise: str = "normal",
) -> StochasticTransformation:
    """Makes Adam with noise that is preconditioned like its step: stochastic gradient Langevin dynamics.

    With m^ and v^ Adam's corrected moments, the step is lr m^ / (sqrt(v^) + eps) and the noise
    noise_scale sqrt(2 lr sqrt(1 - b2^t) / (1 - b1^t)) n / sqrt(sqrt(v) + eps).

    Args:
        learning_rate: lr.
        noise_scale: square root of the temperature; 0 is Adam.
        b1: decay rate of the first moment.
        b2: decay rate of the second moment.
        eps: epsilon.
        max_grad_norm: the gradient is clipped to this global norm.
        noise: n, "normal" or, cheaper, "signs" with the same mean and variance.
    """

    def step(count: types.Array, g: types.Array, m: types.Array, v: types.Array) -> _DriftAndNoise:
        del g
        correction, root = 1.0 - b1**count, jnp.sqrt(1.0 - b2**count)
        drift = learning_rate / correction * m / (jnp.sqrt(v) / root + eps)
        return drift, jnp.sqrt(2.0 * learning_rate * root / correction) / jnp.sqrt(jnp.sqrt(v) + eps)

    return _make(step, noise_scale, b1, b2, max_grad_norm, noise)


def adam_lmc(
    learning_rate: float,
    noise_scale: float,
    *,
    bias_factor: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    max_grad_norm: float = math.inf,
    noise: str = "normal",
) -> StochasticTransformation:
    """Makes adaptive Langevin Monte Carlo: a gradient step with Adam's direction as a bias, and plain noise.

    The step is lr (g + a m / (sqrt(v) + eps)), without corrections of the moments, and the noise
    noise_scale sqrt(2 lr) n. With a = 0 it is LMC-LSVI's: on a quadratic of curvature c its stationary variance is
    noise_scale^2 / (c (1 - lr c / 2)).

    Args:
        learning_rate: lr.
        noise_scale: square root of the temperature.
        bias_factor: a.
        b1: decay rate of the first moment.
        b2: decay rate of the second moment.
        eps: epsilon.
        max_grad_norm: the gradient is clipped to this global norm.
        noise: n, "normal" or, cheaper, "signs".
    """
    checks.real_number("bias_factor", bias_factor, 0)

    def step(count: types.Array, g: types.Array, m: types.Array, v: types.Array) -> _DriftAndNoise:
        del count
        drift = learning_rate * (g + bias_factor * m / (jnp.sqrt(v) + eps))
        return drift, jnp.full((), math.sqrt(2.0 * learning_rate))

    return _make(step, noise_scale, b1, b2, max_grad_norm, noise)
