"""Optimisers: Adam as the released code sets it, and the same Adam that touches only the rows it needs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyperagent_jax import types


class Adam(NamedTuple):
    """Adam with clipping by the global norm of the gradient; defaults of the released code."""

    learning_rate: float = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1.5e-4
    max_grad_norm: float = 10.0

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation for any parameters."""
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.adam(self.learning_rate, self.b1, self.b2, self.eps),
        )


class LazyAdam(Adam):
    """`Adam` for networks whose first layer is a table of rows looked up by integer states.

    Plain Adam visits every row in every update, because a row without gradient still moves: its momentum
    decays and carries it on. That motion can be summed up afterwards (`RowAdvance`), so this one brings a
    row up to date when a batch next asks for it. The result is Adam's up to rounding, and the cost of an
    update does not grow with the number of states.
    """

    @property
    def is_accurate(self) -> bool:
        """Whether the rules of `coasting_rules` are made for these decay rates."""
        return 0 < self.b1 <= 0.9 and 0.99 <= self.b2 < 1


# Beyond this many updates without gradient the momentum has decayed to nothing (0.9 ** 256 = 2e-12).
_MAX_AGE = 256
# Beyond this many updates the correction of the momentum's bias is one (0.9 ** 128 = 1e-6).
_MAX_TIME = 128


def coasting_rules(b1: float, b2: float) -> np.ndarray:
    """Two-point Gauss rules for the sums over j = 1..age that `RowAdvance` needs.

    The sum has the weights b1^j / (1 - b1^(time + j)) and a factor that is a smooth function of
    s_j = sqrt((1 - b2^(time + j)) / b2^j), so the rules are those of the weights as a measure on s.

    Returns:
        [_MAX_TIME + 1, _MAX_AGE + 1, 4]: for every time and age two nodes j (real numbers) and two weights.
    """
    j = np.arange(1.0, _MAX_AGE + 1)
    reached = np.tri(_MAX_AGE + 1, _MAX_AGE, -1)  # row `age` has ones at j <= age
    rules = []
    for time in range(_MAX_TIME + 1):
        mass = reached * b1**j / (1 - b1 ** (time + j))
        total = mass.sum(axis=1)
        mass /= np.maximum(total, 1e-30)[:, None]
        s = np.sqrt(b2**-j - b2**time)
        # The nodes are the eigenvalues of the measure's 2 x 2 Jacobi matrix, which its first three central
        # moments determine; the weights follow from the eigenvectors (Golub and Welsch).
        mean = mass @ s
        centred = s - mean[:, None]
        variance = (mass * centred**2).sum(axis=1)
        skew = (mass * centred**3).sum(axis=1) / np.maximum(variance, 1e-30)
        jacobi = np.stack([np.zeros_like(mean), *[np.sqrt(variance)] * 2, skew], axis=1).reshape(-1, 2, 2)
        nodes, vectors = np.linalg.eigh(jacobi)
        nodes = -np.log((mean[:, None] + nodes) ** 2 + b2**time) / np.log(b2)
        rules.append(np.concatenate([nodes, total[:, None] * vectors[:, 0] ** 2], axis=1))
    rules = np.stack(rules)
    rules[:, 0, :2] = 1.0  # age 0 has no weight; any node will do
    return rules.astype(np.float32)


class Rows(NamedTuple):
    """Rows under Adam; every field is [num_rows, width]."""

    value: types.Array
    mu: types.Array
    nu: types.Array


class RowAdvance:
    """Adam's steps without gradient, any number of them at once.

    Over the updates `updated + 1 .. now` Adam moves a row without gradient by
        -lr sum_j [b1^j mu / (1 - b1^(updated + j))] / [sqrt(b2^j nu / (1 - b2^(updated + j))) + eps],
    and a two-point Gauss rule gives that sum to a relative error of 1e-6 (of 3e-3 for rows last written in
    the very first updates, when the corrections of the bias still change quickly).
    """

    def __init__(self, adam: LazyAdam):
        if not adam.is_accurate:
            raise ValueError(
                f"LazyAdam needs 0 < b1 <= 0.9 and 0.99 <= b2 < 1, got {adam.b1} and {adam.b2}: use Adam"
            )
        self._adam = adam
        self._rules = coasting_rules(adam.b1, adam.b2)

    def __call__(self, rows: Rows, updated: types.Array, now: types.Array) -> Rows:
        """Brings rows that include `updated` [num_rows] updates up to update `now`, never back."""
        adam = self._adam
        log_b1, log_b2 = float(np.log(adam.b1)), float(np.log(adam.b2))
        age = jnp.maximum(now - updated, 0)
        rule = jnp.asarray(self._rules)[jnp.minimum(updated, _MAX_TIME), jnp.minimum(age, _MAX_AGE)]
        nodes, weights = rule[:, :2], adam.learning_rate * rule[:, 2:]
        time = updated[:, None].astype(jnp.float32) + nodes
        root_scale = jnp.sqrt(jnp.exp(log_b2 * nodes) / -jnp.expm1(log_b2 * time))
        root_nu = jnp.sqrt(rows.nu)
        first = root_scale[:, :1] * root_nu + adam.eps
        second = root_scale[:, 1:] * root_nu + adam.eps
        # weights[0] / first + weights[1] / second with one division
        step = (weights[:, :1] * second + weights[:, 1:] * first) / (first * second)
        decay = age[:, None].astype(jnp.float32)
        return Rows(
            rows.value - step * rows.mu, rows.mu * jnp.exp(log_b1 * decay), rows.nu * jnp.exp(log_b2 * decay)
        )

    def with_gradient(self, rows: Rows, gradient: types.Array, count: types.Array) -> Rows:
        """One Adam update of rows that are up to date, as update number `count` (the first is 1)."""
        adam = self._adam
        mu = adam.b1 * rows.mu + (1 - adam.b1) * gradient
        nu = adam.b2 * rows.nu + (1 - adam.b2) * gradient**2
        time = count.astype(jnp.float32)
        mu_scale = adam.learning_rate / -jnp.expm1(float(np.log(adam.b1)) * time)
        root_scale = jax.lax.rsqrt(-jnp.expm1(float(np.log(adam.b2)) * time))
        return Rows(rows.value - mu_scale * mu / (root_scale * jnp.sqrt(nu) + adam.eps), mu, nu)
