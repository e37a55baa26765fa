"""Replay in device memory: a ring of pytrees, sampled uniformly, by priority or biased towards recent items."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hyperagent_jax import binding
from hyperagent_jax import checks
from hyperagent_jax import types
from hyperagent_jax.replay import sampling
from hyperagent_jax.replay import sum_tree


class Priorities(NamedTuple):
    """Priorities of the items of a ring.

    Attributes:
        tree: the priority of every slot.
        newest: the priority of new items: the largest of recent priorities, so that new items are sampled soon.
    """

    tree: sum_tree.SumTree
    newest: types.Array


class RingState(NamedTuple):
    """State of a ring.

    Attributes:
        storage: a pytree like one item, every leaf with a leading axis of length capacity.
        added: number of items ever added.
        priorities: None if nothing is sampled by priority.
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


class WeightsFn(Protocol):
    """Calculates importance weights."""

    def __call__(self, state: RingState, slots: types.Array, /) -> types.Array | None:
        """Returns weights [batch_size], or None if all are 1."""


class CountFn(Protocol):
    """Reads how full a ring is."""

    def __call__(self, state: RingState, /) -> types.Array:
        """Returns a scalar."""


class Ring(NamedTuple):
    """Pure functions of a ring buffer.

    Attributes:
        init: maps an example item to an empty RingState.
        add: maps (state, item) to the state with that item, overwriting the oldest if full. Jit the function that
            calls it and donate the state; otherwise the whole storage is copied.
        draw: maps (key, batch_size) to the random bits of one sample.
        sample: maps (state, bits) to (items, slots), sampled with replacement. An empty ring cannot be sampled:
            this raises ValueError outside jit and returns items of zeros under jit.
        weights: maps (state, slots) to the importance weights [batch_size] of a sample from the same state, for
            `Batch.weights`; None unless `importance_beta` is positive.
        update: maps (state, slots, losses) to the state in which the items at these slots have priorities
            according to these losses, which are squared errors.
        size: maps a state to the number of items in the ring.
        can_sample: maps a state to whether the ring contains any item.
    """

    init: InitFn
    add: AddFn
    draw: DrawFn
    sample: SampleFn
    weights: WeightsFn
    update: UpdateFn
    size: CountFn
    can_sample: CountFn


def init(item: Any, *, capacity: int, priority_fraction: float) -> RingState:
    """Creates an empty ring for items like this one.

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
    """Returns the number of items in the ring."""
    return jnp.minimum(state.added, capacity)


def can_sample(state: RingState) -> types.Array:
    """Returns whether the ring contains any item."""
    return state.added > 0


def add(state: RingState, item: Any, *, capacity: int, add_batch_size: int = 1) -> RingState:
    """Adds an item, or a batch of items, overwriting the oldest if the ring is full.

    Args:
        state: the ring.
        item: the item; if `add_batch_size` is more than one, that many items with a leading axis.
        capacity: number of items the ring holds.
        add_batch_size: see `make_ring`.

    Returns:
        The ring with the item.
    """
    # Writes the item twice to the same slot. XLA turns a scatter of one row into a slice update, fuses that with
    # the gather of a following `sample`, and then copies the whole buffer in every step of a loop. A scatter of
    # two rows stays in place.
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


def sample(state: RingState, bits: types.Array, *, capacity: int, rule: sampling.Rule) -> tuple[Any, types.Array]:
    """Samples items with replacement.

    Args:
        state: the ring; must not be empty. This is not checked under jit, where an empty ring gives items of
            zeros.
        bits: random bits of the sample, from `draw`, [batch_size].
        capacity: number of items the ring holds.
        rule: how items are sampled.

    Returns:
        The items, with a leading axis of length batch_size, and their slots [batch_size].
    """
    if not isinstance(state.added, jax.core.Tracer) and not state.added:
        raise ValueError("the ring is empty: add items before the first sample")
    slots = sampling.choose_slots(
        bits,
        state.added,
        jnp.maximum(size(state, capacity=capacity), 1),
        capacity,
        lambda quantiles: sum_tree.find(_priorities(state).tree, quantiles),
        rule,
    )
    return jax.tree.map(lambda buffer: buffer[slots], state.storage), slots


def weights(state: RingState, slots: types.Array, *, capacity: int, rule: sampling.Rule) -> types.Array | None:
    """Calculates the importance weights of a sample.

    Args:
        state: the ring at the time of the sample.
        slots: the slots of the sample, [batch_size].
        capacity: number of items the ring holds.
        rule: how items are sampled.

    Returns:
        Weights [batch_size], the largest of which is 1; None if all are 1.
    """
    if not rule.importance_beta:
        return None
    shares = None
    if rule.priority_fraction:
        tree = _priorities(state).tree
        shares = sum_tree.weights(tree, slots) / sum_tree.total(tree)
    held = size(state, capacity=capacity)
    return sampling.importance_weights(slots, state.added, held, capacity, shares, rule)


def _priorities(state: RingState) -> Priorities:
    if state.priorities is None:
        raise ValueError("this state has no priorities: create it with the `init` of the same ring")
    return state.priorities


def update(state: RingState, slots: types.Array, losses: types.Array) -> RingState:
    """Sets the priorities of items to the square roots of their losses; does nothing without priorities.

    Args:
        state: the ring.
        slots: slots of the items, from `sample`, [n].
        losses: losses of the items, squared errors, [n].

    Returns:
        The ring with new priorities.
    """
    if state.priorities is None:
        return state
    errors, newest = sampling.new_priorities(losses, state.priorities.newest)
    tree = sum_tree.set_weights(state.priorities.tree, slots, errors)
    return state._replace(priorities=Priorities(tree, newest))


def make_ring(
    capacity: int,
    *,
    recent_fraction: float = 0.0,
    priority_fraction: float = 0.0,
    importance_beta: float = 0.0,
    importance_beta_steps: int = 0,
    add_batch_size: int = 1,
) -> Ring:
    """Makes a ring buffer for `capacity` items.

    A sample has three parts: recent items, items sampled by priority, and uniformly sampled items.

    Args:
        capacity: number of items the ring holds.
        recent_fraction: see `sampling.Rule`, also for the following three arguments.
        priority_fraction: fraction that is sampled by priority.
        importance_beta: exponent of the importance weights.
        importance_beta_steps: number of items after which the exponent is 1.
        add_batch_size: number of items per `add`; the capacity must be a multiple of it.

    Returns:
        The Ring.
    """
    rule = sampling.Rule(recent_fraction, priority_fraction, importance_beta, importance_beta_steps)
    sampling.check(capacity, rule)
    checks.whole_number("add_batch_size", add_batch_size, 1)
    if capacity % add_batch_size:
        raise ValueError(f"capacity must be a multiple of add_batch_size={add_batch_size}, got {capacity}")
    return Ring(
        init=binding.bind(init, capacity=capacity, priority_fraction=priority_fraction),
        add=binding.bind(add, capacity=capacity, add_batch_size=add_batch_size),
        draw=draw,
        sample=binding.bind(sample, capacity=capacity, rule=rule),
        weights=binding.bind(weights, capacity=capacity, rule=rule),
        update=update,
        size=binding.bind(size, capacity=capacity),
        can_sample=can_sample,
    )
