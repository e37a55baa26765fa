"""Tests of the index and perturbation distributions."""

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from hyperagent_jax import indices

NUM_SAMPLES = 100_000

# name -> dimension -> (mean of a coordinate, E[xi_i^2], E[xi_i xi_j]), from each distribution's definition.
MOMENTS = {
    "gaussian": lambda dim: (0.0, 1.0, 0.0),
    "sphere": lambda dim: (0.0, 1.0 / dim, 0.0),
    "scaled_sphere": lambda dim: (0.0, 1.0, 0.0),
    "cube": lambda dim: (0.0, 1.0, 0.0),
    "unit_cube": lambda dim: (0.0, 1.0 / dim, 0.0),
    "coordinate": lambda dim: (1.0 / dim, 1.0 / dim, 0.0),
    "bernoulli_mask": lambda dim: (1.0, 2.0, 1.0),
    "exponential_mask": lambda dim: (1.0, 2.0, 1.0),
    # The second moment of N(0, 1) truncated at +-2: 1 - 4 phi(2) / (2 Phi(2) - 1).
    "truncated_gaussian": lambda dim: (0.0, 0.7737413035499232, 0.0),
}


def draw(name, dim, num_samples=NUM_SAMPLES, seed=0):
    """Samples in float64, [num_samples, dim]."""
    samples = indices.make(name, dim).sample(jax.random.key(seed), (num_samples,))
    return np.asarray(samples, np.float64)


def assert_mean(samples, expected):
    """Checks means over axis 0 to 5 standard errors, plus 1e-6 for the rounding of constant entries."""
    tolerance = 5 * samples.std(axis=0) / np.sqrt(len(samples)) + 1e-6
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - expected), tolerance)


def test_every_distribution_is_covered():
    assert set(MOMENTS) == set(indices.DISTRIBUTIONS)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_second_moment(name, dim):
    mean, square, product = MOMENTS[name](dim)
    samples = draw(name, dim)
    assert samples.shape == (NUM_SAMPLES, dim)
    assert_mean(samples, mean)
    products = samples[:, :, None] * samples[:, None, :]
    assert_mean(products, np.where(np.eye(dim), square, product))


@pytest.mark.parametrize("name", MOMENTS)
def test_declared_moments(name):
    for dim in (1, 3, 8):
        mean, square, product = MOMENTS[name](dim)
        distribution = indices.make(name, dim)
        assert (distribution.name, distribution.dim) == (name, dim)
        assert distribution.mean == mean
        if product == 0.0:
            assert distribution.second_moment == pytest.approx(square, rel=1e-12)
        else:
            assert distribution.second_moment is None
        assert distribution.is_isotropic == (mean == 0.0 and product == 0.0)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("name, radius", [("sphere", lambda d: 1.0), ("scaled_sphere", np.sqrt)])
def test_spheres_have_one_radius(name, radius, dim):
    norms = np.linalg.norm(draw(name, dim, 2_000), axis=1)
    np.testing.assert_allclose(norms, radius(dim), rtol=1e-6)


def test_the_circle_is_uniform():
    # Uniform angles: the first eight Fourier coefficients vanish. A normalised cube, for one, has a fourth.
    x = draw("sphere", 2)
    angles = np.arctan2(x[:, 1], x[:, 0])
    waves = np.outer(angles, np.arange(1, 9))
    assert_mean(np.concatenate([np.cos(waves), np.sin(waves)], axis=1), 0.0)


def test_gaussian_kurtosis():
    x = draw("gaussian", 2)
    assert_mean(x**4, 3.0)


@pytest.mark.parametrize("name, corner", [("cube", 1.0), ("unit_cube", 0.5)])
def test_cubes_are_all_their_corners(name, corner):
    samples = draw(name, 4, 2_000)
    np.testing.assert_array_equal(np.abs(samples), corner)
    assert len(np.unique(samples, axis=0)) == 16


def test_coordinates_are_one_hot_and_uniform():
    samples = draw("coordinate", 5)
    np.testing.assert_array_equal(samples.sum(axis=1), 1.0)
    assert set(np.unique(samples)) == {0.0, 1.0}
    counts = samples.sum(axis=0)
    chi_square = np.sum((counts - NUM_SAMPLES / 5) ** 2) / (NUM_SAMPLES / 5)
    assert chi_square < 18.5  # 0.999 quantile with 4 degrees of freedom


def test_masks_are_zero_or_two():
    assert set(np.unique(draw("bernoulli_mask", 3, 2_000))) == {0.0, 2.0}


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_shape_and_type(name, shape):
    samples = indices.make(name, 4).sample(jax.random.key(0), shape)
    assert samples.shape == (*shape, 4)
    assert samples.dtype == np.float32


@pytest.mark.parametrize("name", MOMENTS)
def test_keys_decide_the_samples(name):
    np.testing.assert_array_equal(draw(name, 4, 50), draw(name, 4, 50))
    assert np.any(draw(name, 4, 50, seed=0) != draw(name, 4, 50, seed=1))


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown distribution 'normal'.*gaussian.*bernoulli_mask"):
        indices.make("normal", 4)


@pytest.mark.parametrize("dim", [0, -1])
def test_dimension_must_be_positive(dim):
    with pytest.raises(ValueError, match=f"dimension must be at least 1, got {dim}"):
        indices.make("sphere", dim)


def test_supports():
    np.testing.assert_array_equal(indices.coordinate(3).support, np.eye(3))
    assert indices.gaussian(3).support is None
    assert indices.no_index().sample(jax.random.key(0), (2, 5)).shape == (2, 5, 0)


# Samples of these have one norm, the root of dim times their second moment.
CONSTANT_NORM = ("sphere", "scaled_sphere", "cube", "unit_cube", "coordinate")


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    name=st.sampled_from(sorted(MOMENTS)),
    dim=st.sampled_from([1, 2, 5]),
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    seed=st.integers(0, 2**32 - 1),
)
def test_norms_and_second_moments_for_any_shape(name, dim, shape, seed):
    distribution, (_, square, product) = indices.make(name, dim), MOMENTS[name](dim)
    samples = distribution.sample(jax.random.key(np.uint32(seed)), shape)
    assert samples.shape == (*shape, dim) and samples.dtype == np.float32
    samples = np.asarray(samples, np.float64)
    assert np.all(np.isfinite(samples))
    if name in CONSTANT_NORM:
        assert distribution.second_moment == pytest.approx(square)
        norms = np.linalg.norm(samples, axis=-1)
        np.testing.assert_allclose(norms, np.sqrt(dim * distribution.second_moment), rtol=1e-6)
    # The mean square over many samples: 6 standard errors, no more than rounding where it is constant.
    many = draw(name, dim, seed=np.uint32(seed))
    products = many[:, :, None] * many[:, None, :]
    expected = np.where(np.eye(dim), square, product)
    tolerance = 6 * products.std(axis=0) / np.sqrt(len(many)) + 1e-6
    np.testing.assert_array_less(np.abs(products.mean(axis=0) - expected), tolerance)
