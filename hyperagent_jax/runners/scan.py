"""The training loop on device: environment, replay, acting and learning, many steps per dispatch.

All seeds of a group advance together (vmapped). They share the step counter, which decides what happens in a step.
It is not part of the vmapped state, because `lax.cond` would compute both branches on a vmapped predicate.

A single seed is not vmapped: with an axis of length one, XLA on CPU computes the gradient of a dense layer
transposed, and the norm and both moments of Adam read it in strides, which was half of a step of MinAtar. Integer
states keep the axis: their layers are small, and without it their programs are up to 5% slower.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import core as core_lib

# The random numbers of one step: the agent's and the environment's.
StepNoises = tuple[core_lib.StepNoise, Any]
# The carry of the loop over steps.
StateAndMetrics = tuple[core_lib.SeedState, core_lib.Metrics]


class Runner(NamedTuple):
    """Attributes:
    init: maps (key, environment state) of one seed to its SeedState.
    run: maps (states of all seeds, steps done so far, number of steps) to (states, Metrics); both numbers are
        multiples of the steps from one learning phase to the next. The states, whose
        leaves have a leading axis of seeds, may be donated. Metrics are sums over the steps, [num_seeds].
    """

    init: Callable[[types.PRNGKey, Any], core_lib.SeedState]
    run: Callable[..., tuple[core_lib.SeedState, core_lib.Metrics]]


def make_runner(
    agent: agents_base.Agent,
    environment: environments_base.Environment,
    num_envs: int = 1,
    *,
    stores_prior: bool = False,
) -> Runner:
    """Builds the functions that run an agent in an environment, without compiling them.

    Args:
        agent: the agent.
        environment: the environment.
        num_envs: copies of the environment that step in parallel; a step of `run` steps all of them.
        stores_prior: see `core.Setup`; for priors that are networks.
    """
    core = core_lib.make_core(agent, num_envs, stores_prior=stores_prior)
    over_envs, cycle = core.setup.over_envs, core.setup.rounds_per_learning

    def draw_environment(key: types.PRNGKey) -> Any:
        return over_envs(environment.draw)(key if num_envs == 1 else jax.random.split(key, num_envs))

    def init(key: types.PRNGKey, environment_state: Any) -> core_lib.SeedState:
        noise = draw_environment(types.fold_in_tag(key, "reset"))
        environment_state, timestep = over_envs(environment.reset, None, 0)(environment_state, noise)
        return core.init(key, timestep.observation, environment_state)

    def draw(key: types.PRNGKey, step: types.Array | int) -> StepNoises:
        key = jax.random.fold_in(key, step)
        return core.draw(key), draw_environment(types.fold_in_tag(key, "environment"))

    def interact(
        state: core_lib.SeedState, action: types.Array, noise: core_lib.StepNoise, environment_noise: Any
    ) -> StateAndMetrics:
        environment_state, timestep = over_envs(environment.step)(state.environment, action, environment_noise)
        state, metrics = core.observe(state, action, timestep, noise)
        restarted, start = over_envs(environment.reset)(environment_state, environment_noise)

        def restart(last: types.Array, new: Any, old: Any) -> Any:
            return jax.tree.map(lambda x, y: jnp.where(last, x, y), new, old)

        environment_state, observation = over_envs(restart)(
            timestep.last, (restarted, start.observation), (environment_state, timestep.observation)
        )
        return state._replace(environment=environment_state, observation=observation), metrics

    def first_step(state: core_lib.SeedState, noises: StepNoises) -> StateAndMetrics:
        if not agent.config.random_start:
            return acting_step(state, noises)
        noise, environment_noise = noises
        return interact(state, core.act_randomly(noise), noise, environment_noise)

    def acting_step(state: core_lib.SeedState, noises: StepNoises) -> StateAndMetrics:
        noise, environment_noise = noises
        state, action = core.act(state, noise)
        return interact(state, action, noise, environment_noise)

    def learning_step(state: core_lib.SeedState, noises: StepNoises) -> StateAndMetrics:
        state, metrics = acting_step(state, noises)
        return core.learn(state, metrics, noises[0])

    def run(states: core_lib.SeedState, start: types.Array | int, num_steps: types.Array | int) -> StateAndMetrics:
        num_seeds = states.is_first.shape[0]
        if num_seeds > 1 or environment.spec.num_states is not None:
            return run_seeds(states, start, num_steps, over_seeds=jax.vmap, shape=(num_seeds,))
        state = jax.tree.map(lambda x: x[0], states)
        one = run_seeds(state, start, num_steps, over_seeds=lambda function, *_: function, shape=())
        return jax.tree.map(lambda x: x[None], one)

    def run_seeds(
        states: core_lib.SeedState,
        start: types.Array | int,
        num_steps: types.Array | int,
        *,
        over_seeds: Callable[..., Any],
        shape: tuple[int, ...],
    ) -> StateAndMetrics:
        """Runs all seeds; `over_seeds` lifts a function of one seed to arrays with the leading axes `shape`."""
        draw_seeds = over_seeds(draw, (0, None))
        block = core_lib.steps_per_draw(jax.eval_shape(draw_seeds, states.key, 0))
        block = max(block // cycle, 1) * cycle

        def loop_body(
            step_fn: Callable[[core_lib.SeedState, StepNoises], StateAndMetrics], noise: StepNoises
        ) -> Callable[[types.Array, StateAndMetrics], StateAndMetrics]:
            def body(i: types.Array, carry: StateAndMetrics) -> StateAndMetrics:
                states, metrics = carry
                states, more = over_seeds(step_fn)(states, jax.tree.map(lambda x: x[i], noise))
                return states, jax.tree.map(jnp.add, metrics, more)

            return body

        def learning_body(
            noise: StepNoises, done: types.Array
        ) -> Callable[[types.Array, StateAndMetrics], StateAndMetrics]:
            learning = loop_body(learning_step, noise)
            if agent.learner.reset is None:
                return learning

            def body(i: types.Array, carry: StateAndMetrics) -> StateAndMetrics:
                states, metrics = learning(i, carry)
                return core.reset_when_due(states, start + done + i, over_seeds), metrics

            return body

        def cycle_body(
            noise: StepNoises, done: types.Array
        ) -> Callable[[types.Array, StateAndMetrics], StateAndMetrics]:
            learning = learning_body(noise, done)
            if cycle == 1:
                return learning
            acting = loop_body(acting_step, noise)

            def body(i: types.Array, carry: StateAndMetrics) -> StateAndMetrics:
                last = (i + 1) * cycle - 1
                return learning(last, jax.lax.fori_loop(i * cycle, last, acting, carry))

            return body

        def run_block(
            carry: tuple[core_lib.SeedState, core_lib.Metrics, types.Array],
        ) -> tuple[core_lib.SeedState, core_lib.Metrics, types.Array]:
            states, metrics, done = carry
            steps = start + done + jnp.arange(block)
            noise = jax.vmap(draw_seeds, (None, 0))(states.key, steps)
            end = jnp.minimum(block, num_steps - done)
            warm = jnp.clip(core.setup.num_random_rounds - (start + done), 0, end)
            warmed = jax.lax.fori_loop(0, warm, loop_body(first_step, noise), (states, metrics))
            first, beyond = (warm, end) if cycle == 1 else (warm // cycle, end // cycle)
            states, metrics = jax.lax.fori_loop(first, beyond, cycle_body(noise, done), warmed)
            return states, metrics, done + end

        begin = (states, core_lib.zero_metrics(shape), jnp.zeros((), jnp.int32))
        states, metrics, _ = jax.lax.while_loop(lambda carry: carry[2] < num_steps, run_block, begin)
        return states, metrics

    return Runner(init, run)
