"""Tests of whole runs on device: probes, seeds, dispatches and the memory they touch."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax.agents import hyperagent
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.environments import probes
from hyperagent_jax.runners import scan


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


# Probes

DISCOUNT = 0.9
PROBE_CONFIG = hyperagent.Config(
    hidden_sizes=(16,),
    learning_rate=3e-3,
    discount=DISCOUNT,
    batch_size=32,
    min_replay=32,
    replay_capacity=1_000,
    index_dim=2,
    prior_scale=1.0,
    sigma=0.0,
    optimizer="adam",
)


def learned_beliefs(probe, num_steps, seeds=(0, 1), config=PROBE_CONFIG):
    """Coefficients [num_seeds, num_states, num_actions, M + 1] after a run."""
    agent = hyperagent.make_agent(config, probe.environment.spec)
    runner = scan.make_runner(agent, probe.environment)
    states = stack([runner.init(jax.random.key(seed), probe.state) for seed in seeds])
    states, metrics = jax.jit(runner.run, donate_argnums=0)(states, 0, num_steps)
    np.testing.assert_array_equal(metrics.updates, num_steps - config.min_replay)
    over_states = jax.vmap(agent.network.belief, (None, 0))
    return np.asarray(
        jax.vmap(lambda state: over_states(agent.learner.variables(state), jnp.arange(len(probe.q_values))))(
            states.learner
        )
    )
