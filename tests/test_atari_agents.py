"""Tests of the agents' settings for Atari and of what their losses add, against numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyperagent_jax import agents
from hyperagent_jax import indices
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import torsos

PIXELS = types.EnvironmentSpec(num_actions=6, observation_shape=(84, 84, 4))
BATCH = 3


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def test_presets_are_the_tables():
    for preset, expected in (
        (
            "paper",
            {
                "learning_rate": 1e-3,
                "prior_regularization": 0.01,
                "head_regularization": 0.0,
                "gradient_penalty": 0.0,
            },
        ),
        (
            "released",
            {
                "learning_rate": 1e-4,
                "prior_regularization": 0.0,
                "head_regularization": 0.01,
                "gradient_penalty": 0.01,
            },
        ),
    ):
        for name in ("hyperagent", "hyperagent_ois", "ddqn"):
            config = atari_presets.configs(preset)[name]()
            assert type(config) is agents.CONFIGS[name].config_class
            common = dict(
                hidden_sizes=(256,),
                batch_size=32,
                n_step=5,
                target_period=5,
                updates_per_step=1,
                min_replay=2_000,
                replay_capacity=500_000,
                discount=0.99,
                adam_eps=1.5e-4,
                max_grad_norm=10.0,
                double_q=True,
            )
            if name != "ddqn":
                common |= dict(
                    index_dim=4,
                    num_indices=20,
                    sigma=0.01,
                    prior_scale=0.1,
                    posterior_scale=0.1,
                    prior_std=0.1,
                    num_ois=5 if name == "hyperagent_ois" else 1,
                )
            for field, value in {**common, **expected}.items():
                assert getattr(config, field) == value, (preset, name, field)
    with pytest.raises(ValueError, match="unknown preset 'best'; choose one of paper, released"):
        atari_presets.configs("best")
    with pytest.raises(ValueError, match="hidden_sizes must be a single width for pixels"):
        agents.make_agent("ddqn", atari_presets.configs("paper")["ddqn"](hidden_sizes=(64, 64)), PIXELS)


def test_parameters_of_the_authors_networks():
    """Learnable parameters with 18 actions, counted from the layers of their released code."""
    pixels = PIXELS._replace(num_actions=18)
    found = {
        name: agents.count_params(agents.make_agent(name, preset(), pixels))
        for name, preset in atari_presets.configs("authors").items()
    }
    assert found == {
        "noisy_net": 3_308_740,
        "langevin_adam": 1_693_362,
        "adam_lmc": 1_693_362,
        "sane": 2_496_531 + 160,  # its convolutions have no biases
        "rainbow": 7_496_754,
        "der": 1_143_410,
    }


@pytest.mark.parametrize("name", ["bootdqn", "ensemble_plus_os", "hyperdqn", "enndqn", "sane", "bayes_ucbdqn"])
def test_every_system_takes_pixels(name):
    spec = types.EnvironmentSpec(3, (36, 36, 2), dtype="uint8")
    preset = atari_presets.configs("paper")[name]
    network = agents.make_agent(name, preset(hidden_sizes=(5,)), spec).network
    variables = jax.jit(network.init)(make_key(0))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 36, 36, 2)).astype(np.uint8)
    xi = jax.jit(network.index.sample, static_argnums=1)(make_key(2), ())
    values = jax.jit(jax.vmap(network.apply, (None, 0, None)))(variables, pixels, xi)
    assert values.shape == (2, 3) and np.all(np.isfinite(values)) and np.any(values[0] != values[1])
    if name == "enndqn":  # its epinet sees the features, not 2,592 pixels
        assert variables.params["epinet_input"]["kernel"].shape == (5, 50)


def test_differences_of_presets():
    assert atari_presets.differences("paper", "paper") == ""
    assert atari_presets.differences("paper", "released") == (
        "learning_rate=0.0001, prior_regularization=0.0, head_regularization=0.01, gradient_penalty=0.01"
    )


def test_released_preset_updates_the_convolutions():
    """Its loss is the paper preset's plus the gradient penalty and the other regulariser, both positive."""
    agent, state = make_state("hyperagent", "released")
    batch, key = make_batch(agent, np.random.default_rng(0)), make_key(1)
    new, metrics = jax.jit(agent.learner.step)(state, batch, key)
    assert np.isfinite(metrics["loss"]) and metrics["loss"] > jnp.mean(metrics["losses"])
    before, after = (agent.learner.variables(x).params["torso"] for x in (state, new))
    for old, moved in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert 0 < np.abs(old - moved).max() <= 1.01e-4  # Adam's first step, by the learning rate


# Forward 9: o_tm1 online, o_t online and target. Back 5: to the kernels, and to all inputs but the pixels. The
# penalty has 5 back for the gradient of the mean value, 5 forward in its direction (of kernels, and of inputs but
# the pixels) and 4 by which that changes the pass back; the rest of this pass is the loss's own.
@pytest.mark.parametrize("preset, convolutions", [("paper", 14), ("released", 28)])
@pytest.mark.parametrize("name", ["hyperagent", "ddqn"])
def test_number_of_convolutions(name, preset, convolutions):
    agent, state = make_state(name, preset)
    batch = make_batch(agent, np.random.default_rng(0))
    lowered = jax.jit(agent.learner.step).lower(state, batch, make_key(1))
    assert lowered.as_text().count("stablehlo.convolution") == convolutions


@functools.cache
def make_state(name, preset="paper"):
    agent = agents.make_agent(name, atari_presets.configs(preset)[name](), PIXELS)
    return agent, jax.jit(agent.learner.init)(make_key(0))


def make_batch(agent, rng):
    pixels = rng.integers(0, 256, (2, BATCH, 84, 84, 4)).astype(np.uint8)
    prior = rng.normal(size=(2, BATCH, 6, agent.network.index.dim + 1)).astype(np.float32)
    transitions = types.Transition(
        pixels[0],
        np.array([0, 5, 2], np.int32),
        np.array([1.5, -1.0, 0.0], np.float32),
        np.array([0.99**5, 0.0, 0.99**2], np.float32),
        pixels[1],
        rng.normal(size=(BATCH, agent.perturbation.dim)).astype(np.float32),
    )
    return types.Batch(transitions, np.int32(1_000), *prior)


def coefficients_of(params, pixels, scale):
    """scale <phi(s), [A b]> in numpy from the torso's features, [n, 6, M + 1]; plain heads have a bias."""
    phi = jax.jit(jax.vmap(lambda o: torsos.AtariConv().apply({"params": params["torso"]}, o)))(pixels)
    out = np.einsum("nh,ham->nam", np.asarray(phi, np.float64), np.asarray(params["head"]["kernel"], np.float64))
    return scale * (out + np.asarray(params["head"].get("bias", np.zeros((1, 1, 1)))))


@pytest.mark.parametrize("name", ["hyperagent", "hyperagent_ois", "ddqn"])
def test_loss_in_numpy(name):
    agent, state = make_state(name)
    batch = make_batch(agent, np.random.default_rng(0))
    key = make_key(1)
    noise = agent.learner.draw(key, BATCH)
    params = state.params
    scale = 1.0 if name == "ddqn" else 0.1
    t = batch.transitions
    belief_tm1 = coefficients_of(params, t.o_tm1, scale) + batch.prior_tm1
    belief_t = coefficients_of(params, t.o_t, scale) + batch.prior_t
    expected = []
    for i in range(BATCH):
        targets = [
            np.max(belief_t[i, :, :-1] @ np.asarray(xi, np.float64) + belief_t[i, :, -1])
            for xi in noise.target_indices[i]
        ]  # online and target parameters are still the same, so the plain maximum is double Q's
        row = belief_tm1[i, t.a_tm1[i]]
        error = t.r_t[i] + t.discount_t[i] * max(targets) - row[-1]
        # sigma xi^T z with xi on the unit sphere and |z|^2 = M in the mean: c = 1 / M.
        spread = 0.01 * t.z_t[i] - row[:-1]
        expected.append(error**2 + (np.sum(spread**2) / len(spread) if len(spread) else 0.0))
    squares = sum(np.sum(np.square(np.asarray(x, np.float64))) for x in jax.tree.leaves(params))
    after, metrics = jax.jit(agent.learner.update)(state, batch, noise)
    np.testing.assert_allclose(metrics["losses"], expected, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(np.mean(expected) + 0.01 / 1_000 * squares, rel=1e-4)
    assert after.count == 1


def test_hyperagent_has_as_many_parameters_as_the_released_code():
    _, state = make_state("hyperagent")
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == 888_736
    _, plain = make_state("ddqn")
    assert sum(leaf.size for leaf in jax.tree.leaves(plain.params)) == 888_736 - 256 * 6 * 4 + 6


def test_prior_is_that_of_the_released_code():
    agent, state = make_state("hyperagent")
    kernel = np.asarray(state.prior["head"]["kernel"])
    np.testing.assert_allclose(np.linalg.norm(kernel[..., :-1], axis=-1), 0.1, rtol=1e-5)
    assert np.std(kernel[..., -1]) == pytest.approx(np.sqrt(2 / (256 + 6)), rel=0.1)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 84, 84, 4)).astype(np.uint8)
    belief = jax.jit(agent.network.prior)(state.prior, pixels[0])
    np.testing.assert_allclose(belief, coefficients_of(state.prior, pixels, 0.1)[0], rtol=1e-3, atol=1e-5)


# What losses add


WIDTHS = (4, 5, 3)  # inputs, hidden units, actions


def plain_network():
    return epistemic.make_plain_network(torsos.Mlp(WIDTHS[1:2]), WIDTHS[2], jnp.zeros(WIDTHS[0]))


def numpy_objective(params, target, batch, factor):
    """Mean TD loss of double Q and factor |grad of the mean value|^2 of a network with one hidden layer."""

    def forward(p, x):
        hidden = np.maximum(x @ p["torso"]["layer_0"]["kernel"] + p["torso"]["layer_0"]["bias"], 0)
        return hidden, hidden @ p["head"]["kernel"][..., 0] + p["head"]["bias"][0, :, 0]

    t = batch.transitions
    rows = np.arange(len(t.a_tm1))
    hidden, q = forward(params, t.o_tm1)
    value = q[rows, t.a_tm1]
    bootstrap = forward(target, t.o_t)[1][rows, np.argmax(forward(target, t.o_t)[1], axis=1)]
    loss = np.mean((t.r_t + t.discount_t * bootstrap - value) ** 2)
    one_hot = np.eye(WIDTHS[2])[t.a_tm1] / len(rows)
    behind = (one_hot @ params["head"]["kernel"][..., 0].T) * (hidden > 0)
    gradient = [hidden.T @ one_hot, one_hot.sum(0), t.o_tm1.T @ behind, behind.sum(0)]
    return loss + factor * sum(np.sum(g**2) for g in gradient)


def test_gradient_penalty_against_numpy():
    factor, learning_rate = 0.7, 1e-3
    network = plain_network()
    loss = losses.with_gradient_penalty(losses.make_td_loss(network), factor)
    learner = learner_lib.make_learner(network, loss, optax.sgd(learning_rate))
    state = jax.jit(learner.init)(make_key(0))
    rng = np.random.default_rng(0)
    batch = types.Batch(
        types.Transition(
            rng.normal(size=(6, 4)),
            rng.integers(0, 3, 6),
            rng.normal(size=6),
            np.full(6, 0.9),
            rng.normal(size=(6, 4)),
            np.zeros((6, 0)),
        )
    )
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), state.params)
    after, metrics = jax.jit(learner.step)(state, batch, make_key(1))
    without = numpy_objective(params, params, batch, 0.0)
    expected = numpy_objective(params, params, batch, factor)
    assert expected > 1.05 * without
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    flat, treedef = jax.tree.flatten(params)
    moved = jax.tree.leaves(after.params)
    for i, leaf in enumerate(flat):
        for j in range(leaf.size):
            values = []
            for sign in (1.0, -1.0):
                changed = [x.copy() for x in flat]
                changed[i].reshape(-1)[j] += sign * 1e-6
                values.append(numpy_objective(jax.tree.unflatten(treedef, changed), params, batch, factor))
            slope = (values[0] - values[1]) / 2e-6
            step = (leaf.reshape(-1)[j] - np.asarray(moved[i], np.float64).reshape(-1)[j]) / learning_rate
            assert step == pytest.approx(slope, abs=1e-3)


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_value_of_the_penalty_is_the_mean_over_the_losses_indices(kind):
    index = indices.sphere(3)
    network = epistemic.make_hyper_network(torsos.Mlp((8,)), 2, index, jnp.zeros(4))
    loss = losses.make_td_loss(network, kind=kind, num_indices=7, sigma=0.1)
    variables = jax.jit(network.init)(make_key(0))
    rng = np.random.default_rng(0)
    transition = types.Transition(rng.normal(size=4), 1, 0.5, 0.9, rng.normal(size=4), rng.normal(size=3))
    noise = jax.tree.map(lambda x: x[0], loss.draw(make_key(2), 1))
    priors = [network.prior(variables.prior, o) for o in (transition.o_tm1, transition.o_t)]
    arguments = (variables.params, variables.params, transition, *priors, noise)
    (value, mean), alone = jax.jit(lambda *x: (loss.apply_with_value(*x), loss.apply(*x)))(*arguments)
    assert value == alone
    if kind == "exact":
        expected = network.belief(variables, transition.o_tm1)[1, -1]
    else:
        expected = np.mean([network.apply(variables, transition.o_tm1, xi)[1] for xi in noise.indices])
    assert mean == pytest.approx(float(expected), rel=1e-5)


def test_head_regularization_is_the_mean_square_of_generated_weights():
    network = epistemic.make_hyper_network(torsos.Mlp((8,)), 2, indices.sphere(3), jnp.zeros(4))
    loss = losses.make_td_loss(network)
    params = jax.jit(network.init)(make_key(0)).params
    regularizer = losses.with_head_regularization(loss, network, 0.4).regularizer
    kernel = np.asarray(params["head"]["kernel"])
    xi = np.asarray(network.index.sample(make_key(1), (100_000,)))
    generated = kernel[..., :-1].reshape(-1, 3) @ xi.T + kernel[..., -1].reshape(-1, 1)
    assert regularizer(params, jnp.array(50)) == pytest.approx(0.4 / 50 * np.mean(generated**2), rel=0.01)
    both = losses.with_prior_regularization(losses.with_head_regularization(loss, network, 0.4), 0.3).regularizer
    squares = sum(np.sum(np.square(x)) for x in jax.tree.leaves(params))
    assert both(params, jnp.array(50)) == pytest.approx(
        float(regularizer(params, jnp.array(50))) + 0.3 / 50 * squares, rel=1e-6
    )
    assert losses.with_head_regularization(loss, network, 0.0).regularizer is None
    ensemble = epistemic.make_ensemble_network(torsos.Mlp((8,)), 2, 3, jnp.zeros(4))
    with pytest.raises(ValueError, match="needs a generated last layer"):
        losses.with_head_regularization(losses.make_td_loss(ensemble, kind="enumerated"), ensemble, 0.1)
