"""Tests of hyperagent_optimistic: its two networks, its threshold, its loss in numpy, and what it solves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import posterior
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import hyperagent_optimistic as optimistic
from hyperagent_jax.agents import hyperagent_rmax
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import finite
from hyperagent_jax.environments import probes
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import driver
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import scan

STATES = types.EnvironmentSpec(3, (), 12)


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def make_agent(spec=STATES, **settings):
    return agents.make("hyperagent_optimistic", spec, **{"hidden_sizes": (8, 5), "batch_size": 16, **settings})


def disturbed(variables, seed=1):
    """Variables with noise in all parameters but the threshold."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda x: np.float32(x + 0.1 * rng.normal(size=x.shape)), variables.params)
    params["explore"]["threshold"] = variables.params["explore"]["threshold"]
    return variables._replace(params=params)


def dense(params, state):
    """The plain network of numpy on integer states: [num_actions, columns]."""
    x = np.maximum(params["torso"]["rows"][state] + params["torso"]["bias"], 0)
    layer = params["torso"]["layer_1"]
    x = np.maximum(x @ layer["kernel"] + layer["bias"], 0)
    bias = params["head"]["bias"][0] if "bias" in params["head"] else 0.0
    return np.einsum("i,iam->am", x, params["head"]["kernel"]) + bias


def numpy_parts(variables, state):
    """Coefficients m [A, M], the exploring mean [A] and the exploiting values [A] in numpy."""
    explore, exploit = variables.params["explore"], variables.params["exploit"]
    m = dense(explore["uncertainty"], state) + np.asarray(variables.prior, np.float64)[state][:, :-1]
    return m, dense(explore["mean"], state)[:, 0], dense(exploit, state)[:, 0]


def numpy_explore(variables, state, limits=(0.2, 0.4), unknown_value=1.0):
    m, mean, _ = numpy_parts(variables, state)
    factor = np.exp(min(float(variables.params["explore"]["threshold"]), 0.0))
    weight = np.interp(np.linalg.norm(m, axis=1), factor * np.array(limits), [0.0, 1.0])
    return mean + weight * np.maximum(unknown_value - mean, 0.0)


def in_numpy(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def test_values_equal_numpy():
    network = make_agent().network
    variables = disturbed(jax.jit(network.init)(make_key(0)))
    apply = jax.jit(network.apply)
    for threshold in (0.0, 3.0, -1.0):
        variables.params["explore"]["threshold"] = jnp.float32(threshold)
        expected = in_numpy(variables)
        for state in (0, 7):
            explore = apply(variables, jnp.array(state), jnp.array([0.1, 0.9, 0.0, -0.4]))
            np.testing.assert_allclose(explore, numpy_explore(expected, state), rtol=1e-4, atol=1e-5)
            for index in ([0.9, 0.1, 0.0, -0.4], [0.0, 0.0, 0.0, 0.0]):  # the first is the largest, or none is
                exploit = apply(variables, jnp.array(state), jnp.array(index))
                np.testing.assert_allclose(exploit, numpy_parts(expected, state)[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_share_of_the_episodes_that_exploit(share):
    agent = make_agent(exploit_share=share, exploit_above=0.0)
    network = agent.network
    variables = disturbed(jax.jit(network.init)(make_key(0)))
    indices = network.index.sample(make_key(1), (4_000,))
    values = jax.jit(jax.vmap(network.apply, (None, None, 0)))(variables, jnp.array(3), indices)
    exploits = np.all(np.isclose(values, numpy_parts(in_numpy(variables), 3)[2], rtol=1e-4, atol=1e-5), axis=1)
    assert np.mean(exploits) == pytest.approx(share, abs=4 * np.sqrt(0.25 / 4_000))


def test_it_exploits_only_where_something_is_at_stake():
    variables = disturbed(jax.jit(make_agent().network.init)(make_key(0)))
    expected = in_numpy(variables)
    state, chosen, evaluated = jnp.array(3), jnp.array([0.9, 0.1, 0.0, -0.4]), jnp.zeros(4)
    exploit = numpy_parts(expected, 3)[2]
    at_stake = np.max(np.abs(exploit))
    for factor, acting in ((0.99, exploit), (1.01, numpy_explore(expected, 3, unknown_value=2.0))):
        apply = jax.jit(make_agent(exploit_above=factor * at_stake / 2, unknown_value=2.0).network.apply)
        np.testing.assert_allclose(apply(variables, state, chosen), acting, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(apply(variables, state, evaluated), exploit, rtol=1e-4, atol=1e-5)


def test_evaluation_and_posterior_are_of_the_exploiting_network():
    agent = make_agent()
    variables = disturbed(jax.jit(agent.network.init)(make_key(0)))
    expected = in_numpy(variables)
    observations = jnp.arange(12)
    mean, std = posterior.mean_and_std(agent.network, variables, observations)
    for state in range(12):
        m, _, exploit = numpy_parts(expected, state)
        np.testing.assert_allclose(mean[state], exploit, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(std[state], np.linalg.norm(m, axis=1) / 2, rtol=1e-4)  # M = 4 on the sphere


@pytest.mark.parametrize("greedy_in", ["sample", "mean", "majority"])
def test_policy_exploits(greedy_in):
    agent = make_agent()
    variables = disturbed(jax.jit(agent.network.init)(make_key(0)))
    play = policy.Policy(agent, variables, make_key(2), greedy_in)
    for state in range(12):
        assert play(np.int32(state)) == np.argmax(numpy_parts(in_numpy(variables), state)[2])


def make_batch(agent, seed=0):
    rng = np.random.default_rng(seed)
    return types.Batch(
        types.Transition(
            rng.integers(0, 12, 16).astype(np.int32),
            rng.integers(0, 3, 16).astype(np.int32),
            rng.normal(size=16).astype(np.float32),
            np.full(16, 0.9, np.float32),
            rng.integers(0, 12, 16).astype(np.int32),
            agent.perturbation.sample(make_key(seed), (16,)),
        )
    )


def test_loss_equals_numpy():
    agent = make_agent(sigma=0.3, residual=0.5, least_optimism=0.0)
    state = jax.jit(agent.learner.init)(make_key(0))
    variables = disturbed(types.Variables(state.params, state.prior))
    target = disturbed(types.Variables(state.target_params, state.prior), seed=2)
    batch, noise = make_batch(agent), agent.learner.draw(make_key(1), 16)
    (_, losses), _ = jax.jit(agent.learner.value_and_grad)(
        variables.params, target.params, state.prior, batch, noise
    )
    online, target = in_numpy(variables), in_numpy(target)
    t = batch.transitions
    for i in range(16):
        o, a, following = int(t.o_tm1[i]), int(t.a_tm1[i]), int(t.o_t[i])
        best = np.argmax(numpy_explore(online, following))
        m, mean, exploit = numpy_parts(online, o)
        error = t.r_t[i] + 0.9 * numpy_explore(target, following)[best] - mean[a]
        spread = (0.3 + 0.5 * error) * np.asarray(t.z_t[i]) - m[a]  # sqrt(M c_xi c_z) is 1
        explore = error**2 + np.sum(spread**2) / 4
        best = np.argmax(numpy_parts(online, following)[2])
        error = t.r_t[i] + 0.9 * numpy_parts(target, following)[2][best] - exploit[a]
        assert float(losses[i]) == pytest.approx(explore + error**2, rel=1e-4)


def test_threshold_follows_the_optimism_and_changes_nothing_else():
    limits = dict(known_below=0.96, unknown_above=1.16, unknown_value=2.0)
    moving, fixed = (make_agent(least_optimism=least, **limits) for least in (0.25, 0.0))
    state = jax.jit(moving.learner.init)(make_key(0))
    params = disturbed(types.Variables(state.params, state.prior)).params
    batch, noise = make_batch(moving), moving.learner.draw(make_key(1), 16)

    def gradient_of(agent, threshold):
        params["explore"]["threshold"] = jnp.float32(threshold)
        result = jax.jit(agent.learner.value_and_grad)(params, state.target_params, state.prior, batch, noise)
        (value, losses), gradient = result
        return value, losses, {**gradient["explore"]}.pop("threshold"), gradient

    for threshold in (0.0, -0.02, 0.5):
        value, losses, slope, gradient = gradient_of(moving, threshold)
        plain_value, plain_losses, plain_slope, plain_gradient = gradient_of(fixed, threshold)
        np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
        assert float(value) == pytest.approx(float(plain_value), rel=1e-6) and float(plain_slope) == 0.0
        assert (
            gradient["explore"].keys() == plain_gradient["explore"].keys() == {"mean", "uncertainty", "threshold"}
        )
        for others in (gradient, plain_gradient):
            del others["explore"]["threshold"]
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), gradient, plain_gradient)
        variables = in_numpy(types.Variables(params, state.prior))
        more = [
            np.max(numpy_explore(variables, int(o), limits=(0.96, 1.16), unknown_value=2.0))
            - np.max(numpy_parts(variables, int(o))[2])
            for o in batch.transitions.o_tm1
        ]
        optimism = np.mean(np.clip(np.array(more) / 2, -1, 1))
        # Positive: the threshold falls. Above its upper limit it always does.
        assert float(slope) == pytest.approx(1.0 if threshold > 0 else 0.25 - optimism, rel=1e-4)
        assert 0 < optimism < 1


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(exploit_share=0.3), "exploit_share must be a multiple of 1 / index_dim = 0.25, got 0.3"),
        (dict(exploit_share=1.5), "exploit_share must be between 0 and 1, got 1.5"),
        (dict(least_optimism=-0.1), "least_optimism must be between 0 and 1, got -0.1"),
        (dict(loss="sampled"), "use loss=exact, not sampled"),
        (dict(gradient_penalty=0.1), "leave regularisation and penalty at 0"),
        (dict(known_below=0.5), "known_below must be at least 0 and less than unknown_above, got 0.5 and 0.4"),
        (dict(prior_scale=0.0), "unknown_value needs a prior of positive norm, got prior_scale=0.0"),
        (dict(unit_prior=False), "use unit_prior=True"),
    ],
)
def test_misuse(settings, message):
    with pytest.raises(ValueError, match=message):
        make_agent(**settings)


@pytest.mark.parametrize("make_probe", probes.PROBES.values(), ids=probes.PROBES)
def test_exploiting_values_of_probes(make_probe):
    probe = make_probe(0.9)
    agent = agents.make(
        "hyperagent_optimistic",
        probe.environment.spec,
        hidden_sizes=(16, 16),
        discount=0.9,
        batch_size=32,
        learning_rate=3e-3,
        replay_capacity=1_000,
        min_replay=64,
    )
    runner = scan.make_runner(agent, probe.environment)

    @jax.jit
    def run(state):
        states, _ = runner.run(jax.tree.map(lambda x: x[None], state), 0, 600)
        learner = jax.tree.map(lambda x: x[0], states.learner)
        return jax.vmap(lambda o: agent.learner.values(learner, o, jnp.zeros((1, 4))))(
            jnp.arange(len(probe.q_values))
        )

    values = np.asarray(run(runner.init(make_key(0), probe.state)))[:, 0]
    np.testing.assert_allclose(values, probe.q_values, atol=0.03)


def test_deep_sea_8_is_solved_and_its_map_is_of_what_it_exploits():
    protocol = deep_sea.EXPERIMENT.resolve(deep_sea.Protocol(size=8, max_episodes=1_000))
    config = deep_sea.EXPERIMENT.capped(agents.CONFIGS["hyperagent_optimistic"](), protocol)
    events = []
    task = base.Task("deepsea", "hyperagent_optimistic", config, protocol, (0,))
    driver.run_task(task, events.append, lambda: False)
    (row,) = (event.row for event in events if event.kind == "result")
    assert row["solved"] and row["final_return"] == pytest.approx(0.99, abs=1e-6)


@pytest.mark.slow
def test_an_unlucky_outcome_closes_nothing():
    """RiverSwim: swimming fails most of the time, and nothing but the far end pays more than 0.005."""
    environment = finite.make_river_swim()
    agent = agents.make("hyperagent_optimistic", environment.spec)
    runner = scan.make_runner(agent, environment)
    run = jax.jit(runner.run)
    evaluator = jax.jit(evaluate.make_evaluator(agent, environment, num_episodes=20, max_steps=100))
    for seed in range(12, 16):  # seed 14 was stuck as long as the threshold was fixed
        states = jax.vmap(lambda seed: runner.init(jax.random.key(seed), None))(jnp.array([seed]))
        states, _ = run(states, 0, 12_000)
        variables = agent.learner.variables(jax.tree.map(lambda x: x[0], states.learner))
        assert np.mean(evaluator(variables, None, make_key(seed))) > 30


def test_shares_are_counted_up_to_rounding():
    """As a float, 0.14 * 50 is more than 7."""
    config = agents.CONFIGS["hyperagent_optimistic"](index_dim=50, exploit_share=0.14)
    assert round(config.exploit_share * config.index_dim) == 7
    with pytest.raises(ValueError, match="exploit_share must be a multiple of 1 / index_dim = 0.02, got 0.15"):
        agents.CONFIGS["hyperagent_optimistic"](index_dim=50, exploit_share=0.15)


def test_rmax_is_what_explores():
    """With a fixed threshold and the same parameters the exploring values are those of hyperagent_rmax."""
    config = agents.CONFIGS["hyperagent_optimistic"](hidden_sizes=(8, 5), least_optimism=0.0, exploit_share=0.0)
    agent = optimistic.make_agent(config, STATES)
    inner = hyperagent_rmax.make_agent(config, STATES)
    variables = disturbed(jax.jit(agent.network.init)(make_key(0)))
    explore = {k: v for k, v in variables.params["explore"].items() if k != "threshold"}
    index = jnp.array([0.5, 0.1, 0.2, 0.3])
    for state in (1, 5):
        np.testing.assert_allclose(
            agent.network.apply(variables, jnp.array(state), index),
            inner.network.apply(types.Variables(explore, variables.prior), jnp.array(state), index),
            rtol=1e-6,
        )
