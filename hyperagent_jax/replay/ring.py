"""Replay in device memory: a ring of pytrees, sampled uniformly, by priority or biased towards recent items."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.replay import sum_tree

# The priority of new items falls by this factor per update of priorities, to a half in 7,000 of them.
_FORGETTING = 0.9999
# Added to every error, so that every priority is positive.
_SMALLEST_ERROR = 1e-6


class Priorities(NamedTuple):
    """Priorities of the items of a ring.

    Attributes:
        tree: the priority of every slot.
        newest: the priority of new items: the largest of recent ones, so that they are soon drawn.
    """

    tree: sum_tree.SumTree
    newest: types.Array


class RingState(NamedTuple):
    """State of a ring.

    Attributes:
        storage: a pytree like one item, every leaf with a leading axis of length capacity.
        added: number of items ever added.
        priorities: None when nothing is sampled by priority.
    """

    storage: Any
    added: types.Array
    priorities: Priorities | None


class InitFn(Protocol):
    """Initialises a ring."""

    def __call__(self, item: Any, /) -> RingState:
        """Returns an empty ring for items like this one."""


class AddFn(Protocol):
    """Adds an item."""

    def __call__(self, state: RingState, item: Any, /) -> RingState:
        """Returns the ring with the item."""


class DrawFn(Protocol):
    """Draws the random bits of a sample."""

    def __call__(self, key: types.PRNGKey, batch_size: int, /) -> types.Array:
        """Returns bits [batch_size]."""


class SampleFn(Protocol):
    """Samples items."""

    def __call__(self, state: RingState, bits: types.Array, /) -> tuple[Any, types.Array]:
        """Returns items with a leading batch axis, and their slots [batch_size]."""


class UpdateFn(Protocol):
    """Sets priorities."""

    def __call__(self, state: RingState, slots: types.Array, losses: types.Array, /) -> RingState:
        """Returns the ring with new priorities."""


class CountFn(Protocol):
    """Tells how full a ring is."""

    def __call__(self, state: RingState, /) -> types.Array:
        """Returns a scalar."""


class Ring(NamedTuple):
    """Pure functions of a ring buffer.

    Attributes:
        init: maps an example item to an empty RingState.
        add: maps (state, item) to the state with that item, the oldest overwritten when full. Jit the function
            that calls it and donate the state; otherwise the whole storage is copied.
        draw: maps (key, batch_size) to the random bits of one sample.
        sample: maps (state, bits) to (items, slots): items with replacement, and where they are. An empty ring
            cannot be sampled: ValueError outside jit, items of zeros under jit.
        update: maps (state, slots, losses) to the state whose items at these slots have these losses, which
            are squared errors, as their priority.
        size: maps a state to the number of items it holds.
        can_sample: maps a state to whether it holds any item.
    """

    init: InitFn
    add: AddFn
    draw: DrawFn
    sample: SampleFn
    update: UpdateFn
    size: CountFn
    can_sample: CountFn


def check_settings(capacity: int, recent_fraction: float, priority_fraction: float) -> None:
    """Raises ValueError unless a replay can have these settings."""
    checks.whole_number("the replay's capacity", capacity, 1)
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
    """Chooses the slots of one sample: recent ones, then some by priority, the rest uniformly.

    Args:
        bits: random bits, [batch_size].
        added: number of items ever added.
        held: number of items that may be drawn, the latest; at least 1.
        capacity: number of slots; item i is in slot i % capacity.
        find: maps quantiles of the priorities to slots.
        recent_fraction: see `make_ring`.
        priority_fraction: see `make_ring`.
        oldest: number of the oldest item that may be drawn; None when it is `added - held`.
        xp: jax.numpy, or numpy on the host.

    Returns:
        Slots [batch_size].
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
    """Returns the priorities of items with these losses [n], and the priority of items added from now on."""
    errors = xp.sqrt(xp.maximum(losses, 0.0)) + _SMALLEST_ERROR
    return errors, xp.maximum(_FORGETTING * newest, xp.max(errors))


def init(item: Any, *, capacity: int, priority_fraction: float) -> RingState:
    """Makes an empty ring for items like this one.

    Args:
        item: an example item, any pytree of arrays.
        capacity: number of items the ring holds.
        priority_fraction: see `make_ring`.

    Returns:
        The empty ring.
    """
    storage = jax.tree.map(lambda x: jnp.zeros((capacity, *jnp.shape(x)), jnp.asarray(x).dtype), item)
    priorities = Priorities(sum_tree.init(capacity), jnp.ones(())) if priority_fraction else None
    return RingState(storage, jnp.zeros((), jnp.int32), priorities)


def size(state: RingState, *, capacity: int) -> types.Array:
    """Returns the number of items the ring holds."""
    return jnp.minimum(state.added, capacity)


def can_sample(state: RingState) -> types.Array:
    """Returns whether the ring holds any item."""
    return state.added > 0


def add(state: RingState, item: Any, *, capacity: int, add_batch_size: int = 1) -> RingState:
    """Adds an item, or a batch of them, which replaces the oldest when the ring is full.

    Args:
        state: the ring.
        item: the item; with an `add_batch_size` of more than one, that many items with a leading axis.
        capacity: number of items the ring holds.
        add_batch_size: see `make_ring`.

    Returns:
        The ring with the item.
    """
    # The item is written twice to the same slot. XLA turns a scatter of one row into a slice update,
    # fuses that into the gather of a following `sample`, and then copies the whole buffer in every step
    # of a loop. A scatter of two rows stays in place.
    slots = jnp.full(2, state.added % capacity)
    if add_batch_size > 1:
        slots = (state.added + jnp.arange(add_batch_size)) % capacity
    storage = jax.tree.map(lambda buffer, x: buffer.at[slots].set(x), state.storage, item)
    priorities = state.priorities
    if priorities is not None:
        newest = jnp.full(slots.shape, priorities.newest)
        priorities = priorities._replace(tree=sum_tree.set_weights(priorities.tree, slots, newest))
    return RingState(storage, state.added + add_batch_size, priorities)


def draw(key: types.PRNGKey, batch_size: int) -> types.Array:
    """Draws the random bits of one sample, [batch_size]."""
    return jax.random.bits(key, (batch_size,), jnp.uint32)


def sample(
    state: RingState, bits: types.Array, *, capacity: int, recent_fraction: float, priority_fraction: float
) -> tuple[Any, types.Array]:
    """Samples items with replacement.

    Args:
        state: the ring; must not be empty. Under jit this cannot be checked: an empty ring gives items of zeros.
        bits: random bits of the sample, from `draw`, [batch_size].
        capacity: number of items the ring holds.
        recent_fraction: see `make_ring`.
        priority_fraction: see `make_ring`.

    Returns:
        The items, with a leading axis of length batch_size, and their slots [batch_size].
    """
    if not isinstance(state.added, jax.core.Tracer) and not state.added:
        raise ValueError("the ring is empty: add items before the first sample")
    slots = choose_slots(
        bits,
        state.added,
        jnp.maximum(size(state, capacity=capacity), 1),
        capacity,
        lambda quantiles: sum_tree.find(_priorities(state).tree, quantiles),
        recent_fraction=recent_fraction,
        priority_fraction=priority_fraction,
    )
    return jax.tree.map(lambda buffer: buffer[slots], state.storage), slots


def _priorities(state: RingState) -> Priorities:
    if state.priorities is None:
        raise ValueError("this ring has no priorities: make its state with the `init` of the same ring")
    return state.priorities


def update(state: RingState, slots: types.Array, losses: types.Array) -> RingState:
    """Sets the priorities of items to the roots of their losses; does nothing when there are no priorities.

    Args:
        state: the ring.
        slots: where the items are, from `sample`, [n].
        losses: their losses, squared errors, [n].

    Returns:
        The ring with new priorities.
    """
    if state.priorities is None:
        return state
    errors, newest = new_priorities(losses, state.priorities.newest)
    tree = sum_tree.set_weights(state.priorities.tree, slots, errors)
    return state._replace(priorities=Priorities(tree, newest))


def make_ring(
    capacity: int, *, recent_fraction: float = 0.0, priority_fraction: float = 0.0, add_batch_size: int = 1
) -> Ring:
    """Makes a ring buffer for `capacity` items.

    A sample has three parts: recent items, items drawn by priority, and for the rest uniform ones.

    Args:
        capacity: number of items it holds.
        recent_fraction: share of every sample whose ages are log-uniform: as many items of age 10 to 100 as of
            age 100 to 1,000 and so on.
        priority_fraction: share of every sample that is drawn in proportion to the items' last errors, the
            roots of their losses. Their losses are not weighted in return: where outcomes are random, their
            average in such a sample is biased.
        add_batch_size: number of items that `add` takes at once; the capacity must be a multiple of it.

    Returns:
        The Ring.
    """
    check_settings(capacity, recent_fraction, priority_fraction)
    checks.whole_number("add_batch_size", add_batch_size, 1)
    if capacity % add_batch_size:
        raise ValueError(f"capacity must be a multiple of add_batch_size={add_batch_size}, got {capacity}")
    fractions = dict(recent_fraction=recent_fraction, priority_fraction=priority_fraction)
    return Ring(
        init=binding.bind(init, capacity=capacity, priority_fraction=priority_fraction),
        add=binding.bind(add, capacity=capacity, add_batch_size=add_batch_size),
        draw=draw,
        sample=binding.bind(sample, capacity=capacity, **fractions),
        update=update,
        size=binding.bind(size, capacity=capacity),
        can_sample=can_sample,
    )
