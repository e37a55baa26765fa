"""pgx's MinAtar games as pure functions; the only file that imports pgx."""

from typing import Any

import jax

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.environments import base

_PREFIX = "minatar-"


def names() -> list[str]:
    """Returns the names of all games."""
    return sorted(name.removeprefix(_PREFIX) for name in _pgx().available_envs() if name.startswith(_PREFIX))


def _pgx() -> Any:
    with errors.optional_library("pgx", "pgx"):
        import pgx
    return pgx


def make(name: str) -> base.Environment:
    """Makes a game as in Young and Tian's MinAtar: minimal action set, sticky actions with probability 0.1.

    Observations are booleans [10, 10, channels]. pgx has no time limit, so episodes are never truncated.

    Args:
        name: such as "breakout".
    """
    game = _pgx().make(_PREFIX + name)

    def show(state: Any) -> base.TimeStep:
        return base.transition(state.observation, state.rewards[0], state.terminated, state.truncated)

    def draw(key: types.PRNGKey) -> tuple[types.PRNGKey, types.PRNGKey]:
        return types.fold_in_tag(key, "reset"), types.fold_in_tag(key, "step")

    def reset(state: Any, noise: tuple[types.PRNGKey, types.PRNGKey]) -> tuple[Any, base.TimeStep]:
        del state
        state = game.init(noise[0])
        return state, show(state)

    def step(
        state: Any, action: types.Array, noise: tuple[types.PRNGKey, types.PRNGKey]
    ) -> tuple[Any, base.TimeStep]:
        state = game.step(state, action, noise[1])
        return state, show(state)

    observation = jax.eval_shape(game.init, jax.random.key(0)).observation
    spec = types.EnvironmentSpec(game.num_actions, observation.shape, dtype=observation.dtype.name)
    return base.Environment(spec, reset, draw, step)
