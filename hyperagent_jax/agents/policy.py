"""A trained agent that only acts."""

from typing import Any

import jax

from hyperagent_jax import posterior
from hyperagent_jax import types
from hyperagent_jax.agents import base

CHOICES = ("sample", "mean")


class Policy:
    """Maps observations to actions, without learning; keeps the index of the current episode.

    With "sample" it acts as in evaluation: greedily in Q-values of sampled indices, which are kept for an episode
    or redrawn in every step, as the agent's settings say. With "mean" it is greedy in the mean over the index.
    """

    def __init__(
        self, agent: base.Agent, variables: types.Variables, key: types.PRNGKey, greedy_in: str = "sample"
    ) -> None:
        """Makes a policy.

        Args:
            agent: the agent.
            variables: its variables, for example `agent.learner.variables(state)` or those of `load_agent`.
            key: random key.
            greedy_in: "sample" or "mean".
        """
        if greedy_in not in CHOICES:
            raise ValueError(f"unknown greedy_in {greedy_in!r}; choose one of {', '.join(CHOICES)}")
        network, actor = agent.network, agent.evaluation_actor

        def act(
            variables: types.Variables,
            observation: Any,
            indices: types.Array,
            is_first: types.Array,
            key: types.PRNGKey,
        ) -> tuple[types.Array, types.Array]:
            noise = actor.draw(key)
            indices = actor.next_indices(indices, is_first, noise)
            if greedy_in == "mean":
                values = posterior.mean(network, variables, observation)[None]
            else:
                values = jax.vmap(network.apply, (None, None, 0))(variables, observation, indices)
            return actor.select(values, noise), indices

        self._act, self._network, self._variables, self._key = jax.jit(act), network, variables, key
        self._indices = actor.draw(key).indices
        self._episode, self._step = -1, 0

    def __call__(self, observation: Any, is_first: bool = False) -> int:
        """Returns the action for an observation.

        Args:
            observation: one observation.
            is_first: whether it is the first of an episode; that of the first call always is.
        """
        posterior.require_observations(self._network, observation, has_batch=False)
        if is_first or self._episode < 0:
            self._episode, self._step = self._episode + 1, 0
        key = jax.random.fold_in(jax.random.fold_in(self._key, self._episode), self._step)
        action, self._indices = self._act(self._variables, observation, self._indices, self._step == 0, key)
        self._step += 1
        return int(action)
