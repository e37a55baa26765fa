"""Training loop for dm_env environments: Python steps them, one jitted dispatch per step learns and acts."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import core as core_lib


class Program(NamedTuple):
    """An agent's functions, all but `init` compiled at their first call; many loops can share them.

    Attributes:
        agent: the agent.
        init: maps (key, observation) to a SeedState.
        steps_per_draw: number of steps for which one `draw` gives random numbers.
        draw: maps (state's key, step) to the StepNoise of that step and of the following `steps_per_draw` steps.
        begin: maps (state, noise, step, its position in the noise) to (state, action of that step).
        proceed: maps (state, metrics, noise, step, its position in the noise, action, TimeStep, next observation,
            is_learning) to (state, metrics, next action): learns from a step and chooses the action of the next.
            State and metrics are donated.
        learns_after: maps a step, counted from 0, to whether updates follow it.
    """

    agent: agents_base.Agent
    init: Callable[[types.PRNGKey, types.HostArray], core_lib.SeedState]
    steps_per_draw: int
    draw: Callable[[types.PRNGKey, int], core_lib.StepNoise]
    begin: Callable[..., tuple[core_lib.SeedState, types.Array]]
    proceed: Callable[..., tuple[core_lib.SeedState, core_lib.Metrics, types.Array]]
    learns_after: Callable[[int], bool]


def make_program(agent: agents_base.Agent) -> Program:
    """Builds the compiled functions of an agent."""
    core = core_lib.make_core(agent)
    steps_per_draw = core_lib.steps_per_draw(jax.eval_shape(core.draw, jax.random.key(0)))

    def draw(key: types.PRNGKey, step: types.Array) -> core_lib.StepNoise:
        steps = step + jnp.arange(steps_per_draw + 1)
        return jax.vmap(lambda t: core.draw(jax.random.fold_in(key, t)))(steps)

    def begin(
        state: core_lib.SeedState, noises: core_lib.StepNoise, step: types.Array, place: types.Array
    ) -> tuple[core_lib.SeedState, types.Array]:
        noise = jax.tree.map(lambda x: x[place], noises)
        acted, action = core.act(state, noise)
        if not agent.config.random_start:
            return acted, action
        is_greedy = step >= core.setup.num_random_rounds
        indices = jnp.where(is_greedy, acted.indices, state.indices)
        return state._replace(indices=indices), jnp.where(is_greedy, action, core.act_randomly(noise))

    def proceed(
        state: core_lib.SeedState,
        totals: core_lib.Metrics,
        noises: core_lib.StepNoise,
        step: types.Array,
        place: types.Array,
        action: types.Array,
        timestep: environments_base.TimeStep,
        next_observation: types.Array,
        is_learning: bool,
    ) -> tuple[core_lib.SeedState, core_lib.Metrics, types.Array]:
        for observation in (timestep.observation, next_observation):
            if observation.dtype != state.observation.dtype:
                raise ValueError(
                    f"the first observation was {state.observation.dtype} but a later one is "
                    f"{observation.dtype}: pass an `observe` that always returns the same dtype"
                )
        noise = jax.tree.map(lambda x: x[place], noises)
        state, metrics = core.observe(state, action, timestep, noise)
        state = state._replace(observation=next_observation)
        if is_learning:
            state, metrics = core.learn(state, metrics, noise)
            if agent.learner.reset is not None:
                states = core.reset_when_due(jax.tree.map(lambda x: x[None], state), step)
                state = jax.tree.map(lambda x: x[0], states)
        state, next_action = begin(state, noises, step + 1, place + 1)
        return state, jax.tree.map(jnp.add, totals, metrics), next_action

    def init(key: types.PRNGKey, observation: types.HostArray) -> core_lib.SeedState:
        return core.init(key, jnp.array(observation), None)  # a copy: environments may reuse their array

    def learns_after(step: int) -> bool:
        return step >= core.setup.num_random_rounds and (step + 1) % core.setup.rounds_per_learning == 0

    learn_and_act = jax.jit(proceed, donate_argnums=(0, 1), static_argnames="is_learning")
    return Program(agent, init, steps_per_draw, jax.jit(draw), jax.jit(begin), learn_and_act, learns_after)


def num_bytes(program: Program) -> int:
    """Returns the memory of a loop's state without allocating it."""
    spec = program.agent.spec
    assert spec is not None  # agents made by `agents.make_agent` have one
    observation = jnp.zeros(spec.observation_shape, jnp.float32 if spec.num_states is None else jnp.int32)
    return core_lib.num_bytes(jax.eval_shape(program.init, jax.random.key(0), observation))


class OnlineAgent:
    """An agent that acts and learns step by step, in the interface of bsuite's baseline agents.

    `update` only stores the transition; the next `select_action` learns from it and acts in one dispatch. The
    random numbers of every step are those of the scan runner, so equivalent environments give identical runs.

    Attributes:
        steps: number of transitions so far.
    """

    def __init__(
        self,
        program: Program,
        key: types.PRNGKey,
        observe: Callable[[np.ndarray], types.HostArray] = np.asarray,
    ):
        """Creates an untrained agent.

        Args:
            program: `make_program(agent)`.
            key: source of all its random numbers.
            observe: maps the environment's observations to those that the agent was built for.
        """
        self.steps = 0
        self._state: core_lib.SeedState | None = None  # initialised with the first observation
        self._key = key
        self._observe = observe
        self._program = program
        self._noted: tuple[np.int32, environments_base.TimeStep] | None = None
        self._noise: tuple[int, core_lib.StepNoise] | None = None  # with its first step
        self._metrics = core_lib.zero_metrics()

    @property
    def state(self) -> core_lib.SeedState:
        """The SeedState, available after the first `select_action`."""
        if self._state is None:
            raise ValueError("the agent has no state yet: call select_action or restore first")
        return self._state

    def _random_numbers(self, key: types.PRNGKey, step: int) -> tuple[core_lib.StepNoise, int, int]:
        """Returns the noise that covers a step and the next one, the step, and its position in the noise."""
        place = step % self._program.steps_per_draw
        if self._noise is None or self._noise[0] != step - place:
            self._noise = step - place, self._program.draw(key, step - place)
        return self._noise[1], step, place

    def select_action(self, timestep: dm_env.TimeStep) -> int:
        """Returns the action for a timestep: that of the last `update`, or the first of an episode."""
        observation = self._observe(timestep.observation)
        if self._noted is None:
            state = self._state
            if state is None:
                state = self._program.init(self._key, observation)
            else:  # a new episode without an `update`, or a repeated call for the same action
                state = state._replace(
                    observation=jnp.array(observation),
                    is_first=jnp.asarray(timestep.first()),
                    episode_return=jnp.where(timestep.first(), 0.0, state.episode_return),
                )
            self._state, action = self._program.begin(state, *self._random_numbers(state.key, self.steps))
        else:
            step = self.steps - 1
            self._state, self._metrics, action = self._program.proceed(
                self.state,
                self._metrics,
                *self._random_numbers(self.state.key, step),
                *self._noted,
                observation,
                is_learning=self._program.learns_after(step),
            )
            self._noted = None
        return int(action)

    def update(self, timestep: dm_env.TimeStep, action: int, new_timestep: dm_env.TimeStep) -> None:
        """Stores a transition for the next `select_action` to learn from."""
        del timestep  # `select_action` has seen its observation
        if self._noted is not None:
            raise ValueError("update was called twice without select_action in between")
        # Compiled functions accept numpy arrays and scalars: the cast is for the type checker.
        fields = cast(
            tuple[types.Array, types.Array, types.Array, types.Array],
            (
                np.array(self._observe(new_timestep.observation)),  # a copy, as in `make_program`
                np.float32(new_timestep.reward),
                np.float32(new_timestep.discount),
                np.bool_(new_timestep.last()),
            ),
        )
        self._noted = np.int32(action), environments_base.TimeStep(*fields)
        self.steps += 1

    def restore(self, state: core_lib.SeedState, steps: int) -> None:
        """Restores the agent to `state`, as it was after `steps` transitions. `state` is donated."""
        self._state, self.steps = state, steps
        self._noted = self._noise = None

    def variables(self) -> types.Variables:
        """Returns a copy of the variables for acting, which later learning does not change."""
        return jax.tree.map(jnp.copy, self._program.agent.learner.variables(self.state.learner))

    def take_metrics(self) -> core_lib.Metrics:
        """Returns the sums over all steps learned from since the last call."""
        metrics, self._metrics = self._metrics, core_lib.zero_metrics()
        return jax.device_get(metrics)


class Loop:
    """An agent in an environment, which can be stopped and restored exactly.

    The state of a Python environment cannot be saved in general, but its actions can: restoring creates a new
    environment and replays them, which takes a few microseconds per step. So the environment must be
    deterministic, with random numbers from its own seed.

    Attributes:
        agent: the OnlineAgent.
        episodes: number of finished episodes.
    """

    def __init__(
        self,
        program: Program,
        make_environment: Callable[[], dm_env.Environment],
        key: types.PRNGKey,
        observe: Callable[[np.ndarray], types.HostArray] = np.asarray,
    ):
        """Creates the environment, starts its first episode and chooses the first action.

        Args:
            program: `make_program(agent)`.
            make_environment: creates the environment; called again by `restore`.
            key: source of the agent's random numbers.
            observe: see `OnlineAgent`.
        """
        self.agent = OnlineAgent(program, key, observe)
        self._make_environment = make_environment
        self._observe = observe
        self._start()
        # Actions are chosen one step ahead, by the dispatch that learns from the previous step.
        self._action = self.agent.select_action(self._timestep)

    def _start(self) -> None:
        self.episodes = 0
        self._taken: list[int] = []
        self._environment = self._make_environment()
        self._timestep = self._environment.reset()

    def _step(self, action: int) -> tuple[dm_env.TimeStep, dm_env.TimeStep]:
        """Steps the environment, and starts a new episode after the last step of one."""
        before, after = self._timestep, self._environment.step(action)
        self._taken.append(action)
        self.episodes += after.last()
        self._timestep = after
        if after.last():
            after = after._replace(observation=jax.tree.map(np.array, after.observation))  # before `reset`
            self._timestep = self._environment.reset()
        return before, after

    def run(self, num_steps: int, max_episodes: int | None = None) -> core_lib.Metrics:
        """Runs `num_steps` steps, or until `episodes` reaches `max_episodes`, whichever comes first.

        Returns:
            The sums over these steps.
        """
        for _ in range(num_steps):
            if self.episodes == max_episodes:
                break
            before, after = self._step(self._action)
            self.agent.update(before, self._action, after)
            self._action = self.agent.select_action(self._timestep)
        return self.agent.take_metrics()

    def tree(self) -> dict[str, Any]:
        """Returns everything that `restore` needs: the agent's state, all actions so far and the next one."""
        return {"state": self.agent.state, "actions": np.array([*self._taken, self._action], np.int32)}

    def like(self) -> dict[str, Any]:
        """Returns the structure of a checkpoint of `tree`, for `checkpoint.load`."""
        return {"state": self.agent.state, "actions": checkpoint.Unsized(np.int32)}

    def restore(self, tree: dict[str, Any]) -> None:
        """Restores the state that another loop returned from its `tree`, which is donated."""
        state = tree["state"]
        self._start()
        *taken, self._action = np.asarray(tree["actions"]).tolist()
        for action in taken:
            self._step(action)
        observation = np.asarray(self._observe(self._timestep.observation))
        observation = observation.astype(state.observation.dtype)
        if not np.array_equal(state.observation, observation) or int(state.episodes) != self.episodes:
            raise errors.UserError(
                "replaying the recorded actions gave a different observation, so the environment is not "
                "deterministic: seed its random numbers, or restart the run"
            )
        self.agent.restore(state, len(taken))
