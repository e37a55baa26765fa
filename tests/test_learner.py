"""Tests of the learner and of the lazy Adam."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyperagent_jax import indices
from hyperagent_jax import lazy_adam
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import optimizers
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import priors
from hyperagent_jax.networks import torsos

NUM_STATES = 40
BATCH_SIZE = 16
DIM = 3
COMPILED = ("step", "update", "variables", "values", "value_and_grad", "apply_gradient")


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


@functools.cache
def make_network(table=True):
    return epistemic.make_hyper_network(
        torsos.OneHotMlp(NUM_STATES, (16, 8)),
        2,
        indices.sphere(DIM),
        jnp.zeros((), jnp.int32),
        prior=priors.hyper_prior(3.0),
        num_states=NUM_STATES if table else None,
    )


@functools.cache
def make_learner(optimizer="adam", target_period=4, table=True, beta=0.0, max_grad_norm=10.0, **kwargs):
    """A learner; cached, so that tests share what was compiled."""
    network = make_network(table)
    loss = losses.with_prior_regularization(losses.make_td_loss(network, sigma=0.1, **kwargs), beta)
    optimizer = {
        "adam": optimizers.Adam(max_grad_norm=max_grad_norm),
        "lazy_adam": lazy_adam.LazyAdam(max_grad_norm=max_grad_norm),
    }[optimizer]
    learner = learner_lib.make_learner(network, loss, optimizer, target_period=target_period)
    compiled = {name: jax.jit(getattr(learner, name)) for name in COMPILED}
    return learner._replace(draw=jax.jit(learner.draw, static_argnums=1), **compiled)


def make_transitions(rng, *shape, states=NUM_STATES):
    """Random transitions in numpy; a tenth of them terminates."""
    return types.Transition(
        o_tm1=rng.integers(0, states, shape).astype(np.int32),
        a_tm1=rng.integers(0, 2, shape).astype(np.int32),
        r_t=rng.normal(size=shape).astype(np.float32),
        discount_t=np.where(rng.random(shape) < 0.1, 0.0, 0.9).astype(np.float32),
        o_t=rng.integers(0, states, shape).astype(np.int32),
        z_t=rng.normal(size=(*shape, DIM)).astype(np.float32),
    )


@functools.cache
def initial_state(optimizer="adam", table=True, seed=0):
    """A learner's first state; it does not depend on the learner's other settings."""
    return jax.jit(make_learner(optimizer, table=table).init)(make_key(seed))


@functools.cache
def compiled_scan(learner):
    def step(state, inputs):
        transitions, key = inputs
        state, metrics = learner.step(state, types.Batch(transitions, jnp.array(1_000)), key)
        return state, metrics["loss"]

    return jax.jit(lambda state, transitions, keys: jax.lax.scan(step, state, (transitions, keys)))


def run(learner, state, transitions):
    """Updates on every batch of `transitions` [T, B]; returns the last state and the losses [T]."""
    return compiled_scan(learner)(state, transitions, jax.random.split(make_key(1), len(transitions.a_tm1)))


def max_difference(x, y):
    leaves = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in leaves)


# The update


@pytest.mark.parametrize("beta, max_grad_norm", [(0.0, 0.1), (5.0, 10.0)])
def test_one_step_is_adam_on_the_mean_loss(beta, max_grad_norm):
    learner = make_learner(beta=beta, max_grad_norm=max_grad_norm)
    network = make_network()
    loss = losses.make_td_loss(network, sigma=0.1)
    state = initial_state()
    transitions = make_transitions(np.random.default_rng(0), 3)
    key = make_key(3)
    noise = loss.draw(key, 3)
    params = state.params

    def mean_loss(online):
        total = 0.0
        for i in range(3):
            one, one_noise = jax.tree.map(lambda x, i=i: x[i], (transitions, noise))
            priors = [network.prior(state.prior, o) for o in (one.o_tm1, one.o_t)]
            total += loss.apply(online, params, one, *priors, one_noise) / 3
        return total + beta / 200 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(online))

    value, gradient = jax.jit(jax.value_and_grad(mean_loss))(params)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    assert 0.1 < norm < 10.0  # so that only one of the two bounds clips
    # Adam's first step: mu / (1 - b1) = g and nu / (1 - b2) = g^2.
    clipped = jax.tree.map(lambda g: g * min(1.0, max_grad_norm / norm), gradient)
    expected = jax.tree.map(lambda p, g: p - 1e-3 * g / (np.abs(g) + 1.5e-4), params, clipped)
    after, metrics = learner.step(state, types.Batch(transitions, jnp.array(200)), key)
    assert metrics["loss"] == pytest.approx(float(value), rel=1e-5)
    assert max_difference(after.params, expected) < 1e-6
    assert max_difference(after.params, params) > 5e-4
    assert after.count == 1


@pytest.mark.parametrize("optimizer, table", [("adam", False), ("adam", True), ("lazy_adam", True)])
def test_prior_is_fixed_and_unknown_to_the_optimiser(optimizer, table):
    state = initial_state(optimizer, table)
    before = jax.tree.map(np.array, state.prior)
    transitions = make_transitions(np.random.default_rng(0), 50, BATCH_SIZE)
    after, _ = run(make_learner(optimizer, table=table), state, transitions)
    assert after.count == 50
    jax.tree.map(np.testing.assert_array_equal, after.prior, before)
    learner = make_learner(optimizer, table=table)
    assert max_difference(learner.variables(after).params, learner.variables(state).params) > 1e-3
    # What is optimised is the learnable parameters and nothing else: with two moments and a target, and a
    # counter per optimiser (and per row, if lazy).
    num_params = sum(leaf.size for leaf in jax.tree.leaves(learner.variables(after).params))
    num_stored = sum(leaf.size for leaf in jax.tree.leaves((after.params, after.target_params, after.opt_state)))
    assert num_stored == 4 * num_params + 1 + (NUM_STATES if optimizer == "lazy_adam" else 0)


@pytest.mark.parametrize("target_period", [1, 4])
def test_target_is_copied_before_every_period(target_period):
    learner = make_learner(target_period=target_period)
    state = initial_state()
    rng = np.random.default_rng(0)
    online = []
    for count in range(9):
        online.append(state.params)
        # The update number `count` uses the parameters of the last multiple of the period.
        copied = count - count % target_period
        jax.tree.map(np.testing.assert_array_equal, state.target_params, online[copied])
        state, _ = learner.step(state, types.Batch(make_transitions(rng, BATCH_SIZE)), make_key(count))
        assert max_difference(state.params, online[-1]) > 1e-4


def test_moving_target_by_hand():
    network = make_network()
    learner = learner_lib.make_learner(network, losses.make_td_loss(network), optax.sgd(0.1), polyak=0.25)
    state = learner.init(jax.random.key(0))
    gradient = jax.tree.map(jnp.ones_like, state.params)
    after = learner.apply_gradient(learner.apply_gradient(state, gradient), gradient)
    # Online -0.1 and -0.2 from the start; the target a quarter of the way each time: -0.025, then -0.06875.
    expected = jax.tree.map(lambda x: x - 0.06875, state.params)
    assert max_difference(after.target_params, expected) < 1e-6
    assert max_difference(after.params, jax.tree.map(lambda x: x - 0.2, state.params)) < 1e-6


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_an_update_is_its_gradient_applied(optimizer):
    """The two halves that a loop of one's own, or a mean over devices in between, puts together."""
    learner = make_learner(optimizer)
    whole = halves = state = initial_state(optimizer)
    target = learner.variables(state).params
    rng = np.random.default_rng(0)
    for i in range(6):
        batch, noise = types.Batch(make_transitions(rng, BATCH_SIZE)), learner.draw(make_key(i), BATCH_SIZE)
        whole, metrics = learner.update(whole, batch, noise)
        params = learner.variables(halves).params
        target = params if i % 4 == 0 else target
        (value, each), gradient = learner.value_and_grad(params, target, state.prior, batch, noise)
        halves = learner.apply_gradient(halves, gradient)
        assert value == pytest.approx(float(metrics["loss"]), rel=1e-4)
        np.testing.assert_allclose(each, metrics["losses"], rtol=1e-3, atol=1e-5)
    assert max_difference(learner.variables(halves).params, learner.variables(whole).params) < 1e-5


def test_weights_enter_the_loss_and_not_the_losses():
    learner, state = make_learner(), initial_state()
    batch = types.Batch(make_transitions(np.random.default_rng(0), BATCH_SIZE))
    weights = np.linspace(0.0, 2.0, BATCH_SIZE, dtype=np.float32)
    _, plain = learner.step(state, batch, make_key(0))
    _, weighted = learner.step(state, batch._replace(weights=weights), make_key(0))
    np.testing.assert_array_equal(weighted["losses"], plain["losses"])
    assert weighted["loss"] == pytest.approx(np.mean(weights * np.asarray(plain["losses"])), rel=1e-5)


def test_steps_vmap_over_seeds():
    learner = make_learner()
    states = [initial_state(seed=seed) for seed in range(3)]
    batches = types.Batch(make_transitions(np.random.default_rng(0), 3, BATCH_SIZE), jnp.full(3, 1_000))
    keys = jax.random.split(make_key(5), 3)
    together, metrics = jax.jit(jax.vmap(learner.step))(
        jax.tree.map(lambda *x: jnp.stack(x), *states), batches, keys
    )
    assert metrics["loss"].shape == (3,)
    for i, state in enumerate(states):
        batch, one_of_all = jax.tree.map(lambda x, i=i: x[i], (batches, together))
        alone, alone_metrics = learner.step(state, batch, keys[i])
        assert metrics["loss"][i] == pytest.approx(float(alone_metrics["loss"]), rel=1e-5)
        assert max_difference(one_of_all, alone) < 1e-6


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_stored_priors_give_the_same_update(optimizer):
    learner, network = make_learner(optimizer), make_network()
    state = initial_state(optimizer)
    transitions = make_transitions(np.random.default_rng(0), BATCH_SIZE)
    prior_tm1, prior_t = (state.prior[o] for o in (transitions.o_tm1, transitions.o_t))
    np.testing.assert_array_equal(prior_tm1[0], network.prior(state.prior, transitions.o_tm1[0]))
    key = make_key(0)
    computed, metrics = learner.step(state, types.Batch(transitions), key)
    stored, stored_metrics = learner.step(state, types.Batch(transitions, None, prior_tm1, prior_t), key)
    assert stored_metrics["loss"] == pytest.approx(float(metrics["loss"]), rel=1e-6)
    assert max_difference(stored, computed) < 1e-7
    # They are used, both of them.
    for wrong in ((prior_tm1 + 1, prior_t), (prior_tm1, prior_t + 1)):
        _, other_metrics = learner.step(state, types.Batch(transitions, None, *wrong), key)
        assert abs(other_metrics["loss"] - metrics["loss"]) > 0.1


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_values_are_those_of_the_variables(optimizer):
    learner, network = make_learner(optimizer), make_network()
    transitions = make_transitions(np.random.default_rng(0), 50, BATCH_SIZE)
    state, _ = run(learner, initial_state(optimizer), transitions)
    xi = network.index.sample(make_key(0), (5,))
    variables = learner.variables(state)
    values = jax.vmap(lambda o: learner.values(state, o, xi))(jnp.arange(NUM_STATES))
    apply = jax.vmap(jax.vmap(network.apply, (None, None, 0)), (None, 0, None))
    np.testing.assert_allclose(values, apply(variables, jnp.arange(NUM_STATES), xi), rtol=1e-5, atol=1e-5)


def test_errors():
    network = make_network()
    loss = losses.make_td_loss(network)
    with pytest.raises(ValueError, match="target_period must be at least 1, got 0"):
        learner_lib.make_learner(network, loss, lazy_adam.LazyAdam(), target_period=0)
    with pytest.raises(ValueError, match="regulariser.*use Adam"):
        regularized = losses.with_prior_regularization(loss, 0.1)
        learner_lib.make_learner(network, regularized, lazy_adam.LazyAdam())
    with pytest.raises(ValueError, match="gradients at o_t.*use Adam"):  # of a loss of one's own nothing is known
        learner_lib.make_learner(network, losses.Loss(loss.draw, loss.apply), lazy_adam.LazyAdam())
    dense = epistemic.make_hyper_network(torsos.Mlp((4,)), 2, indices.sphere(DIM), jnp.zeros(3))
    with pytest.raises(ValueError, match="needs parameters named 'rows'"):
        learner_lib.make_learner(dense, losses.make_td_loss(dense), lazy_adam.LazyAdam())


def test_what_a_batch_must_have():
    network = make_network()
    noisy = losses.make_td_loss(network, sigma=0.1)
    batch = types.Batch(make_transitions(np.random.default_rng(0), BATCH_SIZE))
    state = initial_state()

    def step(loss, batch):
        return learner_lib.make_learner(network, loss, optimizers.Adam()).step(state, batch, make_key(0))

    for z_t, shape in ((np.zeros((BATCH_SIZE, 1)), "(1,)"), (np.zeros(BATCH_SIZE), "()"), (None, "None")):
        with pytest.raises(ValueError, match=re.escape(f"must have the index's shape (3,), got {shape}")):
            step(noisy, batch._replace(transitions=batch.transitions._replace(z_t=z_t)))
    with pytest.raises(ValueError, match="needs the batch's replay_size"):
        step(losses.with_prior_regularization(noisy, 0.1), batch)
    # Without sigma there is no use for z.
    plain = losses.make_td_loss(network)
    given = step(plain, batch)[1]["losses"]
    absent = step(plain, batch._replace(transitions=batch.transitions._replace(z_t=None)))[1]["losses"]
    np.testing.assert_array_equal(given, absent)


@pytest.mark.parametrize("optimizer", ["adam", "lazy_adam"])
def test_a_new_state_can_be_donated(optimizer):
    learner = make_learner(optimizer)
    batch = types.Batch(make_transitions(np.random.default_rng(0), BATCH_SIZE), jnp.array(1_000))
    expected, _ = learner.step(learner.init(jax.random.key(0)), batch, make_key(0))
    found, _ = jax.jit(learner.step, donate_argnums=0)(learner.init(jax.random.key(0)), batch, make_key(0))
    assert max_difference(expected, found) == 0.0


# The lazy Adam


@pytest.fixture(scope="module")
def skewed_transitions():
    """Batches in which states repeat, and in which the rare ones rest for hundreds of updates."""
    rng = np.random.default_rng(0)
    num_updates = 600
    weights = np.exp(-np.arange(NUM_STATES) / 6)
    weights /= weights.sum()
    transitions = make_transitions(rng, num_updates, BATCH_SIZE)
    o_tm1, o_t = rng.choice(NUM_STATES, (2, num_updates, BATCH_SIZE), p=weights).astype(np.int32)
    assert np.mean([len(np.unique(states)) for states in o_tm1]) < 0.8 * BATCH_SIZE
    seen = [np.flatnonzero(np.any(o_tm1 == state, axis=1)) for state in range(NUM_STATES)]
    assert max(np.max(np.diff(times), initial=0) for times in seen) > 300  # between two of its own updates
    return transitions._replace(o_tm1=o_tm1, o_t=o_t)


@pytest.mark.parametrize("target_period", [1, 3, 4])
def test_lazy_adam_equals_adam(target_period, skewed_transitions):
    max_grad_norm = 0.5
    kwargs = dict(target_period=target_period, max_grad_norm=max_grad_norm)
    dense, lazy = (make_learner(optimizer, **kwargs) for optimizer in ("adam", "lazy_adam"))
    dense_state, dense_losses = run(dense, initial_state("adam"), skewed_transitions)
    lazy_state, lazy_losses = run(lazy, initial_state("lazy_adam"), skewed_transitions)
    assert max_difference(lazy.variables(lazy_state).params, dense.variables(dense_state).params) < 1e-5
    # The losses also depend on the target parameters, and on every update on the way.
    np.testing.assert_allclose(lazy_losses, dense_losses, rtol=1e-4, atol=1e-5)
    # It would not pass if resting rows rested: what they have stored is behind by far more than that.
    rows = lazy.variables(lazy_state).params["torso"]["rows"]
    stored = lazy_state.opt_state.rows[:, : rows.shape[1]]
    assert max_difference(stored, rows) > 1e-4
    # Clipping was active: the running mean of the squared norms of gradients is close to the bound.
    nu = optax.tree.get(dense_state.opt_state, "nu")
    squared_norm = sum(np.sum(leaf) for leaf in jax.tree.leaves(nu)) / (1 - 0.999 ** len(dense_losses))
    assert 0.5 * max_grad_norm**2 < squared_norm < 0.999 * max_grad_norm**2


def coast(adam, mu, nu, updated, age):
    """How far `age` Adam steps without gradient after `updated` ones move parameters, in float64."""
    moved = np.zeros_like(mu)
    for time in range(updated + 1, updated + age + 1):
        mu, nu = adam.b1 * mu, adam.b2 * nu
        root = np.sqrt(nu / (1 - adam.b2**time))
        moved -= adam.learning_rate * mu / (1 - adam.b1**time) / (root + adam.eps)
    return moved, mu, nu


# Second moments from far below to far above eps^2, and first moments of either sign.
NU = 10.0 ** np.arange(-13, 3)
MU = 0.3 * np.sqrt(NU) * (-1.0) ** np.arange(len(NU))


def test_the_reference_is_optax():
    adam = optimizers.Adam()
    transformation = optax.adam(adam.learning_rate, adam.b1, adam.b2, adam.eps)
    state = transformation.init(jnp.zeros(len(NU)))
    state = (state[0]._replace(count=jnp.array(7), mu=jnp.float32(MU), nu=jnp.float32(NU)), *state[1:])
    params = jnp.zeros(len(NU))
    for _ in range(20):
        updates, state = transformation.update(jnp.zeros(len(NU)), state)
        params = optax.apply_updates(params, updates)
    moved, mu, nu = coast(adam, MU, NU, 7, 20)
    np.testing.assert_allclose(params, moved, rtol=1e-5)
    np.testing.assert_allclose(state[0].mu, mu, rtol=1e-5)
    np.testing.assert_allclose(state[0].nu, nu, rtol=1e-5)


def advance_rows(adam, updated, age):
    """RowAdvance on one row of zeros, MU and NU for every pair of `updated` and `age`."""
    updated, age = np.array(updated), np.array(age)
    rows = lazy_adam.Rows(*(np.tile(np.float32(x), (len(updated), 1)) for x in (0 * MU, MU, NU)))
    return lazy_adam.RowAdvance(adam)(rows, jnp.asarray(updated), jnp.asarray(updated + age))


@pytest.mark.parametrize("updated", [1, 2, 5, 20, 100, 129, 1_000, 50_000])
def test_row_advance_equals_steps_without_gradient(updated):
    adam = lazy_adam.LazyAdam()
    ages = [1, 2, 3, 7, 20, 64, 256, 257, 1_000]
    tolerance = 1e-2 if updated < 100 else 1e-5
    rows = advance_rows(adam, [updated] * len(ages), ages)
    for i, age in enumerate(ages):
        moved, mu, nu = coast(adam, MU, NU, updated, age)
        np.testing.assert_allclose(rows.value[i], moved, rtol=tolerance, err_msg=str(age))
        np.testing.assert_allclose(rows.mu[i], mu, rtol=1e-3, atol=1e-30, err_msg=str(age))
        np.testing.assert_allclose(rows.nu[i], nu, rtol=1e-3, err_msg=str(age))


def test_row_advance_never_goes_back():
    rows = advance_rows(lazy_adam.LazyAdam(), [10, 10], [0, -3])
    np.testing.assert_array_equal(rows.value, np.zeros((2, len(NU))))
    np.testing.assert_allclose(rows.mu, np.tile(MU, (2, 1)), rtol=1e-6)
    np.testing.assert_allclose(rows.nu, np.tile(NU, (2, 1)), rtol=1e-6)


@pytest.mark.parametrize("constants", [dict(b1=0.5), dict(b1=0.01), dict(b2=0.99), dict(b2=0.9999)])
def test_row_advance_with_other_decay_rates(constants):
    adam = lazy_adam.LazyAdam(**constants)
    pairs = [(200, 1), (200, 100), (1_000, 30)]
    rows = advance_rows(adam, *zip(*pairs, strict=True))
    for i, (updated, age) in enumerate(pairs):
        moved, _, _ = coast(adam, MU, NU, updated, age)
        np.testing.assert_allclose(rows.value[i], moved, rtol=1e-5, err_msg=str((updated, age)))


@pytest.mark.parametrize("constants", [dict(b1=0.0), dict(b1=0.99), dict(b2=0.9), dict(b2=1.0)])
def test_decay_rates_that_would_be_wrong_are_refused(constants):
    # The rules of RowAdvance end where 0.9 ** n is nothing; with b1 = 0.99 moves would be wrong by a third.
    network = make_network()
    with pytest.raises(ValueError, match="LazyAdam needs.*use Adam"):
        learner_lib.make_learner(network, losses.make_td_loss(network), lazy_adam.LazyAdam(**constants))
