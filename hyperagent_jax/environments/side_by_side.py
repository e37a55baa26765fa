"""dm_env environments that step together, as a VectorEnvironment."""

from collections.abc import Callable, Sequence

import dm_env
import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base


class SideBySide:
    """Steps all environments, one after the other; one dispatch of the agent serves all of them."""

    def __init__(
        self,
        environments: Sequence[dm_env.Environment],
        spec: types.EnvironmentSpec,
        observe: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ):
        """Wraps environments.

        Args:
            environments: environments of the same kind, each with its own random numbers.
            spec: the EnvironmentSpec of all environments.
            observe: maps their observations to those of `spec`.
        """
        self.spec = spec
        self.num_envs = self.batch_size = len(environments)
        self._environments = list(environments)
        self._observe = observe
        self._timesteps: list[dm_env.TimeStep] = []

    def reset(self) -> base.VectorStep:
        """Resets all environments."""
        self._timesteps = [environment.reset() for environment in self._environments]
        return self.recv()

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Steps these environments; those whose episode has ended start a new one."""
        for env, action in zip(env_ids, actions, strict=True):
            environment, is_over = self._environments[env], self._timesteps[env].last()
            self._timesteps[env] = environment.reset() if is_over else environment.step(int(action))

    def recv(self) -> base.VectorStep:
        """Returns the steps of all environments."""
        steps = self._timesteps
        rewards = np.array([step.reward or 0.0 for step in steps], np.float32)
        last = np.array([step.last() for step in steps])
        return base.VectorStep(
            env_ids=np.arange(self.num_envs),
            observations=np.stack([self._observe(step.observation) for step in steps]),
            is_first=np.array([step.first() for step in steps]),
            rewards=rewards,
            scores=rewards,
            terminated=last & np.array([step.discount == 0.0 for step in steps]),
            last=last,
            game_over=last,
        )

    def close(self) -> None:
        """Closes the environments."""
        for environment in self._environments:
            environment.close()
