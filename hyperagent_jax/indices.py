"""Distributions of the epistemic index xi ~ P_xi and of the perturbation z ~ P_z."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checks
from hyperagent_jax import types


class IndexDistribution(NamedTuple):
    """A distribution over R^dim.

    Attributes:
        name: name in `make`.
        dim: dimension of one sample.
        mean: mean of every coordinate.
        second_moment: the constant c of E[xi xi^T] = c I, or None if the second moment is not a multiple of the
            identity.
        sample: maps (key, shape) to an array [*shape, dim].
        support: all points, equally likely, [num_points, dim]; None if they cannot be enumerated.
    """

    name: str
    dim: int
    mean: float
    second_moment: float | None
    sample: Callable[[types.PRNGKey, tuple[int, ...]], types.Array]
    support: np.ndarray | None = None

    @property
    def is_isotropic(self) -> bool:
        """Whether the expectation over the index has the exact loss's closed form."""
        return self.mean == 0.0 and self.second_moment is not None


def require_distribution(index: Any) -> None:
    """Raises ValueError unless `index` is an IndexDistribution."""
    if not isinstance(index, IndexDistribution):
        raise ValueError(f"index must be a distribution such as indices.sphere(4), got {index!r}")


def _check_dim(dim: int) -> None:
    checks.whole_number("the index dimension", dim, 1)


def gaussian(dim: int) -> IndexDistribution:
    """Makes N(0, I), the paper's reference distribution."""
    _check_dim(dim)
    return IndexDistribution("gaussian", dim, 0.0, 1.0, lambda key, shape: jax.random.normal(key, (*shape, dim)))


def truncated_gaussian(dim: int) -> IndexDistribution:
    """Makes N(0, 1) per coordinate, truncated at two standard deviations; the noise of dqn_zoo's Rainbow."""
    _check_dim(dim)
    # 1 - 2 b phi(b) / (2 Phi(b) - 1) at b = 2.
    second_moment = 1.0 - 4.0 * math.exp(-2.0) / math.sqrt(2.0 * math.pi) / math.erf(math.sqrt(2.0))
    return IndexDistribution(
        "truncated_gaussian",
        dim,
        0.0,
        second_moment,
        lambda key, shape: jax.random.truncated_normal(key, -2.0, 2.0, (*shape, dim)),
    )


def _on_sphere(key: types.PRNGKey, shape: tuple[int, ...], dim: int, radius: float) -> types.Array:
    x = jax.random.normal(key, (*shape, dim))
    return x * (radius * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, -1, keepdims=True), 1e-30)))


def sphere(dim: int) -> IndexDistribution:
    """Makes the uniform distribution on the unit sphere."""
    _check_dim(dim)
    return IndexDistribution("sphere", dim, 0.0, 1.0 / dim, lambda key, shape: _on_sphere(key, shape, dim, 1.0))


def scaled_sphere(dim: int) -> IndexDistribution:
    """Makes the uniform distribution on the sphere of radius sqrt(dim)."""
    _check_dim(dim)
    return IndexDistribution(
        "scaled_sphere", dim, 0.0, 1.0, lambda key, shape: _on_sphere(key, shape, dim, math.sqrt(dim))
    )


def cube(dim: int) -> IndexDistribution:
    """Makes the uniform distribution on the corners {-1, 1}^dim."""
    _check_dim(dim)
    return IndexDistribution(
        "cube", dim, 0.0, 1.0, lambda key, shape: jax.random.rademacher(key, (*shape, dim), jnp.float32)
    )


def unit_cube(dim: int) -> IndexDistribution:
    """Makes the uniform distribution on the corners {-1, 1}^dim / sqrt(dim), which have unit norm."""
    _check_dim(dim)
    corners = cube(dim)
    return IndexDistribution(
        "unit_cube", dim, 0.0, 1.0 / dim, lambda key, shape: corners.sample(key, shape) / math.sqrt(dim)
    )


def coordinate(dim: int) -> IndexDistribution:
    """Makes the uniform distribution on the unit vectors e_1 .. e_dim, which select a member of an ensemble."""
    _check_dim(dim)
    return IndexDistribution(
        "coordinate",
        dim,
        1.0 / dim,
        1.0 / dim,
        lambda key, shape: jax.nn.one_hot(jax.random.randint(key, shape, 0, dim), dim),
        support=np.eye(dim, dtype=np.float32),
    )


def bernoulli_mask(dim: int) -> IndexDistribution:
    """Makes independent 2 * Bernoulli(1/2) per coordinate; the bootstrap masks of ensembles."""
    _check_dim(dim)
    return IndexDistribution(
        "bernoulli_mask",
        dim,
        1.0,
        None,
        lambda key, shape: 2.0 * jax.random.bernoulli(key, 0.5, (*shape, dim)).astype(jnp.float32),
    )


def exponential_mask(dim: int) -> IndexDistribution:
    """Makes independent Exp(1) per coordinate; the weights of the Bayesian bootstrap."""
    _check_dim(dim)
    return IndexDistribution(
        "exponential_mask", dim, 1.0, None, lambda key, shape: jax.random.exponential(key, (*shape, dim))
    )


def no_index() -> IndexDistribution:
    """Makes the distribution on the only point of R^0, for networks without index."""
    return IndexDistribution("no_index", 0, 0.0, 1.0, lambda key, shape: jnp.zeros((*shape, 0)))


def zero(dim: int) -> IndexDistribution:
    """Makes the distribution on the point 0, at which a network without its own rule has its mean."""
    _check_dim(dim)
    return IndexDistribution("zero", dim, 0.0, 0.0, lambda key, shape: jnp.zeros((*shape, dim)))


DISTRIBUTIONS: dict[str, Callable[[int], IndexDistribution]] = {
    f.__name__: f
    for f in (
        gaussian,
        truncated_gaussian,
        sphere,
        scaled_sphere,
        cube,
        unit_cube,
        coordinate,
        bernoulli_mask,
        exponential_mask,
    )
}


def make(name: str, dim: int) -> IndexDistribution:
    """Makes a distribution by name."""
    checks.one_of("distribution", name, tuple(DISTRIBUTIONS))
    return DISTRIBUTIONS[name](dim)
