"""DeepSea as pure functions: bsuite's `DeepSea`, step for step, deterministic and stochastic.

An N x N grid that is entered at the top left. Each step moves one row down and either left or right; the action
that moves right is random for every cell. Moving right costs 0.01 / N, and moving right in the last column pays 1.
Observations are integers row * N + column, the position of the 1 in bsuite's one-hot grid.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import types
from hyperagent_jax.environments import base

MOVE_COST = 0.01


class StepNoise(NamedTuple):
    """The random numbers of one step of a stochastic DeepSea."""

    wind: types.Array
    reward: types.Array


class DeepSeaState(NamedTuple):
    """Attributes: the agent's position, and the action that moves right in each cell, [size, size]."""

    row: types.Array
    column: types.Array
    right_action: types.Array


def action_mapping(size: int, mapping_seed: int) -> np.ndarray:
    """Returns the action that moves right in each cell, [size, size], drawn as in bsuite."""
    return np.random.RandomState(mapping_seed).binomial(1, 0.5, [size, size]).astype(np.int32)


def initial_state(right_action: np.ndarray) -> DeepSeaState:
    """Returns the state before the first reset."""
    zero = jnp.zeros((), jnp.int32)
    return DeepSeaState(zero, zero, jnp.asarray(right_action, jnp.int32))


def optimal_return(size: int, deterministic: bool = True) -> float:
    """Returns the expected return of always moving right, which bsuite considers optimal."""
    reach = 1.0 if deterministic else (1 - 1 / size) ** (size - 1)
    return reach - MOVE_COST


def make_deep_sea(size: int, deterministic: bool = True, noisy_rewards: bool = True) -> base.Environment:
    """Makes a DeepSea environment; its states come from `initial_state(action_mapping(...))`.

    Args:
        size: N of the N x N grid.
        deterministic: False for bsuite's stochastic variant.
        noisy_rewards: False omits the stochastic variant's reward noise, which has mean zero.
    """
    if size < 1:
        raise ValueError(f"DeepSea's size must be at least 1, got {size}")

    def observe(row: types.Array, column: types.Array) -> types.Array:
        return jnp.minimum(row, size - 1) * size + column

    def reset(state: DeepSeaState, noise: StepNoise | None) -> tuple[DeepSeaState, base.TimeStep]:
        del noise
        zero = jnp.zeros_like(state.row)
        start = base.TimeStep(zero, jnp.zeros(()), jnp.ones(()), jnp.zeros((), bool))
        return state._replace(row=zero, column=zero), start

    def draw(key: types.PRNGKey) -> StepNoise | None:
        if deterministic:
            return None
        return StepNoise(
            jax.random.uniform(types.fold_in_tag(key, "wind")),
            jax.random.normal(types.fold_in_tag(key, "reward")),
        )

    def step(
        state: DeepSeaState, action: types.Array, noise: StepNoise | None
    ) -> tuple[DeepSeaState, base.TimeStep]:
        row, column = state.row, state.column
        right = action == state.right_action[row, column]
        reward = jnp.where(right & (column == size - 1), 1.0, 0.0)
        moves_right = right
        if not deterministic:
            assert noise is not None  # see `draw`
            noisy = noisy_rewards & (row == size - 1) & ((column == 0) | (column == size - 1))
            reward += jnp.where(noisy, noise.reward, 0.0)
            moves_right = right & (noise.wind > 1 / size)
        reward -= jnp.where(right, MOVE_COST / size, 0.0)
        shift = jnp.where(right, moves_right.astype(jnp.int32), -1)
        column = jnp.clip(column + shift, 0, size - 1)
        row = row + 1
        last = row == size
        discount = jnp.where(last, 0.0, 1.0)
        return (
            state._replace(row=row, column=column),
            base.TimeStep(observe(row, column), reward, discount, last),
        )

    spec = types.EnvironmentSpec(num_actions=2, observation_shape=(), num_states=size * size)
    return base.Environment(spec, reset, draw, step)
