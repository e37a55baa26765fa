"""Any dm_env environment: Python steps it, one jitted dispatch per step acts and learns."""

from collections.abc import Callable

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import scan


def make_runner(
    agent: agents_base.Agent,
    environment: dm_env.Environment,
    observe: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> scan.Runner:
    """Makes a runner for one seed; its functions take the same arguments as those of scan.py.

    The random numbers of every step are the scan runner's, so both give the same run where their
    environments do.

    Args:
        agent: the agent.
        environment: a dm_env environment; this runner steps and resets it.
        observe: turns its observations into those the agent was made for.
    """
    core = core_lib.make_core(agent)
    min_replay = agent.config.min_replay

    def init(key, environment_state=None):
        del environment_state
        return core.init(key, jnp.asarray(observe(environment.reset().observation)), None)

    @jax.jit
    def first_action(state, step):
        noise = core.draw(jax.random.fold_in(state.key, step))
        acted, action = core.act(state, noise)
        is_greedy = step >= min_replay
        indices = jnp.where(is_greedy, acted.indices, state.indices)
        return state._replace(indices=indices), jnp.where(is_greedy, action, core.act_randomly(noise))

    def after_step(state, step, action, timestep, next_observation, is_learning):
        """Learns from step `step` and chooses the action of the next."""
        noise = core.draw(jax.random.fold_in(state.key, step))
        state, metrics = core.observe(state, action, timestep, noise)
        state = state._replace(observation=next_observation)
        if is_learning:
            state, metrics = core.learn(state, metrics, noise)
        state, next_action = first_action(state, step + 1)
        return state, next_action, metrics

    after_step = jax.jit(after_step, donate_argnums=0, static_argnames="is_learning")
    pending_action = {}  # the action chosen ahead for a step, kept between calls of `run`

    def run(states, start, num_steps):
        state = jax.tree.map(lambda x: x[0], states)
        start, num_steps = int(start), int(num_steps)
        action = pending_action.pop(start, None)
        if action is None:
            state, action = first_action(state, start)
        totals = []
        for step in range(start, start + num_steps):
            current = environment.step(int(action))
            observation = observe(current.observation)
            timestep = environments_base.TimeStep(
                observation,
                np.float32(current.reward),
                np.float32(current.discount),
                np.bool_(current.last()),
            )
            if current.last():
                observation = observe(environment.reset().observation)
            state, action, metrics = after_step(
                state, step, action, timestep, observation, is_learning=step >= min_replay
            )
            totals.append(metrics)
        pending_action[start + num_steps] = action
        metrics = jax.tree.map(lambda *x: jnp.sum(jnp.stack(x))[None], *totals)
        return jax.tree.map(lambda x: x[None], state), metrics

    return scan.Runner(init, run)
