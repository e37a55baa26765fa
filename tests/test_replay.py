"""Tests of the replay ring against a deque."""

import collections
import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import types
from hyperagent_jax.replay import ring as ring_lib
from hyperagent_jax.replay import sampling


def make_item(i):
    """A transition whose fields all tell which one it is; 0, the content of empty slots, is none of them.

    An array of ids [n] gives n items.
    """
    i = np.asarray(i, np.int32) + 1
    return types.Transition(
        o_tm1=i,
        a_tm1=3 * i,
        r_t=np.float32(0.5) * i.astype(np.float32),
        discount_t=-i.astype(np.float32),
        o_t=np.stack([i, i + 1, 2 * i], axis=-1),
        z_t=np.stack([i, -2 * i], axis=-1).astype(np.float32),
    )


def identify(items):
    """The ids of sampled items, after checking that their fields belong together."""
    ids = np.asarray(items.o_tm1) - 1
    expected = make_item(ids)
    for field, value in zip(items._fields, items, strict=True):
        np.testing.assert_array_equal(value, getattr(expected, field), err_msg=field)
    return ids


@pytest.mark.parametrize("capacity", [1, 2, 5, 8])
def test_holds_the_latest_items_and_nothing_else(capacity):
    ring = ring_lib.make_ring(capacity)
    add, sample = jax.jit(ring.add), jax.jit(ring.sample)
    state = ring.init(make_item(0))
    model = collections.deque(maxlen=capacity)
    assert ring.size(state) == 0
    for i in range(3 * capacity + 2):
        state = add(state, make_item(i))
        model.append(i)
        assert ring.size(state) == len(model)
        bits = ring.draw(jax.random.key(i), 128)
        # 128 draws from at most 8 items: the chance to miss one is below 8 * (7 / 8)^128 = 3e-7.
        assert set(identify(sample(state, bits)[0])) == set(model)
    assert state.added == 3 * capacity + 2


@pytest.mark.parametrize("capacity", [1, 3, 7])
def test_any_order_of_adds_and_samples(capacity):
    ring = ring_lib.make_ring(capacity)
    add, sample = jax.jit(ring.add), jax.jit(ring.sample)
    rng = np.random.default_rng(capacity)
    for _ in range(10):
        state = ring.init(make_item(0))
        model = collections.deque(maxlen=capacity)
        for i in rng.integers(0, 1_000_000, rng.integers(1, 4 * capacity)):
            if rng.random() < 0.6 or not model:
                state = add(state, make_item(i))
                model.append(i)
            else:
                bits = rng.integers(0, 2**32, 16, dtype=np.uint32)
                assert set(identify(sample(state, bits)[0])) <= set(model)
        assert ring.size(state) == len(model)


@pytest.mark.parametrize("num_added", [10, 16, 57])
def test_samples_are_uniform(num_added):
    capacity, num_samples = 16, 64_000
    ring = ring_lib.make_ring(capacity)
    state = ring.init(make_item(0))
    items = make_item(np.arange(num_added))
    state, _ = jax.lax.scan(lambda state, item: (ring.add(state, item), None), state, items)
    ids = identify(ring.sample(state, ring.draw(jax.random.key(num_added), num_samples))[0])
    size = min(num_added, capacity)
    counts = np.bincount(ids - (num_added - size), minlength=size)
    assert len(counts) == size
    chi_square = np.sum((counts - num_samples / size) ** 2) / (num_samples / size)
    # 0.9999 quantiles of chi-square with 9 and with 15 degrees of freedom.
    assert chi_square < {10: 33.7, 16: 44.3}[size]


@pytest.mark.parametrize("num_added", [5, 16, 57])
def test_recent_samples_have_log_uniform_ages(num_added):
    capacity, num_samples, fraction = 16, 64_000, 0.75
    ring = ring_lib.make_ring(capacity, recent_fraction=fraction)
    state = ring.init(make_item(0))
    items = make_item(np.arange(num_added))
    state, _ = jax.lax.scan(lambda state, item: (ring.add(state, item), None), state, items)
    ids = identify(ring.sample(state, ring.draw(jax.random.key(num_added), num_samples))[0])
    size, num_recent = min(num_added, capacity), round(fraction * num_samples)
    ages = np.arange(1, size + 1)
    for part, expected in (
        (ids[:num_recent], np.log((ages + 1) / ages) / np.log(size + 1)),
        (ids[num_recent:], np.full(size, 1 / size)),
    ):
        counts = np.bincount(num_added - part, minlength=size + 1)
        assert counts[0] == 0 and len(counts) == size + 1
        expected = expected * len(part)
        chi_square = np.sum((counts[1:] - expected) ** 2 / expected)
        # 0.9999 quantiles of chi-square with 4 and with 15 degrees of freedom.
        assert chi_square < {5: 23.5, 16: 44.3}[size]


@pytest.mark.parametrize("num_added", [10, 16, 57])
def test_prioritized_samples_are_in_proportion_to_the_last_errors(num_added):
    capacity, num_samples = 16, 64_000
    ring = ring_lib.make_ring(capacity, recent_fraction=0.125, priority_fraction=0.5)
    state = ring.init(make_item(0))
    state, _ = jax.lax.scan(
        lambda state, item: (ring.add(state, item), None), state, make_item(np.arange(num_added))
    )
    size = min(num_added, capacity)
    first = num_added - size
    # New items all have the same priority; then item i of those held gets the error i + 1, the last two none.
    slots = (first + np.arange(size - 2)) % capacity
    errors = np.append(np.arange(1.0, size - 1), [1.0, 1.0])
    updated = ring.update(state, slots, np.arange(1.0, size - 1) ** 2)
    for ring_state, expected in ((state, np.ones(size)), (updated, errors)):
        bits = ring.draw(jax.random.key(num_added), num_samples)
        items, found = ring.sample(ring_state, bits)
        ids = identify(items)
        np.testing.assert_array_equal(found, ids % capacity)
        by_priority = ids[num_samples // 8 : num_samples * 5 // 8]
        counts = np.bincount(by_priority - first, minlength=size)
        # Each of the 32,000 equal parts of the distribution is drawn from once: at each end at most one is off.
        assert np.all(np.abs(counts - expected / expected.sum() * len(by_priority)) <= 2)
        rest = np.bincount(ids[num_samples * 5 // 8 :] - first, minlength=size)
        assert np.all(np.abs(rest / 24_000 - 1 / size) < 5 * np.sqrt(1 / size / 24_000))
    # A new item has the largest priority there is.
    later = ring.add(updated, make_item(num_added))
    largest = np.float32(size - 2) + np.float32(1e-6)
    np.testing.assert_allclose(later.priorities.tree[0][0, num_added % capacity], largest, rtol=1e-6)


def test_the_priority_of_new_items_forgets_old_errors():
    ring = ring_lib.make_ring(8, priority_fraction=1.0)
    state = ring.add(ring.init(make_item(0)), make_item(0))
    update = jax.jit(lambda state: ring.update(state, jnp.array([0, 0]), jnp.array([0.01, 0.0001])))
    state = update(state)
    # Of two losses for one slot the larger counts.
    np.testing.assert_allclose(state.priorities.tree[0][0, 0], 0.1 + 1e-6, rtol=1e-6)
    np.testing.assert_allclose(state.priorities.newest, 0.9999, rtol=1e-6)
    state = jax.lax.fori_loop(0, 6_930, lambda i, state: update(state), state)
    np.testing.assert_allclose(state.priorities.newest, 0.5, rtol=1e-3)
    assert ring.add(state, make_item(1)).priorities.tree[0][0, 1] == state.priorities.newest


@pytest.mark.parametrize(("beta", "expected"), [(0.4, [1, 0.757858, 0.574349]), (1.0, [1, 0.5, 0.25])])
def test_importance_weights_by_hand(beta, expected):
    ring = ring_lib.make_ring(3, priority_fraction=1.0, importance_beta=beta)
    state = ring.init(make_item(0))
    for i in range(3):
        state = ring.add(state, make_item(i))
    state = ring.update(state, jnp.arange(3), jnp.array([1.0, 4.0, 16.0]))  # drawn with 1/7, 2/7, 4/7
    np.testing.assert_allclose(ring.weights(state, jnp.arange(3)), expected, rtol=1e-5)
    # The largest of the sample is 1, whatever it holds.
    np.testing.assert_allclose(ring.weights(state, jnp.array([2, 2])), [1, 1], rtol=1e-6)


def test_weights_undo_what_recent_and_prioritized_draws_do_to_the_average():
    capacity, num_samples = 16, 64_000
    ring = ring_lib.make_ring(capacity, recent_fraction=0.25, priority_fraction=0.5, importance_beta=1.0)
    state = ring.init(make_item(0))
    state, _ = jax.lax.scan(lambda state, item: (ring.add(state, item), None), state, make_item(np.arange(23)))
    state = ring.update(state, jnp.arange(capacity), jnp.arange(1.0, capacity + 1) ** 2)
    _, slots = ring.sample(state, ring.draw(jax.random.key(0), num_samples))
    sums = np.bincount(slots, weights=ring.weights(state, slots), minlength=capacity)
    # Every item has the same share of the weighted sample, to within 5 standard deviations of a count of 1,800,
    # the smallest there is.
    np.testing.assert_allclose(sums / sums.mean(), 1.0, atol=5 / np.sqrt(1_800))


def test_beta_grows_with_the_items_added():
    rule = sampling.Rule(0.0, 1.0, 0.4, 50_000_000)
    shares, slots = np.array([0.2, 0.8]), np.arange(2)
    for added, beta in ((0, 0.4), (2_000_000, 0.424), (25_000_000, 0.7), (80_000_000, 1.0)):
        weights = sampling.importance_weights(slots, added, 2, 2, shares, rule, xp=np)
        np.testing.assert_allclose(weights, [1.0, 0.25**beta], rtol=1e-6)


def test_samples_do_not_depend_on_x64():
    ring = ring_lib.make_ring(100, recent_fraction=0.5)
    assert ring.draw(jax.random.key(0), 16).dtype == jnp.uint32
    with jax.enable_x64(True):
        assert ring.draw(jax.random.key(0), 16).dtype == jnp.uint32


def test_fractions_must_leave_no_less_than_nothing():
    for recent, priority in ((0.6, 0.5), (-0.5, 0.5), (0.5, -0.5), (0.0, float("nan"))):
        with pytest.raises(ValueError, match=f"at least 0 and their sum at most 1, got {recent} and {priority}"):
            ring_lib.make_ring(8, recent_fraction=recent, priority_fraction=priority)


def test_bad_importance_weights():
    for settings, message in (
        ({"importance_beta": 0.5}, "use it with priority_fraction or recent_fraction"),
        (
            {"priority_fraction": 1.0, "importance_beta": 1.5},
            "importance_beta must be at least 0 and at most 1, got 1.5",
        ),
        ({"priority_fraction": 1.0, "importance_beta_steps": 5}, "importance_beta_steps needs a positive"),
    ):
        with pytest.raises(ValueError, match=message):
            ring_lib.make_ring(8, **settings)
    ring = ring_lib.make_ring(8, priority_fraction=1.0)
    assert ring.weights(ring.init(make_item(0)), jnp.zeros(2, int)) is None


def test_vmapped_rings_are_apart():
    ring = ring_lib.make_ring(3)
    add, sample = jax.jit(jax.vmap(ring.add)), jax.jit(jax.vmap(ring.sample))
    state = jax.vmap(ring.init)(make_item([0, 0]))
    for i in range(5):
        state = add(state, make_item([i, 100 + i]))
    items, _ = sample(state, jax.random.bits(jax.random.key(0), (2, 200)))
    for seed, expected in enumerate(({2, 3, 4}, {102, 103, 104})):
        assert set(identify(jax.tree.map(lambda x, seed=seed: x[seed], items))) == expected


def test_types_are_kept():
    state = ring_lib.make_ring(2).init({"frame": jnp.zeros((2, 3), jnp.uint8), "done": jnp.zeros((), bool)})
    assert state.storage["frame"].dtype == jnp.uint8
    assert state.storage["frame"].shape == (2, 2, 3)
    assert state.storage["done"].dtype == bool


def test_capacity_must_be_positive():
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        ring_lib.make_ring(0)


# Any sequence of operations on any ring, against a deque


@functools.cache
def compiled_ring(capacity, recent_fraction, priority_fraction):
    ring = ring_lib.make_ring(capacity, recent_fraction=recent_fraction, priority_fraction=priority_fraction)
    return ring._replace(add=jax.jit(ring.add), sample=jax.jit(ring.sample), update=jax.jit(ring.update))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    capacity=st.sampled_from([1, 2, 5, 16]),
    fractions=st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 0.5)]),
    batches=st.lists(st.lists(st.integers(0, 2**29), min_size=1, max_size=12), min_size=1, max_size=4),
    bits=st.lists(st.sampled_from([0, 2**32 - 1]) | st.integers(0, 2**32 - 1), min_size=8, max_size=8),
    losses=st.lists(st.sampled_from([0.0, 1e30]) | st.floats(0, 1e6, width=32), min_size=8, max_size=8),
)
def test_any_sequence_of_adds_equals_a_deque(capacity, fractions, batches, bits, losses):
    ring = compiled_ring(capacity, *fractions)
    state, model, num_added = ring.init(make_item(0)), collections.deque(maxlen=capacity), 0
    assert not ring.can_sample(state)
    for batch in batches:  # samples and updates of priorities come in between
        for i in batch:
            state = ring.add(state, make_item(i))
            model.append(i)
        num_added += len(batch)
        assert (int(state.added), int(ring.size(state))) == (num_added, len(model)) and ring.can_sample(state)
        order = np.arange(num_added - len(model), num_added) % capacity  # the oldest first
        assert list(identify(jax.tree.map(lambda x, order=order: x[order], state.storage))) == list(model)
        items, slots = ring.sample(state, np.array(bits, np.uint32))
        positions = dict(zip(order.tolist(), model, strict=True))
        assert list(identify(items)) == [positions[slot] for slot in slots.tolist()]
        state = ring.update(state, slots, np.array(losses, np.float32))
