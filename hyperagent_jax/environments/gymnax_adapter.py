"""gymnax's environments as pure functions; the only file that imports gymnax."""

from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import base


def _gymnax() -> Any:
    with errors.optional_library("gymnax", "gymnax"):
        import gymnax
    return gymnax


def names() -> list[str]:
    """Returns the names of all environments, including those with continuous actions."""
    return sorted(_gymnax().registered_envs)


def make(name: str) -> base.Environment:
    """Makes an environment with its default parameters.

    Args:
        name: such as "MountainCar-v0".
    """
    gymnax = _gymnax()
    environment, params = gymnax.make(name)
    actions, observations = environment.action_space(params), environment.observation_space(params)
    if not isinstance(actions, gymnax.environments.spaces.Discrete):
        raise errors.UserError(f"gymnax/{name} has continuous actions: choose one with discrete actions")

    def draw(key: types.PRNGKey) -> tuple[types.PRNGKey, types.PRNGKey]:
        return types.fold_in_tag(key, "reset"), types.fold_in_tag(key, "step")

    def reset(state: Any, noise: tuple[types.PRNGKey, types.PRNGKey]) -> tuple[Any, base.TimeStep]:
        del state
        observation, state = environment.reset_env(noise[0], params)
        return state, base.restart(observation)

    def step(
        state: Any, action: types.Array, noise: tuple[types.PRNGKey, types.PRNGKey]
    ) -> tuple[Any, base.TimeStep]:
        observation, state, reward, terminated, _ = environment.step_env(noise[1], state, action, params)
        truncated = environment.is_truncated(state, params)
        return state, base.transition(observation, jnp.reshape(reward, ()), terminated, truncated)

    shown = jax.eval_shape(lambda key: environment.reset_env(key, params)[0], jax.random.key(0))
    if isinstance(observations, gymnax.environments.spaces.Discrete):
        spec = types.EnvironmentSpec(int(actions.n), (), int(observations.n))
    else:
        spec = types.EnvironmentSpec(int(actions.n), shown.shape, dtype=shown.dtype.name)
    return base.Environment(spec, reset, draw, step)
