"""Tests of the cheap random keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import prng

N = 100_000
# Correlations of independent numbers have a standard error of 1 / sqrt(N).
MAX_CORRELATION = 5 / np.sqrt(N)


def make_key(seed=0):
    """A key as runs make them."""
    return prng.hash_key(jax.random.fold_in(jax.random.key(seed), 7))


def normals(key, num=N):
    return np.asarray(jax.random.normal(key, (num,)), np.float64)


def correlation(x, y):
    return abs(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize("seed", range(3))
def test_moments_of_normal(seed):
    x = normals(make_key(seed))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        # `variance` is that of x**power.
        assert abs(np.mean(x**power) - moment) < 5 * np.sqrt(variance / N), power


@pytest.mark.parametrize("seed", range(3))
def test_uniform_is_uniform(seed):
    x = np.asarray(jax.random.uniform(make_key(seed), (N,)))
    counts = np.histogram(x, 100, (0.0, 1.0))[0]
    chi_square = np.sum((counts - N / 100) ** 2) / (N / 100)
    assert 53 < chi_square < 161  # 99 degrees of freedom; 0.0001 and 0.9999 quantiles


def test_every_bit_is_fair_and_independent_of_the_others():
    words = np.asarray(jax.random.bits(make_key(), (N,)))
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    centred = 2.0 * bits - 1.0
    assert np.max(np.abs(centred.mean(axis=0))) < MAX_CORRELATION
    # Each bit against each bit of the same number (off the diagonal) and of the next one.
    same = centred.T @ centred / N - np.eye(32)
    following = centred[:-1].T @ centred[1:] / N
    assert np.max(np.abs(same)) < MAX_CORRELATION
    assert np.max(np.abs(following)) < MAX_CORRELATION


def test_no_correlation_between_lags():
    x = normals(make_key())
    for lag in (1, 2, 3, 4, 5, 8, 16, 64, 128, 1024):
        assert correlation(x[:-lag], x[lag:]) < MAX_CORRELATION * 1.02, lag
        assert correlation(x[:-lag] ** 2, x[lag:] ** 2) < MAX_CORRELATION * 1.02, lag


def test_split_and_fold_in_give_independent_streams():
    key = make_key()
    # Tags from 4 on, because in jax itself split(key, n)[i] is fold_in(key, i).
    children = [key, *jax.random.split(key, 4), *(jax.random.fold_in(key, i) for i in range(4, 8))]
    streams = [normals(child) for child in children]
    for i, x in enumerate(streams):
        for y in streams[:i]:
            assert correlation(x, y) < MAX_CORRELATION
            assert correlation(x[1:], y[:-1]) < MAX_CORRELATION * 1.01
            assert correlation(x[:-1], y[1:]) < MAX_CORRELATION * 1.01
            assert correlation(x**2, y**2) < MAX_CORRELATION


def test_first_numbers_of_consecutive_steps_are_independent():
    # What the scan runner does: step t draws few numbers from fold_in(key, t).
    key = make_key()
    x = jax.vmap(lambda t: jax.random.normal(jax.random.fold_in(key, t), (2,)))(jnp.arange(N))
    x = np.asarray(x, np.float64)
    assert np.max(np.abs(x.mean(axis=0))) < 5 / np.sqrt(N)
    assert np.max(np.abs((x**2).mean(axis=0) - 1)) < 5 * np.sqrt(2 / N)
    assert correlation(x[:, 0], x[:, 1]) < MAX_CORRELATION
    for lag in (1, 2, 3, 10):
        assert correlation(x[:-lag, 0], x[lag:, 0]) < MAX_CORRELATION * 1.01
        assert correlation(x[:-lag, 0], x[lag:, 1]) < MAX_CORRELATION * 1.01


def test_streams_of_many_keys_never_overlap():
    # A stream that were a window of one long sequence would meet another one of 50,000 keys somewhere.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(make_key(), jnp.arange(50_000))
    words = np.asarray(jax.vmap(lambda key: jax.random.bits(key, (32,)))(keys)).astype(np.uint64)
    pairs = (words[:, :-1] << np.uint64(32)) | words[:, 1:]
    # Among so many independent pairs of words the expected number of equal ones is 7e-8.
    assert len(np.unique(pairs)) == pairs.size


def test_neighbouring_seeds_are_independent():
    # Their keys differ in one bit, unlike those that split and fold_in make.
    streams = [normals(prng.hash_key(jax.random.key(seed))) for seed in range(5)]
    for i, x in enumerate(streams):
        for y in streams[:i]:
            assert correlation(x, y) < MAX_CORRELATION
            for lag in range(1, 5):
                assert correlation(x[lag:], y[:-lag]) < MAX_CORRELATION * 1.01
                assert correlation(x[:-lag], y[lag:]) < MAX_CORRELATION * 1.01


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.bits(key, (5, 7)),
        lambda key: jax.random.bits(key, (9,), "uint8"),
        lambda key: jax.random.uniform(key),
        lambda key: jax.random.normal(key, (3, 11)),
        lambda key: jax.random.randint(key, (6,), 0, 100),
        lambda key: jax.random.rademacher(key, (6,)),
        lambda key: jax.random.key_data(jax.random.split(key, 3)),
        lambda key: jax.random.key_data(jax.random.fold_in(key, 5)),
    ],
)
def test_vmapped_equals_single(draw):
    keys = jax.random.split(make_key(), 6)
    together = jax.jit(jax.vmap(draw))(keys)
    for i in range(6):
        np.testing.assert_array_equal(together[i], draw(keys[i]))


def test_keys_of_other_generators():
    keys = [jax.random.fold_in(jax.random.key(seed, impl="rbg"), 0) for seed in (0, 0, 1)]
    draws = [np.asarray(jax.random.bits(prng.hash_key(key), (4,))) for key in keys]
    assert np.array_equal(draws[0], draws[1]) and not np.any(draws[0] == draws[2])


def test_children_are_those_of_threefry():
    key = jax.random.key(3)
    hashed = prng.hash_key(key)
    np.testing.assert_array_equal(jax.random.key_data(hashed), jax.random.key_data(key))
    for derive in (lambda k: jax.random.split(k, 5), lambda k: jax.random.fold_in(k, 11)):
        np.testing.assert_array_equal(jax.random.key_data(derive(hashed)), jax.random.key_data(derive(key)))
