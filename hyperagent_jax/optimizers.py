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
    decays and carries it on. That motion has a closed form up to a short sum (`RowAdvance`), so this one
    brings a row up to date when a batch next asks for it. The result is Adam's up to float rounding; the
    cost of an update no longer grows with the number of states.
    """


# Beyond this many updates without gradient the momentum has decayed to nothing (0.9 ** 256 = 2e-12).
_MAX_AGE = 256
_NUM_NODES = 3


def _momentum_quadrature(b1: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss rules for the sums over j = 1..k of b1**j f(j), for every k up to _MAX_AGE.

    Returns:
        nodes [_MAX_AGE + 1, _NUM_NODES] and weights of the same shape. The rule of age k is exact for
        polynomials f of degree 2 * _NUM_NODES - 1, and for any f when k <= _NUM_NODES.
    """
    nodes = np.ones((_MAX_AGE + 1, _NUM_NODES))
    weights = np.zeros((_MAX_AGE + 1, _NUM_NODES))
    for age in range(1, _MAX_AGE + 1):
        j = np.arange(1, age + 1, dtype=np.float64)
        mass = b1**j
        size = min(age, _NUM_NODES)
        # Lanczos on diag(j) started at sqrt(mass) gives the Jacobi matrix of the measure, whose
        # eigenvalues are the nodes (Golub and Welsch).
        basis = [np.sqrt(mass / mass.sum())]
        alpha, beta = [], []
        for i in range(size):
            w = j * basis[-1]
            alpha.append(basis[-1] @ w)
            for q in basis + basis:  # twice: full reorthogonalisation
                w = w - (q @ w) * q
            if i + 1 < size:
                beta.append(np.linalg.norm(w))
                basis.append(w / beta[-1])
        jacobi = np.diag(alpha) + np.diag(beta, 1) + np.diag(beta, -1)
        eigenvalues, vectors = np.linalg.eigh(jacobi)
        nodes[age, :size] = eigenvalues
        weights[age, :size] = mass.sum() * vectors[0] ** 2
    return nodes.astype(np.float32), weights.astype(np.float32)


class Rows(NamedTuple):
    """Rows under Adam; every field is [num_rows, width]."""

    value: types.Array
    mu: types.Array
    nu: types.Array


class RowAdvance:
    """Adam's steps without gradient, any number of them at once.

    Over the updates `updated + 1 .. now` Adam moves a row without gradient by
        -lr sum_j [b1^j mu / (1 - b1^(updated + j))] / [sqrt(b2^j nu / (1 - b2^(updated + j))) + eps].
    Everything but b1^j varies slowly with j, so a three-point Gauss rule for the weights b1^j gives the
    sum to float precision.
    """

    def __init__(self, adam: Adam):
        self._adam = adam
        self._nodes, self._weights = _momentum_quadrature(adam.b1)

    def __call__(self, rows: Rows, updated: types.Array, now: types.Array) -> Rows:
        """Brings rows that include `updated` [num_rows] updates up to update `now`, never back."""
        adam = self._adam
        log_b1, log_b2 = float(np.log(adam.b1)), float(np.log(adam.b2))
        age = jnp.maximum(now - updated, 0)
        bounded = jnp.minimum(age, _MAX_AGE)
        nodes, weights = jnp.asarray(self._nodes)[bounded], jnp.asarray(self._weights)[bounded]
        time = updated[:, None].astype(jnp.float32) + nodes
        scale = adam.learning_rate * weights / -jnp.expm1(log_b1 * time)
        root_scale = jnp.sqrt(jnp.exp(log_b2 * nodes) / -jnp.expm1(log_b2 * time))
        root_nu = jnp.sqrt(rows.nu)
        step = sum(
            scale[:, i, None] / (root_scale[:, i, None] * root_nu + adam.eps) for i in range(_NUM_NODES)
        )
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
