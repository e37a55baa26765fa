"""Tests of the optimisers with Langevin noise, by hand and by their stationary distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import langevin
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos

STATES = types.EnvironmentSpec(3, (), 12)


def descend(optimizer, num_steps, start=1.0):
    """Parameters of w^2 / 2 after every step."""
    w, path = jnp.float32(start), []
    state = optimizer.init(w)
    for i in range(num_steps):
        update, state = optimizer.update(w, state, w, key=jax.random.key(i))
        w = w + update
        path.append(float(w))
    return path


def test_steps_without_noise_by_hand():
    path = descend(langevin.adam_lmc(0.1, 0.0, bias_factor=1.0), 3)
    np.testing.assert_allclose(path, [0.5837723, 0.1200278, -0.2876724], rtol=1e-5)
    path = descend(langevin.langevin_adam(0.1, 0.0), 3)
    np.testing.assert_allclose(path, [0.9000000, 0.8004122, 0.7015863], rtol=1e-5)


def test_scale_of_the_noise_by_hand():
    """Standard deviation of LangevinAdam's noise over noise_scale at the first three steps of the path above."""
    quiet, loud = langevin.langevin_adam(0.1, 0.0), langevin.langevin_adam(0.1, 1.0, noise="signs")
    w = jnp.float32(1.0)
    state, found = quiet.init(w), []
    for i in range(3):
        update, _ = loud.update(w, state, w, key=jax.random.key(i))
        step, state = quiet.update(w, state, w, key=jax.random.key(i))
        found.append(abs(float(update - step)))  # signs have size 1
        w += step
    np.testing.assert_allclose(found, [1.4142133, 1.0519176, 0.9036615], rtol=1e-5)


@pytest.mark.parametrize("noise", langevin.NOISES)
def test_stationary_variance_on_a_quadratic(noise):
    """Of curvature 2 around 3: noise_scale^2 / (2 (1 - lr)) = 0.138889 at lr = 0.1, noise_scale = 0.5."""
    optimizer = langevin.adam_lmc(0.1, 0.5, bias_factor=0.0, noise=noise)

    @jax.jit
    def run(key):
        def step(carry, i):
            w, state = carry
            update, state = optimizer.update(2.0 * (w - 3.0), state, w, key=jax.random.fold_in(key, i))
            w += update
            return (w, state), (w.mean(), ((w - 3.0) ** 2).mean())

        w = jnp.full(1_000, 3.0)
        return jax.lax.scan(step, (w, optimizer.init(w)), jnp.arange(200))[1]

    means, squares = run(jax.random.key(0))
    # 1,000 chains and, at a correlation of 0.8 per step, 11 independent times after the start: 5 standard errors
    # of the mean are 5 * 0.373 / sqrt(11,000) = 0.018, of the variance 5 * sqrt(2 / 11,000) = 7%.
    assert np.mean(means[100:]) == pytest.approx(3.0, abs=0.018)
    assert np.mean(squares[100:]) == pytest.approx(0.138889, rel=0.07)


def test_gradients_are_clipped_before_anything_else():
    clipped = langevin.adam_lmc(0.1, 0.0, bias_factor=0.0, max_grad_norm=1.0)
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    update, _ = clipped.update(gradient, clipped.init(gradient), gradient, key=jax.random.key(0))
    np.testing.assert_allclose(update["a"], [-0.06], rtol=1e-6)
    np.testing.assert_allclose(update["b"], [-0.08], rtol=1e-6)


@pytest.mark.parametrize("name", ["langevin_adam", "adam_lmc"])
def test_noise_follows_from_the_key_of_the_step(name):
    agent = agents.make(name, STATES, hidden_sizes=(4,), noise_scale=1e-2)
    learner, state = agent.learner, agent.learner.init(jax.random.key(0))
    batch = types.Batch(
        types.Transition(
            jnp.arange(6), jnp.zeros(6, jnp.int32), jnp.ones(6), jnp.full(6, 0.9), jnp.arange(6), jnp.zeros((6, 0))
        )
    )
    step = jax.jit(learner.step)
    one, info = step(state, batch, jax.random.key(1))
    same, _ = step(state, batch, jax.random.key(1))
    drawn, _ = jax.jit(learner.update)(state, batch, learner.draw(jax.random.key(1), 6))
    other, other_info = step(state, batch, jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), one.params, drawn.params)
    assert info["loss"] == other_info["loss"]  # nothing but the optimiser is random
    for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        assert np.all(x != y)  # every parameter moves, also those of states that were not in the batch


def test_no_epsilon_and_the_loss_of_ddqn():
    settings = dict(hidden_sizes=(4,), noise_scale=0.0, adam_eps=1e-3)
    ours = agents.make("langevin_adam", STATES, **settings)
    theirs = agents.make("ddqn", STATES, hidden_sizes=(4,), adam_eps=1e-3)
    noise = ours.actor.draw(jax.random.key(0))._replace(explore=jnp.zeros(()))
    values = jnp.array([[0.0, 1.0, 0.5]])
    assert int(ours.actor.select(values, noise, 0)) == 1
    states = [agent.learner.init(jax.random.key(0)) for agent in (ours, theirs)]
    steps = [jax.jit(agent.learner.step) for agent in (ours, theirs)]
    rng = np.random.default_rng(0)
    for i in range(5):
        batch = types.Batch(
            types.Transition(
                rng.integers(0, 12, 6).astype(np.int32),
                rng.integers(0, 3, 6).astype(np.int32),
                rng.normal(size=6).astype(np.float32),
                np.full(6, 0.9, np.float32),
                rng.integers(0, 12, 6).astype(np.int32),
                np.zeros((6, 0), np.float32),
            )
        )
        states = [step(state, batch, jax.random.key(i))[0] for step, state in zip(steps, states, strict=True)]
    # Without noise LangevinAdam is Adam.
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), states[0].params, states[1].params
    )


def test_other_optimizers_need_no_key():
    network = epistemic.make_plain_network(torsos.OneHotMlp(12, (4,)), 3, jnp.zeros((), jnp.int32))
    loss = losses.make_td_loss(network)
    learner = learner_lib.make_learner(network, loss, agents.base.optimizers.Adam())
    assert type(learner.draw(jax.random.key(0), 4)) is losses.LossNoise


def test_bad_settings():
    for settings, message in (
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; choose one of langevin_adam, adam_lmc"),
        ({"noise_kind": "cauchy"}, "unknown noise_kind 'cauchy'"),
        ({"noise_scale": -1.0}, "noise_scale must be at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            agents.CONFIGS["adam_lmc"](**settings)
