"""Acting: which index an environment follows, and the action it implies."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import indices
from hyperagent_jax import types

ACTION_INDICES = ("episode", "step", "all")


class ActorNoise(NamedTuple):
    """The random numbers of one action.

    Attributes:
        indices: candidates for the next indices, [num_ois, M], or all values [num_values, M].
        resample: one number in [0, 1) that decides whether the indices are replaced.
        explore: one number in [0, 1) that decides whether the action is random.
        ties: numbers in [0, 1) that break ties between actions, and whose largest is the random action,
            [num_actions].
    """

    indices: types.Array
    resample: types.Array
    explore: types.Array
    ties: types.Array


class Actor(NamedTuple):
    """Pure functions of one environment's actor, whose state is its indices [num_ois, M].

    Attributes:
        draw: maps a key to the ActorNoise of one step.
        next_indices: maps (indices, is_first, noise) to the indices to act with now.
        select: maps (values [num_ois, num_actions], noise, number of updates so far) to an action.
    """

    draw: Callable[[types.PRNGKey], ActorNoise]
    next_indices: Callable[[types.Array, types.Array, ActorNoise], types.Array]
    select: Callable[..., types.Array]


def argmax_with_ties(values: types.Array, ties: types.Array) -> types.Array:
    """Index of the largest of `values` [n]; of several, the one with the largest of `ties` [n]."""
    return jnp.argmax(jnp.where(values == jnp.max(values), ties, -1.0)).astype(jnp.int32)


def random_action(noise: ActorNoise) -> types.Array:
    """A uniformly random action."""
    return jnp.argmax(noise.ties).astype(jnp.int32)


def explore(greedy: types.Array, noise: ActorNoise, chance: types.Array | float) -> types.Array:
    """The greedy action or, with the given chance, a random one."""
    return jnp.where(noise.explore < chance, random_action(noise), greedy)


def make_actor(
    index: indices.IndexDistribution,
    num_actions: int,
    *,
    action_index: str = "episode",
    num_ois: int = 1,
    resample_probability: float = 0.0,
    epsilon: Callable[[types.Array], types.Array] | float = 0.0,
) -> Actor:
    """Greedy in sampled values (Algorithm 1, line 7), optimistic over several indices (eq. OIS), with a chance
    of random actions.

    Args:
        index: distribution of the index.
        num_actions: number of actions.
        action_index: "episode" keeps the indices for an episode, "step" draws them for every state, "all"
            acts on all values the index can take.
        num_ois: number of indices; the action maximises the largest of their values.
        resample_probability: with "episode", the chance per step of new indices inside the episode.
        epsilon: chance of a uniformly random action; a number or a function of the number of updates.
    """
    if action_index not in ACTION_INDICES:
        raise ValueError(f"unknown action_index {action_index!r}; choose one of {', '.join(ACTION_INDICES)}")
    if action_index == "all" and num_ois > 1:
        raise ValueError("action_index=all leaves no choice of indices: use num_ois=1")
    if action_index == "all" and index.support is None:
        raise ValueError(f"the index {index.name!r} cannot take all its values at once: use action_index=episode")

    def draw(key):
        if action_index == "all":
            candidates = jnp.asarray(index.support)
        else:
            candidates = index.sample(types.fold_in_tag(key, "indices"), (num_ois,))
        return ActorNoise(
            candidates,
            jax.random.uniform(types.fold_in_tag(key, "resample")),
            jax.random.uniform(types.fold_in_tag(key, "explore")),
            jax.random.uniform(types.fold_in_tag(key, "ties"), (num_actions,)),
        )

    def next_indices(current, is_first, noise):
        if action_index != "episode":
            return noise.indices
        renew = is_first | (noise.resample < resample_probability)
        return jnp.where(renew, noise.indices, current)

    def select(values, noise, count=0):
        greedy = argmax_with_ties(jnp.max(values, axis=0), noise.ties)
        return explore(greedy, noise, epsilon(count) if callable(epsilon) else epsilon)

    return Actor(draw, next_indices, select)
