"""Weights in device memory, with batched updates and sampling in proportion to the weights.

The weights are the leaves of a tree whose nodes are the sums of their 64 children, so a million weights give four
levels. Descending one level is a gather of rows and a small matrix product.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types

_CHILDREN = 64
# row @ _CUMULATE are the cumulative sums of a row.
_CUMULATE = np.triu(np.ones((_CHILDREN, _CHILDREN), np.float32))
# x * _NEXT_BELOW is the largest float32 below x.
_NEXT_BELOW = np.float32(1 - 2.0**-24)

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
    number = jnp.arange(len(positions))
    is_before = (weights > weights[:, None]) | ((weights == weights[:, None]) & (number < number[:, None]))
    is_chosen = ~jnp.any((positions[:, None] == positions) & is_before, axis=1)  # one occurrence per position
    # Every occurrence of a row writes the changes of all its occurrences.
    together = (row[:, None] == row).astype(jnp.float32)
    code = jnp.where(is_chosen[:, None], jax.nn.one_hot(column, _CHILDREN), 0.0)
    both = jnp.concatenate([code, code * weights[:, None]], axis=1)  # the width of a TPU's products
    is_changed, values = jnp.split(jnp.matmul(together, both, precision=jax.lax.Precision.HIGHEST), 2, axis=1)
    changed = jnp.where(is_changed > 0, values, leaves[row])
    return leaves.at[row].set(changed)


def _sum_some(level: types.Array, below: types.Array, rows: types.Array) -> types.Array:
    """Returns a level after `rows` of the level below have changed."""
    # Sums from scratch: the errors of differences would accumulate.
    return level.at[divmod(rows, _CHILDREN)].set(jnp.sum(below[rows], axis=-1))


def _sum_all(level: types.Array, below: types.Array, rows: types.Array) -> types.Array:
    """Implements `_sum_some` for short levels where gathers and scatters take longer than sums."""
    del rows
    return jnp.pad(jnp.sum(below, axis=-1), (0, level.size - len(below))).reshape(level.shape)


def set_weights(tree: SumTree, positions: types.Array, weights: types.Array) -> SumTree:
    """Sets the weights [n] at positions [n]; if a position occurs several times, the largest weight counts."""
    levels = [jax.lax.platform_dependent(tree[0], positions, weights, tpu=set_leaf_rows, default=set_leaves)]
    rows = positions
    for level in tree[1:]:
        rows = rows // _CHILDREN
        if len(levels[-1]) > len(rows):
            levels.append(_sum_some(level, levels[-1], rows))
        else:
            levels.append(jax.lax.platform_dependent(level, levels[-1], rows, cpu=_sum_some, default=_sum_all))
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
        rest = jnp.minimum(rest, sums[:, -1] * _NEXT_BELOW)
        is_passed = sums <= rest[:, None]
        child = jnp.sum(is_passed, axis=-1)
        rest -= jnp.max(jnp.where(is_passed, sums, 0.0), axis=-1)
        node = node * _CHILDREN + child
    return node
