"""Adapters of environments on device, in lock-step with their libraries; several environments in one run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax.environments import probes
from hyperagent_jax.environments import registry
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import scan

SMALL = dict(hidden_sizes=(8,), batch_size=8, min_replay=20, replay_capacity=120)


def play(environment, num_steps, seed=0):
    """Random actions with a reset after each end: observations, actions, TimeSteps and the keys used, in order."""
    step, reset = jax.jit(environment.step), jax.jit(environment.reset)
    key = jax.random.key(seed)
    noise = environment.draw(key)
    state, timestep = reset(None, noise)
    records = [("reset", noise, None, timestep)]
    for t in range(num_steps):
        noise = environment.draw(jax.random.fold_in(key, t))
        action = np.int32(np.random.default_rng((seed, t)).integers(environment.spec.num_actions))
        state, timestep = step(state, action, noise)
        records.append(("step", noise, action, timestep))
        if timestep.last:
            state, timestep = reset(state, noise)
            records.append(("reset", noise, None, timestep))
    return records


def check(records, reset, step):
    """Compares all records with a library's own functions."""
    state, ends = None, 0
    for kind, noise, action, timestep in records:
        if kind == "reset":
            state, observation = reset(noise)
            reward, discount, last = 0.0, 1.0, False
        else:
            state, observation, reward, terminated, truncated = step(state, action, noise)
            discount, last = 1.0 - float(terminated), bool(terminated or truncated)
            ends += last
        np.testing.assert_array_equal(timestep.observation, observation)
        assert (float(timestep.reward), float(timestep.discount), bool(timestep.last)) == (
            pytest.approx(float(reward)),
            discount,
            last,
        )
    return ends


@pytest.mark.parametrize("game", ["breakout", "freeway", "space_invaders"])
def test_minatar_is_pgx(game):
    pgx = pytest.importorskip("pgx")
    environment, theirs = registry.make(f"minatar/{game}"), pgx.make(f"minatar-{game}")
    init, their_step = jax.jit(theirs.init), jax.jit(theirs.step)

    def reset(noise):
        state = init(noise[0])
        return state, state.observation

    def step(state, action, noise):
        state = their_step(state, action, noise[1])
        return state, state.observation, state.rewards[0], state.terminated, state.truncated

    records = play(environment, 300)
    ends = check(records, reset, step)
    assert ends > 0 or game == "freeway"
    assert environment.spec.dtype == "bool" and environment.spec.observation_shape[:2] == (10, 10)
    assert records[0][3].observation.dtype == bool


@pytest.mark.parametrize("name, steps", [("CartPole-v1", 200), ("MountainCar-v0", 450), ("FrozenLake-misc", 100)])
def test_gymnax_is_gymnax(name, steps):
    gymnax = pytest.importorskip("gymnax")
    environment, (theirs, params) = registry.make(f"gymnax/{name}"), gymnax.make(name)

    def reset(noise):
        observation, state = theirs.reset_env(noise[0], params)
        return state, observation

    @jax.jit
    def step(state, action, noise):
        observation, state, reward, terminated, _ = theirs.step_env(noise[1], state, action, params)
        return state, observation, reward, terminated, theirs.is_truncated(state, params)

    records = play(environment, steps)
    assert check(records, reset, step) >= 2
    timesteps = [record[3] for record in records]
    if name == "MountainCar-v0":  # its episodes are truncated after 200 steps: the agent bootstraps there
        assert [float(t.discount) for t in timesteps if t.last] == [1.0, 1.0]
    if name == "FrozenLake-misc":
        assert environment.spec.num_states == 16 and all(t.observation.shape == () for t in timesteps)


def test_navix_is_navix():
    navix = pytest.importorskip("navix")
    environment, theirs = registry.make("navix/Navix-Empty-5x5-v0"), navix.make("Navix-Empty-5x5-v0")

    def reset(noise):
        timestep = theirs.reset(jax.random.key_data(noise))
        return timestep, timestep.observation

    @jax.jit
    def step(state, action, noise):
        timestep = theirs.step(state, action)  # the library's own, with its automatic reset
        return timestep, timestep.observation, timestep.reward, timestep.step_type == 2, timestep.step_type == 1

    records = play(environment, 230)
    assert check(records, reset, step) >= 2
    assert any(t.last and t.discount == 1.0 for *_, t in records)  # truncated at the time limit


def test_what_does_not_fit_is_one_line(monkeypatch):
    for name, message in {
        "breakout": "unknown environment 'breakout': use explore/NAME, minatar/NAME, gymnax/NAME, "
        "navix/NAME, or your own module:function; --env=list",
        "minatar/pong": "minatar has no 'pong'; choose one of asterix, breakout, freeway, seaquest",
        "gymnax/Pendulum-v1": "gymnax/Pendulum-v1 has continuous actions: choose one with discrete actions",
    }.items():
        with pytest.raises(errors.UserError) as error:
            registry.make(name)
        assert message in str(error.value)
    monkeypatch.setitem(__import__("sys").modules, "gymnax", None)
    with pytest.raises(
        errors.UserError, match="gymnax is not installed: pip install 'hyperagent_jax\\[gymnax\\]'"
    ):
        registry.make("gymnax/CartPole-v1")
    assert "gymnax: gymnax is not installed" in registry.listing() and "minatar/breakout" in registry.listing()


def run(num_envs, cuts, **settings):
    """Runs a small agent on a probe for the steps between `cuts`."""
    environment = registry.make("gymnax/CartPole-v1")
    agent = agents.make("hyperagent", environment.spec, **{**SMALL, **settings})
    runner = scan.make_runner(agent, environment, num_envs, stores_prior=True)
    states = jax.vmap(lambda seed: runner.init(jax.random.key(seed), None))(jnp.arange(2))
    advance, totals = jax.jit(runner.run), []
    for start, end in zip(cuts, cuts[1:], strict=False):
        states, metrics = advance(states, start, end - start)
        totals.append(metrics)
    return states, jax.tree.map(lambda *x: sum(x), *totals)


@pytest.mark.parametrize("num_envs, settings", [(4, {"n_step": 3}), (2, {"update_period": 8, "n_step": 2})])
def test_several_environments_and_how_a_run_is_cut(num_envs, settings):
    pytest.importorskip("gymnax")
    whole, metrics = run(num_envs, [0, 80], **settings)
    parts, others = run(num_envs, [0, 20, 48, 80], **settings)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = map(jax.random.key_data, (one, other))
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(metrics.updates, others.updates)
    period = settings.get("update_period", 1)
    random_rounds = -(-20 // max(num_envs, period)) * max(1, period // num_envs)
    assert metrics.updates.tolist() == [(80 - random_rounds) * num_envs // period] * 2
    assert whole.replay.added.tolist() == [80 * num_envs] * 2
    assert whole.observation.shape == (2, num_envs, 4)


def test_the_stored_prior_is_the_prior():
    """Learning from stored beliefs is learning from computed ones, to rounding."""
    pytest.importorskip("gymnax")
    environment = registry.make("gymnax/CartPole-v1")
    agent = agents.make("hyperagent", environment.spec, **SMALL)
    outcomes = []
    for stores_prior in (True, False):
        runner = scan.make_runner(agent, environment, stores_prior=stores_prior)
        states = jax.vmap(lambda seed, runner=runner: runner.init(jax.random.key(seed), None))(jnp.arange(1))
        states, _ = jax.jit(runner.run)(states, 0, 30)
        outcomes.append(states)
    stored = outcomes[0].replay.storage
    prior = jax.vmap(agent.network.prior, (None, 0))
    variables = jax.tree.map(lambda x: x[0], outcomes[0].learner.prior)
    np.testing.assert_allclose(
        stored.prior_tm1[0, :30], prior(variables, stored.transition.o_tm1[0, :30]), atol=1e-5
    )
    np.testing.assert_allclose(stored.prior_t[0, :30], prior(variables, stored.transition.o_t[0, :30]), atol=1e-5)
    for one, other in zip(*(jax.tree.leaves(o.learner.params) for o in outcomes), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_n_step_returns_reach_the_known_values():
    probe = probes.combined(0.9)
    agent = agents.make(
        "ddqn", probe.environment.spec, hidden_sizes=(16,), learning_rate=3e-3, discount=0.9, batch_size=32,
        min_replay=32, replay_capacity=4_000, n_step=3, epsilon_updates=1_000,
    )  # fmt: skip
    runner = scan.make_runner(agent, probe.environment, num_envs=4)
    states = jax.jit(jax.vmap(lambda seed: runner.init(jax.random.key(seed), probe.state)))(jnp.arange(1))
    states, _ = jax.jit(runner.run)(states, 0, 1_500)
    learner = jax.tree.map(lambda x: x[0], states.learner)
    found = [agent.learner.values(learner, o, jnp.zeros((1, 0)))[0] for o in range(len(probe.q_values))]
    # Greedy values: with n > 1 steps those of other actions are of what the agent did, not of the best.
    np.testing.assert_allclose(np.max(found, axis=1), np.max(probe.q_values, axis=1), atol=0.1)


def test_bad_settings():
    agent = agents.make("ddqn", probes.combined(0.9).environment.spec, update_period=3)
    with pytest.raises(ValueError, match="update_period=3 must be a multiple of num_envs=2"):
        core_lib.make_core(agent, 2)
