"""Tests of torsos, heads and the epistemic network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import indices
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import hyperagent
from hyperagent_jax.agents import hyperagent_rmax
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import heads
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos

STATE = jnp.zeros((), jnp.int32)


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def assert_std(samples, expected):
    """Checks a standard deviation to 5 standard errors (those of a normal; truncation makes them smaller)."""
    samples = np.asarray(samples, np.float64).reshape(-1)
    assert abs(samples.mean()) < 5 * expected / np.sqrt(samples.size)
    assert abs(samples.std() / expected - 1) < 5 / np.sqrt(2 * samples.size)


def make_network(num_states=10, hidden=(8, 6), num_actions=3, dim=4, table=False, prior_scale=1.0, **kwargs):
    """A small network; `table` says whether its prior is kept as one."""
    kwargs.setdefault("prior", priors.hyper_prior(prior_scale))
    observation = kwargs.pop("observation", STATE)
    return epistemic.make_hyper_network(
        torsos.OneHotMlp(num_states, hidden) if observation is STATE else torsos.Mlp(hidden),
        num_actions,
        indices.gaussian(dim),
        observation,
        num_states=num_states if table else None,
        **kwargs,
    )


# Heads


def draw_kernels(init, shape, num):
    """Kernels [num, *shape] of an initialiser."""
    keys = jax.random.split(make_key(0), num)
    return np.asarray(jax.jit(jax.vmap(lambda key: init(key, shape)))(keys))


def test_hyper_linear_equals_materialised_weights():
    num_features, num_actions, dim = 7, 3, 4
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(num_features, num_actions, dim + 1)).astype(np.float32)
    phi = rng.normal(size=num_features).astype(np.float32)
    head = heads.HyperLinear(num_actions, dim, jax.nn.initializers.zeros)
    coefficients = head.apply({"params": {"kernel": jnp.asarray(kernel)}}, jnp.asarray(phi))
    assert coefficients.shape == (num_actions, dim + 1)
    for xi in rng.normal(size=(5, dim)).astype(np.float32):
        weights = np.stack(
            [kernel[:, action, :dim] @ xi + kernel[:, action, dim] for action in range(num_actions)], axis=1
        )  # W = A xi + b for every action, [H, num_actions]
        values = epistemic.evaluate_coefficients(coefficients, jnp.asarray(xi))
        np.testing.assert_allclose(values, phi @ weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [2, 4])
def test_an_index_of_another_dimension_is_refused(dim):
    with pytest.raises(ValueError, match=rf"index has shape \(3,\), got \({dim},\)"):
        epistemic.evaluate_coefficients(jnp.zeros((2, 4)), jnp.zeros(dim))


def test_hyper_linear_has_one_kernel_and_no_bias():
    head = heads.HyperLinear(3, 4, heads.learnable_init("sphere", 1.0))
    params = jax.eval_shape(head.init, jax.random.key(0), jnp.zeros(7))["params"]
    assert {name: leaf.shape for name, leaf in params.items()} == {"kernel": (7, 3, 5)}


@pytest.mark.parametrize("prior_std", [1.0, 0.1])
def test_prior_head_starts_on_spheres(prior_std):
    kernel = draw_kernels(heads.prior_init("sphere", prior_std), (64, 3, 5), 1)[0]
    np.testing.assert_allclose(np.linalg.norm(kernel[..., :4], axis=-1), prior_std, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(kernel[..., 4]), prior_std, rtol=1e-6)
    # Rows point everywhere: the mean of 192 unit vectors of R^4 has entries of std 1 / sqrt(4 * 192).
    assert np.max(np.abs(np.mean(kernel[..., :4], axis=(0, 1)))) < 5 * prior_std / np.sqrt(4 * 192)


@pytest.mark.parametrize("prior_std", [1.0, 0.1])
def test_learnable_head_starts_xavier_with_its_mean_on_a_sphere(prior_std):
    kernels = draw_kernels(heads.learnable_init("sphere", prior_std), (64, 2, 5), 40)
    # A is a matrix [H * actions, M] of its own, whatever prior_std is.
    assert_std(kernels[..., :4], np.sqrt(2 / (64 * 2 + 4)))
    np.testing.assert_allclose(np.linalg.norm(kernels[..., 4], axis=(1, 2)), prior_std, rtol=1e-6)


@pytest.mark.parametrize("make_init", [heads.learnable_init, heads.prior_init])
def test_xavier_mean_ignores_prior_std(make_init):
    kernels = draw_kernels(make_init("xavier", 0.1), (256, 6, 5), 10)
    assert_std(kernels[..., 4], np.sqrt(2 / (256 + 6)))


def test_unknown_mean_init():
    with pytest.raises(ValueError, match="unknown mean_init 'zeros'; choose one of sphere, xavier"):
        heads.prior_init("zeros", 1.0)


# Torsos


@pytest.mark.parametrize("hidden", [(8,), (5, 7, 6)])
def test_one_hot_mlp_equals_mlp_on_the_one_hot(hidden):
    num_states = 12
    looked_up, dense = torsos.OneHotMlp(num_states, hidden), torsos.Mlp(hidden)
    params = jax.jit(looked_up.init)(make_key(0), STATE)["params"]
    rng = np.random.default_rng(0)  # so that biases are not zero
    params = jax.tree.map(lambda x: np.float32(x + 0.1 * rng.normal(size=x.shape)), params)

    def to_dense(params):
        rest = {name: leaf for name, leaf in params.items() if name.startswith("layer")}
        return {"layer_0": {"kernel": params["rows"], "bias": params["bias"]}, **rest}

    def features_and_gradients(torso, params, observations):
        def sum_of_squares(params, o):
            features = torso.apply({"params": params}, o)
            return jnp.sum(features**2), features

        gradient, features = jax.vmap(jax.grad(sum_of_squares, has_aux=True), (None, 0))(params, observations)
        return features, gradient

    compute = jax.jit(features_and_gradients, static_argnums=0)
    features, gradient = compute(looked_up, params, jnp.arange(num_states))
    grids = jnp.eye(num_states).reshape(num_states, 3, 4)
    expected_features, expected_gradient = compute(dense, to_dense(params), grids)
    assert features.shape == (num_states, hidden[-1])
    np.testing.assert_allclose(features, expected_features, atol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), to_dense(gradient), expected_gradient)


@pytest.mark.parametrize("size", [20, 30])
def test_first_layer_is_xavier_in_the_number_of_states(size):
    params = jax.jit(torsos.OneHotMlp(size**2).init)(make_key(0), STATE)["params"]
    assert_std(params["rows"], np.sqrt(2 / (size**2 + 64)))
    assert_std(params["layer_1"]["kernel"], np.sqrt(2 / (64 + 64)))
    for bias in (params["bias"], params["layer_1"]["bias"]):
        np.testing.assert_array_equal(bias, np.zeros(64))


def test_mlp_start_and_types():
    params = jax.jit(torsos.Mlp((64, 32)).init)(make_key(0), jnp.zeros((20, 20)))["params"]
    assert_std(params["layer_0"]["kernel"], np.sqrt(2 / (400 + 64)))
    assert_std(params["layer_1"]["kernel"], np.sqrt(2 / (64 + 32)))
    out = torsos.Mlp((64, 32)).apply({"params": params}, jnp.ones((20, 20), jnp.uint8))
    assert (out.shape, out.dtype) == ((32,), jnp.float32)


@pytest.fixture(scope="module")
def atari():
    torso = torsos.AtariConv()
    apply = jax.jit(lambda params, pixels: torso.apply(params, pixels, capture_intermediates=True))
    variables = jax.jit(torso.init)(make_key(0), jnp.zeros((84, 84, 4), jnp.uint8))
    return torso, variables, apply


def test_atari_shapes(atari):
    _, variables, apply = atari
    pixels = np.random.default_rng(0).integers(0, 256, (84, 84, 4)).astype(np.uint8)
    out, captured = apply(variables, pixels)
    assert out.shape == (256,)
    layers = captured["intermediates"]
    shapes = {name: layers[name]["__call__"][0].shape for name in layers if name != "__call__"}
    assert shapes == {
        "Conv_0": (20, 20, 32),
        "Conv_1": (9, 9, 64),
        "Conv_2": (7, 7, 64),
        "TransposedDense_0": (256,),
    }
    kernel = variables["params"]["TransposedDense_0"]["kernel"]
    assert kernel.shape == (256, 3136)
    assert_std(kernel, np.sqrt(2 / (3136 + 256)))


def test_atari_normalises_before_the_dense_layer(atari):
    _, variables, apply = atari
    pixels = np.random.default_rng(0).integers(0, 256, (84, 84, 4)).astype(np.uint8)
    out, captured = apply(variables, pixels)
    layers = captured["intermediates"]
    # Pixels are not scaled: the first layer sees 0..255.
    kernel = np.asarray(variables["params"]["Conv_0"]["kernel"])
    corner = np.einsum("hwc,hwco->o", pixels[:8, :8].astype(np.float32), kernel)
    np.testing.assert_allclose(layers["Conv_0"]["__call__"][0][0, 0], corner, rtol=1e-3, atol=1e-2)
    flat = np.maximum(layers["Conv_2"]["__call__"][0], 0).reshape(-1)
    scaled = (flat - flat.min()) / (flat.max() - flat.min())
    assert (scaled.min(), scaled.max()) == (0.0, 1.0)
    dense = variables["params"]["TransposedDense_0"]
    np.testing.assert_allclose(out, np.maximum(dense["kernel"] @ scaled + dense["bias"], 0), atol=1e-4)


def test_atari_survives_a_constant_image(atari):
    torso, variables, apply = atari
    black = jnp.zeros((84, 84, 4), jnp.uint8)  # all its convolution outputs are equal
    np.testing.assert_array_equal(apply(variables, black)[0], np.zeros(256))
    gradient = jax.jit(jax.grad(lambda v: jnp.sum((torso.apply(v, black) - 1) ** 2)))(variables)
    for leaf in jax.tree.leaves(gradient):
        assert np.all(np.isfinite(leaf))
    white = apply(variables, black + 255)[0]
    assert np.all(np.isfinite(white)) and np.any(white > 0)


def test_min_max_normalize():
    np.testing.assert_allclose(
        torsos.min_max_normalize(jnp.array([-2.0, 0.0, 6.0, 2.0])), [0.0, 0.25, 1.0, 0.5], rtol=1e-6
    )
    np.testing.assert_array_equal(torsos.min_max_normalize(jnp.full(5, 3.0)), np.zeros(5))


# The network


def test_q_value_by_hand():
    network = make_network(2, (2,), num_actions=2, dim=2, prior_scale=10.0, posterior_scale=0.5)

    def make_params(rows, bias, kernel):  # kernel[feature, action] = (row of A, b)
        return {
            "torso": {"rows": jnp.array(rows, float), "bias": jnp.array(bias, float)},
            "head": {"kernel": jnp.array(kernel, float)},
        }

    params = make_params([[9, 9], [1.5, -3]], [0.5, 4], [[[1, 2, 3], [0, -1, 1]], [[2, 0, 1], [1, 1, -2]]])
    prior = make_params([[9, 9], [3, 1]], [0, -2], [[[0.1, 0, 0.2], [0, 0.3, 0]], [[7, 7, 7], [7, 7, 7]]])
    variables = types.Variables(params, prior)
    # phi(1) = relu(1.5 + 0.5, -3 + 4) = (2, 1) and the prior's is relu(3, 1 - 2) = (3, 0). At xi = (1, -1):
    # action 0: A xi + b = (1 - 2 + 3, 2 - 0 + 1) = (2, 3), <., phi> = 7;   prior 3 * (0.1 + 0.2) = 0.9
    # action 1: A xi + b = (0 + 1 + 1, 1 - 1 - 2) = (2, -2), <., phi> = 2;  prior 3 * (-0.3) = -0.9
    values = network.apply(variables, jnp.array(1), jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(values, [0.5 * 7 + 10 * 0.9, 0.5 * 2 - 10 * 0.9], rtol=1e-6)
    # The belief is those coefficients before an index: [A's columns, b] weighted by phi.
    belief = network.belief(variables, jnp.array(1))
    np.testing.assert_allclose(belief, [[2 + 3, 2, 3.5 + 6], [0.5, -0.5 + 9, 0.0]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prior_scale", [10.0, 0.3])
def test_tabulated_prior_equals_the_network(prior_scale):
    direct, tabulated = (make_network(prior_scale=prior_scale, table=table) for table in (False, True))
    key = make_key(4)
    variables, table = direct.init(key), tabulated.init(key)
    assert table.prior.shape == (10, 3, 5)
    jax.tree.map(np.testing.assert_array_equal, variables.params, table.params)
    xi = jnp.array([0.3, -1.0, 2.0, 0.5])
    states = jnp.arange(10)
    expected = jax.jit(jax.vmap(direct.prior, (None, 0)))(variables.prior, states)
    assert np.all(np.max(np.abs(expected), axis=(1, 2)) > 0.01)
    np.testing.assert_allclose(
        jax.vmap(tabulated.prior, (None, 0))(table.prior, states), expected, rtol=1e-5, atol=1e-6
    )
    values, expected_values = (
        jax.jit(jax.vmap(network.apply, (None, 0, None)))(v, states, xi)
        for network, v in ((tabulated, table), (direct, variables))
    )
    np.testing.assert_allclose(values, expected_values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_states", [None, 9])
def test_unit_prior_has_the_same_norm_everywhere_and_no_mean(num_states):
    torso, observation = torsos.OneHotMlp(9, (8, 8)), jnp.zeros((), jnp.int32)
    inputs = priors.PriorInputs(torso, 3, 4, observation, num_states)
    built = [priors.hyper_prior(0.5, unit_norm=x).build(inputs) for x in (False, True)]

    def at_all_states(prior):
        apply = jax.vmap(prior.apply, (None, 0))
        return np.array(jax.jit(lambda key: apply(prior.init(key), jnp.arange(9)))(make_key(0)))

    plain, unit = map(at_all_states, built)
    np.testing.assert_array_equal(unit[..., -1], 0.0)
    norms = np.linalg.norm(plain[..., :-1], axis=-1, keepdims=True)
    assert norms.max() > 2 * norms.min()
    np.testing.assert_allclose(unit[..., :-1], 0.5 * plain[..., :-1] / norms, rtol=1e-5)


def test_independent_prior_has_nothing_in_common_between_states():
    num_states, torso = 2_000, torsos.OneHotMlp(2_000, (8, 8))

    def table(is_independent):
        made = priors.hyper_prior(0.5, unit_norm=True, independent=is_independent)
        prior = made.build(priors.PriorInputs(torso, 3, 4, STATE, num_states))
        return np.array(jax.jit(prior.init)(make_key(0))), prior

    independent, prior = table(True)
    assert independent.shape == (num_states, 3, 5)
    np.testing.assert_array_equal(independent[..., -1], 0.0)
    np.testing.assert_allclose(np.linalg.norm(independent, axis=-1), 0.5, rtol=1e-5)
    # The mean of n directions on a sphere in R^4 has the root mean square 1 / sqrt(n); a network's is of order 1.
    common = np.linalg.norm(np.mean(independent, axis=0), axis=-1) / 0.5
    assert np.all(common < 5 / np.sqrt(num_states))
    assert np.all(np.linalg.norm(np.mean(table(False)[0], axis=0), axis=-1) / 0.5 > 0.3)
    np.testing.assert_array_equal(prior.apply(independent, 7), independent[7])


def test_independent_prior_of_arrays_is_a_networks():
    torso, observation = torsos.Mlp((8, 8)), jnp.ones(6)
    values = [
        prior.apply(prior.init(jax.random.key(0)), observation)
        for prior in (
            priors.hyper_prior(0.5, unit_norm=True, independent=x).build(
                priors.PriorInputs(torso, 3, 4, observation)
            )
            for x in (False, True)
        )
    ]
    np.testing.assert_array_equal(*values)


def test_values_of_the_unknown_by_hand():
    def network(**limits):
        limits = {"prior_scale": 2.0, "known_below": 0.25, "unknown_above": 0.75, **limits}
        config = hyperagent_rmax.Config(unit_prior=True, unknown_value=3.0, **limits)
        return hyperagent_rmax.with_rmax_values(make_network(dim=2), config)

    def value(*action):  # its coefficients and mean
        belief = jnp.tile(jnp.array(action), (3, 1))
        values = [network().value({}, belief, xi) for xi in (jnp.zeros(2), jnp.array([1.0, -5.0]))]
        np.testing.assert_array_equal(*values)  # no index changes it
        return float(values[0][0])

    assert value(0.0, 0.0, 1.0) == 1.0
    assert value(0.3, -0.4, 1.0) == 1.0  # |m| = 0.5, a quarter of the prior's: known
    assert value(0.6, 0.8, 1.0) == pytest.approx(2.0)  # |m| = 1, halfway between known and unknown
    assert value(0.9, -1.2, 1.0) == pytest.approx(3.0)  # |m| = 1.5: unknown
    assert value(3.0, 4.0, 1.0) == pytest.approx(3.0)
    assert value(0.6, 0.8, 5.0) == value(3.0, 4.0, 5.0) == 5.0  # known to be better than the unknown
    for limits, message in (
        (dict(prior_scale=0.0), "needs a prior of positive norm, got prior_scale=0.0"),
        (dict(known_below=0.75), "known_below must be at least 0 and less than unknown_above, got 0.75 and 0.75"),
        (dict(known_below=-0.1), "known_below must be at least 0 and less than unknown_above, got -0.1 and 0.75"),
    ):
        with pytest.raises(ValueError, match=message):
            network(**limits)
    with pytest.raises(ValueError, match="unknown_value needs a network that is linear in its index"):
        hyperagent_rmax.with_rmax_values(
            make_network()._replace(is_linear=False), hyperagent_rmax.Config(unit_prior=True)
        )


def test_scales_multiply_the_two_parts():
    variables = jax.jit(make_network().init)(make_key(0))
    state, zero = jnp.array(3), jnp.zeros((3, 5))
    one, scaled = make_network(), make_network(prior_scale=10.0, posterior_scale=0.1)
    np.testing.assert_allclose(
        scaled.prior(variables.prior, state), 10 * one.prior(variables.prior, state), rtol=1e-6
    )
    np.testing.assert_allclose(
        scaled.posterior(variables.params, state, zero),
        0.1 * one.posterior(variables.params, state, zero),
        rtol=1e-6,
    )


def test_prior_has_its_own_torso():
    variables = jax.jit(make_network().init)(make_key(0))
    prior = variables.prior
    assert jax.tree.structure(prior) == jax.tree.structure(variables.params)
    for path in (("torso", "rows"), ("torso", "layer_1"), ("head", "kernel")):
        learnable, fixed = variables.params[path[0]][path[1]], prior[path[0]][path[1]]
        learnable, fixed = jax.tree.leaves(learnable)[-1], jax.tree.leaves(fixed)[-1]
        assert np.all(learnable != fixed), path
    deeper = jax.eval_shape(
        make_network(prior=priors.hyper_prior(torso=torsos.OneHotMlp(10, (16, 5)))).init, jax.random.key(0)
    )
    assert deeper.prior["torso"]["rows"].shape == (10, 16)
    assert deeper.params["torso"]["rows"].shape == (10, 8)


def make_deep_sea_agent(size):
    return hyperagent.make_agent(hyperagent.Config(), types.EnvironmentSpec(2, (), size**2))


def test_number_of_parameters_of_deep_sea_20():
    variables = jax.eval_shape(make_deep_sea_agent(20).network.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(variables.params))
    assert count == 400 * 64 + 64 + 64 * 64 + 64 + 64 * 2 * 5 == 30_464


@pytest.mark.parametrize("size, expected, tolerance", [(20, 1.26, 0.1), (120, 0.21, 0.03)])
def test_initial_spread_of_q_values(size, expected, tolerance):
    """The released code starts with this standard deviation over the index, which shrinks with the size."""
    network = make_deep_sea_agent(size).network

    def spread(key):
        variables = network.init(key)
        belief = jax.vmap(network.belief, (None, 0))(variables, jnp.arange(0, size**2, size**2 // 400))
        return jnp.mean(network.index.second_moment * jnp.sum(belief[..., :-1] ** 2, axis=-1))

    variances = jax.lax.map(spread, jax.random.split(make_key(0), 8))
    assert np.sqrt(np.mean(variances)) == pytest.approx(expected, abs=tolerance)


def test_a_mean_and_an_uncertainty_of_their_own():
    """Coefficients by hand, and neither loss moves the other's parameters."""
    network = make_network(uncertainty_torso=torsos.OneHotMlp(10, (5, 7)), prior=priors.no_prior(), dim=2)
    variables = jax.jit(network.init)(make_key(0))
    assert variables.params["uncertainty"]["head"]["kernel"].shape == (7, 3, 2)
    np.testing.assert_array_equal(variables.params["uncertainty"]["head"]["kernel"], 0.0)
    params = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.5), variables.params)
    variables = variables._replace(params=params)
    belief = jax.jit(network.belief)(variables, jnp.array(3))
    for part, columns in (("mean", slice(2, 3)), ("uncertainty", slice(0, 2))):
        p = params[part]
        x = np.maximum(p["torso"]["rows"][3] + p["torso"]["bias"], 0)
        x = np.maximum(x @ p["torso"]["layer_1"]["kernel"] + p["torso"]["layer_1"]["bias"], 0)
        expected = np.einsum("i,iam->am", x, p["head"]["kernel"]) + (p["head"]["bias"][0] if part == "mean" else 0)
        np.testing.assert_allclose(belief[:, columns], expected, rtol=1e-5)

    @jax.jit
    def gradients(params):
        def part(params, columns):
            return jnp.sum(network.belief(variables._replace(params=params), jnp.array(3))[:, columns] ** 2)

        return jax.grad(part)(params, 2), jax.grad(part)(params, slice(0, 2))

    mean, uncertainty = gradients(params)
    for gradient, own, other in ((mean, "mean", "uncertainty"), (uncertainty, "uncertainty", "mean")):
        assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient[own]))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient[other]))


def test_waves_make_a_prior_that_differs_between_observations():
    """Observations of MountainCar: without biases ReLU layers see little but the sign of the position."""
    rng = np.random.default_rng(0)
    observations = rng.uniform([-1.2, -0.07], [0.0, 0.07], (50, 2)).astype(np.float32)
    waves = torsos.WaveMlp((), 64, frequencies=(0.5, 3.0))

    def alignment(torso, is_standardised):  # the length of the average of unit vectors; 1 if all are the same
        prior = priors.hyper_prior(unit_norm=True, torso=torso)
        network = make_network(prior=prior, uncertainty_torso=torso, table=False, observation=observations[0])

        def one(key):
            fixed = network.init(key).prior
            if is_standardised:
                fixed = torsos.standardize(fixed, observations.mean(0), observations.std(0))
            z = jax.vmap(network.prior, (None, 0))(fixed, observations)[..., :-1]
            return jnp.mean(jnp.linalg.norm(jnp.mean(z, axis=0), axis=-1))

        return float(jnp.mean(jax.jit(jax.vmap(one))(jax.random.split(make_key(0), 20))))

    assert alignment(torsos.Mlp((64, 64)), False) > 0.95
    assert alignment(waves, True) < 0.6

    params = jax.jit(waves.init)(make_key(0), observations[0])["params"]
    assert torsos.needs_standardizing(params) and not torsos.needs_standardizing({"rows": 0.0})
    mean, std = np.array([1.0, 2.0]), np.array([0.5, 4.0])
    features = torsos.apply_linen(waves, torsos.standardize(params, mean, std), observations[0])
    phases = (observations[0] - mean) / std @ params["waves"]["kernel"] + params["waves"]["bias"]
    np.testing.assert_allclose(features, torsos.wave(phases), rtol=1e-4, atol=1e-4)
    phases = np.linspace(-20.0, 20.0, 1001).astype(np.float32)
    np.testing.assert_allclose(torsos.wave(phases), np.cos(phases), atol=0.021)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(torsos.wave)))(phases), -np.sin(phases), atol=0.046)
    # Frequencies are log-uniform: a direction of two entries has an average squared length of 2.
    lengths = np.linalg.norm(draw_kernels(torsos._wave_kernel_init(0.5, 3.0), (2, 64), 50), axis=1)
    assert np.mean(np.log(lengths)) == pytest.approx(np.log(1.5) / 2 + 0.058, abs=0.05)
