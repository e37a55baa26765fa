"""Tests of the probe environments themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax.environments import probes


@pytest.mark.parametrize("discount", [0.9, 0.5])
@pytest.mark.parametrize("make_probe", [*probes.PROBES.values(), probes.combined])
def test_q_values_satisfy_the_bellman_equation(make_probe, discount):
    environment, state, q_values = make_probe(discount)
    assert q_values.shape == (environment.spec.num_states, environment.spec.num_actions)
    assert environment.spec.observation_shape == ()
    noise = environment.draw(jax.random.key(0))
    for s, a in np.ndindex(q_values.shape):
        here = state._replace(position=jnp.array(s))
        after, timestep = environment.step(here, jnp.array(a), noise)
        future = timestep.discount * discount * np.max(q_values[timestep.observation])
        assert q_values[s, a] == pytest.approx(float(timestep.reward + future), rel=1e-6)
        assert int(after.position) == int(timestep.observation)
        assert bool(timestep.last) == (timestep.discount == 0.0)


def test_truncation_is_not_termination():
    environment, state, _ = probes.truncated_loop(0.9)
    noise = environment.draw(jax.random.key(0))
    for _ in range(2):
        state, timestep = environment.reset(state, noise)
        assert not timestep.last
        for t in range(1, 6):
            state, timestep = environment.step(state, jnp.array(0), noise)
            assert (float(timestep.reward), float(timestep.discount)) == (1.0, 1.0)
            assert bool(timestep.last) == (t == 5)


def test_random_start_starts_everywhere():
    environment, state, _ = probes.random_start(0.9)
    keys = jax.random.split(jax.random.key(0), 1_000)
    starts = jax.vmap(lambda key: environment.reset(state, environment.draw(key))[1].observation)(keys)
    assert set(np.unique(starts)) == {0, 1}
    assert abs(np.mean(starts) - 0.5) < 5 * 0.5 / np.sqrt(1_000)
