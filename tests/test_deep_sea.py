"""Tests of DeepSea against bsuite's."""

from bsuite.environments import deep_sea as bsuite_deep_sea
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax.environments import deep_sea

SIZES = [1, 2, 5, 10]


class _GivenNoise:
    """Stands in for bsuite's random numbers: `rand` and `randn` return what the test has set."""

    def __init__(self):
        self.wind = 0.5
        self.reward = 0.0

    def rand(self):
        return self.wind

    def randn(self):
        return self.reward


def make_pair(size, deterministic, mapping_seed):
    """The environment, its initial state, bsuite's environment and the source of its random numbers."""
    reference = bsuite_deep_sea.DeepSea(size, deterministic=deterministic, mapping_seed=mapping_seed)
    reference._rng = _GivenNoise()
    state = deep_sea.initial_state(deep_sea.action_mapping(size, mapping_seed))
    return deep_sea.make_deep_sea(size, deterministic), state, reference, reference._rng


@pytest.fixture(scope="module")
def step_functions():
    """The compiled steps, shared by the tests of one (size, deterministic)."""
    cache = {}

    def get(size, deterministic):
        if (size, deterministic) not in cache:
            cache[size, deterministic] = jax.jit(deep_sea.make_deep_sea(size, deterministic).step)
        return cache[size, deterministic]

    return get


def assert_same(timestep, reference):
    """Checks a TimeStep against bsuite's."""
    assert bool(timestep.last) == reference.last()
    if reference.first():
        assert (float(timestep.reward), float(timestep.discount)) == (0.0, 1.0)
    else:
        assert float(timestep.reward) == pytest.approx(reference.reward, abs=1e-6)
        assert float(timestep.discount) == reference.discount
    if not reference.last():  # bsuite shows an empty grid at the end; ours says it is meaningless
        assert int(timestep.observation) == np.flatnonzero(reference.observation.reshape(-1)).item()


@pytest.mark.parametrize("mapping_seed", [0, 7, 42])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("deterministic", [True, False])
def test_equals_bsuite_step_for_step(size, deterministic, mapping_seed, step_functions):
    environment, state, reference, given = make_pair(size, deterministic, mapping_seed)
    step = step_functions(size, deterministic)
    rng = np.random.default_rng(mapping_seed)
    for episode in range(6):
        noise = deep_sea.StepNoise(np.float32(0.5), np.float32(0.0))
        state, timestep = environment.reset(state, noise)
        assert_same(timestep, reference.reset())
        for t in range(size):
            right = int(reference._action_mapping[reference._row, reference._column])
            # Random actions never get far, so half of the episodes mostly go right.
            action = right if episode % 2 and rng.random() < 0.9 else int(rng.integers(2))
            given.wind, given.reward = np.float32(rng.random()), np.float32(rng.normal())
            noise = None if deterministic else deep_sea.StepNoise(given.wind, given.reward)
            state, timestep = step(state, action, noise)
            assert_same(timestep, reference.step(action))
            assert bool(timestep.last) == (t == size - 1)


@pytest.mark.parametrize("size", [2, 5])
def test_all_action_sequences_equal_bsuite(size, step_functions):
    _, start, reference, _ = make_pair(size, True, 42)
    step = step_functions(size, True)
    for code in range(2**size):
        state = start
        reference.reset()
        for t in range(size):
            action = (code >> t) & 1
            state, timestep = step(state, action, None)
            assert_same(timestep, reference.step(action))


def test_wind_keeps_the_agent_where_it_is():
    environment, state, _, _ = make_pair(5, False, 42)
    right = int(state.right_action[0, 0])
    for wind, column in ((0.19, 0), (0.21, 1)):  # moving right fails with probability 1 / 5
        after, timestep = environment.step(state, right, deep_sea.StepNoise(wind, 3.0))
        assert (int(after.row), int(after.column), int(timestep.observation)) == (1, column, 5 + column)
        assert float(timestep.reward) == pytest.approx(-0.002)  # the cost is paid, the noise is not seen here


def test_draw_has_the_right_distribution():
    assert deep_sea.make_deep_sea(5, True).draw(jax.random.key(0)) is None
    num = 50_000
    noise = jax.vmap(deep_sea.make_deep_sea(5, False).draw)(jax.random.split(jax.random.key(0), num))
    wind, reward = np.asarray(noise.wind), np.asarray(noise.reward)
    assert abs(np.mean(wind > 0.2) - 0.8) < 5 * np.sqrt(0.16 / num)
    assert abs(reward.mean()) < 5 / np.sqrt(num)
    assert abs(np.mean(reward**2) - 1.0) < 5 * np.sqrt(2 / num)
    assert abs(np.corrcoef(wind, reward)[0, 1]) < 5 / np.sqrt(num)


@pytest.mark.parametrize("mapping_seed", [0, 1, 42])
@pytest.mark.parametrize("size", [1, 2, 5, 10, 20])
def test_action_mapping_is_bsuites(size, mapping_seed):
    reference = bsuite_deep_sea.DeepSea(size, mapping_seed=mapping_seed)
    np.testing.assert_array_equal(deep_sea.action_mapping(size, mapping_seed), reference._action_mapping)


@pytest.mark.parametrize("size", [1, 2, 5, 10, 100])
def test_optimal_return_is_bsuites(size):
    for deterministic in (True, False):
        reference = bsuite_deep_sea.DeepSea(size, deterministic=deterministic)
        optimum = deep_sea.optimal_return(size, deterministic)
        assert optimum == pytest.approx(reference._optimal_return, rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_optimal_return_is_that_of_always_right(size, step_functions):
    state = deep_sea.initial_state(deep_sea.action_mapping(size, 42))
    total = 0.0
    for t in range(size):
        state, timestep = step_functions(size, True)(state, state.right_action[t, t], None)
        total += float(timestep.reward)
    assert total == pytest.approx(deep_sea.optimal_return(size), abs=1e-6)
    assert total == pytest.approx(0.99, abs=1e-6)


def test_expected_return_of_always_right_in_the_wind():
    # Mean over many episodes with the environment's own noise; each return has a standard deviation below 2.
    size, num = 5, 4_000
    environment = deep_sea.make_deep_sea(size, False)
    start = deep_sea.initial_state(deep_sea.action_mapping(size, 42))

    def episode(key):
        def step(state, key):
            action = state.right_action[state.row, state.column]
            state, timestep = environment.step(state, action, environment.draw(key))
            return state, timestep.reward

        return jax.lax.scan(step, start, jax.random.split(key, size))[1].sum()

    returns = np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), num)))
    assert returns.std() < 2
    assert abs(returns.mean() - deep_sea.optimal_return(size, False)) < 5 * returns.std() / np.sqrt(num)


def test_spec_and_bad_size():
    spec = deep_sea.make_deep_sea(6).spec
    assert (spec.num_actions, spec.observation_shape, spec.num_states) == (2, (), 36)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        deep_sea.make_deep_sea(0)


def test_rewards_without_noise_are_the_mean_of_those_with_it():
    noisy, quiet = (deep_sea.make_deep_sea(3, deterministic=False, noisy_rewards=x) for x in (True, False))
    state = deep_sea.initial_state(np.ones((3, 3), np.int32))._replace(row=jnp.array(2))
    for column, action, expected in ((0, 0, 0.0), (0, 1, -0.01 / 3), (2, 1, 1 - 0.01 / 3), (1, 1, -0.01 / 3)):
        at = state._replace(column=jnp.array(column))
        noise = deep_sea.StepNoise(wind=jnp.array(0.9), reward=jnp.array(0.25))
        np.testing.assert_allclose(quiet.step(at, action, noise)[1].reward, expected, atol=1e-7)
        shift = 0.25 if column != 1 else 0.0  # only the two end cells are noisy
        np.testing.assert_allclose(noisy.step(at, action, noise)[1].reward, expected + shift, atol=1e-7)
        same_state = np.testing.assert_array_equal
        jax.tree.map(same_state, quiet.step(at, action, noise)[0], noisy.step(at, action, noise)[0])
