"""Rows by a mask and by a product are those of an index, and so are their gradients."""

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import rows


def test_row_of_an_action_and_its_gradient_are_exact():
    rng = np.random.default_rng(0)
    values, cotangents = rng.normal(size=(7, 3, 5)).astype(np.float32), rng.normal(size=(7, 5)).astype(np.float32)
    actions = rng.integers(3, size=7)
    chosen, pull_back = jax.vjp(lambda values: jax.vmap(rows.of_action)(values, actions), values)
    np.testing.assert_array_equal(chosen, values[np.arange(7), actions])
    expected = np.zeros_like(values)
    expected[np.arange(7), actions] = cotangents
    np.testing.assert_array_equal(pull_back(cotangents)[0], expected)


def test_an_action_out_of_range_has_a_row_of_zeros():
    np.testing.assert_array_equal(rows.of_action(jnp.ones((2, 3)), jnp.asarray(2)), np.zeros(3))


def test_rows_by_product_and_by_look_up_are_the_same_and_have_the_same_gradient():
    rng = np.random.default_rng(1)
    table, cotangents = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
    states = np.array([0, 5, 5, 2, 2, 2, 0, 9, 3])  # beyond the last one: the last row
    expected = np.zeros_like(table)
    np.add.at(expected, np.minimum(states, 5), cotangents)
    for read in (rows.look_up, rows.by_product):
        read_all = jax.vmap(read, (None, 0))
        chosen, pull_back = jax.vjp(lambda table, read_all=read_all: read_all(table, states), table)
        np.testing.assert_array_equal(chosen, table[np.minimum(states, 5)])
        # Sums in another order differ in their last bits.
        np.testing.assert_allclose(pull_back(cotangents)[0], expected, rtol=1e-6, atol=1e-6)
