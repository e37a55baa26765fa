"""Q-learning with epsilon-greedy exploration, a baseline without deep exploration."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.tabular import base


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Q-learning.

    Attributes:
        epsilon_power: in episode k, actions are random with probability k^-power.
    """

    epsilon_power: float = 0.5


class State(NamedTuple):
    """Attributes: `q` and `visits`, [H, S, A], and the number of `episodes`."""

    q: types.Array
    visits: types.Array
    episodes: types.Array


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds Q-learning with step size (H + 1) / (H + n) at the n-th visit; values are initially zero."""

    def init(key: types.PRNGKey) -> State:
        del key
        return State(jnp.zeros(size.pairs), jnp.zeros(size.pairs), jnp.zeros(()))

    def policy(state: State, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        del rewards, key
        return base.Policy(state.q, (state.episodes + 1.0) ** -config.epsilon_power)

    def update(state: State, rewards: types.Array, episode: base.Episode, key: types.PRNGKey) -> State:
        del key
        visits = state.visits.at[episode.pairs].add(1.0)
        step = (size.horizon + 1.0) / (size.horizon + visits[episode.pairs])
        values = jnp.append(jnp.max(state.q, -1)[1:], jnp.zeros((1, size.num_states)), 0)
        targets = rewards[episode.pairs] + values[jnp.arange(size.horizon), episode.states[1:]]
        change = step * (targets - state.q[episode.pairs])
        return State(state.q.at[episode.pairs].add(change), visits, state.episodes + 1.0)

    return base.Agent(init, policy, update)
