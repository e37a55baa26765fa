"""n-step transitions on device: against a model in numpy, across ends of episodes and of the ring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import types
from hyperagent_jax.replay import n_step
from hyperagent_jax.replay import ring as ring_lib

GAMMA = 0.5


def make_steps(num_rounds, num_envs, seed=0):
    """Steps [num_rounds, num_envs] whose observations are ids; episodes end at random, terminated or truncated."""
    rng = np.random.default_rng(seed)
    shape = (num_rounds, num_envs)
    last = rng.random(shape) < 0.25
    terminated = last & (rng.random(shape) < 0.5)
    ids = np.arange(num_rounds * num_envs, dtype=np.float32).reshape(shape)
    transition = types.Transition(
        ids,
        rng.integers(0, 3, shape).astype(np.int32),
        rng.normal(size=shape).astype(np.float32),
        np.where(terminated, 0.0, GAMMA).astype(np.float32),
        ids + 0.5,
        ids[..., None],
    )
    return n_step.Step(transition, last, prior_tm1=ids * 10, prior_t=ids * 10 + 5)


def expected(steps, t, env, newest, n):
    """Sum, discount and last round of the n-step transition from round t on, by definition."""
    total, discount = 0.0, 1.0
    for k in range(n):
        total += discount * steps.transition.r_t[t + k, env]
        discount *= steps.transition.discount_t[t + k, env]
        if steps.last[t + k, env] or t + k == newest or k == n - 1:
            return total, discount, t + k
    raise AssertionError


@pytest.mark.parametrize("num_envs, n", [(1, 1), (1, 3), (4, 3), (3, 5)])
def test_equals_the_definition_across_ends_and_the_rings_own(num_envs, n):
    rounds_kept, num_rounds = 7, 18
    capacity = rounds_kept * num_envs
    ring = ring_lib.make_ring(capacity, add_batch_size=num_envs)
    steps = make_steps(num_rounds, num_envs)
    one = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), steps)
    state, add = ring.init(one), jax.jit(ring.add)
    sample = jax.jit(
        lambda state, bits: n_step.sample(state, bits, ring=ring, capacity=capacity, n_step=n, num_envs=num_envs)
    )
    draw, seen = jax.jit(ring.draw, static_argnums=1), set()
    for t in range(num_rounds):
        item = jax.tree.map(lambda x, t=t: jnp.asarray(x[t, 0] if num_envs == 1 else x[t]), steps)
        state = add(state, item)
        batch, slots = jax.device_get(sample(state, draw(jax.random.key(t), 200)))
        for i in range(200):
            begin, env = divmod(int(batch.transitions.o_tm1[i]), num_envs)
            assert max(0, t - rounds_kept + 1) <= begin <= t
            assert int(slots[i]) == (begin * num_envs + env) % capacity
            total, discount, end = expected(steps, begin, env, t, n)
            identity = begin * num_envs + env
            assert batch.transitions.r_t[i] == pytest.approx(total, abs=1e-6)
            assert batch.transitions.discount_t[i] == pytest.approx(discount)
            assert float(batch.transitions.o_t[i]) == end * num_envs + env + 0.5
            assert float(batch.transitions.z_t[i, 0]) == identity  # that of the first step
            assert float(batch.prior_tm1[i]) == 10 * identity
            assert float(batch.prior_t[i]) == 10 * (end * num_envs + env) + 5
            assert batch.transitions.a_tm1[i] == steps.transition.a_tm1[begin, env]
            seen.add((end - begin, bool(steps.last[end, env])))
    assert {length for length, _ in seen} == set(range(n))  # all lengths occurred, also cut ones


def test_batches_of_items_fill_the_ring_in_turn():
    ring = ring_lib.make_ring(6, add_batch_size=3, priority_fraction=0.5)
    state = ring.init(jnp.zeros(()))
    for t in range(3):
        state = ring.add(state, 10.0 * t + jnp.arange(3.0))
    np.testing.assert_array_equal(state.storage, [20, 21, 22, 10, 11, 12])
    assert int(state.added) == 9 and int(ring.size(state)) == 6
    with pytest.raises(ValueError, match="capacity must be a multiple of add_batch_size=4, got 6"):
        ring_lib.make_ring(6, add_batch_size=4)
