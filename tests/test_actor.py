"""Tests of acting: which index is followed, and which action is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyperagent_jax import actor as actor_lib
from hyperagent_jax import indices
from hyperagent_jax import prng

INDEX = indices.gaussian(3)
NUM_ACTIONS = 4


def follow(actor, is_first, num_ois=1, seed=0):
    """Acts along `is_first` [T]; returns the indices [T, num_ois, M] and the candidates that were drawn."""

    def step(current, inputs):
        first, key = inputs
        noise = actor.draw(key)
        current = actor.next_indices(current, first, noise)
        return current, (current, noise.indices)

    keys = jax.random.split(prng.hash_key(jax.random.key(seed)), len(is_first))
    start = jnp.full((num_ois, INDEX.dim), 7.0)
    _, (used, drawn) = jax.lax.scan(step, start, (jnp.asarray(is_first), keys))
    return np.asarray(used), np.asarray(drawn)


@pytest.mark.parametrize("num_ois", [1, 3])
def test_episode_index_changes_at_the_first_step_only(num_ois):
    is_first = np.array([True, False, False, False, True, False, True, True, False])
    actor = actor_lib.make_actor(INDEX, NUM_ACTIONS, num_ois=num_ois)
    used, drawn = follow(actor, is_first, num_ois)
    last_first = np.maximum.accumulate(np.where(is_first, np.arange(len(is_first)), 0))
    np.testing.assert_array_equal(used, drawn[last_first])
    assert used.shape == (9, num_ois, 3)
    assert len(np.unique(used, axis=0)) == 4


def test_the_index_is_kept_when_no_episode_starts():
    used, _ = follow(actor_lib.make_actor(INDEX, NUM_ACTIONS), [False] * 5)
    np.testing.assert_array_equal(used, 7.0)


def test_step_index_changes_always():
    actor = actor_lib.make_actor(INDEX, NUM_ACTIONS, action_index="step")
    used, drawn = follow(actor, [False] * 6)
    np.testing.assert_array_equal(used, drawn)
    assert len(np.unique(used, axis=0)) == 6


@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_resample_probability_is_the_frequency_of_new_indices(probability):
    num_steps = 20_000
    actor = actor_lib.make_actor(INDEX, NUM_ACTIONS, resample_probability=probability)
    used, drawn = follow(actor, [False] * num_steps)
    renewed = np.all(used == drawn, axis=(1, 2))
    assert abs(renewed.mean() - probability) < 5 * np.sqrt(probability * (1 - probability) / num_steps)
    # All others kept what they had.
    np.testing.assert_array_equal(used[1:][~renewed[1:]], used[:-1][~renewed[1:]])


@pytest.mark.parametrize(
    "values, best", [([0.0, 3, 1, 3], [1, 3]), ([2.0] * 4, [0, 1, 2, 3]), ([-5.0, -9.0, -9.0, -7], [0])]
)
def test_ties_are_broken_uniformly(values, best):
    num_draws = 20_000
    actor = actor_lib.make_actor(INDEX, NUM_ACTIONS)
    keys = jax.random.split(prng.hash_key(jax.random.key(1)), num_draws)
    actions = jax.vmap(lambda key: actor.select(jnp.array([values]), actor.draw(key)))(keys)
    frequency = np.bincount(actions, minlength=NUM_ACTIONS) / num_draws
    expected = np.isin(np.arange(NUM_ACTIONS), best) / len(best)
    tolerance = 5 * np.sqrt(expected * (1 - expected) / num_draws)
    assert np.all(np.abs(frequency - expected) <= tolerance)
    assert actions.dtype == jnp.int32


def test_optimism_takes_the_action_with_the_largest_of_all_values():
    actor = actor_lib.make_actor(INDEX, NUM_ACTIONS, num_ois=3)
    noise = actor.draw(jax.random.key(0))
    assert noise.indices.shape == (3, 3)
    # Action 1 has the largest mean, action 3 the largest value, action 0 the most row maxima.
    values = jnp.array([[5.0, 4.9, 0.0, -9.0], [5.0, 4.9, 0.0, -9.0], [-9.0, 4.9, 0.0, 5.1]])
    assert actor.select(values, noise) == 3
    values = np.random.default_rng(0).normal(size=(200, 3, NUM_ACTIONS))
    actions = jax.vmap(actor.select, (0, None))(jnp.asarray(values), noise)
    np.testing.assert_array_equal(actions, values.max(axis=1).argmax(axis=1))


def test_candidates_follow_the_index_distribution():
    actor = actor_lib.make_actor(indices.sphere(5), NUM_ACTIONS, num_ois=2)
    noise = jax.jit(jax.vmap(actor.draw))(jax.random.split(prng.hash_key(jax.random.key(0)), 1_000))
    np.testing.assert_allclose(np.linalg.norm(noise.indices, axis=-1), 1.0, rtol=1e-6)
    for uniform in (noise.resample, noise.ties):
        assert np.all((uniform >= 0) & (uniform < 1))
        assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * uniform.size)


def test_unknown_action_index():
    with pytest.raises(ValueError, match="unknown action_index 'state'; choose one of episode, step"):
        actor_lib.make_actor(INDEX, NUM_ACTIONS, action_index="state")


@pytest.mark.parametrize("count, epsilon", [(0, 1.0), (50, 0.6), (100, 0.2), (10**6, 0.2)])
def test_epsilon_greedy_follows_its_schedule(count, epsilon):
    num_draws = 20_000
    actor = actor_lib.make_actor(indices.no_index(), NUM_ACTIONS, epsilon=optax.linear_schedule(1.0, 0.2, 100))
    keys = jax.random.split(prng.hash_key(jax.random.key(2)), num_draws)
    values = jnp.array([[0.0, 3.0, 1.0, 2.0]])
    actions = jax.vmap(lambda key: actor.select(values, actor.draw(key), jnp.array(count)))(keys)
    frequency = np.bincount(actions, minlength=NUM_ACTIONS) / num_draws
    expected = np.full(NUM_ACTIONS, epsilon / NUM_ACTIONS) + (1 - epsilon) * np.array([0, 1, 0, 0])
    assert np.all(np.abs(frequency - expected) < 5 * np.sqrt(expected * (1 - expected) / num_draws) + 1e-9)


def test_all_indices_at_once():
    actor = actor_lib.make_actor(indices.coordinate(3), NUM_ACTIONS, action_index="all")
    noise = actor.draw(jax.random.key(0))
    for is_first in (True, False):
        followed = actor.next_indices(jnp.full((3, 3), 7.0), is_first, noise)
        np.testing.assert_array_equal(followed, np.eye(3))
    with pytest.raises(ValueError, match="leaves no choice of indices: use num_ois=1"):
        actor_lib.make_actor(indices.coordinate(3), NUM_ACTIONS, action_index="all", num_ois=2)
    with pytest.raises(ValueError, match="'gaussian' has no finite support.*action_index=episode"):
        actor_lib.make_actor(INDEX, NUM_ACTIONS, action_index="all")
