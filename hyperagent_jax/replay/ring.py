"""Replay in device memory: a ring of pytrees, sampled uniformly, by priority or with a liking for the recent."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.replay import sum_tree

# The priority of new items falls by this factor per update of priorities, to a half in 7,000 of them.
_FORGETTING = 0.9999
# Added to every error, so that there always is a priority to draw by.
_SMALLEST_ERROR = 1e-6


class Priorities(NamedTuple):
    """Attributes:
    tree: the priority of every slot.
    newest: the priority that new items get: the largest of late, so that they are soon drawn.
    """

    tree: sum_tree.SumTree
    newest: types.Array


class RingState(NamedTuple):
    """Attributes:
    storage: a pytree like one item, every leaf with a leading axis of length capacity.
    added: number of items ever added.
    priorities: None when nothing is sampled by priority.
    """

    storage: Any
    added: types.Array
    priorities: Priorities | None


class Ring(NamedTuple):
    """Pure functions of a ring buffer.

    Attributes:
        init: maps an example item to an empty RingState.
        add: maps (state, item) to the state with that item, the oldest overwritten when full. Jit what calls it
            and donate the state, or the whole storage is copied.
        draw: maps (key, batch_size) to the random bits of one sample.
        sample: maps (state, bits) to (items, slots): items with replacement, and where they are.
        update: maps (state, slots, losses) to the state whose items at these slots have these losses, which
            are squared errors, as their priority.
        size: maps a state to the number of items it holds.
    """

    init: Callable[[Any], RingState]
    add: Callable[[RingState, Any], RingState]
    draw: Callable[[types.PRNGKey, int], types.Array]
    sample: Callable[[RingState, types.Array], tuple[Any, types.Array]]
    update: Callable[[RingState, types.Array, types.Array], RingState]
    size: Callable[[RingState], types.Array]


def check_settings(capacity: int, recent_fraction: float, priority_fraction: float) -> None:
    """Raises ValueError unless a replay can have these settings."""
    if capacity < 1:
        raise ValueError(f"the replay's capacity must be at least 1, got {capacity}")
    if not (recent_fraction >= 0 and priority_fraction >= 0 and recent_fraction + priority_fraction <= 1):
        raise ValueError(
            "recent_fraction and priority_fraction must be at least 0 and at most 1 together, got "
            f"{recent_fraction} and {priority_fraction}"
        )


def choose_slots(
    bits: Any,
    added: Any,
    held: Any,
    capacity: int,
    find: Callable[[Any], Any],
    *,
    recent_fraction: float,
    priority_fraction: float,
    oldest: Any = None,
    xp: Any = jnp,
) -> Any:
    """The slots of one sample: the recent, those by priority, and for the rest uniform ones.

    Args:
        bits: random bits, [batch_size].
        added: number of items ever added.
        held: number of items that may be drawn, the latest; at least 1.
        capacity: number of slots; item i is in slot i % capacity.
        find: maps quantiles of the priorities to slots.
        recent_fraction: see `make_ring`.
        priority_fraction: see `make_ring`.
        oldest: number of the oldest item that may be drawn; None when `held` is all there are.
        xp: jax.numpy, or numpy on the host.
    """
    num_recent = round(recent_fraction * bits.shape[0])
    num_prioritized = min(round(priority_fraction * bits.shape[0]), bits.shape[0] - num_recent)
    in_unit_interval = (bits >> 8).astype(xp.float32) * 2.0**-24
    parts = []
    if num_recent:
        # Age a (the newest has 1) with probability log((a + 1) / a) / log(held + 1).
        logarithm = in_unit_interval[:num_recent] * xp.log1p(held.astype(xp.float32))
        age = xp.minimum(xp.exp(logarithm).astype(xp.int32), held)
        parts.append((added - age) % capacity)
    if num_prioritized:
        # One draw from each of as many equal parts of the distribution.
        offsets = in_unit_interval[num_recent : num_recent + num_prioritized]
        quantiles = (xp.arange(num_prioritized) + offsets) / num_prioritized
        found = find(quantiles)
        parts.append(xp.minimum(found, held - 1) if oldest is None else found)
    rest = bits[num_recent + num_prioritized :]
    uniform = (rest % held.astype(xp.uint32)).astype(xp.int32)
    parts.append(uniform if oldest is None else (oldest + uniform) % capacity)
    return xp.concatenate(parts)


def new_priorities(losses: Any, newest: Any, xp: Any = jnp) -> tuple[Any, Any]:
    """The priorities of items with these losses [n], and the one that new items get from now on."""
    errors = xp.sqrt(xp.maximum(losses, 0.0)) + _SMALLEST_ERROR
    return errors, xp.maximum(_FORGETTING * newest, xp.max(errors))


def make_ring(capacity: int, *, recent_fraction: float = 0.0, priority_fraction: float = 0.0) -> Ring:
    """Makes a ring buffer for `capacity` items.

    A sample has three parts: the recent, those by priority, and for the rest the uniform ones.

    Args:
        capacity: number of items it holds.
        recent_fraction: share of every sample whose ages are log-uniform: as many items of age 10 to 100 as of
            age 100 to 1,000 and so on.
        priority_fraction: share of every sample that is drawn in proportion to the items' last errors, the
            roots of their losses. Their losses are not weighted in return: where outcomes are random, their
            average in such a sample is not their mean.
    """
    check_settings(capacity, recent_fraction, priority_fraction)

    def init(item):
        storage = jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.asarray(x).dtype), item)
        priorities = Priorities(sum_tree.init(capacity), jnp.ones(())) if priority_fraction else None
        return RingState(storage, jnp.zeros((), jnp.int32), priorities)

    def size(state):
        return jnp.minimum(state.added, capacity)

    def add(state, item):
        # The item is written twice to the same slot. XLA turns a scatter of one row into a slice update,
        # fuses that into the gather of a following `sample`, and then copies the whole buffer in every step
        # of a loop. A scatter of two rows stays in place.
        slots = jnp.full(2, state.added % capacity)
        storage = jax.tree.map(lambda buffer, x: buffer.at[slots].set(x), state.storage, item)
        priorities = state.priorities
        if priorities is not None:
            newest = jnp.full(2, priorities.newest)
            priorities = priorities._replace(tree=sum_tree.set_weights(priorities.tree, slots, newest))
        return RingState(storage, state.added + 1, priorities)

    def draw(key, batch_size):
        return jax.random.bits(key, (batch_size,), jnp.uint32)

    def sample(state, bits):
        slots = choose_slots(
            bits,
            state.added,
            jnp.maximum(size(state), 1),
            capacity,
            lambda quantiles: sum_tree.find(state.priorities.tree, quantiles),
            recent_fraction=recent_fraction,
            priority_fraction=priority_fraction,
        )
        return jax.tree.map(lambda buffer: buffer[slots], state.storage), slots

    def update(state, slots, losses):
        if state.priorities is None:
            return state
        errors, newest = new_priorities(losses, state.priorities.newest)
        tree = sum_tree.set_weights(state.priorities.tree, slots, errors)
        return state._replace(priorities=Priorities(tree, newest))

    return Ring(init, add, draw, sample, update, size)
