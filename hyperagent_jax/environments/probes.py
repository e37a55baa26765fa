"""Probe environments, which are so small that the optimal Q-values are known by hand.

Each one tests a single property of an agent, so that the first one to fail identifies the faulty part; `combined`
tests all of them at once, with a single compiled program.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base


class ProbeState(NamedTuple):
    """Attributes: the state the agent is in, and the number of steps since the reset."""

    position: types.Array
    steps: types.Array


class Probe(NamedTuple):
    """A probe environment and its optimal Q-values.

    Attributes:
        environment: the environment.
        state: the state before the first reset.
        q_values: the optimal Q-values, [num_states, num_actions].
    """

    environment: base.Environment
    state: ProbeState
    q_values: np.ndarray


# Successor that means that the episode terminates.
END = -1


def _make_probe(
    rewards: Sequence[Sequence[float]],
    successors: Sequence[Sequence[int]],
    q_values: Sequence[Sequence[float]],
    *,
    num_starts: int = 1,
    max_steps: int | None = None,
) -> Probe:
    """Makes a deterministic probe from its tables.

    Args:
        rewards: [num_states, num_actions].
        successors: the next state, or END, [num_states, num_actions].
        q_values: the optimal Q-values, [num_states, num_actions].
        num_starts: episodes start in one of the states 0 .. num_starts - 1, drawn uniformly.
        max_steps: episodes are truncated after this many steps; None for never.
    """
    reward_table, successor_table = jnp.asarray(rewards, jnp.float32), jnp.asarray(successors, jnp.int32)
    num_states, num_actions = reward_table.shape

    def draw(key: types.PRNGKey) -> types.Array:
        return jax.random.randint(key, (), 0, num_starts)

    def reset(state: ProbeState, noise: types.Array) -> tuple[ProbeState, base.TimeStep]:
        start = base.TimeStep(noise, jnp.zeros(()), jnp.ones(()), jnp.zeros((), bool))
        return ProbeState(noise, jnp.zeros_like(state.steps)), start

    def step(state: ProbeState, action: types.Array, noise: types.Array) -> tuple[ProbeState, base.TimeStep]:
        del noise
        successor = successor_table[state.position, action]
        terminated = successor == END
        position = jnp.where(terminated, state.position, successor)
        steps = state.steps + 1
        last = terminated if max_steps is None else terminated | (steps == max_steps)
        discount = jnp.where(terminated, 0.0, 1.0)
        reward = reward_table[state.position, action]
        return ProbeState(position, steps), base.TimeStep(position, reward, discount, last)

    spec = types.EnvironmentSpec(num_actions=num_actions, observation_shape=(), num_states=num_states)
    zero = jnp.zeros((), jnp.int32)
    return Probe(
        base.Environment(spec, reset, draw, step), ProbeState(zero, zero), np.asarray(q_values, np.float32)
    )


def one_step(discount: float) -> Probe:
    """One state, one action, reward 1, end: is the reward learned at all?"""
    del discount
    return _make_probe([[1.0]], [[END]], [[1.0]])


def delayed_reward(discount: float) -> Probe:
    """Two states in a row, reward 1 after the second: is the value propagated back, discounted once?"""
    return _make_probe([[0.0], [1.0]], [[1], [END]], [[discount], [1.0]])


def two_actions(discount: float) -> Probe:
    """One state, two actions worth 1 and -0.5: are the values of actions distinguished?"""
    del discount
    return _make_probe([[1.0, -0.5]], [[END, END]], [[1.0, -0.5]])


def random_start(discount: float) -> Probe:
    """Starts in one of two states worth 1 and -1: does the value depend on the observation?"""
    del discount
    return _make_probe([[1.0], [-1.0]], [[END], [END]], [[1.0], [-1.0]], num_starts=2)


def truncated_loop(discount: float) -> Probe:
    """Reward 1 forever, truncated every 5 steps: does truncation bootstrap?

    The value is 1 / (1 - discount). If truncation were treated as termination, the value that fits five
    transitions in a row, one of them without a future, would be 1 / (1 - 0.8 * discount).
    """
    return _make_probe([[1.0]], [[0]], [[1.0 / (1.0 - discount)]], max_steps=5)


def combined(discount: float) -> Probe:
    """Starts at random in one of five states, which test these properties with two actions each."""
    q_values = [[1.0, 1.0], [discount, discount], [1.0, -0.5], [-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]
    rewards = [[1.0, 1.0], [0.0, 0.0], [1.0, -0.5], [-1.0, -1.0], [1.0 - discount] * 2, [1.0, 1.0]]
    successors = [[END, END], [5, 5], [END, END], [END, END], [4, 4], [END, END]]
    return _make_probe(rewards, successors, q_values, num_starts=5, max_steps=5)


PROBES = {probe.__name__: probe for probe in (one_step, delayed_reward, two_actions, random_start, truncated_loop)}
