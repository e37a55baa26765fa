"""Evaluation: whole episodes with fresh indices and no learning."""

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base


def make_act(agent: agents_base.Agent, epsilon: float = 0.0) -> Callable[..., tuple[types.Array, types.Array]]:
    """Makes act(variables, observation, indices, is_first, key) -> (indices, action).

    Args:
        agent: the agent.
        epsilon: chance of a random action.
    """
    actor, network = agent.evaluation_actor, agent.network

    def act(variables, observation, indices, is_first, key):
        noise = actor.draw(key)
        indices = actor.next_indices(indices, is_first, noise)
        values = jax.vmap(network.apply, (None, None, 0))(variables, observation, indices)
        return indices, actor_lib.explore(actor.select(values, noise), noise, epsilon)

    return act


def make_evaluator(
    agent: agents_base.Agent,
    environment: environments_base.Environment,
    *,
    num_episodes: int,
    max_steps: int,
) -> Callable[[types.Variables, Any, types.PRNGKey], types.Array]:
    """Makes evaluate(variables, environment state, key) -> returns [num_episodes].

    Every episode draws its own indices (and keeps them, unless the agent acts with a new index per step),
    so an average that equals the optimum says that all sampled policies are optimal.

    Args:
        agent: the agent.
        environment: the environment.
        num_episodes: number of episodes, run side by side.
        max_steps: episodes are cut after this many steps.
    """
    actor, act = agent.evaluation_actor, make_act(agent)

    def evaluate(variables, environment_state, key):
        keys = jax.random.split(key, num_episodes)
        noise = jax.vmap(environment.draw)(keys)
        states, first = jax.vmap(environment.reset, (None, 0), axis_size=num_episodes)(environment_state, noise)
        indices = jax.vmap(actor.draw)(keys).indices

        def body(carry):
            t, states, observations, indices, done, returns = carry
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
            indices, actions = jax.vmap(act, (None, 0, 0, None, 0))(
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


def make_player(
    agent: agents_base.Agent, observe: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Callable[[types.Variables, dm_env.Environment, int, types.PRNGKey], np.ndarray]:
    """Makes play(variables, environment, num_episodes, key) -> returns [num_episodes], for any dm_env environment.

    Args:
        agent: the agent.
        observe: turns the environment's observations into those that the agent was made for.
    """
    act = jax.jit(make_act(agent))

    def play(variables, environment, num_episodes, key):
        returns = np.zeros(num_episodes)
        for episode in range(num_episodes):
            episode_key = jax.random.fold_in(key, episode)
            indices = agent.evaluation_actor.draw(episode_key).indices
            timestep, t = environment.reset(), 0
            while not timestep.last():
                observation, step_key = observe(timestep.observation), jax.random.fold_in(episode_key, t)
                indices, action = act(variables, observation, indices, t == 0, step_key)
                timestep, t = environment.step(int(action)), t + 1
                returns[episode] += timestep.reward
        return returns

    return play
