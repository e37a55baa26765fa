"""Interfaces of environments: pure functions, and vectorised environments outside JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types


class TimeStep(NamedTuple):
    """The output of a step of an environment.

    Attributes:
        observation: the observation; meaningless once the episode has terminated.
        reward: reward of the step that led here.
        discount: 0 if the episode terminated here, else 1 (also if it was truncated).
        last: whether the episode ends here.
    """

    observation: types.Array
    reward: types.Array
    discount: types.Array
    last: types.Array


def restart(observation: types.Array) -> TimeStep:
    """Returns the first TimeStep of an episode."""
    return TimeStep(observation, jnp.zeros(()), jnp.ones(()), jnp.zeros((), bool))


def transition(
    observation: types.Array,
    reward: types.Array | float,
    terminated: types.Array | bool,
    truncated: types.Array | bool = False,
) -> TimeStep:
    """Returns the TimeStep after a step; of ended episodes, agents bootstrap only from truncated ones."""
    terminated = jnp.asarray(terminated, bool)
    return TimeStep(
        observation, jnp.asarray(reward, jnp.float32), jnp.where(terminated, 0.0, 1.0), terminated | truncated
    )


class Environment(NamedTuple):
    """An environment as pure functions.

    Attributes:
        spec: the EnvironmentSpec.
        reset: maps (state, noise) to (state, TimeStep) at the start of an episode.
        draw: maps a key to the random numbers of one step, a pytree.
        step: maps (state, action, noise) to (state, TimeStep). A step that ends an episode and the `reset` that
            follows get the same noise, so they must use different parts of it.
    """

    spec: types.EnvironmentSpec
    reset: Callable[[Any, Any], tuple[Any, TimeStep]]
    draw: Callable[[types.PRNGKey], Any]
    step: Callable[[Any, types.Array, Any], tuple[Any, TimeStep]]


class VectorStep(NamedTuple):
    """The outputs of a step of some of many environments.

    Attributes:
        env_ids: numbers of the environments, [k].
        observations: stacks of frames, the newest last, [k, frames, height, width]; uint8.
        is_first: whether the observation starts an episode; the step that led here is then not a transition, [k].
        rewards: rewards to learn from, [k].
        scores: the rewards of the game itself, [k].
        terminated: whether the episode terminated here, [k].
        last: whether it ended here, terminated or truncated, [k].
        game_over: whether the game itself ended here; a game may have several episodes, [k].
    """

    env_ids: np.ndarray
    observations: np.ndarray
    is_first: np.ndarray
    rewards: np.ndarray
    scores: np.ndarray
    terminated: np.ndarray
    last: np.ndarray
    game_over: np.ndarray


class VectorEnvironment(Protocol):
    """Environments that step in parallel while the caller does something else.

    The action sent after a `last` is ignored, and the next step received starts a new episode.
    """

    spec: types.EnvironmentSpec
    num_envs: int
    batch_size: int  # number of environments that `recv` waits for; all if synchronous

    def reset(self) -> VectorStep:
        """Resets all environments and waits like `recv`."""

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Starts a step of these environments."""

    def recv(self) -> VectorStep:
        """Waits for the first environments to finish their steps, and returns these."""

    def close(self) -> None:
        """Closes the environments."""


class FrameEnvironment(VectorEnvironment, Protocol):
    """A vector environment whose observations are stacks of frames."""

    stack_shape: tuple[int, int, int]
