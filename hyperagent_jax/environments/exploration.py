"""Environments that require exploration, by name, without other libraries."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base
from hyperagent_jax.environments import classic_control
from hyperagent_jax.environments import door_key
from hyperagent_jax.environments import finite

# Pushing in all 200 steps of MountainCar costs a fifth of the goal's reward.
PUSH_COST = 0.001


def make_bandit(num_features: int = 6, num_arms: int = 5, noise: float = 0.1, seed: int = 0) -> base.Environment:
    """Makes a contextual bandit, in which every step is an episode.

    Contexts are standard normal, [num_features]. Arm a pays w_a . tanh(V x) plus normal noise, with V and w_a
    drawn once from normal distributions, scaled so that mean rewards have a standard deviation of about 1.
    """
    rng = np.random.default_rng(seed)
    width = 4 * num_features
    hidden = jnp.asarray(rng.normal(size=(width, num_features)) * np.sqrt(2 / num_features), jnp.float32)
    arms = jnp.asarray(rng.normal(size=(num_arms, width)) * np.sqrt(2 / width), jnp.float32)

    def draw(key: types.PRNGKey) -> tuple[types.Array, types.Array]:
        context = jax.random.normal(types.fold_in_tag(key, "context"), (num_features,))
        return context, jax.random.normal(types.fold_in_tag(key, "reward"))

    def reset(
        state: types.Array | None, noises: tuple[types.Array, types.Array]
    ) -> tuple[types.Array, base.TimeStep]:
        del state
        return noises[0], base.restart(noises[0])

    def step(
        state: types.Array, action: types.Array, noises: tuple[types.Array, types.Array]
    ) -> tuple[types.Array, base.TimeStep]:
        reward = arms[action] @ jnp.tanh(hidden @ state) + noise * noises[1]
        return state, base.transition(state, reward, True)

    return base.Environment(types.EnvironmentSpec(num_arms, (num_features,)), reset, draw, step)


_ENVIRONMENTS: dict[str, Callable[[], base.Environment]] = {
    "bandit": make_bandit,
    "chain_20": lambda: finite.make_chain(20),
    "door_key_5": lambda: door_key.make_door_key(5),
    "door_key_8": lambda: door_key.make_door_key(8),
    "door_key_8_fixed": lambda: door_key.make_door_key(8, layout_seed=0),
    "door_key_16": lambda: door_key.make_door_key(16),
    "door_key_16_fixed": lambda: door_key.make_door_key(16, layout_seed=0),
    "mountain_car": classic_control.make_mountain_car,
    "mountain_car_cost": lambda: classic_control.make_mountain_car(PUSH_COST),
    "mountain_car_scaled": lambda: classic_control.make_mountain_car(is_scaled=True),
    "river_swim": finite.make_river_swim,
    "swingup": classic_control.make_swingup,
}


def names() -> list[str]:
    """Returns the names of all environments."""
    return list(_ENVIRONMENTS)


def make(name: str) -> base.Environment:
    """Makes the environment called `name`."""
    return _ENVIRONMENTS[name]()
