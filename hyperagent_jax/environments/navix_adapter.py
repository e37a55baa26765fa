"""navix, MiniGrid in JAX, as pure functions; the only file that imports navix."""

from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import base


def _navix() -> Any:
    with errors.optional_library("navix", "navix"):
        import navix
    return navix


def names() -> list[str]:
    """Returns the names of all environments."""
    return sorted(_navix().registry())


def make(name: str) -> base.Environment:
    """Makes an environment whose observations are the symbols of the whole grid, uint8 [height, width, 3].

    Args:
        name: such as "Navix-DoorKey-8x8-v0".
    """
    navix = _navix()
    environment = navix.make(name)
    truncated = navix.environments.environment.StepType.TRUNCATION
    terminated = navix.environments.environment.StepType.TERMINATION

    def show(timestep: Any) -> base.TimeStep:
        kind = timestep.step_type
        return base.transition(timestep.observation, timestep.reward, kind == terminated, kind == truncated)

    def reset(state: Any, key: types.PRNGKey) -> tuple[Any, base.TimeStep]:
        del state
        # navix stores its key in the state, as raw bits.
        timestep = environment.reset(jax.random.key_data(key))
        timestep.info["return"] = jnp.zeros(())
        return timestep, show(timestep)

    def step(state: Any, action: types.Array, key: types.PRNGKey) -> tuple[Any, base.TimeStep]:
        del key  # navix derives its random numbers from the key of the reset
        timestep = environment._step(state, action)
        return timestep, show(timestep)

    shown = jax.eval_shape(environment.reset, jax.random.PRNGKey(0)).observation
    spec = types.EnvironmentSpec(int(environment.action_space.n), shown.shape, dtype=shown.dtype.name)
    return base.Environment(spec, reset, lambda key: types.fold_in_tag(key, "reset"), step)
