"""Weights in device memory, with batched updates and sampling in proportion to the weights.

The weights are the leaves of a tree whose nodes are the sums of their 64 children, so a million weights give four
levels. Descending one level is a gather of rows and a small matrix product.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types

_CHILDREN = 64
# row @ _CUMULATE are the cumulative sums of a row.
_CUMULATE = np.triu(np.ones((_CHILDREN, _CHILDREN), np.float32))

# From the leaves to the top, every level as rows of siblings [number of parents, 64]; the top is one row.
SumTree = tuple[types.Array, ...]


def init(capacity: int) -> SumTree:
    """Creates a tree of zeros with (at least) the positions 0 .. capacity - 1."""
    levels: list[types.Array] = []
    length = capacity
    while not levels or length > 1:
        length = -(-length // _CHILDREN)
        levels.append(jnp.zeros((length, _CHILDREN)))
    return tuple(levels)


def total(tree: SumTree) -> types.Array:
    """Returns the sum of all weights."""
    return jnp.sum(tree[-1])


def weights(tree: SumTree, positions: types.Array) -> types.Array:
    """Returns the weights [n] at positions [n]."""
    return tree[0][divmod(positions, _CHILDREN)]


def set_leaves(leaves: types.Array, positions: types.Array, weights: types.Array) -> types.Array:
    """Sets the leaves [rows, 64] at positions [n], one by one."""
    place = divmod(positions, _CHILDREN)
    return leaves.at[place].set(0.0).at[place].max(weights)


def set_leaf_rows(leaves: types.Array, positions: types.Array, weights: types.Array) -> types.Array:
    """Implements `set_leaves` by whole rows: for single leaves, a TPU would copy all to a different layout."""
    row, column = divmod(positions, _CHILDREN)
    same = positions[:, None] == positions
    largest = jnp.max(jnp.where(same, weights, -jnp.inf), axis=1)
    is_first = jnp.argmax(same, axis=1) == jnp.arange(len(positions))
    # Every occurrence of a row writes the changes of all its occurrences, each position once.
    code = jnp.where(is_first[:, None], jax.nn.one_hot(column, _CHILDREN), 0.0)
    together = (row[:, None] == row).astype(jnp.float32)
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    changed = jnp.where(product(together, code) > 0, product(together, code * largest[:, None]), leaves[row])
    return leaves.at[row].set(changed)


def set_weights(tree: SumTree, positions: types.Array, weights: types.Array) -> SumTree:
    """Sets the weights [n] at positions [n]; if a position occurs several times, the largest weight counts."""
    levels = [jax.lax.platform_dependent(tree[0], positions, weights, tpu=set_leaf_rows, default=set_leaves)]
    parents = positions // _CHILDREN
    for level in tree[1:]:
        sums = jnp.sum(
            levels[-1][parents], axis=-1
        )  # sums from scratch: the errors of differences would accumulate
        place = divmod(parents, _CHILDREN)
        levels.append(level.at[place].set(sums))
        parents = place[0]
    return tuple(levels)


def find(tree: SumTree, quantiles: types.Array) -> types.Array:
    """Finds the positions [n] at quantiles [n], in [0, 1], of the weights, whose sum must be positive.

    Uniform quantiles sample positions in proportion to their weights.
    """
    node = jnp.zeros(quantiles.shape, jnp.int32)
    rest = quantiles * total(tree)
    for level in reversed(tree):
        sums = jnp.matmul(level[node], _CUMULATE, precision=jax.lax.Precision.HIGHEST)
        # A parent's sum and its last cumulative sum may differ in the last bits; stay within the latter.
        rest = jnp.minimum(rest, jnp.nextafter(sums[:, -1], 0.0))
        child = jnp.sum(sums <= rest[:, None], axis=-1)
        rest -= jnp.max(jnp.where(jnp.arange(_CHILDREN) < child[:, None], sums, 0.0), axis=-1)
        node = node * _CHILDREN + child
    return node
