"""Tests of every system of the paper: its values and its loss in numpy, its prior, probes and a small DeepSea."""

import csv
import functools
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.environments import probes
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import driver
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos
from hyperagent_jax.runners import scan

# Without an index that is linear, or with another loss: see test_noisy_systems.py, test_langevin.py, test_bbf.py,
# test_optimistic.py.
OTHERS = ("noisy_net", "sane", "rainbow", "der", "langevin_adam", "adam_lmc", "bayes_ucbdqn", "bbf")
OTHERS += ("hyperagent_optimistic",)
NAMES = tuple(name for name in agents.CONFIGS if name not in OTHERS)
ENSEMBLES = ("bootdqn", "ensemble_plus", "ensemble_plus_os")
# Ours: the norm of their priors.
UNIT_PRIORS = {"hyperagent_prioritized": 0.5, "hyperagent_rmax": 0.5}
DEPENDENT = ("bootdqn", "ensemble_plus", "hyperdqn", "enndqn")
NUM_STATES, NUM_ACTIONS = 12, 3
STATES = types.EnvironmentSpec(NUM_ACTIONS, (), NUM_STATES)
ARRAYS = types.EnvironmentSpec(NUM_ACTIONS, (3, 4))


def make_agent(name, spec, **settings):
    """An agent with small layers; settings that its config lacks are left out."""
    small = dict(
        hidden_sizes=(8, 5),
        epinet_hidden_sizes=(6, 7),
        epinet_prior_hidden_sizes=(4, 3),
        index_dim=3,
        num_indices=4,
        batch_size=16,
    )
    fields = agents.CONFIGS[name].fields
    return agents.make(name, spec, **{k: value for k, value in {**small, **settings}.items() if k in fields})


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def index_dim(name):
    return 0 if name == "ddqn" else 3


def test_the_systems_of_the_paper_are_there():
    assert set(agents.CONFIGS) == {
        "hyperagent",
        "hyperagent_ois",
        "ddqn",
        "bootdqn",
        "ensemble_plus",
        "ensemble_plus_os",
        "hyperdqn",
        "hypermodel",
        "enndqn",
    } | set(UNIT_PRIORS) | set(OTHERS)


# Values, written again in numpy for one observation, weights as they would be generated for one index


def relu(x):
    return np.maximum(x, 0.0)


def numpy_torso(params, observation):
    """An MLP on arrays, or on integer states the row of the first layer."""
    if "rows" in params:
        x = relu(params["rows"][observation] + params["bias"])
    else:
        x = relu(observation.reshape(-1) @ params["layer_0"]["kernel"] + params["layer_0"]["bias"])
    return relu(x @ params["layer_1"]["kernel"] + params["layer_1"]["bias"])


def numpy_hyper_head(params, features, index):
    """Last-layer weights [H, actions] A xi + b, and the bias A_2 xi + b_2 if there is one (eq. 13, hyperdqn)."""
    extended = np.append(index, 1.0)
    bias = (params["bias"] @ extended)[0] if "bias" in params else 0.0
    return features @ (params["kernel"] @ extended) + bias


def numpy_hyper(params, observation, index):
    return numpy_hyper_head(params["head"], numpy_torso(params["torso"], observation), index)


def numpy_ensemble(params, observation, index):
    """The member that the unit vector chooses; a weighted sum of members for other indices."""
    members = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(len(index))]
    values = [numpy_hyper(member, observation, np.zeros(0)) for member in members]
    return np.sum([weight * value for weight, value in zip(index, values, strict=True)], axis=0)


def numpy_epinet(params, observation, index):
    """A plain network plus an MLP on [features, observation, index], contracted with the index."""
    features = numpy_torso(params["torso"], observation)
    mean = numpy_hyper_head(params["head"], features, np.zeros(0))
    first, rest = params["epinet_input"], params["epinet_output"]
    if "rows" in first:
        observation, first = (
            np.eye(NUM_STATES)[observation],
            {**first, "kernel": np.concatenate([first["kernel"], first["rows"]])},
        )
    inputs = np.concatenate([features, observation.reshape(-1), index])
    x = relu(inputs @ np.concatenate([first["kernel"], rest["index_kernel"]]))
    x = relu(x @ rest["Dense_0"]["kernel"]) @ rest["Dense_1"]["kernel"]
    return mean + x.reshape(NUM_ACTIONS, len(index)) @ index


def numpy_hypermodel(params, observation, index):
    """All weights generated: W = A xi + b for every layer."""
    extended = np.append(index, 1.0)
    first, rest = params["first"], params["rest"]
    if "rows" in first:
        kernel, x = first["rows"], np.eye(NUM_STATES)[observation]
    else:
        kernel, x = first["kernel"], observation.reshape(-1)
    kernel = kernel.reshape(x.size, len(extended), -1)
    x = relu(x @ np.einsum("imo,m->io", kernel, extended) + extended @ first["bias"])
    generated = np.einsum("mio,m->io", rest["kernel_0"], extended)
    x = relu(x @ generated + extended @ rest["bias_0"])
    return x @ (rest["head"] @ extended)


LEARNABLE = {
    **dict.fromkeys(("hyperagent", "hyperagent_ois", *UNIT_PRIORS, "hyperdqn", "ddqn"), numpy_hyper),
    **dict.fromkeys(ENSEMBLES, numpy_ensemble),
    "enndqn": numpy_epinet,
    "hypermodel": numpy_hypermodel,
}


def numpy_prior(name, prior, observation, index):
    """The fixed prior, by its network or, for integer states, by its table."""
    if name in ("ddqn", "bootdqn"):
        return 0.0
    if isinstance(prior, np.ndarray):
        return prior[observation] @ np.append(index, 1.0)
    if name in ENSEMBLES or name == "enndqn":
        return (30.0 if name in ENSEMBLES else 1.0) * numpy_ensemble(prior, observation, index)
    if name in UNIT_PRIORS:  # sigma_0 z_0, a direction for every action
        mean = numpy_hyper(prior, observation, np.zeros(len(index)))
        z = np.array([numpy_hyper(prior, observation, e) - mean for e in np.eye(len(index))])
        return UNIT_PRIORS[name] * index @ (z / np.linalg.norm(z, axis=0))
    return 10.0 * numpy_hyper(prior, observation, index)


def numpy_values(name, variables, observation, index):
    learnable = LEARNABLE[name](variables.params, observation, index)
    return learnable + numpy_prior(name, variables.prior, observation, index)


def numpy_decision_values(name, variables, observation, index):
    """The values to act on and to bootstrap from: at the index, or of R-max."""
    values = functools.partial(numpy_values, name, variables, observation)
    if name != "hyperagent_rmax":
        return values(index)
    mean = values(np.zeros(len(index)))
    spread = np.linalg.norm([values(e) - mean for e in np.eye(len(index))], axis=0)
    weight = np.interp(spread / UNIT_PRIORS[name], [0.2, 0.4], [0.0, 1.0])
    return mean + weight * (np.maximum(mean, 1.0) - mean)


def in_numpy(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def disturbed(params, seed):
    """Parameters with noise, so that no bias is zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.float32(x + 0.1 * rng.normal(size=x.shape)), params)


@pytest.mark.parametrize("spec", [STATES, ARRAYS], ids=["states", "arrays"])
@pytest.mark.parametrize("name", NAMES)
def test_values_equal_numpy(name, spec):
    agent = make_agent(name, spec)
    variables = agent.network.init(make_key(0))
    variables = variables._replace(params=disturbed(variables.params, 1))
    rng = np.random.default_rng(2)
    if spec.num_states is None:
        observations = rng.normal(size=(4, 3, 4)).astype(np.float32)
    else:
        observations = np.array([0, 3, 7, 11], np.int32)
    indices = rng.normal(size=(4, index_dim(name))).astype(np.float32)
    values = jax.jit(jax.vmap(agent.network.apply, (None, 0, 0)))(variables, observations, indices)
    for value, observation, index in zip(values, observations, indices, strict=True):
        expected = numpy_decision_values(name, in_numpy(variables), observation, index.astype(np.float64))
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_ensemble_prior_table_is_what_its_networks_return():
    torso, prior = torsos.OneHotMlp(NUM_STATES, (8, 5)), priors.ensemble_prior(30.0)
    inputs = priors.PriorInputs(torso, NUM_ACTIONS, 3, jnp.zeros((), jnp.int32))
    networks = prior.build(inputs).init(make_key(3))
    table = prior.build(inputs._replace(num_states=NUM_STATES)).init(make_key(3))
    for state in (0, 5):
        for index in np.eye(3):
            expected = numpy_prior("ensemble_plus", in_numpy(networks), state, index)
            np.testing.assert_allclose(table[state] @ np.append(index, 1.0), expected, rtol=1e-4, atol=1e-4)


def test_epinet_passes_no_gradient_to_the_features():
    network = make_agent("enndqn", STATES).network
    variables = network.init(make_key(0))

    def uncertainty(params, index):  # what depends on the index
        with_params = variables._replace(params=params)
        at_index = network.apply(with_params, jnp.array(2), index)
        return jnp.sum(at_index - network.apply(with_params, jnp.array(2), jnp.zeros(3)))

    gradient = jax.grad(uncertainty)(variables.params, jnp.array([0.5, -1.0, 2.0]))
    for leaf in jax.tree.leaves(gradient["torso"]):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))
    assert np.any(gradient["epinet_input"]["rows"][2] != 0)


def test_priors_spread_alike_at_the_start():
    """Size 20, M = 4: the default scale of Ensemble+'s priors gives a spread close to HyperAgent's."""
    spec = types.EnvironmentSpec(2, (), 400)

    def spread(name):
        network = agents.make(name, spec).network
        keys = jax.random.split(make_key(0), 40)
        coefficients = jax.jit(jax.vmap(lambda key: network.init(key).prior))(keys)[..., :-1]
        # E[(m^T xi)^2] = c |m|^2; members are drawn around zero.
        return np.sqrt(network.index.second_moment * np.mean(np.sum(coefficients**2, axis=-1)))

    assert spread("ensemble_plus") / spread("hyperagent") == pytest.approx(1.0, abs=0.15)


def test_hyperdqn_and_hypermodel_start():
    spec = types.EnvironmentSpec(2, (), 400)
    inits = {name: agents.make(name, spec).network.init for name in NAMES}
    head = inits["hyperdqn"](make_key(0)).params["head"]
    assert np.std(head["kernel"][..., :-1]) == pytest.approx(1 / np.sqrt(64), rel=5 / np.sqrt(2 * 512))
    np.testing.assert_array_equal(head["kernel"][..., -1], 0.0)
    np.testing.assert_array_equal(head["bias"], 0.0)
    # Generated hidden layers: A xi and b have Xavier's variance, for an index on the unit sphere.
    kernel = inits["hypermodel"](make_key(0)).params["rest"]["kernel_0"]
    np.testing.assert_allclose(np.std(kernel, axis=(1, 2)), np.sqrt(2 / 128), rtol=5 / np.sqrt(2 * 64 * 64))


ABLATIONS = [
    dict(index_dim=1),
    dict(index_dim=16),
    dict(loss="sampled", num_indices=7),
    dict(sigma=0.0),
    dict(sigma=0.1),
    *[dict(index_distribution=name) for name in ("gaussian", "scaled_sphere", "cube", "unit_cube")],
    dict(index_distribution="coordinate", loss="enumerated", target_index="all", action_index="all"),
    *[dict(perturbation_distribution=name) for name in ("gaussian", "sphere", "cube", "coordinate")],
    dict(action_index="step"),
    dict(target_index="shared"),
    dict(loss="sampled", target_index="dependent"),
    dict(network="last_layer_bias"),
    dict(network="all_layers", loss="sampled"),
    dict(network="epinet", loss="sampled"),
]


@pytest.mark.parametrize("settings", ABLATIONS, ids=lambda settings: ",".join(map(str, settings.values())))
def test_ablations_of_hyperagent_learn(settings):
    settings = {"learning_rate": 0.01, "hidden_sizes": (32, 32), "sigma": 0.01, **settings}
    agent = make_agent("hyperagent", STATES, **settings)
    state = agent.learner.init(make_key(0))
    batch = transitions(np.random.default_rng(0), agent.perturbation)
    # One transition per state and action, all of them last: values that can be learned.
    pairs = np.arange(16)
    batch = types.Batch(batch._replace(o_tm1=pairs // 3, a_tm1=pairs % 3, discount_t=np.zeros(16, np.float32)))

    @jax.jit
    def learn(state):
        def step(state, key):
            state, info = agent.learner.step(state, batch, key)
            return state, info["loss"]

        return jax.lax.scan(step, state, jax.random.split(make_key(1), 200))

    _, losses = learn(state)
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-20:]) < 0.1 * losses[0]


# Losses


def transitions(rng, perturbation):
    n = 16
    z = rng.normal(size=(n, perturbation.dim)).astype(np.float32)
    if perturbation.name == "bernoulli_mask":
        z = np.where(z > 0, 2.0, 0.0).astype(np.float32)
    return types.Transition(
        rng.integers(0, NUM_STATES, n).astype(np.int32),
        rng.integers(0, NUM_ACTIONS, n).astype(np.int32),
        rng.normal(size=n).astype(np.float32),
        np.where(rng.random(n) < 0.2, 0.0, 0.9).astype(np.float32),
        rng.integers(0, NUM_STATES, n).astype(np.int32),
        z,
    )


def numpy_loss(name, values, params, target_params, transition, indices, target_indices, sigma, second_moment):
    """The paper's formula for one transition; `values` maps (function, params) to one of state and index."""
    t, online = transition, values(numpy_values, params)
    decides, target = values(numpy_decision_values, params), values(numpy_decision_values, target_params)

    def bootstrap(targets):  # double Q, the best of all target indices
        best = [target(t.o_t, xi)[np.argmax(decides(t.o_t, xi))] for xi in targets]
        return t.r_t + t.discount_t * np.max(best)

    def q(xi):
        return online(t.o_tm1, xi)[t.a_tm1]

    if name == "ddqn":
        return (bootstrap([np.zeros(0)]) - q(np.zeros(0))) ** 2
    if name in ENSEMBLES:  # eq. q-loss-ensemble over all members; optimistic: over all in the target, too
        members = np.eye(len(t.z_t))
        return np.mean(
            [
                (t.z_t @ xi) * (bootstrap(members if name == "ensemble_plus_os" else [xi]) - q(xi)) ** 2
                for xi in members
            ]
        )
    if indices is None:  # the exact expectation: values are linear in the index
        mean = q(np.zeros(len(t.z_t)))
        m = np.array([q(e) - mean for e in np.eye(len(t.z_t))])
        error = bootstrap(target_indices) - mean
        return error**2 + second_moment * np.sum((sigma * t.z_t - m) ** 2)
    return np.mean(
        [  # eq. q-loss, q-loss-hyperdqn, q-loss-enn
            (bootstrap([xi] if name in DEPENDENT else target_indices) + sigma * xi @ t.z_t - q(xi)) ** 2
            for xi in indices
        ]
    )


# sigma is the standard deviation of sigma' xi^T z: sigma' = sigma / sqrt(M c_xi c_z), here with M = 3.
SIGMA = {"hyperdqn": 0.7 * np.sqrt(3), "enndqn": 0.7 / np.sqrt(3)}


@pytest.mark.parametrize("name", NAMES)
def test_loss_equals_the_papers_formula(name):
    agent = make_agent(name, STATES, sigma=0.7, target_period=3)
    rng = np.random.default_rng(0)
    update = jax.jit(agent.learner.update)
    state = agent.learner.init(make_key(1))
    noises = [agent.learner.draw(make_key(i), 16) for i in range(3)]
    for noise in noises[:2]:  # afterwards the target differs from the online network
        state, _ = update(state, types.Batch(transitions(rng, agent.perturbation)), noise)
    batch = transitions(rng, agent.perturbation)
    _, info = update(state, types.Batch(batch), noises[2])

    prior = in_numpy(state.prior)
    online, target = in_numpy(state.params), in_numpy(state.target_params)
    assert np.any(jax.tree.leaves(online)[0] != jax.tree.leaves(target)[0])

    def values(function, params):
        variables = types.Variables(params, prior)
        return lambda observation, index: function(name, variables, int(observation), np.array(index))

    expected = np.mean(
        [
            numpy_loss(
                name,
                values,
                online,
                target,
                types.Transition(*(field[i] for field in batch)),
                *(None if x is None else np.asarray(x[i], np.float64) for x in noises[2][:2]),
                SIGMA.get(name, 0.7),
                agent.network.index.second_moment,
            )
            for i in range(16)
        ]
    )
    assert info["loss"] == pytest.approx(expected, rel=1e-4)

    # Learning moves every learnable array and leaves the prior alone.
    assert jax.tree.leaves(prior) or name in ("ddqn", "bootdqn")
    after = state
    for i in range(5):
        after, _ = update(after, types.Batch(transitions(rng, agent.perturbation)), noises[i % 3])
    jax.tree.map(np.testing.assert_array_equal, in_numpy(after.prior), prior)
    for old, new in zip(jax.tree.leaves(online), jax.tree.leaves(in_numpy(after.params)), strict=True):
        assert np.max(np.abs(old - new)) > 1e-4
    # A NaN reward shows in the parameters, also where the compiled gradient of a maximum would hide it.
    bad = batch._replace(r_t=np.where(np.arange(16) == 3, np.nan, batch.r_t).astype(np.float32))
    after, info = update(state, types.Batch(bad), noises[2])
    assert np.isnan(info["loss"]) and any(np.isnan(leaf).all() for leaf in jax.tree.leaves(after.params))


@pytest.mark.parametrize("name", ["ensemble_plus", "hypermodel", "enndqn"])
def test_lazy_adam_equals_adam_for_every_kind_of_table(name):
    # Tables with a member axis, wide ones, and two side by side; rare states rest for dozens of updates.
    rng = np.random.default_rng(0)
    dense, lazy = (make_agent(name, STATES, optimizer=o, target_period=3).learner for o in ("adam", "lazy_adam"))
    states = [learner.init(make_key(0)) for learner in (dense, lazy)]
    steps = [jax.jit(learner.step) for learner in (dense, lazy)]
    perturbation = make_agent(name, STATES).perturbation
    for i in range(150):
        batch = transitions(rng, perturbation)
        rare = np.minimum(batch.o_tm1, rng.geometric(0.5, 16)).astype(np.int32)
        batch = types.Batch(batch._replace(o_tm1=rare))
        results = [step(state, batch, make_key(i)) for step, state in zip(steps, states, strict=True)]
        states = [state for state, _ in results]
        assert results[1][1]["loss"] == pytest.approx(float(results[0][1]["loss"]), rel=1e-4)
    params = [learner.variables(s).params for learner, s in zip((dense, lazy), states, strict=True)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), *params)


# Learning


LEARNING = [name for name in NAMES if name != "hyperagent"]  # see test_scan_runner.py
# The others are the same programs with other numbers.
LEARNING += [
    pytest.param(n, marks=[] if n in ("noisy_net", "sane", "adam_lmc") else pytest.mark.slow) for n in OTHERS
]


@pytest.mark.parametrize("name", LEARNING)
def test_probes_reach_their_known_values(name):
    num_steps, discount = 5_000, 0.9
    probe = probes.combined(discount)
    agent = make_agent(
        name,
        probe.environment.spec,
        hidden_sizes=(16,),
        epinet_hidden_sizes=(16,),
        index_dim=2,
        num_indices=8,
        learning_rate=3e-3,
        discount=discount,
        batch_size=32,
        min_replay=200 if name in OTHERS else 32,  # without a prior, noise alone may never try some action
        replay_capacity=5_000,
        prior_scale=0.0 if name == "bootdqn" else 1.0,
        sigma=0.0,
        # An optimiser's noise stays in the values, about noise_scale / sqrt(curvature): adam_lmc's default of 0.03
        # is for exploration and above the tolerance by itself.
        noise_scale=1e-3,
        epsilon_updates=1_000,
        v_max=2.0,
        **(dict(discount_end=discount, weight_decay=0.0) if name == "bbf" else {}),
    )
    runner = scan.make_runner(agent, probe.environment)

    @jax.jit
    def run(state):
        states, _ = runner.run(jax.tree.map(lambda x: x[None], state), 0, num_steps)
        learner = jax.tree.map(lambda x: x[0], states.learner)
        xi = agent.network.index.sample(make_key(1), (50,))
        return jax.vmap(lambda o: agent.learner.values(learner, o, xi))(jnp.arange(len(probe.q_values)))

    values = np.asarray(run(runner.init(make_key(0), probe.state)))  # [states, indices, actions]
    # Without perturbation nothing is left of the prior's spread: the values are right for every index.
    error = np.sqrt(np.mean((values - probe.q_values[:, None, :]) ** 2, axis=1))
    # What is not linear in the index gets there more slowly.
    tolerance = 0.02 if agent.network.is_linear else 0.1
    assert np.max(error) < tolerance


EXPLORING = [name for name in NAMES if name not in ("ddqn", "bootdqn")]
QUICK = ("hyperagent", "hyperdqn")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXPLORING]
)
def test_deep_sea_8_is_solved(name):
    """By the systems whose priors explore; the others may or may not find it (results/ has the comparison)."""
    protocol = deep_sea.EXPERIMENT.resolve(deep_sea.Protocol(size=8, max_episodes=2_500))
    settings = dict(num_indices=8) if name == "hypermodel" else {}  # for the time it takes
    config = deep_sea.EXPERIMENT.capped(agents.CONFIGS[name](**settings), protocol)
    events = []
    driver.run_task(base.Task("deepsea", name, config, protocol, (0,)), events.append, lambda: False)
    (row,) = (event.row for event in events if event.kind == "result")
    assert row["solved"] and row["final_return"] == pytest.approx(0.99, abs=1e-6)


@pytest.mark.slow
def test_bench(tmp_path):
    script = pathlib.Path(__file__).parent.parent / "experiments" / "bench.py"
    arguments = ["--benchmark=systems", "--shapes=deep_sea,minatar", "--systems=noisy_net", "--turns=1"]
    command = [sys.executable, str(script), *arguments, f"--logdir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "bench.csv") as f:
        rows = list(csv.DictReader(f))
    assert [(row["shape"], row["agent"], row["updates_per_interaction"]) for row in rows] == [
        ("deep_sea", "ddqn", "1.0"),
        ("deep_sea", "noisy_net", "1.0"),
        ("minatar", "ddqn", "0.25"),
        ("minatar", "noisy_net", "0.25"),
    ]
    assert [float(row["of_ddqn"]) == 1 for row in rows] == [True, False, True, False]
    assert all(float(row["update_ms"]) > 0 for row in rows)
    done = subprocess.run(
        [*command[:-1], "--systems=rainbows"], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: --systems has no 'rainbows'; choose from ")
