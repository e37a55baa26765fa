"""Finite environments as pure functions, from their tables: a chain and RiverSwim."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base
from hyperagent_jax.tabular import mdps


class FiniteState(NamedTuple):
    """Attributes: the state the agent is in, and the number of steps since the reset."""

    position: types.Array
    steps: types.Array


def make_finite(transitions: np.ndarray, rewards: np.ndarray, max_steps: int) -> base.Environment:
    """Makes an environment that starts in state 0, with integer states as observations, truncated at a horizon.

    Args:
        transitions: probabilities of the next state, [num_states, num_actions, num_states]. If they sum to less
            than one, the difference is the probability that the episode terminates.
        rewards: [num_states, num_actions].
        max_steps: episodes are truncated after this many steps.
    """
    num_states, num_actions = np.shape(rewards)
    sums = np.cumsum(np.asarray(transitions, np.float64), axis=-1)
    # Make complete rows exactly one; otherwise rounding would occasionally terminate episodes.
    sums_table = jnp.asarray(np.where(sums > 1 - 1e-6, 1.0, sums), jnp.float32)
    reward_table = jnp.asarray(rewards, jnp.float32)

    def reset(state: FiniteState | None, noise: types.Array) -> tuple[FiniteState, base.TimeStep]:
        del state, noise
        zero = jnp.zeros((), jnp.int32)
        return FiniteState(zero, zero), base.restart(zero)

    def step(state: FiniteState, action: types.Array, noise: types.Array) -> tuple[FiniteState, base.TimeStep]:
        position, steps = state.position, state.steps + 1
        drawn = jnp.sum(noise >= sums_table[position, action], dtype=jnp.int32)
        following = FiniteState(jnp.minimum(drawn, num_states - 1), steps)
        return following, base.transition(
            following.position, reward_table[position, action], drawn == num_states, steps == max_steps
        )

    spec = types.EnvironmentSpec(num_actions, (), num_states)
    return base.Environment(spec, reset, jax.random.uniform, step)


def chain_actions(length: int, mapping_seed: int = 42) -> np.ndarray:
    """Returns the action that moves right in every state of `make_chain`, [length]."""
    return np.random.default_rng(mapping_seed).integers(2, size=length)


def make_chain(length: int = 20, max_steps: int = 25, mapping_seed: int = 42) -> base.Environment:
    """Makes a chain: the action that moves right is random for every state, the other one moves left.

    Moving right at the end pays 1 and terminates. With 20 states and 25 steps, random actions reach the end in
    about one of 30,000 episodes.
    """
    right = chain_actions(length, mapping_seed)
    states = np.arange(length)
    transitions, rewards = np.zeros((length, 2, length)), np.zeros((length, 2))
    transitions[states[:-1], right[:-1], states[1:]] = 1.0
    transitions[states, 1 - right, np.maximum(states - 1, 0)] = 1.0
    rewards[-1, right[-1]] = 1.0
    return make_finite(transitions, rewards, max_steps)


def make_river_swim(num_states: int = 6, max_steps: int = 100) -> base.Environment:
    """Makes RiverSwim (see `tabular.mdps.river_swim`): 0.005 at the start, 1 at the far end upstream."""
    mdp = mdps.river_swim(num_states, horizon=1)
    return make_finite(np.asarray(mdp.transitions[0]), np.asarray(mdp.rewards[0]), max_steps)
