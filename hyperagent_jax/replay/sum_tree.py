"""Weights in device memory that can be changed, and drawn in proportion, a batch at a time.

The weights are the leaves of a tree whose nodes hold the sum of their 64 children, so a million weights make four
levels. Going down one level is a gather of rows and a small matrix product.
"""

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
    """Makes a tree of zeros with (at least) the positions 0 .. capacity - 1."""
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


def set_weights(tree: SumTree, positions: types.Array, weights: types.Array) -> SumTree:
    """Sets the weights [n] at positions [n]; of several for one position the largest counts."""
    # Row and column, because a reshape of the leaves to one axis is a copy of them on a TPU.
    place = divmod(positions, _CHILDREN)
    levels = [tree[0].at[place].set(0.0).at[place].max(weights)]
    for level in tree[1:]:
        sums = jnp.sum(levels[-1][place[0]], axis=-1)  # whole sums: the errors of differences would add up
        place = divmod(place[0], _CHILDREN)
        levels.append(level.at[place].set(sums))
    return tuple(levels)


def find(tree: SumTree, quantiles: types.Array) -> types.Array:
    """Finds the positions [n] at quantiles [n], in [0, 1], of the weights, whose sum must be positive.

    Uniform quantiles draw positions in proportion to their weights.
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
