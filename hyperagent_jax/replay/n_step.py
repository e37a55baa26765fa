"""n-step transitions, formed from single steps when they are sampled."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.replay import ring as ring_lib


class Step(NamedTuple):
    """One step of an environment, as a ring stores it.

    Attributes:
        transition: the step as a Transition.
        last: whether the step ended the episode, by termination or truncation; None if transitions are single
            steps.
        prior_tm1: the fixed prior's belief at o_tm1, or None to compute it in every update.
        prior_t: the fixed prior's belief at o_t, or None.
    """

    transition: types.Transition
    last: types.Array | None = None
    prior_tm1: Any = None
    prior_t: Any = None


def follow(
    state: ring_lib.RingState, slots: types.Array, *, capacity: int, n_step: int, num_envs: int
) -> tuple[types.Array, types.Array, types.Array]:
    """Sums the rewards of up to n steps, starting at each slot.

    A sum ends with its episode, by termination or truncation, and at the newest step of its environment.

    Args:
        state: a ring of Steps, which `num_envs` environments added in turn.
        slots: slots of the first steps, [B].
        capacity: number of steps the ring holds, a multiple of `num_envs`.
        n_step: largest number of rewards n.
        num_envs: number of environments.

    Returns:
        Sums of discounted rewards [B], products of discounts [B], and the slots of the last steps in the sums [B].
    """
    steps = state.storage
    rewards, discounts, ends = steps.transition.r_t[slots], steps.transition.discount_t[slots], slots
    is_open = ~steps.last[slots]
    # Number of steps of all environments added after each slot's.
    newer = (state.added - 1 - slots) % capacity
    for k in range(1, n_step):
        following = (slots + k * num_envs) % capacity
        is_open &= newer >= k * num_envs
        rewards += jnp.where(is_open, discounts * steps.transition.r_t[following], 0.0)
        discounts = jnp.where(is_open, discounts * steps.transition.discount_t[following], discounts)
        ends = jnp.where(is_open, following, ends)
        is_open &= ~steps.last[following]
    return rewards, discounts, ends


def sample(
    state: ring_lib.RingState, bits: types.Array, *, ring: ring_lib.Ring, capacity: int, n_step: int, num_envs: int
) -> tuple[types.Batch, types.Array]:
    """Samples a batch of n-step transitions.

    Args:
        state: a ring of Steps.
        bits: random bits, from `ring.draw`.
        ring: the ring.
        capacity: see `follow`, also for the following arguments.
        n_step: largest number of rewards of a transition.
        num_envs: number of environments.

    Returns:
        The batch, and the slots of its first steps [B].
    """
    step, slots = ring.sample(state, bits)
    transition, prior_t = step.transition, step.prior_t
    if n_step > 1:
        rewards, discounts, ends = follow(state, slots, capacity=capacity, n_step=n_step, num_envs=num_envs)
        steps = state.storage
        o_t, prior_t = jax.tree.map(lambda buffer: buffer[ends], (steps.transition.o_t, steps.prior_t))
        transition = transition._replace(r_t=rewards, discount_t=discounts, o_t=o_t)
    weights = ring.weights(state, slots)
    if weights is not None:
        # Weights are never negative. This makes a later write of priorities at these slots depend on the read of
        # the weights; otherwise XLA would copy the priorities in every step of a loop.
        slots = jnp.where(weights < 0, 0, slots)
    return types.Batch(transition, ring.size(state), step.prior_tm1, prior_t, weights), slots
