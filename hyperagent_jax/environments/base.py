"""What an environment made of pure functions looks like."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hyperagent_jax import types


class TimeStep(NamedTuple):
    """What an environment shows.

    Attributes:
        observation: the observation; meaningless once the episode has terminated.
        reward: reward of the step that led here.
        discount: 0 when the episode terminated here, else 1 (also when it was truncated).
        last: whether the episode ends here.
    """

    observation: types.Array
    reward: types.Array
    discount: types.Array
    last: types.Array


class Environment(NamedTuple):
    """An environment as pure functions.

    Attributes:
        spec: its EnvironmentSpec.
        reset: maps (state, noise) to (state, TimeStep) at the start of an episode.
        draw: maps a key to the random numbers of one step, a pytree.
        step: maps (state, action, noise) to (state, TimeStep).
    """

    spec: types.EnvironmentSpec
    reset: Callable[[Any, Any], tuple[Any, TimeStep]]
    draw: Callable[[types.PRNGKey], Any]
    step: Callable[[Any, types.Array, Any], tuple[Any, TimeStep]]
