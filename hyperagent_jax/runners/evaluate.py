"""Evaluation: complete episodes with new indices and without learning."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import base as environments_base


def make_evaluator(
    agent: agents_base.Agent,
    environment: environments_base.Environment,
    *,
    num_episodes: int,
    max_steps: int,
    epsilon: float = 0.0,
    greedy_in: str = "sample",
) -> Callable[[types.Variables, Any, types.PRNGKey], types.Array]:
    """Builds evaluate(variables, environment state, key) -> returns [num_episodes].

    Every episode draws its own indices (and keeps them, unless the agent acts with a new index per step), so if
    the average equals the optimum, all sampled policies are optimal.

    Args:
        agent: the agent.
        environment: the environment.
        num_episodes: number of episodes, run in parallel.
        max_steps: episodes are truncated after this many steps.
        epsilon: probability of a random action; 1 evaluates the random policy.
        greedy_in: see `policy.make_act`.
    """
    actor, act = agent.evaluation_actor, policy.make_act(agent, epsilon=epsilon, greedy_in=greedy_in)

    def evaluate(variables: types.Variables, environment_state: Any, key: types.PRNGKey) -> types.Array:
        keys = jax.random.split(key, num_episodes)
        noise = jax.vmap(environment.draw)(keys)
        states, first = jax.vmap(environment.reset, (None, 0), axis_size=num_episodes)(environment_state, noise)
        indices = jax.vmap(actor.init)(keys)

        def body(carry: Any) -> Any:
            t, states, observations, indices, done, returns = carry
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            actions, indices = jax.vmap(act, (None, 0, 0, None, 0))(
                variables, observations, indices, t == 0, step_keys
            )
            noise = jax.vmap(lambda k: environment.draw(types.fold_in_tag(k, "environment")))(step_keys)
            states, timestep = jax.vmap(environment.step)(states, actions, noise)
            returns += jnp.where(done, 0.0, timestep.reward)
            return t + 1, states, timestep.observation, indices, done | timestep.last, returns

        carry = jax.lax.while_loop(
            lambda carry: (carry[0] < max_steps) & ~jnp.all(carry[4]),
            body,
            (
                jnp.zeros((), jnp.int32),
                states,
                first.observation,
                indices,
                jnp.zeros(num_episodes, bool),
                jnp.zeros(num_episodes),
            ),
        )
        return carry[5]

    return evaluate


class HostEvaluator:
    """Plays episodes in a vector environment outside JAX."""

    def __init__(
        self,
        agent: agents_base.Agent,
        epsilon: float = 0.0,
        observe: Callable[[types.Array], types.Array] = lambda observations: observations,
        greedy_in: str = "sample",
    ):
        """Creates an evaluator.

        Args:
            agent: the agent.
            epsilon: probability of a random action.
            observe: maps a batch of the environment's observations to the agent's; compiled.
            greedy_in: see `policy.make_act`.
        """
        act_once = policy.make_act(agent, epsilon=epsilon, greedy_in=greedy_in)

        def act(
            variables: types.Variables,
            indices: types.Array,
            observations: types.Array,
            is_first: types.Array,
            key: types.PRNGKey,
            number: types.Array,
        ) -> tuple[types.Array, types.Array]:
            keys = jax.random.split(jax.random.fold_in(key, number), len(is_first))
            over_environments = jax.vmap(act_once, (None, 0, 0, 0, 0))
            return over_environments(variables, observe(observations), indices, is_first, keys)

        self._act, self._init = jax.jit(act), jax.jit(jax.vmap(agent.evaluation_actor.init))

    def __call__(
        self,
        variables: types.Variables,
        environment: environments_base.VectorEnvironment,
        num_episodes: int,
        key: types.PRNGKey,
        should_stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[np.ndarray], None] = lambda actions: None,
    ) -> list[float] | None:
        """Returns the scores of complete episodes, or None if stopped.

        Every episode has its own index, drawn at its start. The environments play equally many episodes, up to
        one, so short episodes are not over-represented.

        Args:
            variables: variables to act with.
            environment: the environments, which must be synchronous.
            num_episodes: number of episodes.
            key: random key.
            should_stop: called before every step.
            on_step: called with the actions of every step.
        """
        num_envs = environment.num_envs
        wanted = num_episodes // num_envs + (np.arange(num_envs) < num_episodes % num_envs)
        scores: list[list[float]] = [[] for _ in range(num_envs)]
        running = np.zeros(num_envs)
        key = prng.hash_key(types.fold_in_tag(key, "evaluation"))
        indices = self._init(jax.random.split(key, num_envs))
        step, number = environment.reset(), 0
        while any(len(own) < want for own, want in zip(scores, wanted, strict=True)):
            if should_stop():
                return None
            actions, indices = self._act(variables, indices, step.observations, step.is_first, key, number)
            actions = np.asarray(actions)
            environment.send(actions, step.env_ids)
            on_step(actions)
            step, number = environment.recv(), number + 1
            running += step.scores
            for env in np.flatnonzero(step.game_over):
                scores[env].append(float(running[env]))
                running[env] = 0.0
        return [score for own, want in zip(scores, wanted, strict=True) for score in own[:want]]
