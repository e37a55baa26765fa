"""Tests of the parts of a step."""

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.replay import ring as ring_lib
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import scales

SPEC = types.EnvironmentSpec(num_actions=2, observation_shape=(), num_states=9)


def make_state(agent, core, num_steps=12):
    """A state after some random steps."""

    @jax.jit
    def step(state, i):
        noise = core.draw(jax.random.fold_in(state.key, i))
        timestep = environments_base.TimeStep(i % 9, 0.1 * i, jnp.array(1.0), i % 5 == 4)
        return core.observe(state, core.act_randomly(noise), timestep, noise)[0]

    init = jax.jit(lambda key: core.init(key, jnp.zeros((), jnp.int32), None))
    state = init(prng.hash_key(jax.random.key(0)))
    for i in range(num_steps):
        state = step(state, jnp.array(i, jnp.int32))
    return state


def test_several_updates_per_step_are_updates_in_a_row():
    config = hyperagent.Config(hidden_sizes=(8,), batch_size=4, replay_capacity=20, updates_per_step=3, num_ois=2)
    agent = hyperagent.make_agent(config, SPEC)
    core = core_lib.make_core(agent)
    state = make_state(agent, core)
    noise = core.draw(jax.random.fold_in(state.key, 99))
    assert noise.replay.shape == (3, 4) and noise.learner.target_indices.shape == (3, 4, 2, 4)
    assert len(np.unique(noise.replay)) == 12  # every update has numbers of its own
    assert len(np.unique(np.asarray(noise.learner.target_indices).reshape(-1, 4), axis=0)) == 24

    empty = core_lib.Metrics(*jnp.zeros(4))
    learned, metrics = jax.jit(core.learn)(state, empty, noise)
    learner, losses = state.learner, []
    ring, update = ring_lib.make_ring(20), jax.jit(agent.learner.update)
    for i in range(3):
        batch = types.Batch(ring.sample(state.replay, noise.replay[i])[0].transition, ring.size(state.replay))
        learner, info = update(learner, batch, jax.tree.map(lambda x, i=i: x[i], noise.learner))
        losses.append(info["loss"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), learned.learner, learner)
    np.testing.assert_allclose(metrics.loss, np.sum(losses), rtol=1e-5)
    assert metrics.updates == 3 and learned.learner.count == 3


def test_recent_fraction_reaches_the_replay():
    # With all ages log-uniform the newest of 12 transitions, whose reward is 1.1, has the share log(2) / log(13).
    config = hyperagent.Config(hidden_sizes=(8,), batch_size=64, replay_capacity=20, recent_fraction=1.0)
    agent = hyperagent.make_agent(config, SPEC)

    def share_of_newest(state, batch, noise):
        newest = batch.transitions.r_t > 1.05
        return state, {"loss": jnp.mean(newest), "losses": newest}

    core = core_lib.make_core(agent._replace(learner=agent.learner._replace(update=share_of_newest)))
    state = make_state(agent, core)

    @jax.jit
    @jax.vmap
    def shares(i):
        noise = core.draw(jax.random.fold_in(state.key, i))
        return core.learn(state, core_lib.Metrics(*jnp.zeros(4)), noise)[1].loss

    expected = np.log(2) / np.log(13)
    assert abs(np.mean(shares(jnp.arange(100))) - expected) < 5 * np.sqrt(expected * (1 - expected) / 6_400)


def test_losses_become_priorities():
    config = hyperagent.Config(
        hidden_sizes=(8,),
        batch_size=4,
        replay_capacity=20,
        updates_per_step=2,
        priority_fraction=1.0,
        importance_beta=0.5,
    )
    agent = hyperagent.make_agent(config, SPEC)
    core = core_lib.make_core(agent)
    state = make_state(agent, core)
    ring = ring_lib.make_ring(20, priority_fraction=1.0, importance_beta=0.5)
    sample, update = jax.jit(ring.sample), jax.jit(agent.learner.update)
    noise = core.draw(jax.random.fold_in(state.key, 99))
    learned, _ = jax.jit(core.learn)(state, core_lib.Metrics(*jnp.zeros(4)), noise)
    learner, expected = state.learner, np.where(np.arange(20) < 12, 1.0, 0.0)
    replay = state.replay
    for i in range(2):
        transitions, slots = sample(replay, noise.replay[i])
        # All have the same priority at first: the four quarters of the twelve slots.
        assert i > 0 or list(np.asarray(slots) // 3) == [0, 1, 2, 3]
        weights = ring.weights(replay, slots)
        batch = types.Batch(transitions.transition, ring.size(replay), weights=weights)
        learner, info = update(learner, batch, jax.tree.map(lambda x, i=i: x[i], noise.learner))
        assert i == 0 or np.min(weights) < 0.9
        np.testing.assert_allclose(info["loss"], np.mean(weights * info["losses"]), rtol=1e-5)
        replay = ring.update(replay, slots, info["losses"])
        expected[slots] = 0.0
        np.maximum.at(expected, slots, np.sqrt(info["losses"]) + 1e-6)
    np.testing.assert_allclose(learned.replay.priorities.tree[0][0, :20], expected, rtol=1e-4)
    # The weights of the second update reach the parameters.
    for ours, theirs in zip(jax.tree.leaves(learned.learner.params), jax.tree.leaves(learner.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_rewards_are_divided_by_the_largest_return_or_by_the_smallest_unit():
    def unit(largest, smallest):
        scale = scales.ReturnScale(jnp.zeros(()), jnp.array(largest))
        rewards = jnp.array([8.0, -4.0])
        batch = types.Batch(types.Transition(*[jnp.zeros(2)] * 2, rewards, *[jnp.zeros(2)] * 3))
        normalized = scale.normalize(batch, smallest).transitions.r_t
        np.testing.assert_allclose(normalized[0], -2 * normalized[1], rtol=1e-6)
        return float(8.0 / normalized[0])

    # Nothing seen: 1, or the smallest unit. A small return counts only where there is no smallest unit.
    assert [unit(0.0, 0.0), unit(0.5, 0.0), unit(4.0, 0.0)] == [1.0, 0.5, 4.0]
    assert [unit(0.0, 1.0), unit(0.5, 1.0), unit(4.0, 1.0), unit(0.5, 2.0)] == [1.0, 1.0, 4.0, 2.0]


def test_the_network_is_told_where_observations_are():
    """Moments as numpy has them, told at the first learning and whenever there are twice as many."""
    spec = types.EnvironmentSpec(num_actions=2, observation_shape=(3,))
    config = hyperagent.Config(
        hidden_sizes=(4,),
        batch_size=4,
        replay_capacity=40,
        unit_prior=True,
        separate_uncertainty=True,
        wave_frequency=2.0,
    )
    core = core_lib.make_core(hyperagent.make_agent(config, spec), stores_prior=True)
    assert not core.setup.stores_prior  # it would be out of date
    rng = np.random.default_rng(0)
    observations = np.concatenate([rng.normal([5.0, 0.0], [3.0, 0.01], (9, 2)), np.full((9, 1), 7.0)], axis=1)
    observations = jnp.asarray(observations, jnp.float32)
    state = core.init(prng.hash_key(jax.random.key(0)), observations[0], None)
    noise = core.draw(jax.random.key(1))
    observe, learn = jax.jit(core.observe), jax.jit(core.learn)
    told = None
    for i in range(1, 9):
        timestep = environments_base.transition(observations[i], jnp.zeros(()), False)
        state, _ = observe(state, jnp.array(0), timestep, noise)  # i observations: all but the newest
        state, _ = learn(state, core_lib.zero_metrics(), noise)
        if i in (1, 2, 4, 8):
            std = np.std(observations[:i], axis=0)
            told = (np.mean(observations[:i], axis=0), np.where(std > 1e-6, std, 1.0))  # constant entries: 1
        learner = state.learner
        for part in (learner.params["uncertainty"], learner.target_params["uncertainty"], learner.prior):
            np.testing.assert_allclose(part["torso"]["observation_mean"], told[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(part["torso"]["observation_std"], told[1], rtol=1e-3)
    assert "observation_mean" not in state.learner.params["mean"]["torso"]
