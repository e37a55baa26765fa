"""Tests of BBF: its loss in numpy and by hand, annealed horizons, resets, its target and its optimiser."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import losses
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.losses import self_prediction
from hyperagent_jax.replay import n_step
from hyperagent_jax.replay import ring as ring_lib
from hyperagent_jax.replay import subsequence
from hyperagent_jax.runners import scan
from hyperagent_jax.runners import vector

SPEC = types.EnvironmentSpec(3, (4,))
RULE = subsequence.Rule(10, 3, 0.97, 0.997, 10_000, 40_000, 5)


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def make_agent(spec=SPEC, **settings):
    small = dict(hidden_sizes=(6, 5), num_atoms=7, v_max=2.0, num_predictions=2, channels=(3, 4), batch_size=4)
    return agents.make("bbf", spec, **{**small, **settings})


def test_self_prediction_loss_by_hand():
    predictions, targets = np.array([[3.0, 4.0]] * 5), np.array([[4.0, 3.0]] * 5)
    assert losses.self_prediction_loss(predictions, targets, np.ones(5)) == pytest.approx(0.08, rel=1e-5)
    mask = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    assert 5 * losses.self_prediction_loss(predictions, targets, mask) == pytest.approx(0.16, rel=1e-5)


def test_horizon_after_start_and_reset():
    for updates, n, gamma in (
        (0, 10, 0.97),
        (2_500, 7, 0.9831298),
        (5_000, 5, 0.9905132),
        (7_500, 4, 0.9946652),
        (10_000, 3, 0.997),
        (39_999, 3, 0.997),
        (42_500, 7, 0.9831298),
    ):
        found = subsequence.horizon(jnp.array(updates), RULE)
        assert int(found[0]) == n and float(found[1]) == pytest.approx(gamma, abs=1e-6)


@pytest.mark.parametrize("num_added, num_envs", [(9, 1), (50, 1), (52, 2)])
def test_sums_and_future_equal_a_walk_through_the_steps(num_added, num_envs):
    capacity, rng = 24, np.random.default_rng(0)
    rule = subsequence.Rule(4, 2, 0.5, 0.9, 100, 0, 3)
    ring = ring_lib.make_ring(capacity, add_batch_size=num_envs)
    last = rng.random(num_added) < 0.2
    steps = [
        n_step.Step(
            types.Transition(
                np.float32([i]),
                np.int32(i),
                np.float32(rng.normal()),
                np.float32(0.0 if last[i] and i % 2 else 1.0),  # some ends are truncations
                np.float32([i + 0.5]),
                np.zeros(0, np.float32),
            ),
            last[i],
        )
        for i in range(num_added)
    ]
    state, add = ring.init(steps[0]), jax.jit(ring.add)
    for i in range(0, num_added, num_envs):
        group = jax.tree.map(lambda *x: np.stack(x), *steps[i : i + num_envs])
        state = add(state, group if num_envs > 1 else steps[i])
    sample = jax.jit(
        functools.partial(subsequence.sample, ring=ring, capacity=capacity, num_envs=num_envs, rule=rule)
    )
    for count, n, gamma in ((0, 4, 0.5), (100, 2, 0.9)):
        batch, _ = jax.device_get(sample(state, ring.draw(jax.random.key(count), 64), count))
        t = batch.transitions
        for k in range(64):
            first = int(t.o_tm1[k, 0])
            total, discount, i, seen = 0.0, 1.0, first, []
            while i < num_added and len(seen) < max(n, 3):
                if len(seen) < n:
                    total += discount * float(steps[i].transition.r_t)
                    discount *= gamma * float(steps[i].transition.discount_t)
                    end = i
                seen.append(i)
                if last[i]:
                    break
                i += num_envs
            assert float(t.r_t[k]) == pytest.approx(total, abs=1e-5)
            assert float(t.discount_t[k]) == pytest.approx(discount, abs=1e-6)
            assert float(t.o_t[k, 0]) == end + 0.5
            there = len(seen[:3])
            np.testing.assert_array_equal(t.future.mask[k], np.arange(3) < there)
            np.testing.assert_array_equal(t.future.actions[k][:there], seen[:3])
            np.testing.assert_array_equal(t.future.observations[k][:there, 0], np.array(seen[:3]) + 0.5)


# The loss, written again in numpy


def relu(x):
    return np.maximum(x, 0.0)


def scaled(x):
    return (x - x.min()) / max(x.max() - x.min(), 1e-8)


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def latent(params, o):
    return scaled(relu(dense(params["torso"]["torso"]["layer_0"], o)))


def logits(params, o):
    x = relu(dense(params["projection"], latent(params, o)))
    advantage = dense(params["head"]["advantage_0"], x).reshape(3, 7)
    return dense(params["head"]["value_0"], x) + advantage - advantage.mean(axis=0)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x)


ATOMS = np.linspace(-2, 2, 7)


def numpy_losses(params, target_params, t):
    """Cross-entropy and self-prediction of one transition."""
    best = np.argmax(softmax(logits(params, t.o_t)) @ ATOMS)
    mass = np.zeros(7)
    for p, z in zip(softmax(logits(target_params, t.o_t))[best], ATOMS, strict=True):
        exact = (np.clip(t.r_t + t.discount_t * z, -2, 2) + 2) / (ATOMS[1] - ATOMS[0])
        low = min(int(exact), 5)
        mass[low] += p * (low + 1 - exact)
        mass[low + 1] += p * (exact - low)
    entropy = -np.sum(mass * np.log(softmax(logits(params, t.o_tm1))[t.a_tm1]))
    x, predicted = latent(params, t.o_tm1), []
    for k in range(2):
        x = np.concatenate([x, np.eye(3)[t.future.actions[k]]])
        for layer in ("layer_0", "layer_1"):
            x = relu(dense(params["transition"][layer], x))
        x = scaled(x)
        p = dense(params["predictor"], dense(params["projection"], x))
        q = dense(target_params["projection"], latent(target_params, t.future.observations[k]))
        predicted.append(t.future.mask[k] * np.sum((unit(p) - unit(q)) ** 2))
    return entropy, np.mean(predicted)


def make_batch(rng, n=4):
    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    future = types.Future(
        normal(n, 2, 4),
        rng.integers(0, 3, (n, 2)).astype(np.int32),
        np.float32([[1, 1], [1, 0], [1, 1], [1, 1]])[:n],
    )
    return types.Subsequence(
        normal(n, 4), future.actions[:, 0], normal(n), np.full(n, 0.9, np.float32), normal(n, 4),
        np.zeros((n, 0), np.float32), future,
    )  # fmt: skip


def test_loss_equals_numpy_and_priorities_are_the_cross_entropy():
    agent = make_agent()
    rng, update = np.random.default_rng(0), jax.jit(agent.learner.update)
    state = jax.jit(agent.learner.init)(make_key(0))
    noise = agent.learner.draw(make_key(1), 4)
    for _ in range(5):
        state, _ = update(state, types.Batch(make_batch(rng)), noise)
    batch, weights = make_batch(rng), np.float32([1.0, 0.5, 0.2, 1.0])
    _, info = update(state, types.Batch(batch, weights=weights), noise)
    params, target = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in state[:2])
    each = [numpy_losses(params, target, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(4)]
    np.testing.assert_allclose(info["losses"], [entropy for entropy, _ in each], rtol=1e-4)
    expected = np.mean([w * (entropy + 5 * own) for w, (entropy, own) in zip(weights, each, strict=True)])
    assert info["loss"] == pytest.approx(expected, rel=1e-4)
    # The target network acts.
    values = agent.learner.values(state, batch.o_tm1[0], jnp.zeros((1, 0)))
    np.testing.assert_allclose(values[0], softmax(logits(target, batch.o_tm1[0])) @ ATOMS, rtol=1e-4, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, agent.learner.variables(state).params, state.target_params)


# Optimiser, target, resets


def test_weight_decay_spares_biases_and_the_target_follows():
    learner = make_agent().learner
    state = jax.jit(learner.init)(make_key(0))
    ones, zero = (jax.tree.map(lambda x, y=y: np.full(x.shape, y, x.dtype), state.params) for y in (1.0, 0.0))
    state = state._replace(params=ones, target_params=zero)
    after = jax.jit(learner.apply_gradient)(state, zero)
    for leaf in jax.tree.leaves(after.params):  # lr 1e-4 times 0.1, of arrays that are not vectors
        np.testing.assert_allclose(leaf, 1.0 if leaf.ndim == 1 else 1.0 - 1e-5, rtol=1e-7)
    still = make_agent(learning_rate=0.0).learner

    @jax.jit
    def follow(state):
        return jax.lax.fori_loop(0, 100, lambda i, s: still.apply_gradient(s, zero), state)

    opt_state = jax.jit(still.init)(make_key(0)).opt_state
    for leaf in jax.tree.leaves(follow(state._replace(opt_state=opt_state)).target_params):
        np.testing.assert_allclose(leaf, 0.394230, rtol=1e-4)


def test_reset_by_parameter_path():
    agent = make_agent()
    learner, state = agent.learner, jax.jit(agent.learner.init)(make_key(0))
    state = state._replace(count=jnp.array(1), opt_state=jax.tree.map(np.ones_like, state.opt_state))
    hundred = jax.tree.map(lambda x: np.full(x.shape, 100.0, x.dtype), state.params)
    after = jax.jit(learner.reset)(state._replace(params=hundred, target_params=hundred), make_key(2))
    for params in (after.params, after.target_params):
        assert set(params) == {"torso", "transition", "projection", "predictor", "head"}
        for name, part in params.items():
            for leaf in jax.tree.leaves(part):
                # Fresh values are small: half of 100 stays, or nothing.
                assert np.all(np.abs(leaf - (50.0 if name in ("torso", "transition") else 0.0)) < 2.0)
    after = jax.device_get(after)
    different = jax.tree.map(lambda x, y: x.ndim == 1 or bool(np.any(x != y)), after.params, after.target_params)
    assert all(jax.tree.leaves(different))  # but biases, which start at zero
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(after.opt_state))
    assert after.count == state.count == 1 and learner.reset_period == 40_000


def test_resets_come_when_due_however_a_run_is_cut():
    environment = deep_sea.make_deep_sea(3)
    agent = agents.make(
        "bbf", environment.spec, hidden_sizes=(6, 5), num_atoms=3, num_predictions=1, batch_size=4,
        min_replay=20, replay_capacity=100, reset_period=40, learning_rate=0.0, weight_decay=0.0,
    )  # fmt: skip
    runner = scan.make_runner(agent, environment)
    run = jax.jit(runner.run)
    start = jax.tree.map(
        lambda x: x[None], runner.init(jax.random.key(0), deep_sea.initial_state(deep_sea.action_mapping(3, 0)))
    )

    def head(state):
        return np.asarray(state.learner.params["head"]["value_0"]["kernel"][0])

    # Two updates per step from step 20 on: the 40th is that of step 39, the 80th that of step 59.
    before, after = run(start, 0, 39)[0], run(start, 0, 40)[0]
    np.testing.assert_array_equal(head(before), head(start))
    assert np.all(head(after) != head(start))
    whole, cut = run(start, 0, 65)[0], run(run(after, 40, 7)[0], 47, 18)[0]
    assert np.all(head(whole) != head(after))
    jax.tree.map(np.testing.assert_array_equal, whole.learner.params, cut.learner.params)


# Pictures


def test_augmentation_by_hand():
    picture = jnp.arange(9.0).reshape(3, 3, 1)
    np.testing.assert_array_equal(self_prediction.augment(picture, jnp.array([1, 1]), 1.0, 1), picture)
    shifted = self_prediction.augment(picture, jnp.array([0, 1]), 2.0, 1)[..., 0]
    np.testing.assert_array_equal(shifted, [[0, 2, 4], [0, 2, 4], [6, 8, 10]])
    of_bytes = self_prediction.augment(jnp.full((3, 3, 1), 255, jnp.uint8), jnp.array([1, 0]), 1.0, 1)
    np.testing.assert_allclose(of_bytes, 1.0)
    loss = losses.Loss(lambda key, n: losses.LossNoise(None, None), None, apply_with_priority=lambda *x: x)
    noise = losses.with_augmentation(loss, pad=4, intensity=0.05, num_future=5).draw(jax.random.key(0), 500)
    assert set(np.unique(noise.offsets)) == set(range(8)) and noise.offsets.shape == (500, 7, 2)
    assert noise.intensities.max() == pytest.approx(1.1) and noise.intensities.min() == pytest.approx(0.9)


def test_pictures_and_parameters():
    spec = types.EnvironmentSpec(3, (6, 6, 2), dtype="bool")
    agent = make_agent(spec, hidden_sizes=(5,), augmentation_pad=1, channels=(3,))
    rng = np.random.default_rng(0)
    batch = make_batch(rng, 2)
    pictures = [rng.random((2, *shape, 6, 6, 2)) < 0.5 for shape in ((), (), (2,))]
    batch = batch._replace(
        o_tm1=pictures[0], o_t=pictures[1], future=batch.future._replace(observations=pictures[2])
    )
    step = jax.jit(agent.learner.step)
    state = jax.jit(agent.learner.init)(make_key(0))
    after, info = step(state, types.Batch(batch), make_key(1))
    assert np.isfinite(info["loss"])
    _, other = step(state, types.Batch(batch), make_key(2))
    assert other["loss"] != info["loss"]  # another draw of the augmentation
    assert all(
        bool(np.any(x != y)) for x, y in zip(*map(jax.tree.leaves, (state.params, after.params)), strict=True)
    )
    # The authors' network, with 18 and 6 actions, counted from its layers.
    for num_actions, expected in ((18, 39_771_401), (6, 38_503_589)):
        pixels = types.EnvironmentSpec(num_actions, (84, 84, 4), dtype="uint8")
        assert agents.count_params(agents.make("bbf", pixels, hidden_sizes=(2_048,))) == expected


def test_epsilon_and_refusals():
    agent = make_agent()
    # After 2,000 random steps it falls to 0 in 2,001 steps of two updates: at step 3,000 it is 0.50025.
    noise = agent.actor.draw(jax.random.key(0))
    values = jnp.zeros((1, 3)).at[0, 1].set(1.0)
    for explore, is_greedy in ((0.5002, False), (0.5003, True)):
        ties = jnp.array([0.9, 0.1, 0.2])
        chosen = agent.actor.select(values, noise._replace(explore=explore, ties=ties), 2_000)
        assert int(chosen) == (1 if is_greedy else 0)
    with pytest.raises(ValueError, match="which the frame replay does not provide: use run_jax.py"):
        vector.replay_settings(make_agent(types.EnvironmentSpec(3, (36, 36, 4))), 4, (4, 36, 36))
    for settings, message in (
        ({"optimizer": "adam"}, "bbf uses AdamW: set optimizer=auto"),
        ({"n_step": 1}, "n_step must be at least 2 for bbf"),
        ({"target_tau": 0.0}, "target_tau must be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            agents.CONFIGS["bbf"](**settings)
