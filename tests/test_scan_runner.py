"""Tests of whole runs on device: probes, seeds, dispatches and the memory they touch."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import types
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.environments import classic_control
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.environments import finite
from hyperagent_jax.environments import probes
from hyperagent_jax.runners import scan


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.mark.parametrize("factor, has_costs", [(1_000.0, False), (1_024.0, True)])
def test_normalized_returns_make_a_factor_of_all_rewards_irrelevant(factor, has_costs):
    """Bit for bit where the products are exact: gains of 1, or costs too and a power of two."""
    transitions, rewards = np.zeros((4, 2, 4)), np.full((4, 2), -0.01 if has_costs else 0.0)
    transitions[[0, 1, 2], 1, [1, 2, 3]] = transitions[[0, 1, 2, 3], 0, [0, 0, 1, 2]] = 1.0
    rewards[3, 1] = 1.0

    def run(factor, normalize_returns):
        environment = finite.make_finite(transitions, (rewards * np.float32(factor)).astype(np.float32), 8)
        config = dataclasses.replace(PROBE_CONFIG, normalize_returns=normalize_returns)
        runner = scan.make_runner(hyperagent.make_agent(config, environment.spec), environment)
        states, _ = jax.jit(runner.run)(stack([runner.init(jax.random.key(0), None)]), 0, 400)
        return states

    plain, scaled = run(1.0, True), run(factor, True)
    assert plain.return_scale.largest == pytest.approx(1.0, abs=0.1)
    assert scaled.return_scale.largest == factor * plain.return_scale.largest
    actions = [np.asarray(x.replay.storage.transition.a_tm1) for x in (plain, scaled, run(factor, False))]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert np.any(actions[0] != actions[2])
    jax.tree.map(np.testing.assert_array_equal, plain.learner.params, scaled.learner.params)


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
)


@pytest.mark.parametrize("name", probes.PROBES)
def test_probes_reach_their_known_values(name):
    num_steps, seeds = 1_500, range(3)
    probe = probes.PROBES[name](DISCOUNT)
    # The truncated loop has one state that every update needs: a good place for the other optimiser.
    config = dataclasses.replace(PROBE_CONFIG, optimizer="lazy_adam" if name == "truncated_loop" else "adam")
    agent = hyperagent.make_agent(config, probe.environment.spec)
    runner = scan.make_runner(agent, probe.environment)

    @jax.jit
    def run(states):
        states, metrics = runner.run(states, 0, num_steps)
        variables = jax.vmap(agent.learner.variables)(states.learner)
        over_states = jax.vmap(agent.network.belief, (None, 0))
        return metrics, jax.vmap(over_states, (0, None))(variables, jnp.arange(len(probe.q_values)))

    metrics, beliefs = run(stack([runner.init(jax.random.key(seed), probe.state) for seed in seeds]))
    np.testing.assert_array_equal(metrics.updates, num_steps - config.min_replay)
    # Every seed's mean is right, and without perturbations nothing is left of the prior's spread.
    assert np.max(np.abs(beliefs[..., -1] - probe.q_values)) < 0.01
    assert np.max(np.abs(beliefs[..., :-1])) < 0.01


# Seeds and dispatches

SIZE = 7
CAPACITY = 77_777  # a number that no other array has for a dimension
LEAF_ROWS = 1_216  # the tree of priorities has this many rows of 64 leaves
MIN_REPLAY = 40
VARIANTS = {
    "adam": {"optimizer": "adam"},
    "lazy_adam": {"optimizer": "lazy_adam"},
    "prioritized": {
        "optimizer": "lazy_adam",
        "recent_fraction": 0.25,
        "priority_fraction": 0.5,
        "importance_beta": 0.4,
        "importance_beta_steps": 1_000,
        "updates_per_step": 2,
    },
}


@functools.cache
def make_run(variant, num_seeds):
    """The runner and its compiled `run`, whose states are donated."""
    environment = deep_sea.make_deep_sea(SIZE, deterministic=False)
    config = hyperagent.Config(
        hidden_sizes=(8,), batch_size=16, min_replay=MIN_REPLAY, replay_capacity=CAPACITY, **VARIANTS[variant]
    )
    runner = scan.make_runner(hyperagent.make_agent(config, environment.spec), environment)
    states = jax.eval_shape(lambda: make_states(runner, range(num_seeds)))
    zero = jnp.zeros((), jnp.int32)
    return runner, jax.jit(runner.run, donate_argnums=0).lower(states, zero, zero).compile()


def make_states(runner, seeds):
    """States of several seeds, each with its own action mapping."""
    environments = [deep_sea.initial_state(deep_sea.action_mapping(SIZE, seed)) for seed in seeds]
    return stack([runner.init(jax.random.key(i), e) for i, e in zip(seeds, environments, strict=True)])


def run_steps(variant, seeds, *dispatches):
    """The states (in numpy) after dispatches of these lengths, and the metrics' sums."""
    runner, run = make_run(variant, len(seeds))
    states = make_states(runner, seeds)
    done, metrics = 0, []
    for num_steps in dispatches:
        states, more = run(states, jnp.array(done), jnp.array(num_steps))
        metrics.append(more)
        done += num_steps
    states = states._replace(key=jax.random.key_data(states.key))
    return jax.tree.map(np.asarray, states), jax.tree.map(lambda *x: np.sum(x, axis=0), *metrics)


@functools.cache
def long_run(variant):
    """400 steps of three seeds."""
    return run_steps(variant, (0, 1, 2), 400)


@pytest.mark.parametrize("variant", VARIANTS)
def test_how_a_run_is_cut_does_not_matter(variant):
    whole, whole_metrics = long_run(variant)
    parts, parts_metrics = run_steps(variant, (0, 1, 2), 150, 250)
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    np.testing.assert_allclose(parts_metrics.loss, whole_metrics.loss, rtol=1e-5)
    per_step = VARIANTS[variant].get("updates_per_step", 1)
    np.testing.assert_array_equal(parts_metrics.updates, per_step * (400 - MIN_REPLAY))
    np.testing.assert_array_equal(parts_metrics.episodes, 400 // SIZE)
    np.testing.assert_allclose(parts_metrics.returns, whole_metrics.returns, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_among_others_equals_the_seed_alone(variant):
    together, metrics = long_run(variant)
    for seed in (0, 2):
        alone, alone_metrics = run_steps(variant, (seed,), 400)
        one_of_all = jax.tree.map(lambda x, seed=seed: x[seed : seed + 1], together)
        one_priorities, priorities = one_of_all.replay.priorities, alone.replay.priorities
        one_of_all, alone = (x._replace(replay=x.replay._replace(priorities=None)) for x in (one_of_all, alone))
        # Everything that happened is the same, to the bit ...
        for field in alone._fields:
            if field not in ("learner", "episode_return"):
                jax.tree.map(np.testing.assert_array_equal, getattr(one_of_all, field), getattr(alone, field))
        # ... and what was learned, up to the order of sums.
        assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
        jax.tree.map(assert_close, (one_of_all.learner, one_priorities), (alone.learner, priorities))
        np.testing.assert_allclose(metrics.returns[seed], alone_metrics.returns[0], rtol=1e-5)


def test_seeds_differ():
    states, _ = long_run("adam")
    actions = states.replay.storage.transition.a_tm1[:, :400]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(actions[i] != actions[j]) > 0.2


def test_replay_holds_the_run_in_order():
    states, metrics = long_run("adam")
    np.testing.assert_array_equal(states.replay.added, 400)
    items = jax.tree.map(lambda x: x[:, :400], states.replay.storage.transition)
    ends = np.arange(400) % SIZE == SIZE - 1
    np.testing.assert_allclose(items.discount_t, np.tile(np.where(ends, 0.0, 0.99), (3, 1)), rtol=1e-6)
    # Each step starts where the one before it ended, and episodes start at the top left.
    np.testing.assert_array_equal(items.o_tm1[:, 1:], np.where(ends[:-1], 0, items.o_t[:, :-1]))
    np.testing.assert_array_equal(items.o_tm1 // SIZE, np.tile(np.arange(400) % SIZE, (3, 1)))
    np.testing.assert_array_equal(states.observation, items.o_t[:, -1])
    np.testing.assert_array_equal(states.is_first, False)
    # Returns are those of finished episodes; the rest is still open.
    finished = 400 - 400 % SIZE
    np.testing.assert_allclose(metrics.returns, items.r_t[:, :finished].sum(axis=1), atol=1e-4)
    np.testing.assert_allclose(states.episode_return, items.r_t[:, finished:].sum(axis=1), atol=1e-5)
    # Perturbations are on the sphere of radius sqrt(M), a new one for every transition.
    np.testing.assert_allclose(np.linalg.norm(items.z_t, axis=-1), 2.0, rtol=1e-5)
    assert len(np.unique(items.z_t.reshape(-1, 4), axis=0)) == 3 * 400


def test_a_seed_alone_runs_as_in_a_group():
    """Alone it has no axis of seeds; the same random numbers, and floats up to the order of sums."""
    environment = classic_control.make_mountain_car()
    config = dataclasses.replace(PROBE_CONFIG, update_period=4)
    runner = scan.make_runner(hyperagent.make_agent(config, environment.spec), environment, stores_prior=True)
    run = jax.jit(lambda states: runner.run(states, 0, 80))
    seeds = [runner.init(jax.random.key(seed), None) for seed in range(2)]
    group, group_metrics = run(stack(seeds))
    for i, seed in enumerate(seeds):
        alone, metrics = run(stack([seed]))
        assert metrics.updates.tolist() == [(80 - config.min_replay) // 4]
        np.testing.assert_allclose(metrics.loss, group_metrics.loss[i : i + 1], rtol=1e-4)
        for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(group), strict=True):
            assert x.shape == (1, *y.shape[1:])
            if jnp.issubdtype(x.dtype, jnp.floating):
                np.testing.assert_allclose(x[0], y[i], rtol=1e-3, atol=1e-5)
            else:  # keys, actions, counts
                assert bool(jnp.all(x[0] == y[i]))


# Memory


def find_copies(text, dimension):
    """The copies in compiled HLO of arrays that have this dimension."""
    shapes = re.findall(r"= *(\w+\[[\d,]*\])\S* copy(?:-start)?\(", text)
    return [shape for shape in shapes if str(dimension) in re.split(r"[\[\],]", shape)]


def test_find_copies():
    text = """
      %copy.1 = f32[3,77777,4]{2,1,0} copy(%get-tuple-element.7)
      ROOT %copy.2 = s32[77777]{0} copy(%bitcast), metadata={op_name="x"}
      %copy.3 = f32[177777,4]{1,0} copy(%p)
      %fusion = f32[77777]{0} fusion(%copy.4), kind=kLoop, calls=%copy_computation
    """
    assert find_copies(text, 77777) == ["f32[3,77777,4]", "s32[77777]"]


@pytest.mark.parametrize("num_seeds", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_replay_is_never_copied(variant, num_seeds):
    _, run = make_run(variant, num_seeds)
    text = run.as_text()
    # All six arrays of the replay are there, and are given back where they came in.
    parameters = re.findall(rf"\[{num_seeds},{CAPACITY}[,\d]*\]\S* parameter\(", text.split("ENTRY")[1])
    assert len(parameters) == 6
    assert "input_output_alias" in text
    assert find_copies(text, CAPACITY) == []
    assert (f"f32[{num_seeds},{LEAF_ROWS},64]" in text) == (variant == "prioritized")
    assert find_copies(text, LEAF_ROWS) == find_copies(text, LEAF_ROWS * 64) == []


NUM_ENVS = 7  # divides the capacity


@pytest.mark.parametrize(
    "name, settings, num_arrays",
    [
        # The six arrays of transitions, and with a stored prior two more.
        ("prioritized", VARIANTS["prioritized"], 6),
        ("stored prior", {"n_step": 3, "update_period": 2 * NUM_ENVS}, 8 + 1),
    ],
)
def test_the_replay_is_never_copied_with_several_environments(name, settings, num_arrays):
    stores_prior = name == "stored prior"
    environment = classic_control.make_mountain_car() if stores_prior else deep_sea.make_deep_sea(SIZE)
    config = hyperagent.Config(
        hidden_sizes=(8,), batch_size=16, min_replay=MIN_REPLAY, replay_capacity=CAPACITY, **settings
    )
    agent = hyperagent.make_agent(config, environment.spec)
    runner = scan.make_runner(agent, environment, NUM_ENVS, stores_prior=stores_prior)
    start = None if stores_prior else deep_sea.initial_state(deep_sea.action_mapping(SIZE, 0))
    states = jax.eval_shape(lambda: jax.tree.map(lambda x: x[None], runner.init(jax.random.key(0), start)))
    zero = jnp.zeros((), jnp.int32)
    text = jax.jit(runner.run, donate_argnums=0).lower(states, zero, zero).compile().as_text()
    parameters = re.findall(rf"\[1,{CAPACITY}[,\d]*\]\S* parameter\(", text.split("ENTRY")[1])
    assert len(parameters) == num_arrays and "input_output_alias" in text
    assert find_copies(text, CAPACITY) == []
    assert find_copies(text, LEAF_ROWS) == find_copies(text, LEAF_ROWS * 64) == []


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_lazy_adam_never_copies_its_rows(num_seeds):
    # Then the cost of an update does not grow with the number of states.
    _, run = make_run("lazy_adam", num_seeds)
    text = run.as_text()
    assert f"f32[{num_seeds},{SIZE**2},4,8]" in text
    assert find_copies(text, SIZE**2) == []


def test_gradients_of_pictures_are_not_transposed():
    # Adam reads the gradient of [36 * 16, 96] weights: in strides, it would take longer than all products.
    spec = types.EnvironmentSpec(3, (8, 8, 4), dtype="bool")
    picture = jnp.zeros(spec.observation_shape, bool)

    def step(state, action, noise):
        return state + 1, environments_base.transition(picture.at[state % 8].set(True), 1.0, state % 8 == 7)

    environment = environments_base.Environment(
        spec,
        lambda state, noise: (jnp.zeros((), jnp.int32), environments_base.restart(picture)),
        lambda key: (),
        step,
    )
    config = hyperagent.Config(hidden_sizes=(96,), batch_size=32, min_replay=32, replay_capacity=1_000)
    runner = scan.make_runner(hyperagent.make_agent(config, spec), environment, stores_prior=True)
    states = jax.eval_shape(lambda: stack([runner.init(jax.random.key(0), None)]))
    zero = jnp.zeros((), jnp.int32)
    text = jax.jit(runner.run).lower(states, zero, zero).compile().as_text()
    products = re.findall(r"= *(f32\[[\d,]*\])\S* dot\(", text)
    assert "f32[576,96]" in products and "f32[96,576]" not in products
