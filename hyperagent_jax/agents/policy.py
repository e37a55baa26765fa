"""Acting with a trained agent, without learning."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import posterior
from hyperagent_jax import types
from hyperagent_jax.agents import base

CHOICES = ("sample", "mean", "majority")
# Number of indices that vote on an action by majority.
_NUM_VOTERS = 32


def check(greedy_in: str, name: str = "greedy_in") -> None:
    """Raises ValueError unless `greedy_in` is one of `CHOICES`."""
    if greedy_in not in CHOICES:
        raise ValueError(f"{name} must be one of {', '.join(CHOICES)}, got {greedy_in!r}")


def make_act(
    agent: base.Agent, *, epsilon: float = 0.0, greedy_in: str = "sample"
) -> Callable[..., tuple[types.Array, types.Array]]:
    """Builds act(variables, observation, indices, is_first, key) -> (action, indices), for acting without
    learning.

    Args:
        agent: the agent.
        epsilon: probability of a random action.
        greedy_in: "sample" for Q-values of sampled indices, "mean" for the mean over the index, "majority" for the
            action that is greedy for most of 32 sampled indices.
    """
    check(greedy_in)
    network, actor = agent.network, agent.evaluation_actor

    def act(
        variables: types.Variables,
        observation: Any,
        indices: types.Array,
        is_first: types.Array,
        key: types.PRNGKey,
    ) -> tuple[types.Array, types.Array]:
        def at(indices: types.Array) -> types.Array:
            return jax.vmap(network.apply, (None, None, 0))(variables, observation, indices)

        def q_values(indices: types.Array) -> types.Array:
            if greedy_in == "sample":
                return at(indices)
            if greedy_in == "mean":
                scores = posterior.mean(network, variables, observation)
            else:
                voters = agent.evaluation_index.sample(types.fold_in_tag(key, "voters"), (_NUM_VOTERS,))
                values = at(voters)
                scores = jnp.mean(jax.nn.one_hot(jnp.argmax(values, axis=-1), values.shape[-1]), axis=0)
            return jnp.broadcast_to(scores, (*indices.shape[:-1], *scores.shape))

        noise = actor.draw(key)
        action, indices = actor.choose(q_values, indices, is_first, noise)
        return actor_lib.explore(action, noise, epsilon), indices

    return act


class Policy:
    """Maps observations to actions, without learning; keeps the index of the current episode.

    With "sample" it acts as in evaluation: greedily with respect to the Q-values of sampled indices, which are
    kept for an episode or resampled in every step, depending on the agent's settings. With "mean" it is greedy
    with respect to the mean over the index; with "majority" it takes the action that is greedy for most sampled
    indices.
    """

    def __init__(
        self, agent: base.Agent, variables: types.Variables, key: types.PRNGKey, greedy_in: str = "sample"
    ) -> None:
        """Creates a policy.

        Args:
            agent: the agent.
            variables: the agent's variables, for example `agent.learner.variables(state)` or from `load_agent`.
            key: random key.
            greedy_in: "sample", "mean" or "majority".
        """
        self._act, self._network = jax.jit(make_act(agent, greedy_in=greedy_in)), agent.network
        self._variables, self._key = variables, key
        self._indices = agent.evaluation_actor.init(key)
        self._episode, self._step = -1, 0

    def __call__(self, observation: Any, is_first: bool = False) -> int:
        """Returns the action for an observation.

        Args:
            observation: one observation.
            is_first: whether it is the first of an episode; the first call always starts an episode.
        """
        posterior.require_observations(self._network, observation, has_batch=False)
        if is_first or self._episode < 0:
            self._episode, self._step = self._episode + 1, 0
        key = jax.random.fold_in(jax.random.fold_in(self._key, self._episode), self._step)
        action, self._indices = self._act(self._variables, observation, self._indices, self._step == 0, key)
        self._step += 1
        return int(action)
