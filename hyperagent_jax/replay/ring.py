"""Uniform replay in device memory: a ring of pytrees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types


class RingState(NamedTuple):
    """Attributes:
    storage: a pytree like one item, every leaf with a leading axis of length capacity.
    added: number of items ever added.
    """

    storage: Any
    added: types.Array


class Ring(NamedTuple):
    """Pure functions of a ring buffer.

    Attributes:
        init: maps an example item to an empty RingState.
        add: maps (state, item) to the state with that item, the oldest overwritten when full.
        draw: maps (key, batch_size) to the random bits of one sample.
        sample: maps (state, bits) to items, uniformly and with replacement.
        size: maps a state to the number of items it holds.
    """

    init: Callable[[Any], RingState]
    add: Callable[[RingState, Any], RingState]
    draw: Callable[[types.PRNGKey, int], types.Array]
    sample: Callable[[RingState, types.Array], Any]
    size: Callable[[RingState], types.Array]


def make_ring(capacity: int) -> Ring:
    """Makes a ring buffer for `capacity` items."""
    if capacity < 1:
        raise ValueError(f"the replay's capacity must be at least 1, got {capacity}")

    def init(item):
        storage = jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.asarray(x).dtype), item)
        return RingState(storage, jnp.zeros((), jnp.int32))

    def size(state):
        return jnp.minimum(state.added, capacity)

    def add(state, item):
        # The item is written twice to the same slot. XLA turns a scatter of one row into a slice update,
        # fuses that into the gather of a following `sample`, and then copies the whole buffer in every step
        # of a loop. A scatter of two rows stays in place.
        slots = jnp.full(2, state.added % capacity)
        storage = jax.tree.map(lambda buffer, x: buffer.at[slots].set(x), state.storage, item)
        return RingState(storage, state.added + 1)

    def draw(key, batch_size):
        return jax.random.bits(key, (batch_size,))

    def sample(state, bits):
        slots = (bits % jnp.maximum(size(state), 1).astype(jnp.uint32)).astype(jnp.int32)
        return jax.tree.map(lambda buffer: buffer[slots], state.storage)

    return Ring(init, add, draw, sample, size)
