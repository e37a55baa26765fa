"""Tests of agents with noisy layers and of ensembles on a quantile: values and losses in numpy and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import losses
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import noisy

NUM_ACTIONS = 3
STATES = types.EnvironmentSpec(NUM_ACTIONS, (), 12)
ARRAYS = types.EnvironmentSpec(NUM_ACTIONS, (2, 3))


def make_agent(name, spec, **settings):
    return agents.make(
        name, spec, **{**dict(hidden_sizes=(8, 5), batch_size=16, scale_width=4, num_atoms=1), **settings}
    )


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


# Noise, by hand


def sample_outputs(noise_std, distribution, num_samples=400_000):
    """Outputs of a layer with two units at the inputs (1, 2, 0, -1), [num_samples, 2], and without noise."""
    layer = noisy.NoisyDense(2, noise_std)
    x = jnp.array([1.0, 2.0, 0.0, -1.0])
    params = layer.init(jax.random.key(0), x, jnp.zeros(4), jnp.zeros(2))
    e = noisy.indices.make(distribution, 6).sample(jax.random.key(1), (num_samples,))
    apply = jax.jit(jax.vmap(lambda e: layer.apply(params, x, noisy.factor(e[:4]), noisy.factor(e[4:]))))
    mean = x @ params["params"]["kernel"] + params["params"]["bias"]
    return np.asarray(apply(e), np.float64), np.asarray(mean, np.float64)


@pytest.mark.parametrize(
    "noise_std, distribution, variance",
    [(0.5, "gaussian", 0.288600), (0.1, "truncated_gaussian", 0.00964335)],
)
def test_variance_of_factorised_noise(noise_std, distribution, variance):
    """E|e| (sigma_W^2 E|e| |x|^2 + sigma_b^2) per unit, with E|e| = sqrt(2 / pi), or 0.722790 truncated."""
    outputs, mean = sample_outputs(noise_std, distribution)
    noise = outputs - mean
    np.testing.assert_allclose(np.mean(noise**2, axis=0), variance, rtol=0.02)
    np.testing.assert_allclose(np.mean(noise, axis=0), 0.0, atol=5 * np.sqrt(variance / 400_000))
    # Two units are uncorrelated, but their squares are not: they share the factors of their inputs.
    correlation = np.corrcoef(noise.T)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(400_000)
    assert np.corrcoef((noise**2).T)[0, 1] > 0.05


def test_index_zero_is_the_network_without_noise():
    network = make_agent("noisy_net", STATES).network
    variables = jax.jit(network.init)(make_key(0))
    quiet = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.zeros_like(x) if "noise" in jax.tree_util.keystr(path) else x, variables
    )
    values = network.apply(variables, jnp.array(3), jnp.zeros(network.index.dim))
    at_random = network.apply(quiet, jnp.array(3), network.index.sample(make_key(1), ()))
    np.testing.assert_allclose(values, at_random, rtol=1e-6)
    assert np.any(np.abs(network.apply(variables, jnp.array(3), jnp.ones(network.index.dim)) - values) > 1e-3)


def test_dimension_of_the_noise():
    # DeepSea: a table of rows, then 64 -> 64 -> 2.
    assert agents.make("noisy_net", types.EnvironmentSpec(2, (), 400)).network.index.dim == 194
    assert noisy.noise_dim(noisy.chains(3_136, (512,), 18, 1, "none")) == 4_178


# Values and losses, written again in numpy


def relu(x):
    return np.maximum(x, 0.0)


def factor(x):
    return np.sign(x) * np.sqrt(np.abs(x))


class NumpyNoise:
    """Hands out the entries of an index, inputs before outputs, layer by layer."""

    def __init__(self, index):
        self.index, self.place = index, 0

    def take(self, n):
        self.place += n
        return factor(self.index[self.place - n : self.place])


def numpy_layer(params, x, noise, scale):
    """A dense layer with its weights as they are after a draw."""
    p, q = params["kernel"].shape
    e_in, e_out = noise.take(p), noise.take(q)
    if scale is None:
        kernel = params["kernel"] + params["kernel_noise"] * np.outer(e_in, e_out)
        return x @ kernel + params["bias"] + params["bias_noise"] * e_out
    return x @ (params["kernel"] + scale * np.outer(e_in, e_out)) + params["bias"] + scale * e_out


def numpy_outputs(name, params, observation, index):
    """Values [actions] or logits [actions, atoms] of a network with hidden layers of 8 and 5 units."""
    head, noise = params["head"], NumpyNoise(index)
    if "rows" in params["torso"]:
        x, hidden = relu(params["torso"]["rows"][observation] + params["torso"]["bias"]), 1
    else:
        x, hidden = observation.reshape(-1), 2
    scale = None
    if name == "sane":
        layers = params["scale"]
        y = relu(x @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        scale = (y @ layers["Dense_1"]["kernel"] + layers["Dense_1"]["bias"])[0]
    if name in ("noisy_net", "sane"):
        for i in range(hidden):
            x = relu(numpy_layer(head[f"layer_{i}"], x, noise, scale))
        return numpy_layer(head[f"layer_{hidden}"], x, noise, scale)
    for i in range(hidden - 1):
        x = relu(numpy_layer(head[f"layer_{i}"], x, noise, scale))
    streams = []
    for stream in ("advantage", "value"):
        y = relu(numpy_layer(head[f"{stream}_0"], x, noise, scale))
        streams.append(numpy_layer(head[f"{stream}_1"], y, noise, scale))
    advantage, value = streams[0].reshape(NUM_ACTIONS, -1), streams[1]
    return value + advantage - advantage.mean(axis=0)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


ATOMS = np.linspace(-2.0, 2.0, 7)


def numpy_values(name, params, observation, index):
    outputs = numpy_outputs(name, params, observation, index)
    return softmax(outputs) @ ATOMS if name == "rainbow" else outputs


def atoms_of(name):
    return dict(num_atoms=7, v_max=2.0) if name == "rainbow" else {}


def in_numpy(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def disturbed(params, seed=1):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.float32(x + 0.1 * rng.normal(size=x.shape)), params)


@pytest.mark.parametrize("spec", [STATES, ARRAYS], ids=["states", "arrays"])
@pytest.mark.parametrize("name", ["noisy_net", "sane", "rainbow"])
def test_values_equal_numpy(name, spec):
    network = make_agent(name, spec, **atoms_of(name)).network
    variables = jax.jit(network.init)(make_key(0))
    variables = variables._replace(params=disturbed(variables.params))
    rng = np.random.default_rng(2)
    if spec.num_states is None:
        observations = rng.normal(size=(3, 2, 3)).astype(np.float32)
    else:
        observations = np.array([0, 3, 11], np.int32)
    indices = rng.normal(size=(3, network.index.dim)).astype(np.float32)
    values = jax.jit(jax.vmap(network.apply, (None, 0, 0)))(variables, observations, indices)
    assert variables.prior == () and network.prior((), observations[0]).shape == (0,)
    for value, observation, index in zip(values, observations, indices, strict=True):
        expected = numpy_values(name, in_numpy(variables.params), observation, index.astype(np.float64))
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def numpy_projection(atoms, probabilities, reward, discount):
    """Mass of r + discount z, split linearly between neighbours."""
    projected, width = np.zeros(len(atoms)), atoms[1] - atoms[0]
    for mass, place in zip(probabilities, np.clip(reward + discount * atoms, atoms[0], atoms[-1]), strict=True):
        exact = (place - atoms[0]) / width
        low = min(int(np.floor(exact + 1e-9)), len(atoms) - 2)
        projected[low] += mass * (low + 1 - exact)
        projected[low + 1] += mass * (exact - low)
    return projected


def transitions(rng, n=16):
    return types.Transition(
        rng.integers(0, 12, n).astype(np.int32),
        rng.integers(0, NUM_ACTIONS, n).astype(np.int32),
        rng.normal(size=n).astype(np.float32),
        np.where(rng.random(n) < 0.2, 0.0, 0.9).astype(np.float32),
        rng.integers(0, 12, n).astype(np.int32),
        np.zeros((n, 0), np.float32),
    )


@pytest.mark.parametrize("name", ["noisy_net", "sane", "rainbow"])
def test_loss_equals_numpy(name):
    agent = make_agent(name, STATES, target_period=3, **atoms_of(name))
    rng, update = np.random.default_rng(0), jax.jit(agent.learner.update)
    state = jax.jit(agent.learner.init)(make_key(1))
    for i in range(2):  # afterwards the target differs from the online network
        state, _ = update(state, types.Batch(transitions(rng)), agent.learner.draw(make_key(i), 16))
    batch, noise = transitions(rng), agent.learner.draw(make_key(2), 16)
    weights = rng.random(16).astype(np.float32)
    after, info = update(state, types.Batch(batch, weights=weights), noise)
    drawn = 16 if name == "sane" else 1
    assert {x.shape for x in noise} == {(drawn, 1, agent.network.index.dim)}
    assert len({float(x[0, 0, 0]) for x in noise}) == 3  # loss, target and selector each have their own
    online, target = in_numpy(state.params), in_numpy(state.target_params)
    assert np.any(jax.tree.leaves(online)[0] != jax.tree.leaves(target)[0])
    expected = []
    for i in range(16):
        xi, xi_target, xi_selector = (np.asarray(x[i % drawn, 0], np.float64) for x in noise)
        t = types.Transition(*(field[i] for field in batch))
        best = np.argmax(numpy_values(name, online, t.o_t, xi_selector))
        outputs = numpy_outputs(name, online, t.o_tm1, xi)[t.a_tm1]
        if name == "rainbow":
            probabilities = softmax(numpy_outputs(name, target, t.o_t, xi_target)[best])
            mass = numpy_projection(ATOMS, probabilities, t.r_t, t.discount_t)
            expected.append(-np.sum(mass * np.log(softmax(outputs))))
        else:
            bootstrap = t.r_t + t.discount_t * numpy_values(name, target, t.o_t, xi_target)[best]
            expected.append((bootstrap - outputs) ** 2)
    np.testing.assert_allclose(info["losses"], expected, rtol=2e-4, atol=1e-6)
    assert info["loss"] == pytest.approx(np.mean(weights * expected), rel=1e-4)
    for _ in range(3):
        after, _ = update(after, types.Batch(transitions(rng)), noise)
    for old, new in zip(jax.tree.leaves(online), jax.tree.leaves(in_numpy(after.params)), strict=True):
        assert np.max(np.abs(old - new)) > 1e-5
    bad = batch._replace(r_t=np.where(np.arange(16) == 3, np.nan, batch.r_t).astype(np.float32))
    after, info = update(state, types.Batch(bad), noise)
    assert np.isnan(info["loss"]) and any(np.isnan(leaf).all() for leaf in jax.tree.leaves(after.params))


# C51, by hand


def categorical(atoms, online, target, reward, discount):
    """The loss of one action whose online logits are parameters, and the target distribution by its gradient."""
    network = epistemic.EpistemicNetwork(
        init=lambda key: types.Variables(jnp.asarray(online), ()),
        prior=lambda prior, o: jnp.zeros(0),
        posterior=lambda params, o, prior: params,
        value=lambda params, belief, index: jax.nn.softmax(belief)[None] @ jnp.asarray(atoms, jnp.float32),
        index=noisy.indices.no_index(),
        is_linear=False,
        distribution=lambda params, belief, index: belief[None],
        atoms=np.asarray(atoms, np.float32),
    )
    loss = losses.make_categorical_loss(network)
    t = types.Transition(
        jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.float32(reward), jnp.float32(discount), jnp.zeros(()), None
    )
    noise = losses.LossNoise(jnp.zeros((1, 0)), jnp.zeros((1, 0)))
    params = jnp.asarray(online, jnp.float32)

    def of(params):
        return loss.apply(params, jnp.log(jnp.maximum(jnp.asarray(target, jnp.float32), 1e-30)), t, (), (), noise)

    value, gradient = jax.jit(jax.value_and_grad(of))(params)
    # The gradient of a cross-entropy is softmax(logits) - target.
    return float(value), np.asarray(jax.nn.softmax(params) - gradient), float(network.value(None, params, None)[0])


def test_projection_by_hand():
    value, projected, q = categorical([-1, 0, 1], [0.0, 1.0, 2.0], [0.25, 0.5, 0.25], 0.3, 0.5)
    np.testing.assert_allclose(projected, [0.05, 0.6, 0.35], atol=1e-6)
    assert value == pytest.approx(1.1076060, abs=1e-6) and q == pytest.approx(0.5752104, abs=1e-6)
    entropy = -np.sum(projected * np.log(projected))
    assert value - entropy == pytest.approx(0.2838862, abs=1e-6)  # the divergence, whose gradient is the same
    atoms, zeros = np.linspace(-10, 10, 51), np.zeros(51)
    at_zero = np.eye(51)[25]
    value, projected, _ = categorical(atoms, zeros, at_zero, 1.0, 0.99)
    np.testing.assert_allclose(projected[[27, 28]], [0.5, 0.5], atol=1e-5)  # 0.8 and 1.2
    assert value == pytest.approx(np.log(51), abs=1e-5)  # at the start all atoms are alike
    _, projected, _ = categorical(atoms, zeros, np.full(51, 1 / 51), 0.25, 0.0)
    np.testing.assert_allclose(projected[[25, 26]], [0.375, 0.625], atol=1e-5)  # 0 and 0.4
    _, projected, _ = categorical(atoms, zeros, np.full(51, 1 / 51), 9.0, 0.99)
    assert projected[-1] == pytest.approx(0.4603922, abs=1e-5)


def test_dueling_by_hand():
    head = noisy.DenseHead((), 2, 2, "shared", "none", 0.0)
    params = head.init(jax.random.key(0), jnp.zeros(1), None, jnp.zeros(0))["params"]
    params["advantage_0"]["bias"] = jnp.array([1.0, 2.0, 3.0, 6.0])
    params["value_0"]["bias"] = jnp.array([10.0, 20.0])
    found = head.apply({"params": params}, jnp.zeros(1), None, jnp.zeros(0))
    np.testing.assert_allclose(found, [[9, 18], [11, 22]])


# SANE


def test_sane_draws_for_every_example_and_trains_its_scale():
    agent = make_agent("sane", STATES)
    network, variables = agent.network, jax.jit(agent.network.init)(make_key(0))
    noise = agent.learner.draw(make_key(1), 2)
    belief = jax.jit(network.belief)(variables, jnp.array(4))
    values = jax.jit(jax.vmap(lambda xi: network.value(variables.params, belief, xi)))(noise.indices[:, 0])
    assert np.all(np.abs(values[0] - values[1]) > 1e-6)
    differentiate = jax.jit(
        jax.grad(lambda p: jnp.sum(network.apply(types.Variables(p, ()), 4, noise.indices[0, 0])))
    )
    gradient = differentiate(variables.params)
    for leaf in jax.tree.leaves(gradient["scale"]):
        assert np.any(leaf != 0)
    # With the hidden layer fixed, the mean over the noise of the last layer is the value without noise.
    layer = noisy.StateNoiseDense(3)
    x, scale = jnp.array([0.5, -1.0]), jnp.float32(0.7)
    params = jax.jit(layer.init)(make_key(0), x, jnp.zeros(2), jnp.zeros(3), scale)
    e = np.random.default_rng(2).normal(size=(100_000, 5)).astype(np.float32)
    apply = jax.vmap(lambda e: layer.apply(params, x, noisy.factor(e[:2]), noisy.factor(e[2:]), scale))
    outputs = jax.jit(apply)(e)
    expected = x @ params["params"]["kernel"] + params["params"]["bias"]
    np.testing.assert_allclose(outputs.mean(axis=0), expected, atol=5 * float(outputs.std()) / np.sqrt(100_000))


# Ensembles on a quantile


def test_bayes_ucbdqn_bootstraps_from_a_quantile_and_acts_on_a_member_or_on_it():
    agent = agents.make("bayes_ucbdqn", STATES, hidden_sizes=(8, 5), index_dim=4, target_period=3, quantile=0.7)
    rng, update = np.random.default_rng(0), jax.jit(agent.learner.update)

    def batch():
        return transitions(rng)._replace(z_t=rng.exponential(size=(16, 4)).astype(np.float32))

    state = jax.jit(agent.learner.init)(make_key(0))
    for i in range(2):
        state, _ = update(state, types.Batch(batch()), agent.learner.draw(make_key(i), 16))
    t = batch()
    _, info = update(state, types.Batch(t), agent.learner.draw(make_key(2), 16))

    def members(params, state):  # [actions, members]
        rest = jax.tree.map(np.asarray, params)
        values = []
        for i in range(4):
            p = jax.tree.map(lambda x, i=i: x[i], rest)
            x = relu(p["torso"]["rows"][state] + p["torso"]["bias"])
            x = relu(x @ p["torso"]["layer_1"]["kernel"] + p["torso"]["layer_1"]["bias"])
            values.append(x @ p["head"]["kernel"][..., 0] + p["head"]["bias"][0, :, 0])
        return np.stack(values, axis=-1)

    expected = []
    for i in range(16):
        best = np.argmax(np.quantile(members(state.params, t.o_t[i]), 0.7, axis=-1))
        bootstrap = np.quantile(members(state.target_params, t.o_t[i]), 0.7, axis=-1)[best]
        errors = t.r_t[i] + t.discount_t[i] * bootstrap - members(state.params, t.o_tm1[i])[t.a_tm1[i]]
        expected.append(np.mean(t.z_t[i] * errors**2))
    np.testing.assert_allclose(info["losses"], expected, rtol=1e-3, atol=1e-6)
    values = agent.learner.values(state, jnp.array(5), agent.network.index.support)
    np.testing.assert_allclose(values, members(state.params, 5).T, rtol=1e-4, atol=1e-6)
    agent = agents.make("bayes_ucbdqn", STATES, hidden_sizes=(8, 5), quantile=0.7, acts_on="quantile")
    values = agent.learner.values(state, jnp.array(5), agent.network.index.support)
    np.testing.assert_allclose(
        values, np.tile(np.quantile(members(state.params, 5), 0.7, axis=-1), (4, 1)), rtol=1e-4, atol=1e-6
    )
    assert agent.perturbation.name == "exponential_mask"


# Settings


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: agents.CONFIGS["noisy_net"](noise="white"), "unknown noise 'white'"),
        (lambda: agents.CONFIGS["rainbow"](num_atoms=2), "num_atoms must be 1 .plain values. or at least 3"),
        (lambda: agents.CONFIGS["rainbow"](dueling="yes"), "unknown dueling 'yes'"),
        (lambda: agents.CONFIGS["bayes_ucbdqn"](optimistic=False), "use optimistic=True, or bootdqn"),
        (lambda: agents.CONFIGS["bayes_ucbdqn"](acts_on="all"), "unknown acts_on 'all'"),
        (lambda: agents.CONFIGS["bootdqn"](mask_distribution="cube"), "unknown mask_distribution 'cube'"),
        (
            lambda: losses.make_categorical_loss(agents.make("noisy_net", STATES).network),
            "needs a network with a distribution: use make_td_loss",
        ),
        (
            lambda: losses.make_td_loss(agents.make("ddqn", STATES).network, loss_index="shared"),
            "use the sampled loss with loss_index=shared",
        ),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
