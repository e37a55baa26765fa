"""What happens in one step of a run, whoever steps the environment."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import binding
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.replay import ring as ring_lib

# Random numbers are drawn for many steps at once, as many as fit in this many 32-bit words: drawing in
# every step would cost more than the network of a small agent.
_NOISE_WORDS = 2**20


class SeedState(NamedTuple):
    """State of one seed's run; this pytree is all there is to checkpoint.

    Attributes:
        key: the seed's key; step t uses fold_in(key, t), so that results do not depend on how a run is
            cut into dispatches.
        learner: the learner's state.
        indices: indices the actor follows, [num_ois, M].
        replay: the replay.
        environment: the environment's state; None when the environment is not made of pure functions.
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
    """What one step adds to the sums of a dispatch: loss, updates, returns of finished episodes, episodes."""

    loss: types.Array
    updates: types.Array
    returns: types.Array
    episodes: types.Array


def zero_metrics(shape: tuple[int, ...] = ()) -> Metrics:
    """The sums over no steps."""
    return Metrics(*[jnp.zeros(shape, kind) for kind in (jnp.float32, jnp.int32, jnp.float32, jnp.int32)])


class StepNoise(NamedTuple):
    """The agent's random numbers of one step; those of `replay` and `learner` have a leading axis of updates."""

    actor: actor_lib.ActorNoise
    perturbation: types.Array
    replay: types.Array
    learner: Any


class Core(NamedTuple):
    """The parts of a step, for one seed; the functions of this module, bound to an agent.

    Attributes:
        init: maps (key, first observation, environment state) to a SeedState.
        draw: maps a step's key to its StepNoise.
        act: maps (state, noise) to (state, action).
        act_randomly: maps noise to a uniformly random action.
        observe: maps (state, action, TimeStep, noise) to (state, Metrics); adds the transition to the
            replay and moves on to the new observation.
        learn: maps (state, Metrics, noise) to (state, Metrics): the updates of one step.
    """

    init: Callable[[types.PRNGKey, types.Array, Any], SeedState]
    draw: Callable[[types.PRNGKey], StepNoise]
    act: Callable[[SeedState, StepNoise], tuple[SeedState, types.Array]]
    act_randomly: Callable[[StepNoise], types.Array]
    observe: Callable[[SeedState, types.Array, environments_base.TimeStep, StepNoise], tuple[SeedState, Metrics]]
    learn: Callable[[SeedState, Metrics, StepNoise], tuple[SeedState, Metrics]]


def init(
    key: types.PRNGKey,
    observation: types.Array,
    environment_state: Any,
    *,
    agent: agents_base.Agent,
    ring: ring_lib.Ring,
) -> SeedState:
    """Initialises a seed's run.

    Args:
        key: the seed's key.
        observation: the first observation.
        environment_state: state of an environment that is made of pure functions, or None.
        agent: the agent.
        ring: its replay.

    Returns:
        The state before the first step.
    """
    return SeedState(
        key=prng.hash_key(types.fold_in_tag(key, "run")),
        learner=agent.learner.init(types.fold_in_tag(key, "learner")),
        indices=agent.actor.init(types.fold_in_tag(key, "actor")),
        replay=ring.init(transition_like(agent, observation)),
        environment=environment_state,
        observation=observation,
        is_first=jnp.ones((), bool),
        episode_return=jnp.zeros(()),
        episodes=jnp.zeros((), jnp.int32),
    )


def draw(key: types.PRNGKey, *, agent: agents_base.Agent, ring: ring_lib.Ring) -> StepNoise:
    """Draws the agent's random numbers of one step from the step's key."""
    config = agent.config

    def for_updates(draw_one: Callable[[types.PRNGKey, int], Any], tag: str) -> Any:
        key_of_all = types.fold_in_tag(key, tag)
        num_updates = config.updates_per_step
        keys = key_of_all[None] if num_updates == 1 else jax.random.split(key_of_all, num_updates)
        return jax.vmap(lambda k: draw_one(k, config.batch_size))(keys)

    return StepNoise(
        agent.actor.draw(types.fold_in_tag(key, "actor")),
        agent.perturbation.sample(types.fold_in_tag(key, "perturbation"), ()),
        for_updates(ring.draw, "replay"),
        for_updates(agent.learner.draw, "learner"),
    )


def act(state: SeedState, noise: StepNoise, *, agent: agents_base.Agent) -> tuple[SeedState, types.Array]:
    """Acts on the current observation; returns the state with the indices it followed, and the action."""
    action, indices = agent.actor.choose(
        lambda indices: agent.learner.values(state.learner, state.observation, indices),
        state.indices,
        state.is_first,
        noise.actor,
        state.learner.count,
    )
    return state._replace(indices=indices), action


def act_randomly(noise: StepNoise) -> types.Array:
    """Returns a uniformly random action."""
    return actor_lib.random_action(noise.actor)


def observe(
    state: SeedState,
    action: types.Array,
    timestep: environments_base.TimeStep,
    noise: StepNoise,
    *,
    agent: agents_base.Agent,
    ring: ring_lib.Ring,
) -> tuple[SeedState, Metrics]:
    """Stores the transition to a new observation, with its perturbation z (eq. 5), and moves on to it.

    Args:
        state: the state before.
        action: the action that was taken.
        timestep: what the environment answered.
        noise: random numbers of the step.
        agent: the agent.
        ring: its replay.

    Returns:
        The state after, and what the step adds to the metrics.
    """
    transition = types.Transition(
        state.observation,
        action,
        timestep.reward,
        timestep.discount * agent.config.discount,
        timestep.observation,
        noise.perturbation,
    )
    last = timestep.last
    episode_return = state.episode_return + timestep.reward
    finished = last.astype(jnp.int32)
    state = state._replace(
        replay=ring.add(state.replay, transition),
        observation=timestep.observation,
        is_first=last,
        episode_return=jnp.where(last, 0.0, episode_return),
        episodes=state.episodes + finished,
    )
    returns = jnp.where(last, episode_return, 0.0)
    return state, Metrics(jnp.zeros(()), jnp.zeros((), jnp.int32), returns, finished)


def learn(
    state: SeedState,
    metrics: Metrics,
    noise: StepNoise,
    *,
    agent: agents_base.Agent,
    ring: ring_lib.Ring,
) -> tuple[SeedState, Metrics]:
    """Makes the updates of one step.

    Args:
        state: the state, with at least one transition in its replay.
        metrics: those of the step so far.
        noise: random numbers of the step.
        agent: the agent.
        ring: its replay.

    Returns:
        The state after the updates, and the metrics with their number and loss.
    """
    num_updates = agent.config.updates_per_step

    def update(i: types.Array, carry: Any) -> Any:
        learner, replay, loss = carry
        transitions, slots = ring.sample(replay, noise.replay[i])
        batch = types.Batch(transitions, ring.size(replay))
        learner, info = agent.learner.update(learner, batch, jax.tree.map(lambda x: x[i], noise.learner))
        return learner, ring.update(replay, slots, info["losses"]), loss + info["loss"]

    begin = (state.learner, state.replay, jnp.zeros(()))
    learner, replay, loss = jax.lax.fori_loop(0, num_updates, update, begin)
    metrics = metrics._replace(loss=loss, updates=jnp.full((), num_updates, jnp.int32))
    return state._replace(learner=learner, replay=replay), metrics


def make_core(agent: agents_base.Agent) -> Core:
    """Makes the parts of a step for an agent."""
    if agent.config.n_step > 1:
        raise ValueError(f"n_step={agent.config.n_step} needs a replay of frames (run_atari.py): use n_step=1")
    ring = agents_base.make_replay(agent.config)
    return Core(
        init=binding.bind(init, agent=agent, ring=ring),
        draw=binding.bind(draw, agent=agent, ring=ring),
        act=binding.bind(act, agent=agent),
        act_randomly=act_randomly,
        observe=binding.bind(observe, agent=agent, ring=ring),
        learn=binding.bind(learn, agent=agent, ring=ring),
    )


def steps_per_draw(noise_of_a_step: Any) -> int:
    """For how many steps random numbers like these are drawn at once."""
    words = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(noise_of_a_step))
    return max(1, min(256, _NOISE_WORDS // words))


def transition_like(agent: agents_base.Agent, observation: types.Array) -> types.Transition:
    """A transition of zeros, for the shapes of the replay."""
    zero = jnp.zeros(())
    return types.Transition(
        observation, jnp.zeros((), jnp.int32), zero, zero, observation, jnp.zeros(agent.perturbation.dim)
    )


def num_bytes(tree: Any) -> int:
    """Memory that the arrays and keys of a pytree take; their shapes and types are enough."""
    leaves = [
        jax.eval_shape(jax.random.key_data, leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
