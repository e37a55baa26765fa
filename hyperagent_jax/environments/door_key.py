"""MiniGrid's DoorKey as pure functions: fetch the key, open the door in the wall, reach the goal behind it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.environments import base

# MiniGrid's actions; "done" does nothing.
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
# Actions in the fixed layout, where the key cannot be put down.
_FIXED_ACTIONS = (LEFT, RIGHT, FORWARD, PICKUP, TOGGLE)
LOCKED, CLOSED, OPEN = range(3)
_STEP = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up


class DoorKeyState(NamedTuple):
    """A state; cells are (column, row) within the outer walls, [2].

    Attributes:
        agent: the agent's cell.
        direction: direction that the agent faces: right, down, left or up.
        key: the key's cell; meaningless while the key is carried.
        carries: whether the agent carries the key.
        wall: column of the wall between the rooms.
        door_row: row of the door in the wall.
        door: LOCKED, CLOSED or OPEN.
        steps: number of steps since the reset.
    """

    agent: types.Array
    direction: types.Array
    key: types.Array
    carries: types.Array
    wall: types.Array
    door_row: types.Array
    door: types.Array
    steps: types.Array


def _new_layout(key: types.PRNGKey, side: int) -> DoorKeyState:
    """Draws a layout as in MiniGrid: agent and key in different cells to the left of the wall."""
    wall_key, door_key, agent_key, key_key, direction_key = jax.random.split(key, 5)
    wall = jax.random.randint(wall_key, (), 1, side - 1)
    num_cells = wall * side
    agent = jax.random.randint(agent_key, (), 0, num_cells)
    other = jax.random.randint(key_key, (), 0, num_cells - 1)
    other += other >= agent
    zero = jnp.zeros((), jnp.int32)
    return DoorKeyState(
        jnp.stack([agent // side, agent % side]),
        jax.random.randint(direction_key, (), 0, 4),
        jnp.stack([other // side, other % side]),
        jnp.zeros((), bool),
        wall,
        jax.random.randint(door_key, (), 0, side - 1),
        zero + LOCKED,
        zero,
    )


def _advance(state: DoorKeyState, action: types.Array, side: int) -> DoorKeyState:
    turn = jnp.where(action == LEFT, 3, jnp.where(action == RIGHT, 1, 0))
    front = state.agent + jnp.asarray(_STEP)[state.direction]
    is_inside = jnp.all((front >= 0) & (front < side))
    is_wall = ~is_inside | ((front[0] == state.wall) & (front[1] != state.door_row))
    is_door = (front[0] == state.wall) & (front[1] == state.door_row)
    is_key = jnp.all(front == state.key) & ~state.carries
    is_goal = jnp.all(front == side - 1)
    is_free = ~is_wall & ~is_key & (~is_door | (state.door == OPEN))
    picks = (action == PICKUP) & is_key
    drops = (action == DROP) & state.carries & ~is_wall & ~is_door & ~is_goal
    toggled = jnp.where(state.door == OPEN, CLOSED, OPEN)
    opens = (action == TOGGLE) & is_door & ((state.door != LOCKED) | state.carries)
    return state._replace(
        agent=jnp.where((action == FORWARD) & is_free, front, state.agent),
        direction=(state.direction + turn) % 4,
        key=jnp.where(drops, front, state.key),
        carries=(state.carries | picks) & ~drops,
        door=jnp.where(opens, toggled, state.door),
        steps=state.steps + 1,
    )


def make_door_key(size: int, layout_seed: int | None = None) -> base.Environment:
    """Makes DoorKey; reaching the goal after t of T = 10 size**2 steps pays 1 - 0.9 t / T.

    Args:
        size: cells per side, including the outer walls.
        layout_seed: None draws a new layout in every episode, as MiniGrid does. Observations are then booleans:
            one-hot vectors of the agent's column, row and direction, of the key's column and row (zeros while it
            is carried) and whether it is carried, of the wall's column, the door's row and the door's state. A
            seed fixes layout and start; observations are then integers, and the key cannot be put down (5 actions:
            left, right, forward, pick up, toggle).
    """
    if size < 5:
        raise ValueError(f"DoorKey's size must be at least 5, got {size}")
    side, max_steps = size - 2, 10 * size**2
    is_fixed = layout_seed is not None

    def observe(state: DoorKeyState) -> types.Array:
        if is_fixed:
            cell = state.agent[0] * side + state.agent[1]
            return ((cell * 4 + state.direction) * 2 + state.carries) * 3 + state.door

        def one_hot(value: types.Array, length: int) -> types.Array:
            return value == jnp.arange(length)

        return jnp.concatenate(
            [
                one_hot(state.agent[0], side),
                one_hot(state.agent[1], side),
                one_hot(state.direction, 4),
                one_hot(state.key[0], side) & ~state.carries,
                one_hot(state.key[1], side) & ~state.carries,
                state.carries[None],
                one_hot(state.wall, side),
                one_hot(state.door_row, side),
                one_hot(state.door, 3),
            ]
        )

    def reset(state: DoorKeyState | None, noise: types.PRNGKey) -> tuple[DoorKeyState, base.TimeStep]:
        del state
        state = _new_layout(jax.random.key(layout_seed) if layout_seed is not None else noise, side)
        return state, base.restart(observe(state))

    def step(state: DoorKeyState, action: types.Array, noise: types.PRNGKey) -> tuple[DoorKeyState, base.TimeStep]:
        del noise
        state = _advance(state, jnp.asarray(_FIXED_ACTIONS)[action] if is_fixed else action, side)
        terminated = jnp.all(state.agent == side - 1)
        reward = jnp.where(terminated, 1.0 - 0.9 * state.steps / max_steps, 0.0)
        return state, base.transition(observe(state), reward, terminated, state.steps == max_steps)

    if is_fixed:
        spec = types.EnvironmentSpec(len(_FIXED_ACTIONS), (), side**2 * 4 * 2 * 3)
    else:
        spec = types.EnvironmentSpec(7, (6 * side + 8,), dtype="bool")
    return base.Environment(spec, reset, lambda key: key, step)
