"""Every system on every kind of environment, with tiny networks: traced, and as a slow test run for a moment."""

import functools

import jax
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import types
from hyperagent_jax.agents import minatar_presets
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.environments import registry
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import bsuite
from hyperagent_jax.experiment import deep_sea as deep_sea_lib
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import gymnasium
from hyperagent_jax.experiment import jax_env
from hyperagent_jax.runners import core
from hyperagent_jax.runners import loop
from hyperagent_jax.runners import scan

SMALL = dict(
    hidden_sizes=(8, 8),
    batch_size=4,
    min_replay=20,
    replay_capacity=500,
    epinet_hidden_sizes=(6,),
    epinet_prior_hidden_sizes=(4,),
    num_indices=3,
    scale_width=4,
    num_atoms=7,
    channels=(3,),
    num_predictions=2,
)
KINDS = ("scan", "loop", "bsuite", "gymnasium", "minatar/breakout", "explore/mountain_car", "explore/chain_20")
# hypermodel has no convolutions; test_run_atari.py has its refusal.
RUNS = [(name, kind) for name in agents.CONFIGS for kind in KINDS if (name, kind) != ("hypermodel", KINDS[4])]


def make_config(preset, **settings):
    """A small config; settings that the preset's class lacks are left out."""
    return preset(**{name: value for name, value in {**SMALL, **settings}.items() if name in preset.fields})


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.mark.parametrize("name", [name for name in agents.CONFIGS if name != "hypermodel"])
def test_the_program_on_device_takes_pictures(name):
    pytest.importorskip("gymnax")
    environment = registry.make("minatar/breakout")
    agent = agents.make_agent(name, make_config(agents.CONFIGS[name]), environment.spec)
    runner = scan.make_runner(agent, environment, stores_prior=True)
    keys = jax.random.split(jax.random.key(0), 1)
    states = jax.eval_shape(jax.vmap(lambda key: runner.init(key, None)), keys)
    after, metrics = jax.eval_shape(runner.run, states, np.int32(0), np.int32(4))
    assert shapes(after) == shapes(states)
    assert {leaf.shape for leaf in jax.tree.leaves(metrics)} == {(1,)}


@pytest.mark.parametrize("name", agents.CONFIGS)
def test_the_loop_over_python_environments_takes_vectors(name):
    spec = types.EnvironmentSpec(2, (3,))
    program = loop.make_program(agents.make_agent(name, make_config(agents.CONFIGS[name]), spec))
    observation, zero, one = np.zeros(3, np.float32), np.int32(0), np.float32(1)
    state = jax.eval_shape(program.init, jax.random.key(0), observation)
    noise = jax.eval_shape(program.draw, jax.random.key(0), 0)
    acted, action = jax.eval_shape(program.begin, state, noise, zero, zero)
    assert shapes(acted) == shapes(state) and action.shape == ()
    timestep = environments_base.TimeStep(observation, one, one, np.bool_(False))
    learn = functools.partial(program.proceed, is_learning=True)
    learned, metrics, action = jax.eval_shape(
        learn, state, core.zero_metrics(), noise, zero, zero, zero, timestep, observation
    )
    assert shapes(learned) == shapes(state) and action.shape == ()
    assert {leaf.shape for leaf in jax.tree.leaves(metrics)} == {()}


def make_task(kind, name, folder):
    """A task of a moment; on MinAtar with its preset where there is one."""
    seeds, config = (0,), make_config(agents.CONFIGS[name])
    if kind == "bsuite":
        columns = (("bsuite_id", "catch/0"),)
        return base.Task(kind, name, config, bsuite.Protocol("catch/0", 12), seeds, columns=columns, folder=folder)
    if kind == "gymnasium":
        protocol = gymnasium.Protocol("CartPole-v1", steps=60, eval_every=60, eval_episodes=1)
        return base.Task(kind, name, config, protocol, seeds, columns=(("env", protocol.env),), folder=folder)
    if kind in deep_sea_lib.RUNNERS:
        protocol = deep_sea_lib.Protocol(size=5, max_episodes=12, eval_every=60, eval_episodes=2)
        protocol = deep_sea_lib.EXPERIMENT.resolve(protocol)
        config = deep_sea_lib.EXPERIMENT.capped(make_config(deep_sea_lib.EXPERIMENT.configs()[name]), protocol)
        return base.Task("deepsea", name, config, protocol, seeds, deep_sea_lib.Options(kind), folder=folder)
    protocol = jax_env.Protocol(kind, steps=80, eval_every=80, eval_episodes=2, eval_max_steps=20)
    is_small = kind.startswith("minatar") and name in minatar_presets.CONFIGS
    options = jax_env.Options("minatar" if is_small else "default")
    preset = jax_env.EXPERIMENT.configs(options)[name]
    config = make_config(preset, hidden_sizes=(8,)) if is_small else config
    return base.Task("jax", name, config, protocol, seeds, options, (("env", kind),), folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_a_short_run(name, kind, tmp_path):
    for start, library in (("bsuite", "bsuite"), ("loop", "bsuite"), ("gym", "gymnasium"), ("minatar", "gymnax")):
        if kind.startswith(start):
            pytest.importorskip(library)
    events = []
    assert driver.run_task(make_task(kind, name, str(tmp_path)), events.append, lambda: False)
    (row,) = (event.row for event in events if event.kind == "result")
    assert not row.get("error") and int(row["num_params"]) > 0
    assert int(row.get("interactions") or row["steps"]) >= 60  # updates begin after 20
