"""The programs that runs compile, by name, as functions and the shapes of their arguments.

Used to inspect programs without running them: lowered for another platform, or compiled ahead of time for a device
that is not present.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyperagent_jax import agents
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.runners import vector
from hyperagent_jax.tabular import agents as tabular_agents
from hyperagent_jax.tabular import base as tabular_base
from hyperagent_jax.tabular import mdps

_STACK = (4, 84, 84)
_NUM_ACTIONS = 18


class Program(NamedTuple):
    """A function to compile.

    Attributes:
        function: the function.
        arguments: shapes of its arguments.
        donated: positions of the donated arguments.
        make_arguments: makes arguments of these shapes, to time the function on this machine.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    make_arguments: Callable[[], tuple[Any, ...]]

    def jitted(self) -> Any:
        """The jitted function, not yet lowered or compiled."""
        return jax.jit(self.function, donate_argnums=self.donated)


def _program(
    function: Callable[..., Any], donated: tuple[int, ...], make: Callable[[], tuple[Any, ...]]
) -> Program:
    return Program(function, jax.eval_shape(make), donated, make)


def deep_sea_chunk(agent: str, size: int, num_seeds: int, num_steps: int = 1_000, **settings: Any) -> Program:
    """Returns some DeepSea steps of a group of seeds and an evaluation, as `run_deepsea.py` dispatches them."""
    protocol = deep_sea.Protocol(size=size)
    config = deep_sea.EXPERIMENT.capped(agents.CONFIGS[agent](**settings), protocol)
    _, init, advance = deep_sea.make(agent, config, protocol)

    def make() -> tuple[Any, ...]:
        seeds = jnp.arange(num_seeds, dtype=jnp.uint32)
        states = init(seeds, jnp.zeros((num_seeds, size, size), jnp.int32))
        return states, jnp.int32(config.min_replay), jnp.int32(num_steps)

    return _program(advance, (0,), make)


def _atari_agent(agent: str, preset: str, **settings: Any) -> agents.Agent:
    spec = types.EnvironmentSpec(_NUM_ACTIONS, (*_STACK[1:], _STACK[0]), dtype="uint8")
    return agents.make_agent(agent, atari_presets.configs(preset)[agent](**settings), spec)


def atari_update(agent: str, preset: str = "paper", **settings: Any) -> Program:
    """Returns one update on frames, which `run_atari.py` dispatches most."""
    made = _atari_agent(agent, preset, **settings)
    size = made.config.batch_size

    def make() -> tuple[Any, ...]:
        key = jax.random.key(0)
        stacks = jnp.zeros((size, *_STACK), jnp.uint8)
        zeros = jnp.zeros(size)
        learner = made.learner.init(key)
        belief = jax.vmap(made.network.prior, (None, 0))(learner.prior, vector.frames_last(stacks))
        transitions = types.Transition(
            stacks, jnp.zeros(size, jnp.int32), zeros, zeros, stacks, jnp.zeros((size, made.perturbation.dim))
        )
        batch = types.Batch(transitions, prior_tm1=belief, prior_t=belief, replay_size=jnp.int32(1))
        return learner, jnp.zeros(()), prng.hash_key(key), batch

    return _program(vector.make_update(made), (0, 1), make)


def atari_act(agent: str, preset: str = "paper", num_envs: int = 4, **settings: Any) -> Program:
    """Returns one step of acting in several environments."""
    made = _atari_agent(agent, preset, **settings)

    def make() -> tuple[Any, ...]:
        key, none = jax.random.key(0), jnp.zeros(num_envs, bool)
        indices = jax.vmap(made.actor.init)(jax.random.split(key, num_envs))
        stacks = jnp.zeros((num_envs, *_STACK), jnp.uint8)
        number = jnp.int32(0)
        learner = made.learner.init(key)
        return learner, indices, prng.hash_key(key), stacks, jnp.arange(num_envs), none, number, jnp.asarray(False)

    return _program(vector.make_act(made), (1,), make)


def tabular(agent: str, num_seeds: int = 32, num_episodes: int = 100) -> Program:
    """Returns some episodes of a tabular agent on RiverSwim, for many seeds."""
    mdp = mdps.river_swim()
    made = tabular_agents.AGENTS[agent](tabular_agents.Settings(num_episodes), tabular_base.size_of(mdp))

    def run(mdp: mdps.FiniteMdp, seeds: types.Array) -> Any:
        one = functools.partial(tabular_base.run, made, num_episodes=num_episodes)
        return jax.vmap(one, (None, 0))(mdp, seeds)

    return _program(run, (), lambda: (mdp, jnp.arange(num_seeds)))
