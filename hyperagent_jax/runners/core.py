"""The agent's part of one training step, independent of what steps the environment."""

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
from hyperagent_jax.networks import torsos
from hyperagent_jax.replay import n_step as n_step_lib
from hyperagent_jax.replay import ring as ring_lib
from hyperagent_jax.replay import subsequence
from hyperagent_jax.runners import scales

# Random numbers are drawn in blocks of steps, as many as fit in this many 32-bit words: drawing in every step
# would cost more than the network of a small agent.
_NOISE_WORDS = 2**20


class SeedState(NamedTuple):
    """State of one seed's run; this pytree is all that a checkpoint needs.

    Attributes:
        key: the seed's key; step t uses fold_in(key, t), so that results do not depend on how a run is
            split into dispatches.
        learner: the learner's state.
        indices: indices the actor follows, [num_ois, M].
        replay: the replay.
        environment: the environment's state; None if the environment does not consist of pure functions.
        observation: current observation.
        is_first: whether it is the first of an episode.
        episode_return: undiscounted return of the current episode so far.
        episodes: number of finished episodes.
        return_scale: the scale of returns; None unless the agent normalises them.
        observation_scale: the scale of observations; None unless the network standardises them.
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
    return_scale: scales.ReturnScale | None = None
    observation_scale: scales.ObservationScale | None = None


class Metrics(NamedTuple):
    """Sums over the steps of a dispatch: loss, updates, returns of finished episodes, number of these."""

    loss: types.Array
    updates: types.Array
    returns: types.Array
    episodes: types.Array


def zero_metrics(shape: tuple[int, ...] = ()) -> Metrics:
    """Returns the sums over zero steps."""
    return Metrics(*[jnp.zeros(shape, kind) for kind in (jnp.float32, jnp.int32, jnp.float32, jnp.int32)])


class StepNoise(NamedTuple):
    """The agent's random numbers of one step; those of `replay` and `learner` have a leading axis of updates."""

    actor: actor_lib.ActorNoise
    perturbation: types.Array
    replay: types.Array
    learner: Any


class Setup(NamedTuple):
    """Static arguments that `make_core` binds to the functions of this module.

    Attributes:
        agent: the agent.
        num_envs: environments that step in parallel. With more than one, indices, environment, observation,
            is_first and episode_return of a SeedState have a leading axis of environments.
        stores_prior: whether the replay stores the fixed prior's beliefs, so that updates need not evaluate it.
        ring: the replay.
    """

    agent: agents_base.Agent
    num_envs: int
    stores_prior: bool
    ring: ring_lib.Ring

    @property
    def rounds_per_learning(self) -> int:
        """Rounds, i.e. steps of all environments, from one learning phase to the next."""
        return max(1, self.agent.config.update_period // self.num_envs)

    @property
    def num_random_rounds(self) -> int:
        """Initial rounds with random actions: a multiple of `rounds_per_learning`."""
        cycle = self.rounds_per_learning
        return -(-self.agent.config.min_replay // (self.num_envs * cycle)) * cycle

    @property
    def num_updates(self) -> int:
        """Updates per learning phase."""
        config = self.agent.config
        return config.updates_per_step * max(1, self.num_envs // config.update_period)

    def over_envs(self, function: Callable[..., Any], *in_axes: int | None) -> Callable[..., Any]:
        """Lifts a function of one environment to all of them."""
        if self.num_envs == 1:
            return function
        # The noise of an environment without random numbers contains no array, hence the explicit axis size.
        return jax.vmap(function, in_axes or 0, axis_size=self.num_envs)


class Core(NamedTuple):
    """The parts of a step of one seed: the functions of this module, bound to an agent.

    Attributes:
        init: maps (key, first observation, environment state) to a SeedState.
        draw: maps a step's key to its StepNoise.
        act: maps (state, noise) to (state, action).
        act_randomly: maps noise to a uniformly random action.
        observe: maps (state, action, TimeStep, noise) to (state, Metrics); adds the transition to the
            replay and advances to the new observation.
        learn: maps (state, Metrics, noise) to (state, Metrics): the updates of one step.
        reset_when_due: maps (states of all seeds, round number) to states, after a learning phase; a third
            argument replaces vmap where states have no axis of seeds.
        setup: the arguments that these functions are bound to.
    """

    init: Callable[[types.PRNGKey, types.Array, Any], SeedState]
    draw: Callable[[types.PRNGKey], StepNoise]
    act: Callable[[SeedState, StepNoise], tuple[SeedState, types.Array]]
    act_randomly: Callable[[StepNoise], types.Array]
    observe: Callable[[SeedState, types.Array, environments_base.TimeStep, StepNoise], tuple[SeedState, Metrics]]
    learn: Callable[[SeedState, Metrics, StepNoise], tuple[SeedState, Metrics]]
    reset_when_due: Callable[..., SeedState]
    setup: Setup


def init(
    key: types.PRNGKey,
    observation: types.Array,
    environment_state: Any,
    *,
    setup: Setup,
) -> SeedState:
    """Initialises a seed's run.

    Args:
        key: the seed's key.
        observation: the first observation.
        environment_state: state of an environment that consists of pure functions, or None.
        setup: see `Setup`.

    Returns:
        The state before the first step.
    """
    agent, num_envs = setup.agent, setup.num_envs
    batch = () if num_envs == 1 else (num_envs,)
    actor_key = types.fold_in_tag(key, "actor")
    one = observation if num_envs == 1 else jax.tree.map(lambda x: x[0], observation)
    learner = agent.learner.init(types.fold_in_tag(key, "learner"))
    observation_scale = None
    if torsos.needs_standardizing(learner.params):
        size = one.size
        observation_scale = scales.ObservationScale(*[jnp.zeros(shape) for shape in ((), size, size, ())])
    return SeedState(
        key=prng.hash_key(types.fold_in_tag(key, "run")),
        learner=learner,
        indices=setup.over_envs(agent.actor.init)(
            actor_key if num_envs == 1 else jax.random.split(actor_key, num_envs)
        ),
        replay=setup.ring.init(step_like(setup, one)),
        environment=environment_state,
        observation=observation,
        is_first=jnp.ones(batch, bool),
        episode_return=jnp.zeros(batch),
        episodes=jnp.zeros((), jnp.int32),
        return_scale=scales.ReturnScale(jnp.zeros(batch), jnp.zeros(()))
        if agent.config.normalize_returns
        else None,
        observation_scale=observation_scale,
    )


def draw(key: types.PRNGKey, *, setup: Setup) -> StepNoise:
    """Draws the agent's random numbers of one step from the step's key."""
    agent, num_envs = setup.agent, setup.num_envs
    config, num_updates = agent.config, setup.num_updates

    def for_updates(draw_one: Callable[[types.PRNGKey, int], Any], tag: str) -> Any:
        key_of_all = types.fold_in_tag(key, tag)
        keys = key_of_all[None] if num_updates == 1 else jax.random.split(key_of_all, num_updates)
        return jax.vmap(lambda k: draw_one(k, config.batch_size))(keys)

    actor_key = types.fold_in_tag(key, "actor")
    return StepNoise(
        setup.over_envs(agent.actor.draw)(actor_key if num_envs == 1 else jax.random.split(actor_key, num_envs)),
        agent.perturbation.sample(types.fold_in_tag(key, "perturbation"), () if num_envs == 1 else (num_envs,)),
        for_updates(setup.ring.draw, "replay"),
        for_updates(agent.learner.draw, "learner"),
    )


def act(state: SeedState, noise: StepNoise, *, setup: Setup) -> tuple[SeedState, types.Array]:
    """Acts on the current observation; returns the state with the indices used, and the action."""
    agent = setup.agent

    def choose(observation: Any, indices: types.Array, is_first: types.Array, noise: Any) -> Any:
        return agent.actor.choose(
            lambda indices: agent.learner.values(state.learner, observation, indices),
            indices,
            is_first,
            noise,
            state.learner.count,
        )

    action, indices = setup.over_envs(choose)(state.observation, state.indices, state.is_first, noise.actor)
    return state._replace(indices=indices), action


def act_randomly(noise: StepNoise, *, setup: Setup) -> types.Array:
    """Returns a uniformly random action."""
    return setup.over_envs(actor_lib.random_action)(noise.actor)


def observe(
    state: SeedState,
    action: types.Array,
    timestep: environments_base.TimeStep,
    noise: StepNoise,
    *,
    setup: Setup,
) -> tuple[SeedState, Metrics]:
    """Stores the transition to a new observation, with its perturbation z (eq. 5), and advances to it.

    Args:
        state: the state before the step.
        action: the action taken.
        timestep: the environment's response.
        noise: random numbers of the step.
        setup: see `Setup`.

    Returns:
        The state after the step, and the step's contribution to the metrics.
    """
    agent = setup.agent
    transition = types.Transition(
        state.observation,
        action,
        timestep.reward,
        # A gamma that changes over time is applied when a transition is sampled.
        timestep.discount if agent.subsequences else timestep.discount * agent.config.discount,
        timestep.observation,
        noise.perturbation,
    )
    step = n_step_lib.Step(transition, timestep.last if agent.config.n_step > 1 else None)
    if setup.stores_prior:
        # Acting has evaluated the prior at o_tm1 in the same program; XLA computes it once.
        prior = setup.over_envs(agent.network.prior, None, 0)
        step = step._replace(
            prior_tm1=prior(state.learner.prior, transition.o_tm1),
            prior_t=prior(state.learner.prior, transition.o_t),
        )
    last = timestep.last
    episode_return = state.episode_return + timestep.reward
    finished = last.astype(jnp.int32)
    if state.return_scale is not None:
        scale = state.return_scale.add(timestep.reward, state.is_first, agent.config.discount)
        state = state._replace(return_scale=scale)
    if state.observation_scale is not None:
        seen = state.observation[None] if setup.num_envs == 1 else state.observation
        state = state._replace(observation_scale=state.observation_scale.add(seen))
    state = state._replace(
        replay=setup.ring.add(state.replay, step),
        observation=timestep.observation,
        is_first=last,
        episode_return=jnp.where(last, 0.0, episode_return),
        episodes=state.episodes + (finished if setup.num_envs == 1 else jnp.sum(finished)),
    )
    returns = jnp.where(last, episode_return, 0.0)
    if setup.num_envs > 1:
        returns, finished = jnp.sum(returns), jnp.sum(finished)
    return state, Metrics(jnp.zeros(()), jnp.zeros((), jnp.int32), returns, finished)


def learn(
    state: SeedState,
    metrics: Metrics,
    noise: StepNoise,
    *,
    setup: Setup,
) -> tuple[SeedState, Metrics]:
    """Performs the updates of one step.

    Args:
        state: the state, with at least one transition in its replay.
        metrics: the step's metrics so far.
        noise: random numbers of the step.
        setup: see `Setup`.

    Returns:
        The state after the updates, and the metrics including the updates' number and loss.
    """
    agent, ring, num_updates = setup.agent, setup.ring, setup.num_updates
    if state.observation_scale is not None:
        observation_scale, learner = state.observation_scale.standardize(state.learner)
        state = state._replace(observation_scale=observation_scale, learner=learner)
    capacity = agents_base.replay_capacity(agent.config, setup.num_envs)

    def update(i: types.Array, carry: Any) -> Any:
        learner, replay, loss = carry
        where: dict[str, Any] = dict(ring=ring, capacity=capacity, num_envs=setup.num_envs)
        if agent.subsequences:
            batch, slots = subsequence.sample(
                replay, noise.replay[i], learner.count, rule=agent.subsequences, **where
            )
        else:
            batch, slots = n_step_lib.sample(replay, noise.replay[i], n_step=agent.config.n_step, **where)
        if state.return_scale is not None:
            batch = state.return_scale.normalize(batch, agent.config.smallest_return_unit)
        learner, info = agent.learner.update(learner, batch, jax.tree.map(lambda x: x[i], noise.learner))
        return learner, ring.update(replay, slots, info["losses"]), loss + info["loss"]

    begin = (state.learner, state.replay, jnp.zeros(()))
    learner, replay, loss = jax.lax.fori_loop(0, num_updates, update, begin)
    metrics = metrics._replace(loss=loss, updates=jnp.full((), num_updates, jnp.int32))
    return state._replace(learner=learner, replay=replay), metrics


def reset_when_due(
    states: SeedState, round_number: types.Array, over_seeds: Callable[..., Any] = jax.vmap, *, setup: Setup
) -> SeedState:
    """Resets parameters after a learning phase if a reset is due.

    All seeds are reset together, because `lax.cond` computes only one branch if its predicate is not vmapped.

    Args:
        states: states of all seeds, with a leading axis.
        round_number: number of the round, counted from 0, the same for all seeds.
        over_seeds: lifts a function of one seed to these states.
        setup: see `Setup`.
    """
    learner = setup.agent.learner
    if learner.reset is None:
        return states
    reset = learner.reset
    times = (round_number + 1 - setup.num_random_rounds) // setup.rounds_per_learning  # learning phases so far
    done, before = (times * setup.num_updates) // learner.reset_period, (times - 1) * setup.num_updates

    def start_over(states: SeedState) -> SeedState:
        def one(key: types.PRNGKey, state: learner_lib.LearnerState) -> learner_lib.LearnerState:
            return reset(state, types.fold_in_tag(jax.random.fold_in(key, round_number), "reset"))

        return states._replace(learner=over_seeds(one)(states.key, states.learner))

    return jax.lax.cond(done > before // learner.reset_period, start_over, lambda states: states, states)


def make_core(agent: agents_base.Agent, num_envs: int = 1, *, stores_prior: bool = False) -> Core:
    """Builds the parts of a step for an agent.

    Args:
        agent: the agent.
        num_envs: environments that step in parallel.
        stores_prior: see `Setup`; ignored if the network standardises observations, because its prior changes.
    """
    if stores_prior:
        shapes = jax.eval_shape(lambda key: agent.network.init(key).params, jax.random.key(0))
        stores_prior = not torsos.needs_standardizing(shapes)
    period = agent.config.update_period
    if period % num_envs and num_envs % period:
        raise ValueError(
            f"update_period={period} must be a multiple of num_envs={num_envs}, or num_envs a multiple of it"
        )
    setup = Setup(agent, num_envs, stores_prior, agents_base.make_replay(agent.config, num_envs))
    return Core(
        init=binding.bind(init, setup=setup),
        draw=binding.bind(draw, setup=setup),
        act=binding.bind(act, setup=setup),
        act_randomly=binding.bind(act_randomly, setup=setup),
        observe=binding.bind(observe, setup=setup),
        learn=binding.bind(learn, setup=setup),
        reset_when_due=binding.bind(reset_when_due, setup=setup),
        setup=setup,
    )


def steps_per_draw(noise_of_a_step: Any) -> int:
    """Returns the number of steps in a block of random numbers."""
    words = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(noise_of_a_step))
    return max(1, min(256, _NOISE_WORDS // words))


def step_like(setup: Setup, observation: types.Array) -> n_step_lib.Step:
    """Returns a step of zeros with the shapes of the replay's entries."""
    zero, agent = jnp.zeros(()), setup.agent
    transition = types.Transition(
        observation, jnp.zeros((), jnp.int32), zero, zero, observation, jnp.zeros(agent.perturbation.dim)
    )
    step = n_step_lib.Step(transition, jnp.zeros((), bool) if agent.config.n_step > 1 else None)
    if setup.stores_prior:
        shape = jax.eval_shape(
            lambda key: agent.network.prior(agent.network.init(key).prior, observation), jax.random.key(0)
        )
        prior = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
        step = step._replace(prior_tm1=prior, prior_t=prior)
    return step


def num_bytes(tree: Any) -> int:
    """Returns the memory of a pytree's arrays and keys, which may be given as shapes and dtypes."""
    leaves = [
        jax.eval_shape(jax.random.key_data, leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(tree)
    ]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
