"""The whole run on device: environment, replay, acting and learning, many steps per dispatch.

All seeds of a group advance together (vmapped). The counter that decides what happens in a step is
shared by them and stays outside the vmapped state, because `lax.cond` on a vmapped value would compute
both of its sides.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.replay import ring as ring_lib


class SeedState(NamedTuple):
    """State of one seed's run; this pytree is all there is to checkpoint.

    Attributes:
        key: the seed's key; step t uses fold_in(key, t), so that results do not depend on how a run is
            cut into dispatches.
        learner: the learner's state.
        indices: indices the actor follows, [num_ois, M].
        replay: the replay.
        environment: the environment's state.
        observation: current observation.
        is_first: whether it is the first of an episode.
        episode_return: undiscounted return of the current episode so far.
        episodes: number of finished episodes.
    """

    key: types.PRNGKey
    learner: learner_lib.LearnerState
    indices: types.Array
    replay: ring_lib.RingState
    environment: Any
    observation: types.Array
    is_first: types.Array
    episode_return: types.Array
    episodes: types.Array


class Metrics(NamedTuple):
    """Sums over the steps of one dispatch; fields are [num_seeds]."""

    loss: types.Array
    updates: types.Array
    returns: types.Array
    episodes: types.Array


class StepNoise(NamedTuple):
    """All random numbers of one step."""

    actor: actor_lib.ActorNoise
    environment: Any
    perturbation: types.Array
    replay: types.Array
    learner: Any


class Runner(NamedTuple):
    """Attributes:
    init: maps (key, environment state) of one seed to its SeedState.
    run: maps (states of all seeds, steps done so far, number of steps) to (states, Metrics).
    """

    init: Callable[[types.PRNGKey, Any], SeedState]
    run: Callable[[SeedState, types.Array, types.Array], tuple[SeedState, Metrics]]


# Random numbers are drawn for many steps at once, as many as fit in this many 32-bit words: threefry in
# every step of the loop would cost more than the network.
_NOISE_WORDS = 2**20


def make_runner(agent: agents_base.Agent, environment: environments_base.Environment) -> Runner:
    """Makes the functions that run an agent in an environment; nothing is compiled yet."""
    config = agent.config
    ring = ring_lib.make_ring(config.replay_capacity)

    def init(key, environment_state):
        noise = environment.draw(types.fold_in_tag(key, "reset"))
        environment_state, timestep = environment.reset(environment_state, noise)
        indices = agent.actor.draw(types.fold_in_tag(key, "actor")).indices
        z = agent.perturbation.sample(key, ())
        item = types.Transition(
            timestep.observation, jnp.zeros((), jnp.int32), timestep.reward, timestep.discount,
            timestep.observation, z,
        )
        return SeedState(
            prng.hash_key(types.fold_in_tag(key, "run")),
            agent.learner.init(types.fold_in_tag(key, "learner")),
            indices,
            ring.init(item),
            environment_state,
            timestep.observation,
            jnp.ones((), bool),
            jnp.zeros(()),
            jnp.zeros((), jnp.int32),
        )

    def draw(key, step):
        key = jax.random.fold_in(key, step)
        return StepNoise(
            agent.actor.draw(types.fold_in_tag(key, "actor")),
            environment.draw(types.fold_in_tag(key, "environment")),
            agent.perturbation.sample(types.fold_in_tag(key, "perturbation"), ()),
            ring.draw(types.fold_in_tag(key, "replay"), config.batch_size),
            agent.learner.draw(types.fold_in_tag(key, "learner"), config.batch_size),
        )

    def interact(state, action, noise):
        """Takes an action; returns the state without the transition in its replay, and the transition."""
        environment_state, timestep = environment.step(state.environment, action, noise.environment)
        transition = types.Transition(
            state.observation, action, timestep.reward, timestep.discount * config.discount,
            timestep.observation, noise.perturbation,
        )
        restarted, start = environment.reset(environment_state, noise.environment)
        last = timestep.last
        environment_state, observation = jax.tree.map(
            lambda new, old: jnp.where(last, new, old),
            (restarted, start.observation), (environment_state, timestep.observation),
        )
        episode_return = state.episode_return + timestep.reward
        finished = last.astype(jnp.int32)
        metrics = Metrics(
            jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.where(last, episode_return, 0.0), finished
        )
        state = state._replace(
            environment=environment_state,
            observation=observation,
            is_first=last,
            episode_return=jnp.where(last, 0.0, episode_return),
            episodes=state.episodes + finished,
        )
        return state, transition, metrics

    def random_step(state, noise):
        action = jnp.argmax(noise.actor.ties).astype(jnp.int32)
        state, transition, metrics = interact(state, action, noise)
        return state._replace(replay=ring.add(state.replay, transition)), metrics

    def learning_step(state, noise):
        indices = agent.actor.next_indices(state.indices, state.is_first, noise.actor)
        values = agent.learner.values(state.learner, state.observation, indices)
        action = agent.actor.select(values, noise.actor)
        state, transition, metrics = interact(state, action, noise)
        replay = ring.add(state.replay, transition)
        batch = types.Batch(ring.sample(replay, noise.replay), ring.size(replay))
        learner, info = agent.learner.update(state.learner, batch, noise.learner)
        metrics = metrics._replace(loss=info["loss"], updates=jnp.ones((), jnp.int32))
        return state._replace(indices=indices, replay=replay, learner=learner), metrics

    def run(states, start, num_steps):
        num_seeds = states.observation.shape[0]
        shapes = jax.eval_shape(draw, jax.random.key(0), 0)
        words = num_seeds * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
        block = max(1, min(256, _NOISE_WORDS // words))

        def run_block(carry):
            states, metrics, done = carry
            steps = start + done + jnp.arange(block)
            noise = jax.vmap(jax.vmap(draw, (0, None)), (None, 0))(states.key, steps)
            warm = jnp.clip(config.min_replay - (start + done), 0, block)
            end = jnp.minimum(block, num_steps - done)

            def body(step_fn):
                def apply(i, carry):
                    states, metrics = carry
                    states, more = jax.vmap(step_fn)(states, jax.tree.map(lambda x: x[i], noise))
                    return states, jax.tree.map(jnp.add, metrics, more)
                return apply

            carry = jax.lax.fori_loop(0, jnp.minimum(warm, end), body(random_step), (states, metrics))
            states, metrics = jax.lax.fori_loop(warm, end, body(learning_step), carry)
            return states, metrics, done + end

        zeros = Metrics(
            jnp.zeros(num_seeds), jnp.zeros(num_seeds, jnp.int32),
            jnp.zeros(num_seeds), jnp.zeros(num_seeds, jnp.int32),
        )
        states, metrics, _ = jax.lax.while_loop(
            lambda carry: carry[2] < num_steps, run_block, (states, zeros, jnp.zeros((), jnp.int32))
        )
        return states, metrics

    return Runner(init, run)
