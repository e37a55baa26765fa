"""Tests of the tree of sums against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax.replay import sum_tree

# One level, a full level, two, and three.
CAPACITIES = [1, 5, 64, 65, 4_096, 5_000]


def make_tree(weights):
    tree = sum_tree.init(len(weights))
    return sum_tree.set_weights(tree, jnp.arange(len(weights)), jnp.asarray(weights, jnp.float32))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_node_is_the_sum_of_its_children(capacity):
    rng = np.random.default_rng(capacity)
    weights = np.zeros(capacity, np.float32)
    tree = sum_tree.init(capacity)
    update = jax.jit(sum_tree.set_weights)
    for _ in range(5):
        positions = rng.integers(0, capacity, 30)
        new = rng.random(30).astype(np.float32)
        tree = update(tree, positions, new)
        weights[positions] = 0.0
        np.maximum.at(weights, positions, new)
        np.testing.assert_array_equal(tree[0].reshape(-1)[:capacity], weights)
        for below, level in zip(tree, tree[1:], strict=False):
            sums = np.zeros(level.size, np.float32)
            sums[: below.shape[0]] = np.sum(below, axis=1)
            np.testing.assert_allclose(level.reshape(-1), sums, rtol=1e-6)
        np.testing.assert_allclose(sum_tree.total(tree), weights.sum(), rtol=1e-6)
    assert tree[-1].shape == (1, 64)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_find_inverts_the_distribution(capacity):
    # Whole numbers, so that all sums are exact; some are zero and must not be found.
    weights = np.random.default_rng(capacity).integers(0, 4, capacity).astype(np.float32)
    weights[capacity // 2] = 1.0
    tree = make_tree(weights)
    units = np.arange(weights.sum())
    found = jax.jit(sum_tree.find)(tree, (units + 0.5) / len(units))
    np.testing.assert_array_equal(found, np.repeat(np.arange(capacity), weights.astype(int)))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_rounding_never_leads_to_a_position_without_weight(capacity):
    weights = np.random.default_rng(capacity).random(capacity).astype(np.float32) ** 8
    weights[capacity // 3 :] = 0.0  # the end of the quantiles is the danger
    weights[0] = 1e-7
    tree = make_tree(weights)
    found = sum_tree.find(tree, jnp.array([0.0, 0.5, 1 - 2.0**-24, 1.0]))
    assert np.all(weights[np.asarray(found)] > 0)


def test_vmapped_trees_are_apart():
    trees = jax.vmap(lambda _: sum_tree.init(100))(jnp.arange(2))
    trees = jax.vmap(sum_tree.set_weights)(trees, jnp.array([[3], [70]]), jnp.ones((2, 1)))
    np.testing.assert_array_equal(jax.vmap(sum_tree.find)(trees, jnp.full((2, 3), 0.4)), [[3] * 3, [70] * 3])


def test_writing_rows_is_writing_leaves():
    rng = np.random.default_rng(0)
    leaves, weights = rng.uniform(size=(3, 64)).astype(np.float32), rng.uniform(size=40).astype(np.float32)
    positions = rng.integers(0, 3 * 64, 40)
    positions[20:] = positions[rng.integers(0, 20, 20)]  # many of them more than once
    weights[30:] = weights[positions[30:] % 20]  # and some of these with equal weights
    expected = leaves.reshape(-1).copy()
    expected[positions] = 0.0
    np.maximum.at(expected, positions, weights)
    for write in (sum_tree.set_leaves, sum_tree.set_leaf_rows):
        written = write(jnp.asarray(leaves), jnp.asarray(positions), jnp.asarray(weights))
        np.testing.assert_array_equal(np.asarray(written).reshape(-1), expected)


def test_summing_a_whole_level_is_summing_its_changed_rows():
    rng = np.random.default_rng(1)
    below, rows = rng.integers(0, 9, (5, 64)).astype(np.float32), jnp.array([4, 1, 4])
    level = jnp.zeros((1, 64)).at[0, :5].set(below.sum(1))
    below[[1, 4]] = rng.integers(0, 9, (2, 64))
    expected = np.pad(below.sum(1), (0, 59))[None]
    for update in (sum_tree._sum_some, sum_tree._sum_all):
        np.testing.assert_array_equal(update(level, jnp.asarray(below), rows), expected)


def test_the_largest_number_below():
    numbers = np.random.default_rng(2).random(100_000).astype(np.float32) * np.float32(1e3)
    numbers[:40] = 2.0 ** np.arange(-20.0, 20.0)
    below = numbers * sum_tree._NEXT_BELOW
    np.testing.assert_array_equal(below, np.nextafter(numbers, np.float32(0)))
