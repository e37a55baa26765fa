"""Gymnasium environments as dm_env environments; the only file that imports gymnasium."""

import types as python_types
from typing import Any

import dm_env
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import types


def _gymnasium() -> python_types.ModuleType:
    try:
        import gymnasium
    except ImportError as error:
        raise errors.UserError("gymnasium is not installed: pip install 'hyperagent_jax[gymnasium]'") from error
    return gymnasium


class GymnasiumEnvironment(dm_env.Environment):
    """A Gymnasium environment with discrete actions.

    Truncated episodes end with discount 1, so that agents bootstrap from their last observation; terminated
    episodes end with discount 0. The environment's random numbers come from one seed, so that runs are
    reproducible.
    """

    def __init__(self, environment: Any, seed: int):
        """Wraps an environment.

        Args:
            environment: an environment from gymnasium.make, or its name.
            seed: seed of the first reset.
        """
        gymnasium = _gymnasium()
        if isinstance(environment, str):
            try:
                environment = gymnasium.make(environment)
            except (gymnasium.error.Error, ModuleNotFoundError) as error:
                raise errors.UserError(f"gymnasium cannot make {environment}: {error}") from error
        spaces, name = gymnasium.spaces, environment.spec.id if environment.spec else environment
        if not isinstance(environment.action_space, spaces.Discrete):
            raise errors.UserError(f"{name} does not have discrete actions: {environment.action_space}")
        if not isinstance(environment.observation_space, spaces.Box | spaces.Discrete):
            raise errors.UserError(
                f"the observations of {name} are neither arrays nor integers: wrap it in "
                "gymnasium.wrappers.FlattenObservation"
            )
        self._environment = environment
        self._seed: int | None = seed
        self._first_action = int(environment.action_space.start)
        observations = environment.observation_space
        self._is_integer = isinstance(observations, spaces.Discrete)
        self._first_state = int(observations.start) if self._is_integer else 0

    @property
    def spec(self) -> types.EnvironmentSpec:
        """The EnvironmentSpec for building an agent."""
        observations = self._environment.observation_space
        num_states = int(observations.n) if self._is_integer else None
        return types.EnvironmentSpec(int(self._environment.action_space.n), observations.shape, num_states)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None  # later episodes continue the same stream of random numbers
        return dm_env.restart(self._observe(observation))

    def step(self, action: int) -> dm_env.TimeStep:
        """Takes an action; a truncated episode ends with discount 1."""
        observation, reward, terminated, truncated, _ = self._environment.step(self._first_action + int(action))
        end = dm_env.termination if terminated else dm_env.truncation if truncated else dm_env.transition
        return end(float(reward), self._observe(observation))

    def _observe(self, observation: Any) -> types.HostArray:
        if self._is_integer:
            return np.int32(observation - self._first_state)
        return np.asarray(observation, np.float32)

    def action_spec(self) -> dm_env.specs.DiscreteArray:
        """Returns the number of actions as a spec."""
        return dm_env.specs.DiscreteArray(self.spec.num_actions)

    def observation_spec(self) -> dm_env.specs.Array:
        """Returns shape and dtype of an observation."""
        return dm_env.specs.Array(self.spec.observation_shape, np.int32 if self._is_integer else np.float32)
