"""Replay in device memory: a ring of pytrees, sampled uniformly or with a liking for the recent."""

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
        sample: maps (state, bits) to items, with replacement.
        size: maps a state to the number of items it holds.
    """

    init: Callable[[Any], RingState]
    add: Callable[[RingState, Any], RingState]
    draw: Callable[[types.PRNGKey, int], types.Array]
    sample: Callable[[RingState, types.Array], Any]
    size: Callable[[RingState], types.Array]


def make_ring(capacity: int, recent_fraction: float = 0.0) -> Ring:
    """Makes a ring buffer for `capacity` items.

    Args:
        capacity: number of items it holds.
        recent_fraction: share of every sample whose ages are log-uniform: as many items of age 10 to 100 as of
            age 100 to 1,000 and so on. The rest is uniform.
    """
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
        held = jnp.maximum(size(state), 1)
        num_recent = round(recent_fraction * bits.shape[0])
        slots = (bits[num_recent:] % held.astype(jnp.uint32)).astype(jnp.int32)
        if num_recent:
            # Age a (the newest has 1) with probability log((a + 1) / a) / log(held + 1).
            uniform = (bits[:num_recent] >> 8).astype(jnp.float32) * 2.0**-24
            age = jnp.exp(uniform * jnp.log1p(held.astype(jnp.float32))).astype(jnp.int32)
            slots = jnp.concatenate([(state.added - jnp.minimum(age, held)) % capacity, slots])
        return jax.tree.map(lambda buffer: buffer[slots], state.storage)

    return Ring(init, add, draw, sample, size)
