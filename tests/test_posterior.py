"""Means, standard deviations and samples of Q-values."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hyperagent_jax as hx

OBSERVATIONS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def identity(x):
    return x


def trained(network, seed=0):
    """Variables with noise, so that nothing is zero."""
    rng, variables = np.random.default_rng(seed), jax.jit(network.init)(jax.random.key(seed))
    noisy = jax.tree.map(lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape)), variables.params)
    return variables._replace(params=noisy)


@pytest.mark.parametrize("name", ["gaussian", "sphere", "scaled_sphere", "cube", "unit_cube"])
def test_linear_network_by_hand(name):
    index = hx.indices.make(name, 3)
    network = hx.make_hyper_network(identity, 2, index, jnp.zeros(4), prior=hx.no_prior())
    variables = trained(network)
    mean, std = hx.posterior.mean_and_std(network, variables, OBSERVATIONS)
    kernel = np.asarray(variables.params["head"]["kernel"], np.float64)  # [4, 2, 4]
    coefficients = np.einsum("bh,ham->bam", OBSERVATIONS, kernel)
    second_moment = 1 / 3 if name in ("sphere", "unit_cube") else 1.0
    np.testing.assert_allclose(mean, coefficients[..., -1], rtol=1e-5, atol=1e-6)
    expected = np.sqrt(second_moment * np.sum(coefficients[..., :-1] ** 2, axis=-1))
    np.testing.assert_allclose(std, expected, rtol=1e-5)
    samples = hx.posterior.sample(network, variables, OBSERVATIONS, jax.random.key(1), 20_000)
    assert samples.shape == (20_000, 6, 2)
    # 5 standard errors; a normal's standard deviation has the relative error 1 / sqrt(2 n), the others' less.
    assert np.all(np.abs(np.mean(samples, axis=0) - mean) < 5 * expected / np.sqrt(20_000))
    np.testing.assert_allclose(np.std(samples, axis=0), std, rtol=5 / np.sqrt(40_000))


def test_ensemble_is_exact_over_its_members():
    network = hx.make_ensemble_network(identity, 2, 5, jnp.zeros(4), prior=hx.ensemble_prior(3.0))
    variables = trained(network)
    mean, std = hx.posterior.mean_and_std(network, variables, OBSERVATIONS)

    def members(params, scale):  # [member, batch, action]
        kernel, bias = np.asarray(params["head"]["kernel"])[..., 0], np.asarray(params["head"]["bias"])[..., 0]
        return scale * (np.einsum("bh,mha->mba", OBSERVATIONS, kernel) + bias)

    values = members(variables.params, 1.0) + members(variables.prior, 3.0)
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, values.std(axis=0), rtol=1e-4)
    one = hx.posterior.mean(network, variables, OBSERVATIONS[2])
    np.testing.assert_allclose(one, mean[2], rtol=1e-5, atol=1e-6)


def test_a_network_without_index_has_no_uncertainty():
    network = hx.make_plain_network(identity, 2, jnp.zeros(4))
    mean, std = hx.posterior.mean_and_std(network, trained(network), OBSERVATIONS)
    np.testing.assert_array_equal(std, np.zeros((6, 2)))
    assert np.all(mean != 0)


@pytest.mark.parametrize("make", [hx.make_epinet_network, hx.make_hypermodel_network])
def test_nonlinear_networks_are_sampled(make):
    first = (5,) if make is hx.make_hypermodel_network else nn.Dense(5)
    network = make(first, 2, hx.indices.gaussian(3), jnp.zeros(4))
    variables = trained(network)
    with pytest.raises(
        ValueError, match="mean and standard deviation of this network have no closed form: give a key"
    ):
        hx.posterior.mean_and_std(network, variables, OBSERVATIONS)
    with pytest.raises(ValueError, match="num_samples"):
        hx.posterior.mean_and_std(network, variables, OBSERVATIONS, key=jax.random.key(0), num_samples=1)
    key = jax.random.key(3)
    mean, std = hx.posterior.mean_and_std(network, variables, OBSERVATIONS, key=key, num_samples=7)
    indices = network.index.sample(key, (7,))
    apply = jax.vmap(jax.vmap(network.apply, (None, 0, None)), (None, None, 0))
    values = np.asarray(jax.jit(apply)(variables, OBSERVATIONS, indices))
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, values.std(axis=0, ddof=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        hx.posterior.mean(network, variables, OBSERVATIONS[0]),
        network.apply(variables, OBSERVATIONS[0], jnp.zeros(3)),
        rtol=1e-6,
    )


def test_a_missing_batch_axis_is_one_clear_line():
    network = hx.make_hyper_network(identity, 2, hx.indices.sphere(3), jnp.zeros(4))
    variables = network.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"observations must be \[B, 4\], got \[4\]: use observations\[None\]"):
        hx.posterior.mean_and_std(network, variables, OBSERVATIONS[0])
    with pytest.raises(ValueError, match=r"observations must be \[B, 4\], got \[6, 3\]"):
        hx.posterior.sample(network, variables, OBSERVATIONS[:, :3], jax.random.key(0), 2)
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        hx.posterior.sample(network, variables, OBSERVATIONS, jax.random.key(0), 0)
    with pytest.raises(ValueError, match="observations must be like"):
        hx.posterior.mean_and_std(network, variables, {"o": OBSERVATIONS})
    unknown = network._replace(observation=None)
    with pytest.raises(ValueError, match="need a leading batch axis"):
        hx.posterior.mean_and_std(unknown, variables, jnp.int32(3))
    states = hx.make_hyper_network(hx.torsos.OneHotMlp(5, (4,)), 2, hx.indices.sphere(3), 0, num_states=5)
    variables = states.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"observations must be \[B\], got \[\]"):
        hx.posterior.mean_and_std(states, variables, 3)
    assert hx.posterior.mean_and_std(states, variables, jnp.arange(5))[1].shape == (5, 2)
