"""Tests of the losses: by hand, against rlax, and the exact against the sampled one."""

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from hyperagent_jax import indices
from hyperagent_jax import losses
from hyperagent_jax import prng
from hyperagent_jax import types
from hyperagent_jax.networks import epistemic
from hyperagent_jax.networks import priors as priors_lib
from hyperagent_jax.networks import torsos
from hyperagent_jax.tabular import closed_form


def make_key(seed):
    return prng.hash_key(jax.random.key(seed))  # compiles faster than threefry


def make_table_network(index, is_linear=True):
    """A network whose parameters are the coefficients themselves, [num_states, num_actions, M + 1]."""
    return epistemic.EpistemicNetwork(
        init=None,
        prior=lambda prior, o: prior[o],
        posterior=lambda params, o, prior_belief: params[o] + prior_belief,
        value=lambda params, belief, xi: epistemic.evaluate_coefficients(belief, xi),
        index=index,
        is_linear=is_linear,
    )


# Three states, two actions, M = 2; the last column is the mean.
ONLINE = jnp.array(
    [
        [[1.0, 0.0, 2.0], [0.5, -1.0, 3.0]],
        [[1.0, 0.0, 4.0], [0.0, 2.0, 3.0]],
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ]
)
TARGET = jnp.array(
    [
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
        [[0.0, 1.0, 1.0], [1.0, 1.0, 5.0]],
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
    ]
)
NO_PRIOR = jnp.zeros((2, 3))
TRANSITION = types.Transition(
    o_tm1=jnp.array(0),
    a_tm1=jnp.array(1),
    r_t=jnp.array(0.5),
    discount_t=jnp.array(0.9),
    o_t=jnp.array(1),
    z_t=jnp.array([2.0, -1.0]),
)


def sigma_for(factor, index):
    """The sigma that makes xi^T z enter the loss with this factor: the noise's standard deviation, z being
    drawn from scaled_sphere, whose second moment is 1."""
    return factor * np.sqrt(index.dim * index.second_moment)


def table_loss(loss_indices=None, target_indices=None, index="gaussian", is_linear=True, factor=0.0, **kwargs):
    """The loss of TRANSITION under ONLINE and TARGET with given indices; xi^T z enters with `factor`."""
    network = make_table_network(indices.make(index, 2), is_linear)
    loss = losses.make_td_loss(network, sigma=sigma_for(factor, network.index), **kwargs)
    noise = losses.LossNoise(*(None if x is None else jnp.array(x) for x in (loss_indices, target_indices)))
    return jax.jit(loss.apply)(ONLINE, TARGET, TRANSITION, NO_PRIOR, NO_PRIOR, noise)


# Values by hand. At o_t and index (x, y) the online network has the values (4 + x, 3 + 2 y), the target
# network (1 + y, 5 + x + y).


@pytest.mark.parametrize("double_q, target", [(False, 6.0), (True, 1.0)])
@pytest.mark.parametrize("index, c", [("gaussian", 1.0), ("sphere", 0.5)])
def test_exact_loss_by_hand(double_q, target, index, c):
    # Target index (1, 0): the plain maximum is 6; the online network selects action 0, worth 1.
    # y = 0.5 + 0.9 * target; mu = 3, m = (0.5, -1), z = (2, -1).
    value = table_loss(None, [[1.0, 0.0]], index, kind="exact", factor=0.1, double_q=double_q)
    spread = (0.1 * 2 - 0.5) ** 2 + (0.1 * -1 + 1) ** 2
    assert value == pytest.approx((0.5 + 0.9 * target - 3) ** 2 + c * spread, rel=1e-5)


def test_residual_of_the_exact_loss_by_hand():
    # As above: y - mu = 0.5 + 0.9 * 6 - 3 = 2.9, which multiplies z on top of sigma.
    half = sigma_for(0.5, indices.gaussian(2))
    value = table_loss(None, [[1.0, 0.0]], kind="exact", factor=0.1, residual=half, double_q=False)
    scale = 0.1 + 0.5 * 2.9
    assert value == pytest.approx(2.9**2 + (scale * 2 - 0.5) ** 2 + (-scale + 1) ** 2, rel=1e-5)


def test_residual_of_the_sampled_loss_by_hand():
    # Q is 1.5 and 2, so the errors are 4.4 and 3.9 and their average 4.15; xi^T z is 0 and -2.5.
    half = sigma_for(0.5, indices.gaussian(2))
    value = table_loss(
        [[1.0, 2.0], [-1.0, 0.5]], [[1.0, 0.0]], kind="sampled", factor=0.1, residual=half, double_q=False
    )
    assert value == pytest.approx((4.4**2 + (3.9 - 2.5 * (0.1 + 0.5 * 4.15)) ** 2) / 2, rel=1e-5)


def test_residual_has_no_gradient_of_its_own():
    def loss_of(mean, residual):
        coefficients = jnp.array([[0.5, -1.0, 0.0]]).at[0, -1].set(mean)
        q_t = jnp.zeros((1, 1))
        return losses.exact_td_loss(
            coefficients,
            jnp.array(0),
            jnp.array(2.0),
            jnp.array(0.0),
            q_t,
            None,
            TRANSITION.z_t,
            0.1,
            1.0,
            residual,
        )

    assert jax.grad(loss_of)(3.0, 0.7) == pytest.approx(2.0)  # of (2 - mu)^2 alone
    assert loss_of(3.0, 0.7) != pytest.approx(loss_of(3.0, 0.0))


def test_residual_converges_to_the_error_of_the_mean():
    # One action with n rewards of known noise, 4,000 problems at once, each solved by its normal equations: where
    # the gradient of the batch's loss is zero. The spread of the values is s / sqrt(n), less a part of 1 / n.
    n, noise, dim, problems = 8, 1.5, 4, 4_000
    rng = np.random.default_rng(0)
    rewards = 0.7 + noise * rng.normal(size=(problems, n))
    z = np.asarray(indices.scaled_sphere(dim).sample(jax.random.key(1), (problems, n)))
    mean = rewards.mean(1)
    m = np.asarray(jax.vmap(closed_form.residual_perturbation)(rewards, z))
    network = make_table_network(indices.sphere(dim))
    loss = losses.make_td_loss(network, residual=1.0)

    def batch_loss(coefficients, rewards, z):
        def of_one(reward, z):
            t = types.Transition(jnp.array(0), jnp.array(0), reward, jnp.array(0.0), jnp.array(0), z)
            noise = losses.LossNoise(None, jnp.zeros((1, dim)))
            return loss.apply(coefficients, coefficients, t, jnp.zeros(()), jnp.zeros(()), noise)

        return jnp.mean(jax.vmap(of_one)(rewards, z))

    found = jnp.asarray(np.concatenate([m, mean[:, None]], 1)[:, None, None], jnp.float32)
    gradient = jax.jit(jax.vmap(jax.grad(batch_loss)))(found, jnp.asarray(rewards, jnp.float32), jnp.asarray(z))
    np.testing.assert_allclose(gradient, 0, atol=1e-5)
    variance = np.mean(np.sum(m**2, 1)) / dim  # of m^T xi, xi on the unit sphere
    assert variance == pytest.approx(noise**2 / n * (1 - 1 / n), rel=0.03)


@pytest.mark.parametrize("is_linear", [True, False])
@pytest.mark.parametrize("double_q, target", [(False, 6.0), (True, 1.0)])
def test_sampled_loss_by_hand(double_q, target, is_linear):
    loss_indices = [[1.0, 2.0], [-1.0, 0.5]]
    value = table_loss(
        loss_indices, [[1.0, 0.0]], is_linear=is_linear, kind="sampled", factor=0.1, double_q=double_q
    )
    # xi^T z is 0 and -2.5; Q is 3 + 0.5 - 2 = 1.5 and 3 - 0.5 - 0.5 = 2.
    errors = [0.5 + 0.9 * target - 1.5, 0.5 - 0.25 + 0.9 * target - 2]
    assert value == pytest.approx(np.mean(np.square(errors)), rel=1e-5)


@pytest.mark.parametrize("kind", ["exact", "sampled"])
@pytest.mark.parametrize("double_q, best", [(False, 5.5), (True, 4.5)])
def test_optimistic_target_by_hand(kind, double_q, best):
    # Online (2, 5), (4.5, 3), (3, 4); target (2, 4), (1, 5.5), (1.5, 4.5). Plain maxima: 4, 5.5, 4.5. The
    # online network selects actions 1, 0, 1, which are worth 4, 1, 4.5.
    target_indices = [[-2.0, 1.0], [0.5, 0.0], [-1.0, 0.5]]
    value = table_loss([[0.0, 0.0]], target_indices, kind=kind, num_ois=3, double_q=double_q)
    spread = 0.5**2 + 1.0 if kind == "exact" else 0.0  # xi = 0 has no share of it
    assert value == pytest.approx((0.5 + 0.9 * best - 3) ** 2 + spread, rel=1e-5)


@pytest.mark.parametrize("double_q", [False, True])
def test_dependent_target_by_hand(double_q):
    # Every loss index is its own target index.
    value = table_loss(
        [[1.0, 0.0], [0.0, 1.0]], None, kind="sampled", factor=0.1, target_index="dependent", double_q=double_q
    )
    # (1, 0): xi^T z = 2, Q = 3.5, target 6 or, double, 1.  (0, 1): xi^T z = -1, Q = 2, target 6 both ways.
    errors = [0.5 + 0.2 + 0.9 * (1.0 if double_q else 6.0) - 3.5, 0.5 - 0.1 + 0.9 * 6.0 - 2.0]
    assert value == pytest.approx(np.mean(np.square(errors)), rel=1e-5)


# Ensembles: the index e_i chooses member i, so with M = 2 the values of ONLINE at o_tm1 are 3.5 and 2 for the
# action taken, z = (2, -1) becomes the masks (2, 0).
MASKED = TRANSITION._replace(z_t=jnp.array([2.0, 0.0]))


def ensemble_loss(transition, **kwargs):
    loss = losses.make_td_loss(
        make_table_network(indices.coordinate(2)), kind="enumerated", is_masked=True, **kwargs
    )
    assert loss.perturbation.name == "bernoulli_mask" and loss.perturbation.dim == 2
    assert loss.draw(jax.random.key(0), 3) == losses.LossNoise(None, None)
    return loss.apply(ONLINE, TARGET, transition, NO_PRIOR, NO_PRIOR, losses.LossNoise(None, None))


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("masks", [(2.0, 0.0), (0.0, 2.0), (2.0, 2.0)])
def test_bootstrapped_ensemble_by_hand(masks, double_q):
    # Every member has its own target (eq. q-loss-ensemble). At o_t member 1 has (5, 3) online and (1, 6) as
    # target, member 2 (4, 5) and (2, 6).
    targets = (1.0, 6.0) if double_q else (6.0, 6.0)
    expected = np.mean(
        [mask * (0.5 + 0.9 * target - q) ** 2 for mask, target, q in zip(masks, targets, (3.5, 2.0), strict=True)]
    )
    value = ensemble_loss(TRANSITION._replace(z_t=jnp.array(masks)), target_index="dependent", double_q=double_q)
    assert value == pytest.approx(expected, rel=1e-5)


def test_optimistic_ensemble_by_hand():
    # Plain maxima of the members 6 and 6; with double Q the selected actions are worth 1 and 6: the best is 6.
    for double_q in (False, True):
        value = ensemble_loss(MASKED, target_index="all", double_q=double_q)
        assert value == pytest.approx(0.5 * 2.0 * (0.5 + 0.9 * 6.0 - 3.5) ** 2, rel=1e-5)
    own = ensemble_loss(MASKED, target_index="dependent")  # member 1 has no better target than 1 itself
    assert own == pytest.approx(0.5 * 2.0 * (0.5 + 0.9 * 1.0 - 3.5) ** 2, rel=1e-5)


def test_masked_loss_is_the_mean_of_the_sampled_one():
    network = make_table_network(indices.coordinate(2))
    sampled = losses.make_td_loss(
        network, kind="sampled", is_masked=True, target_index="dependent", num_indices=20_000
    )
    noise = jax.tree.map(lambda x: x[0], sampled.draw(jax.random.key(0), 1))
    value = sampled.apply(ONLINE, TARGET, MASKED, NO_PRIOR, NO_PRIOR, noise)
    # Only member 1 counts, half of the time: 5 standard errors of that share.
    exact = ensemble_loss(MASKED, target_index="dependent")
    assert value == pytest.approx(float(exact), rel=5 / np.sqrt(20_000))


def test_loss_without_an_index_is_the_squared_td_error():
    network = make_table_network(indices.no_index())
    loss = losses.make_td_loss(network, kind="exact")
    noise = loss.draw(jax.random.key(0), 1)
    assert noise.target_indices.shape == (1, 1, 0)
    online, target = ONLINE[..., -1:], TARGET[..., -1:]
    value = loss.apply(
        online,
        target,
        TRANSITION._replace(z_t=jnp.zeros(0)),
        NO_PRIOR[:, :1],
        NO_PRIOR[:, :1],
        jax.tree.map(lambda x: x[0], noise),
    )
    # The online network's means at o_t are (4, 3), so action 0, whose target is 1.
    assert value == pytest.approx((0.5 + 0.9 * 1.0 - 3) ** 2, rel=1e-5)


def test_prior_enters_both_sides():
    network = make_table_network(indices.gaussian(2))
    loss = losses.make_td_loss(network, double_q=False)
    prior_tm1, prior_t = jnp.array([[9.0, 9.0, 9.0], [1.0, 2.0, -1.0]]), jnp.full((2, 3), 0.5)
    noise = losses.LossNoise(None, jnp.array([[1.0, 0.0]]))
    value = loss.apply(ONLINE, TARGET, TRANSITION, prior_tm1, prior_t, noise)
    # mu = 3 - 1, m = (0.5 + 1, -1 + 2); the target becomes 6 + 0.5 + 0.5.
    assert value == pytest.approx((0.5 + 0.9 * 7.0 - 2) ** 2 + 1.5**2 + 1.0, rel=1e-5)


# Against rlax


@pytest.mark.parametrize("num_actions", [1, 4])
def test_td_error_equals_rlax(num_actions):
    rng = np.random.default_rng(num_actions)
    for _ in range(20):
        q_tm1, q_t, selector = rng.normal(size=(3, num_actions)).astype(np.float32)
        a_tm1 = int(rng.integers(num_actions))
        r_t, discount_t = np.float32(rng.normal()), np.float32(rng.choice([0.0, 0.99]))
        arguments = (jnp.asarray(q_tm1), a_tm1, r_t, discount_t, jnp.asarray(q_t))
        plain = losses.optimistic_td_error(jnp.asarray(q_tm1)[a_tm1], r_t, discount_t, jnp.asarray(q_t)[None])
        assert plain == pytest.approx(float(rlax.q_learning(*arguments)), abs=1e-6)
        double = losses.optimistic_td_error(
            jnp.asarray(q_tm1)[a_tm1], r_t, discount_t, jnp.asarray(q_t)[None], jnp.asarray(selector)[None]
        )
        expected = rlax.double_q_learning(*arguments, jnp.asarray(selector))
        assert double == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_step_transitions_reach_rlax_returns(n):
    # With discount_t = gamma^n and r_t the discounted sum of rewards the target is the n-step return.
    gamma, length, terminal = 0.9, 9, 6  # the episode ends with the reward number `terminal`
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=length).astype(np.float32)
    continues = np.ones(length, np.float32)
    continues[terminal] = 0.0
    table = jnp.asarray(rng.normal(size=(length + 1, 2, 3)).astype(np.float32))  # a new state per step
    xi = jnp.array([0.3, -0.7])
    state_values = np.asarray(table[..., -1] + table[..., :-1] @ xi).max(axis=1)
    returns = rlax.n_step_bootstrapped_returns(
        jnp.asarray(rewards), jnp.asarray(gamma * continues), jnp.asarray(state_values[1:]), n
    )
    loss = losses.make_td_loss(make_table_network(indices.gaussian(2)), kind="sampled", double_q=False)
    zero = jnp.zeros_like(table)
    noise = losses.LossNoise(jnp.zeros((1, 2)), xi[None])
    for t in range(length - n + 1):
        alive = np.concatenate([[1.0], np.cumprod(continues[t : t + n])])
        transition = types.Transition(
            o_tm1=jnp.array(t),
            a_tm1=jnp.array(0),
            r_t=jnp.float32(np.sum(gamma ** np.arange(n) * alive[:-1] * rewards[t : t + n])),
            discount_t=jnp.float32(gamma**n * alive[-1]),
            o_t=jnp.array(t + n),
            z_t=jnp.zeros(2),
        )
        value = loss.apply(zero, table, transition, NO_PRIOR, NO_PRIOR, noise)
        assert value == pytest.approx(float(returns[t]) ** 2, rel=1e-4, abs=1e-6), t


# Exact against sampled


@pytest.mark.parametrize(
    "index, double_q, num_ois",
    [
        ("gaussian", True, 1),
        ("sphere", True, 1),
        ("scaled_sphere", True, 1),
        ("cube", True, 1),
        ("unit_cube", True, 1),
        ("sphere", False, 3),
    ],
)
def test_exact_loss_is_the_limit_of_the_sampled_one(index, double_q, num_ois):
    num, dim = 100_000, 3
    network = epistemic.make_hyper_network(
        torsos.OneHotMlp(4, (10,)), 2, indices.make(index, dim), 0, prior=priors_lib.hyper_prior(2.0), num_states=4
    )
    init = jax.jit(network.init)
    variables, target = init(make_key(0)), init(make_key(1)).params
    transition = TRANSITION._replace(z_t=jnp.array([1.0, -0.5, 2.0]))
    priors = [network.prior(variables.prior, o) for o in (transition.o_tm1, transition.o_t)]
    kwargs = dict(sigma=sigma_for(0.7, network.index), num_ois=num_ois, double_q=double_q)
    exact = losses.make_td_loss(network, kind="exact", **kwargs)
    sampled = losses.make_td_loss(network, kind="sampled", num_indices=num, **kwargs)
    noise = jax.jit(lambda key: jax.tree.map(lambda x: x[0], sampled.draw(key, 1)))(make_key(2))
    assert noise.indices.shape == (num, dim) and noise.target_indices.shape == (num_ois, dim)

    def value_and_gradient(loss, noise):
        value, gradient = jax.value_and_grad(loss.apply)(variables.params, target, transition, *priors, noise)
        return jnp.append(flatten_util.ravel_pytree(gradient)[0], value)

    @jax.jit
    def compute(noise):
        one_by_one = jax.lax.map(
            lambda xi: value_and_gradient(sampled, losses.LossNoise(xi[None], noise.target_indices)),
            noise.indices,
            batch_size=5_000,
        )
        expected = value_and_gradient(exact, losses.LossNoise(None, noise.target_indices))
        return expected, value_and_gradient(sampled, noise), one_by_one

    expected, average, one_by_one = (np.asarray(x, np.float64) for x in compute(noise))
    # The average over the N indices is what the sampled loss says it is.
    np.testing.assert_allclose(average, one_by_one.mean(axis=0), rtol=1e-3, atol=1e-3)
    # 5 standard errors of the average, entry by entry; 1e-4 for the rounding where there is no noise.
    tolerance = 5 * one_by_one.std(axis=0) / np.sqrt(num) + 1e-4
    np.testing.assert_array_less(np.abs(one_by_one.mean(axis=0) - expected), tolerance)
    # The comparison is sharp enough to see a wrong second moment: the loss is known to 3 %, and the spread,
    # which is all that depends on the second moment, to 10 %.
    assert tolerance[-1] < 0.03 * expected[-1]
    belief = network.belief(variables, transition.o_tm1)[transition.a_tm1]
    spread = network.index.second_moment * np.sum((0.7 * transition.z_t - belief[:-1]) ** 2)
    assert spread > 10 * tolerance[-1]
    assert np.linalg.norm(expected[:-1]) > 10 * np.linalg.norm(tolerance[:-1])


# Draws


@pytest.mark.parametrize("kind, loss_shape", [("exact", None), ("sampled", (6, 20, 2))])
@pytest.mark.parametrize("num_ois", [1, 3])
def test_noise_of_a_batch(kind, loss_shape, num_ois):
    network = make_table_network(indices.gaussian(2))
    key = jax.random.key(0)
    own, shared = (
        losses.make_td_loss(network, kind=kind, num_ois=num_ois, target_index=target_index).draw(key, 6)
        for target_index in ("transition", "shared")
    )
    for noise, drawn in ((own, 6), (shared, 1)):
        assert (None if noise.indices is None else noise.indices.shape) == loss_shape
        assert noise.target_indices.shape == (drawn, num_ois, 2)
    assert len(np.unique(np.asarray(own.target_indices), axis=0)) == 6
    assert len(np.unique(np.asarray(shared.target_indices[0]), axis=0)) == num_ois
    if kind == "sampled":
        assert len(np.unique(np.asarray(own.indices).reshape(-1, 2), axis=0)) == 6 * 20
        dependent = losses.make_td_loss(network, kind=kind, target_index="dependent").draw(key, 6)
        assert dependent.target_indices is None
        np.testing.assert_array_equal(dependent.indices, own.indices)


# Regulariser


def test_prior_regularization_by_hand():
    loss = losses.make_td_loss(make_table_network(indices.gaussian(2)))
    assert loss.regularizer is None
    assert losses.with_prior_regularization(loss, 0.0).regularizer is None
    regularizer = losses.with_prior_regularization(loss, 0.3).regularizer
    params = {"a": jnp.array([[1.0, -2.0], [0.0, 3.0]]), "b": {"c": jnp.array([0.5])}}
    # |theta|^2 = 1 + 4 + 9 + 0.25
    assert regularizer(params, jnp.array(50)) == pytest.approx(0.3 / 50 * 14.25, rel=1e-6)
    gradient = jax.grad(regularizer)(params, jnp.array(50))
    np.testing.assert_allclose(gradient["a"], 2 * 0.3 / 50 * params["a"], rtol=1e-6)


# Gradients


@pytest.mark.parametrize("kind", ["exact", "sampled"])
@pytest.mark.parametrize("double_q", [False, True])
def test_only_the_value_of_the_action_taken_gets_a_gradient(kind, double_q):
    network = make_table_network(indices.gaussian(2))
    loss = losses.make_td_loss(network, kind=kind, sigma=sigma_for(0.1, network.index), double_q=double_q)
    noise = losses.LossNoise(jnp.array([[1.0, 2.0]]) if kind == "sampled" else None, jnp.array([[1.0, 0.0]]))
    online, target, prior_t = jax.grad(loss.apply, (0, 1, 4))(
        ONLINE, TARGET, TRANSITION, NO_PRIOR, NO_PRIOR, noise
    )
    np.testing.assert_array_equal(target, jnp.zeros_like(TARGET))
    np.testing.assert_array_equal(prior_t, NO_PRIOR)
    # Semi-gradient by hand: y = 0.5 + 0.9 * (1 or 6) is a constant.
    y = 0.5 + 0.9 * (1.0 if double_q else 6.0)
    expected = np.zeros(ONLINE.shape)
    if kind == "exact":  # (y - mu)^2 + |sigma z - m|^2
        expected[0, 1] = [-2 * (0.2 - 0.5), -2 * (-0.1 + 1.0), -2 * (y - 3)]
    else:  # (y + 0 - 1.5)^2 at xi = (1, 2)
        expected[0, 1] = -2 * (y - 1.5) * np.array([1.0, 2.0, 1.0])
    np.testing.assert_allclose(online, expected, rtol=1e-5, atol=1e-6)


# Errors


@pytest.mark.parametrize(
    "kwargs, index, is_linear, message",
    [
        (dict(kind="mean"), "gaussian", True, "unknown loss 'mean'; choose one of exact, sampled, enumerated"),
        (dict(is_masked="half"), "gaussian", True, "is_masked must be True or False, got 'half'"),
        (dict(is_masked=True), "gaussian", True, "no masks: use the sampled or the enumerated loss"),
        (dict(kind="sampled", is_masked=True), "sphere", True, "must not be negative.*'sphere'"),
        (dict(kind="sampled", is_masked=True), "cube", True, "must not be negative.*'cube'"),
        (
            dict(kind="sampled", is_masked=True, perturbation=indices.sphere(2)),
            "coordinate",
            True,
            "must not be negative, but those of 'sphere' can be: use bernoulli_mask",
        ),
        (dict(kind="sampled", is_masked=True, sigma=0.1), "coordinate", True, "no noise.*use sigma=0"),
        (dict(kind="sampled", num_indices=0), "gaussian", True, "num_indices must be at least 1, got 0"),
        (dict(num_ois=0), "gaussian", True, "num_ois must be at least 1, got 0"),
        (dict(sigma=-0.1), "gaussian", True, "sigma must be at least 0, got -0.1"),
        (
            dict(perturbation=indices.sphere(3)),
            "gaussian",
            True,
            "must have the same dimension as the index, 2, got 3",
        ),
        (
            dict(sigma=0.1, perturbation=indices.bernoulli_mask(2)),
            "gaussian",
            True,
            "isotropic second moments, got 'gaussian' and 'bernoulli_mask'",
        ),
        (dict(kind="enumerated"), "gaussian", True, "'gaussian' has no finite support.*use the sampled loss"),
        (dict(kind="sampled", target_index="all"), "sphere", True, "'sphere'.*target_index=transition"),
        (dict(kind="sampled", target_index="all", num_ois=2), "coordinate", True, "leaves no choice.*num_ois=1"),
        (dict(kind="exact"), "coordinate", False, "linear in its index.*use the sampled loss"),
        (dict(target_index="none"), "gaussian", True, "unknown target_index 'none'.*transition, shared, dep"),
        (dict(target_index="dependent"), "gaussian", True, "use the sampled loss with target_index=dependent"),
        (dict(kind="exact"), "coordinate", True, "zero mean.*not 'coordinate': use the sampled loss"),
        (dict(kind="exact"), "bernoulli_mask", True, "not 'bernoulli_mask': use the sampled loss"),
        (dict(kind="exact"), "gaussian", False, "linear in its index.*use the sampled loss"),
        (dict(kind="sampled", target_index="dependent", num_ois=2), "gaussian", True, "use num_ois=1"),
    ],
)
def test_invalid_combinations(kwargs, index, is_linear, message):
    with pytest.raises(ValueError, match=message):
        losses.make_td_loss(make_table_network(indices.make(index, 2), is_linear), **kwargs)


def test_noise_needs_an_index():
    with pytest.raises(ValueError, match="sigma is for networks with an index: use sigma=0"):
        losses.make_td_loss(make_table_network(indices.no_index()), sigma=0.1)


# The functions of arrays. Rows of Q-values, one per target index: plain maxima 4, 5.5 and 4.5; double, with the
# actions 1, 0 and 1 of the selector, 4, 1 and 4.5.
Q_T = jnp.array([[2.0, 4.0], [1.0, 5.5], [1.5, 4.5]])
SELECTOR = jnp.array([[2.0, 5.0], [4.5, 3.0], [3.0, 4.0]])
REWARD, DISCOUNT = jnp.float32(0.5), jnp.float32(0.9)


@pytest.mark.parametrize("selector, best", [(None, 5.5), (SELECTOR, 4.5)])
def test_losses_of_arrays_by_hand(selector, best):
    y = 0.5 + 0.9 * best
    coefficients, z = jnp.array([[7.0, 7.0, 7.0], [0.5, -1.0, 3.0]]), jnp.array([2.0, -1.0])
    exact = losses.exact_td_loss(
        coefficients, jnp.array(1), REWARD, DISCOUNT, Q_T, selector, z, 0.1, second_moment=0.5
    )
    assert exact == pytest.approx((y - 3) ** 2 + 0.5 * ((0.2 - 0.5) ** 2 + (-0.1 + 1) ** 2), rel=1e-5)
    q_tm1, xi = jnp.array([1.5, 2.0]), jnp.array([[1.0, 2.0], [-1.0, 0.5]])
    sampled = losses.sampled_td_loss(q_tm1, REWARD, DISCOUNT, Q_T, selector, xi, z, 0.1)  # xi^T z: 0 and -2.5
    assert sampled == pytest.approx(((y - 1.5) ** 2 + (y - 0.25 - 2) ** 2) / 2, rel=1e-5)
    masked = losses.masked_td_loss(q_tm1, REWARD, DISCOUNT, Q_T, selector, jnp.array([2.0, 0.0]))
    assert masked == pytest.approx((y - 1.5) ** 2, rel=1e-5)


def test_an_action_out_of_range_is_not_a_number():
    for action in (2, -1):
        transition = TRANSITION._replace(a_tm1=jnp.array(action))
        for kind, noise in (("exact", None), ("sampled", jnp.ones((1, 2)))):
            loss = losses.make_td_loss(make_table_network(indices.gaussian(2)), kind=kind)
            value = loss.apply(
                ONLINE, TARGET, transition, NO_PRIOR, NO_PRIOR, losses.LossNoise(noise, jnp.ones((1, 2)))
            )
            assert np.isnan(value)


def test_a_target_that_is_not_a_number_reaches_the_gradient():
    q_t = Q_T.at[1, 0].set(jnp.nan)
    gradient = jax.grad(lambda q: losses.optimistic_td_error(q, REWARD, DISCOUNT, q_t) ** 2)(jnp.float32(1.0))
    assert np.isnan(gradient)
