"""Torsos of any framework train, and what would not is refused."""

import collections
import re
from typing import Any, NamedTuple

import equinox as eqx
from flax import nnx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hyperagent_jax as hx
from hyperagent_jax.agents import base as agents_base

WIDTH = 6


class LinenTorso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(WIDTH)(x))


class NnxTorso(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, WIDTH, rngs=rngs)

    def __call__(self, x):
        return nnx.relu(self.layer(x))


class NnxDropout(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.dropout = nnx.Linear(4, WIDTH, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.layer(x))


class EquinoxTorso(eqx.Module):
    layer: Any
    activation: Any

    def __init__(self, key):
        self.layer, self.activation = eqx.nn.Linear(4, WIDTH, key=key), jax.nn.relu

    def __call__(self, x):
        return self.activation(self.layer(x))


class Pair(NamedTuple):
    init: Any
    apply: Any


def haiku_features(x):
    return jax.nn.relu(hk.Linear(WIDTH)(x))


def init_dense(key, observation):
    return {"w": jax.random.normal(key, (observation.size, WIDTH)), "b": jnp.zeros(WIDTH)}


def apply_dense(params, observation):
    return jax.nn.relu(observation @ params["w"] + params["b"])


class OwnPair:
    init, apply = staticmethod(init_dense), staticmethod(apply_dense)


TORSOS = {
    "linen": LinenTorso(),
    "to_linen": nnx.bridge.to_linen(NnxTorso),
    "haiku": hk.transform(haiku_features),
    "haiku_without_rng": hk.without_apply_rng(hk.transform(haiku_features)),
    "named_tuple": Pair(init_dense, apply_dense),
    "tuple": (init_dense, apply_dense),
    "object": OwnPair(),
    "nnx": hx.torsos.from_nnx(lambda rngs: NnxTorso(rngs)),
    "equinox": hx.torsos.from_equinox(lambda key: EquinoxTorso(key)),
}


def make_batch(n=8):
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(2, n, 4)).astype(np.float32)
    z = rng.normal(size=(n, 3)).astype(np.float32)
    actions, rewards = rng.integers(0, 2, n), rng.normal(size=n).astype(np.float32)
    discounts = np.full(n, 0.9, np.float32)
    return hx.Batch(hx.Transition(observations[0], actions, rewards, discounts, observations[1], z))


@pytest.mark.parametrize("name", TORSOS)
def test_torsos_train_and_priors_stay(name):
    network = hx.make_hyper_network(TORSOS[name], 2, hx.indices.sphere(3), jnp.zeros(4), prior=hx.hyper_prior(2.0))
    learner = hx.make_learner(network, hx.losses.make_td_loss(network, sigma=0.1), optax.adam(1e-2))
    state = learner.init(jax.random.key(0))
    before = jax.tree.map(np.asarray, learner.variables(state))
    assert set(before.params) == {"torso", "head"}
    sizes = sorted(np.size(leaf) for leaf in jax.tree.leaves(before.params["torso"]))
    assert sizes == [WIDTH, 4 * WIDTH]
    for one, other in zip(jax.tree.leaves(before.params), jax.tree.leaves(before.prior), strict=True):
        assert one.shape == other.shape
        assert np.all(one == 0) or np.any(one != other)  # biases may be zero in both
    step, batch = jax.jit(learner.step), make_batch()
    for i in range(5):
        state, _ = step(state, batch, jax.random.key(i))
    after = learner.variables(state)
    jax.tree.map(np.testing.assert_array_equal, after.prior, before.prior)
    for old, new in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        assert np.max(np.abs(old - new)) > 1e-3
    # The learned function is head(torso): features by hand.
    values = network.apply(after, batch.transitions.o_tm1[0], jnp.zeros(3))
    assert values.shape == (2,) and np.all(np.isfinite(values))


@pytest.mark.parametrize("name", ["tuple", "nnx", "equinox", "haiku"])
def test_other_networks_take_them_too(name):
    arguments, key = (TORSOS[name], 2), jax.random.key(0)
    o, xi = jnp.ones(4), jnp.array([0.0, 1.0, 0.0])
    ensemble = hx.make_ensemble_network(*arguments, 3, jnp.zeros(4), prior=hx.ensemble_prior(2.0))
    epinet = hx.make_epinet_network(*arguments, hx.indices.gaussian(3), jnp.zeros(4), hidden_sizes=(5,))
    plain = hx.make_plain_network(*arguments, jnp.zeros(4))
    assert ensemble.apply(ensemble.init(key), o, xi).shape == (2,)
    assert epinet.apply(epinet.init(key), o, xi).shape == (2,)
    assert plain.apply(plain.init(key), o, jnp.zeros(0)).shape == (2,)


def test_pair_is_the_function_by_hand():
    network = hx.make_hyper_network((init_dense, apply_dense), 2, hx.indices.sphere(3), jnp.zeros(4))
    variables = network.init(jax.random.key(1))
    o = np.array([1.0, -0.5, 2.0, 0.3], np.float32)

    def coefficients(params):
        features = np.maximum(o @ params["torso"]["w"] + params["torso"]["b"], 0)
        return np.einsum("h,ham->am", features, params["head"]["kernel"])

    expected = coefficients(variables.params) + coefficients(variables.prior)
    np.testing.assert_allclose(network.belief(variables, o), expected, rtol=1e-5, atol=1e-6)


def test_a_function_without_weights_is_a_torso():
    network = hx.make_hyper_network(jnp.tanh, 2, hx.indices.sphere(3), jnp.zeros(4))
    variables = network.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, variables.params) == {"head": {"kernel": (4, 2, 4)}}


class Conv(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(5, (3, 3))(x)


class BatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=True)(nn.Dense(WIDTH)(x))


class Dropout(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(WIDTH)(x))


NnxInstance = NnxTorso(nnx.Rngs(0))


@pytest.mark.parametrize(
    "torso, observation, message",
    [
        (NnxInstance, jnp.zeros(4), "use torsos.from_nnx(lambda rngs:"),
        (NnxTorso, jnp.zeros(4), "use torsos.from_nnx(lambda rngs:"),
        (EquinoxTorso(jax.random.key(0)), jnp.zeros(4), "use torsos.from_equinox(lambda key:"),
        (EquinoxTorso, jnp.zeros(4), "use torsos.from_equinox(lambda key:"),
        (eqx.nn.MLP(4, 6, 6, 1, key=jax.random.key(0)), jnp.zeros(4), "use torsos.from_equinox(lambda key:"),
        (LinenTorso, jnp.zeros(4), "must be an instance, got the class LinenTorso: use LinenTorso(...)"),
        (3, jnp.zeros(4), "a torso must be a flax.linen module, a pair (init, apply) or a function, got 3"),
        (hk.transform_with_state(haiku_features), jnp.zeros(4), "a torso may not have state: use hk.transform"),
        (BatchNorm(), jnp.zeros(4), "only have params, this one also has batch_stats: remove Dropout"),
        (Dropout(), jnp.zeros(4), "the torso fails on an observation float32[4] (InvalidRngError: "),
        (Conv(), jnp.zeros((8, 8, 3)), "features must be [H], the torso returned [8, 8, 5] for an observation"),
        (LinenTorso(), jnp.zeros((1, 4)), "without a batch axis"),
        (LinenTorso(), jnp.int32(0), "fails on an observation int32[]; for integer states use torsos.OneHotMlp"),
        (lambda x: (x, x), jnp.zeros(4), "features must be one array [H]"),
    ],
)
def test_what_does_not_train_is_refused(torso, observation, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        hx.make_hyper_network(torso, 2, hx.indices.sphere(3), observation)
    assert "\n" not in str(error.value)


def test_nnx_state_is_refused():
    with pytest.raises(ValueError, match="only have variables of type nnx.Param: remove Dropout"):
        hx.torsos.from_nnx(NnxDropout)


def test_a_priors_torso_is_checked_too():
    prior = hx.hyper_prior(torso=Conv())
    with pytest.raises(ValueError, match="the torso fails on an observation"):
        hx.make_hyper_network(LinenTorso(), 2, hx.indices.sphere(3), jnp.zeros(4), prior=prior)


@pytest.mark.parametrize(
    "example", [[0.0] * 4, jax.ShapeDtypeStruct((4,), jnp.float32), np.zeros(4), np.zeros(4, np.float16)]
)
def test_examples_may_be_lists_and_shapes(example):
    network = hx.make_hyper_network(LinenTorso(), 2, hx.indices.sphere(3), example)
    assert network.apply(network.init(jax.random.key(0)), np.ones(4), jnp.zeros(3)).shape == (2,)
    assert network.observation.shape == (4,)


def test_examples_may_be_dicts_and_tuples():
    def torso(o):
        return jnp.concatenate([o["near"], o["far"][0]])

    example = {"near": [0.0, 0.0], "far": (np.zeros(3),)}
    network = hx.make_hyper_network(torso, 2, hx.indices.sphere(3), example)
    variables = network.init(jax.random.key(0))
    assert jax.tree.map(jnp.shape, variables.params) == {"head": {"kernel": (5, 2, 4)}}
    mean, std = hx.posterior.mean_and_std(network, variables, {"near": np.ones((7, 2)), "far": (np.ones((7, 3)),)})
    assert mean.shape == std.shape == (7, 2)


MLP, SPHERE, ARRAY = hx.torsos.Mlp((5,)), hx.indices.sphere(3), jnp.zeros(4)


@pytest.mark.parametrize(
    "make, message",
    [
        *[
            (lambda n=n: hx.make_hyper_network(MLP, n, SPHERE, ARRAY), f"at least 1, got {n!r}")
            for n in (0, -1, 2.5, 3.0, [3, 2], True, None)
        ],
        (lambda: hx.make_plain_network(MLP, 0, ARRAY), "num_actions must be a whole number of at least 1, got 0"),
        (lambda: hx.make_hyper_network(MLP, 2, 4, ARRAY), "such as indices.sphere(4), got 4"),
        (lambda: hx.make_hyper_network(MLP, 2, None, ARRAY), "such as indices.sphere(4), got None"),
        (
            lambda: hx.make_hyper_network(MLP, 2, SPHERE, ARRAY, prior=10.0),
            "hyper_prior, ensemble_prior or no_prior",
        ),
        (lambda: hx.hyper_prior(float("nan")), "scale must be a finite number, got nan"),
        (lambda: hx.hyper_prior("10"), "scale must be a finite number, got '10'"),
        (lambda: hx.hyper_prior(radius=float("inf")), "radius must be a finite number, got inf"),
        (lambda: hx.ensemble_prior(float("-inf")), "scale must be a finite number, got -inf"),
        (lambda: hx.hyper_prior(independent=True), "independent=True needs unit_norm=True"),
        (lambda: hx.hyper_prior(mean_init="zeros"), "unknown mean_init 'zeros'"),
        (
            lambda: hx.make_hyper_network(MLP, 2, SPHERE, ARRAY, posterior_scale=float("nan")),
            "posterior_scale must be a finite number, got nan",
        ),
        (
            lambda: hx.make_epinet_network(MLP, 2, SPHERE, ARRAY, posterior_scale=float("inf")),
            "posterior_scale must be a finite number, got inf",
        ),
        (lambda: hx.make_epinet_network(MLP, 2, SPHERE, ARRAY, hidden_sizes=()), "one or more positive widths"),
        (lambda: hx.make_hypermodel_network((0,), 2, SPHERE, ARRAY), "one or more positive widths, got (0,)"),
        (
            lambda: hx.make_hypermodel_network((5,), 2, hx.indices.bernoulli_mask(3), ARRAY),
            "isotropic second moment; 'bernoulli_mask' does not",
        ),
        (
            lambda: hx.make_hyper_network(MLP, 2, SPHERE, ARRAY, num_states=7),
            "num_states is for observations that are a single integer, got an example float32[4]",
        ),
        (lambda: hx.make_hyper_network(MLP, 2, SPHERE, jnp.int32(0), num_states=0), "num_states must be a whole"),
        (lambda: hx.make_hyper_network(MLP, 2, SPHERE, "pixels"), "must consist of numbers, got 'pixels'"),
    ],
)
def test_bad_arguments_are_one_clear_line(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_scales_may_be_traced():
    def spread(scale):
        network = hx.make_hyper_network(MLP, 2, SPHERE, ARRAY, prior=hx.hyper_prior(scale), posterior_scale=scale)
        return network.belief(network.init(jax.random.key(0)), jnp.ones(4))

    one, two = jax.vmap(spread)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(two, 2 * one, rtol=1e-6)


def test_hyper_linear_is_a_head_for_modules_of_ones_own():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return hx.HyperLinear(2, 3)(nn.relu(nn.Dense(WIDTH)(x)))

    params = Network().init(jax.random.key(0), jnp.zeros(4))["params"]
    assert params["HyperLinear_0"]["kernel"].shape == (WIDTH, 2, 4)
    # The default initialisation: b on the unit sphere.
    assert np.linalg.norm(params["HyperLinear_0"]["kernel"][..., -1]) == pytest.approx(1.0, rel=1e-6)


def test_the_public_api_is_there():
    counts = collections.Counter(hx.__all__)
    assert max(counts.values()) == 1 and all(hasattr(hx, name) for name in hx.__all__)
    for name in ("make_hyper_network", "hyper_prior", "mean_and_std", "agents.make", "save_agent", "Policy"):
        assert name in hx.__doc__


@pytest.mark.parametrize("kind", ["small_conv", "atari_conv", "nature_conv", "impala_conv"])
def test_bfloat16_moves_features_by_less_than_two_percent(kind):
    shape, widths = ((10, 10, 4), (32,)) if kind in ("small_conv", "impala_conv") else ((36, 36, 4), (32,))
    spec = hx.EnvironmentSpec(3, shape, dtype="uint8")
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    torso, observation = agents_base.make_torso(widths, spec, kind)
    variables = torso.init(jax.random.key(0), observation)
    half, _ = agents_base.make_torso(widths, spec, kind, "bfloat16")
    exact, rounded = torso.apply(variables, pixels), half.apply(variables, pixels)
    assert rounded.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half.init(jax.random.key(0), observation)))
    moved = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
    assert 1e-5 < moved < 0.02  # bfloat16 has 8 bits: 2^-9 = 0.002 for one rounding, and there are up to 15 layers
