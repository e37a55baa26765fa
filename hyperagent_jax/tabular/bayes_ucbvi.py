"""Incre-Bayes-UCBVI (Tiapkin et al., 2022): an upper quantile over bootstrapped averages, updated incrementally.

Every pair has several averages of the values that followed it, each with its own exponential weights (the Bayesian
bootstrap). They are initially the largest possible value, as if this had been observed `prior_visits` times.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.tabular import base


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Incre-Bayes-UCBVI.

    Attributes:
        num_members: number of bootstrapped averages per pair.
        quantile: quantile over the averages that is the upper confidence bound.
        prior_visits: initial number of optimistic observations of every pair.
    """

    num_members: int = 16
    quantile: float = 0.85
    prior_visits: float = 1.0


class State(NamedTuple):
    """Attributes: sums of `weights` and weighted `averages` of the next values, [members, H, S, A]."""

    weights: types.Array
    averages: types.Array


def make_agent(config: Config, size: base.Size) -> base.Agent:
    """Builds Incre-Bayes-UCBVI, which takes O(members) per step without solving the MDP again."""
    shape = (config.num_members, *size.pairs)
    most = size.horizon - 1.0 - jnp.arange(size.horizon, dtype=jnp.result_type(float))

    def init(key: types.PRNGKey) -> State:
        weights = jax.random.gamma(key, config.prior_visits, shape)
        return State(weights, jnp.broadcast_to(most[:, None, None], shape))

    def upper_q(state: State, rewards: types.Array) -> types.Array:
        return rewards + jnp.quantile(state.averages, config.quantile, axis=0)

    def policy(state: State, rewards: types.Array, key: types.PRNGKey) -> base.Policy:
        del key
        return base.Policy(upper_q(state, rewards))

    def update(state: State, rewards: types.Array, episode: base.Episode, key: types.PRNGKey) -> State:
        values = jnp.append(jnp.max(upper_q(state, rewards), -1)[1:], jnp.zeros((1, size.num_states)), 0)
        targets = values[jnp.arange(size.horizon), episode.states[1:]]
        places = (slice(None), *episode.pairs)
        new = jax.random.exponential(key, (config.num_members, size.horizon))
        weights, averages = state.weights[places] + new, state.averages[places]
        averages += new / weights * (targets - averages)
        return State(state.weights.at[places].set(weights), state.averages.at[places].set(averages))

    return base.Agent(init, policy, update)
