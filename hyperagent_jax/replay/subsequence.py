"""Transitions with annealed n-step and discount, and the steps that follow them.

Rings hold single steps (see n_step.py), whose discounts are stored without gamma; returns are computed when
sampling, with the current n and gamma. BBF (https://arxiv.org/abs/2305.19452) needs both.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.replay import ring as ring_lib


class Rule(NamedTuple):
    """How n and gamma change, and how many following steps transitions have.

    Attributes:
        n_start: initial largest number of rewards n.
        n_end: n after `anneal_updates`.
        discount_start: initial gamma.
        discount_end: gamma after `anneal_updates`.
        anneal_updates: updates over which both change, geometrically in n and 1 - gamma.
        reset_period: updates after which annealing restarts; 0 for never.
        num_future: number of following observations of a transition.
    """

    n_start: int
    n_end: int
    discount_start: float
    discount_end: float
    anneal_updates: int
    reset_period: int
    num_future: int


def horizon(count: types.Array, rule: Rule) -> tuple[types.Array, types.Array]:
    """Returns n, a whole number, and gamma for the update that follows `count` updates."""
    since = count % rule.reset_period if rule.reset_period else count
    progress = jnp.minimum(since / rule.anneal_updates, 1.0)
    n = jnp.round(rule.n_start * (rule.n_end / rule.n_start) ** progress).astype(jnp.int32)
    first, last = 1.0 - rule.discount_start, 1.0 - rule.discount_end
    return n, 1.0 - first * (last / first) ** progress


def sample(
    state: ring_lib.RingState,
    bits: types.Array,
    count: types.Array,
    *,
    ring: ring_lib.Ring,
    capacity: int,
    num_envs: int,
    rule: Rule,
) -> tuple[types.Batch, types.Array]:
    """Samples a batch of transitions with the steps that follow them.

    Args:
        state: a ring of `n_step.Step`, whose discounts are without gamma.
        bits: random bits, from `ring.draw`.
        count: number of updates so far.
        ring: the ring.
        capacity: number of steps the ring holds.
        num_envs: environments that added steps in turn.
        rule: see `Rule`.

    Returns:
        The batch, whose transitions are `types.Subsequence`, and the slots of its first steps [B].
    """
    step, slots = ring.sample(state, bits)
    stored, places = state.storage, jnp.arange(max(rule.n_start, rule.num_future))
    following = (slots[:, None] + places * num_envs) % capacity  # [B, L]
    exists = ((state.added - 1 - slots) % capacity)[:, None] >= places * num_envs
    ended = jnp.cumsum(stored.last[following], axis=1) - stored.last[following] > 0  # before that step
    is_open = exists & ~ended
    n, gamma = horizon(count, rule)
    is_summed = is_open & (places < n)
    discounts = jnp.where(is_summed, gamma * stored.transition.discount_t[following], 1.0)
    until = jnp.cumprod(discounts, axis=1)
    before = jnp.concatenate([jnp.ones((slots.shape[0], 1)), until[:, :-1]], axis=1)
    rewards = jnp.sum(jnp.where(is_summed, before * stored.transition.r_t[following], 0.0), axis=1)
    ends = jnp.take_along_axis(following, jnp.sum(is_summed, axis=1, keepdims=True) - 1, axis=1)[:, 0]
    o_t, prior_t = jax.tree.map(lambda buffer: buffer[ends], (stored.transition.o_t, stored.prior_t))
    near = following[:, : rule.num_future]
    future = types.Future(
        stored.transition.o_t[near],
        stored.transition.a_tm1[near],
        is_open[:, : rule.num_future].astype(jnp.float32),
    )
    t = step.transition
    transitions = types.Subsequence(t.o_tm1, t.a_tm1, rewards, until[:, -1], o_t, t.z_t, future)
    weights = ring.weights(state, slots)
    if weights is not None:
        slots = jnp.where(weights < 0, 0, slots)  # see n_step.sample
    batch = types.Batch(cast(types.Transition, transitions), ring.size(state), step.prior_tm1, prior_t, weights)
    return batch, slots
