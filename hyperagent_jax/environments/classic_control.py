"""Classic control with sparse rewards as pure functions: MountainCar and bsuite's cartpole swing-up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.environments import base

# Constants of gymnasium's MountainCar-v0.
_POSITIONS, _MAX_SPEED, _GOAL = (-1.2, 0.6), 0.07, 0.5
_PUSH, _GRAVITY = 0.001, 0.0025
# Constants of bsuite's cartpole_swingup.
_MASS_CART, _MASS_POLE, _LENGTH, _FORCE, _EARTH = 1.0, 0.1, 0.5, 10.0, 9.8
_SECONDS, _SWINGUP_STEPS, _EDGE = 0.01, 1_000, 3.0
_HEIGHT, _SPEED, _CENTRE = 0.5, 1.0, 1.0


class MountainCarState(NamedTuple):
    """Attributes: position and velocity of the car, and the number of steps since the reset."""

    position: types.Array
    velocity: types.Array
    steps: types.Array


def make_mountain_car(push_cost: float = 0.0, max_steps: int = 200, is_scaled: bool = False) -> base.Environment:
    """Makes MountainCar with gymnasium's dynamics and a reward of 1 at the goal, where the episode terminates.

    Observations are gymnasium's: position in [-1.2, 0.6] and velocity in [-0.07, 0.07].

    Args:
        push_cost: cost of a step that pushes to the left (action 0) or to the right (action 2).
        max_steps: episodes are truncated after this many steps.
        is_scaled: whether observations are scaled to [-1, 1] instead, which makes differences in velocity larger.
    """
    low, high = _POSITIONS

    def observe(state: MountainCarState) -> types.Array:
        if not is_scaled:
            return jnp.stack([state.position, state.velocity])
        return jnp.stack([(2 * state.position - (low + high)) / (high - low), state.velocity / _MAX_SPEED])

    def reset(state: MountainCarState | None, noise: types.Array) -> tuple[MountainCarState, base.TimeStep]:
        del state
        state = MountainCarState(noise, jnp.zeros(()), jnp.zeros((), jnp.int32))
        return state, base.restart(observe(state))

    def draw(key: types.PRNGKey) -> types.Array:
        return jax.random.uniform(key, minval=-0.6, maxval=-0.4)

    def step(
        state: MountainCarState, action: types.Array, noise: types.Array
    ) -> tuple[MountainCarState, base.TimeStep]:
        del noise
        push = action - 1
        velocity = state.velocity + push * _PUSH - jnp.cos(3 * state.position) * _GRAVITY
        velocity = jnp.clip(velocity, -_MAX_SPEED, _MAX_SPEED)
        position = jnp.clip(state.position + velocity, low, high)
        velocity = jnp.where((position == low) & (velocity < 0), 0.0, velocity)
        state = MountainCarState(position, velocity, state.steps + 1)
        terminated = (position >= _GOAL) & (velocity >= 0)
        reward = jnp.where(terminated, 1.0, 0.0) - push_cost * jnp.abs(push)
        return state, base.transition(observe(state), reward, terminated, state.steps == max_steps)

    return base.Environment(types.EnvironmentSpec(3, (2,)), reset, draw, step)


class SwingupState(NamedTuple):
    """Attributes: position and velocity of the cart, angle (0 is up) and its velocity, steps since the reset."""

    x: types.Array
    x_dot: types.Array
    theta: types.Array
    theta_dot: types.Array
    steps: types.Array


def make_swingup(move_cost: float = 0.1) -> base.Environment:
    """Makes bsuite's cartpole swing-up: reward 1 per step with the pole up, slow and central, minus `move_cost`.

    Time is part of the observation, and episodes terminate after 1,001 steps, as in bsuite.
    """

    def observe(state: SwingupState) -> types.Array:
        return jnp.stack(
            [
                state.x / _EDGE,
                state.x_dot / _EDGE,
                jnp.sin(state.theta),
                jnp.cos(state.theta),
                state.theta_dot,
                state.steps / _SWINGUP_STEPS,
                jnp.where(jnp.abs(state.x) < _CENTRE, 1.0, -1.0),
                jnp.where(jnp.abs(state.theta_dot) < _SPEED, 1.0, -1.0),
            ]
        )

    def reset(state: SwingupState | None, noise: types.Array) -> tuple[SwingupState, base.TimeStep]:
        del state
        x, x_dot, theta, theta_dot = noise
        state = SwingupState(x, x_dot, jnp.pi + theta, theta_dot, jnp.zeros((), jnp.int32))
        return state, base.restart(observe(state))

    def draw(key: types.PRNGKey) -> types.Array:
        return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)

    def step(state: SwingupState, action: types.Array, noise: types.Array) -> tuple[SwingupState, base.TimeStep]:
        del noise
        move = action - 1
        sin, cos, mass = jnp.sin(state.theta), jnp.cos(state.theta), _MASS_CART + _MASS_POLE
        pole = _MASS_POLE * _LENGTH
        push = (move * _FORCE + pole * state.theta_dot**2 * sin) / mass
        theta_acceleration = (_EARTH * sin - cos * push) / (_LENGTH * (4 / 3 - _MASS_POLE * cos**2 / mass))
        x_acceleration = push - pole * theta_acceleration * cos / mass
        state = SwingupState(
            state.x + _SECONDS * state.x_dot,
            state.x_dot + _SECONDS * x_acceleration,
            jnp.remainder(state.theta + _SECONDS * state.theta_dot, 2 * jnp.pi),
            state.theta_dot + _SECONDS * theta_acceleration,
            state.steps + 1,
        )
        is_slow, is_central = jnp.abs(state.theta_dot) < _SPEED, jnp.abs(state.x) < _CENTRE
        is_up = (jnp.cos(state.theta) > _HEIGHT) & is_slow & is_central
        terminated = (state.steps > _SWINGUP_STEPS) | (jnp.abs(state.x) > _EDGE)
        reward = jnp.where(is_up, 1.0, 0.0) - move_cost * jnp.abs(move)
        return state, base.transition(observe(state), reward, terminated)

    return base.Environment(types.EnvironmentSpec(3, (8,)), reset, draw, step)
