"""Finite MDPs, their exact solvers, and HyperAgent's closed form."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import indices
from hyperagent_jax import types
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import solvers

TINY = (2, 2, 3)  # states, actions, horizon


@pytest.fixture
def tiny():
    mdp = mdps.dirichlet(jax.random.key(3), *TINY, beta=3.0)
    return mdp._replace(start=jnp.array([0.25, 0.75]))


@pytest.fixture
def discounted():
    mdp = mdps.dirichlet(jax.random.key(4), 3, 2, 1, beta=3.0)
    return mdps.make_discounted(mdp.transitions[0], mdp.rewards[0], np.full(3, 1 / 3), 0.8)


def _brute_force_return(mdp, policy):
    """Sums probability times return over every possible trajectory."""
    transitions, rewards, start = (np.asarray(x, np.float64) for x in mdp)
    horizon, num_states, num_actions = rewards.shape
    total = 0.0
    for states in itertools.product(range(num_states), repeat=horizon):
        for actions in itertools.product(range(num_actions), repeat=horizon):
            probability, gain = start[states[0]], 0.0
            for h in range(horizon):
                probability *= policy[h, states[h], actions[h]]
                gain += rewards[h, states[h], actions[h]]
                if h + 1 < horizon:
                    probability *= transitions[h, states[h], actions[h], states[h + 1]]
            total += probability * gain
    return total


def _all_policies(*shape, num_actions):
    for actions in itertools.product(range(num_actions), repeat=math.prod(shape)):
        yield np.eye(num_actions)[np.reshape(actions, shape)]


def test_policy_return_is_that_of_all_trajectories(tiny):
    policy = np.random.default_rng(0).dirichlet(np.ones(2), (3, 2))
    np.testing.assert_allclose(solvers.policy_return(tiny, policy), _brute_force_return(tiny, policy), rtol=1e-5)


def test_optimal_return_is_that_of_the_best_policy(tiny):
    best = max(_brute_force_return(tiny, policy) for policy in _all_policies(3, 2, num_actions=2))
    np.testing.assert_allclose(solvers.optimal_return(tiny), best, rtol=1e-5)
    greedy = solvers.greedy(solvers.optimal_q(tiny))
    np.testing.assert_allclose(solvers.policy_return(tiny, greedy), best, rtol=1e-5)


def test_discounted_values_are_the_sum_of_their_series(discounted):
    policy = np.random.default_rng(1).dirichlet(np.ones(2), 3)
    transitions, rewards = np.asarray(discounted.transitions), np.asarray(discounted.rewards)
    q = np.zeros((3, 2))
    for _ in range(200):  # 0.8^200 is nothing
        q = rewards + 0.8 * transitions @ (policy * q).sum(-1)
    np.testing.assert_allclose(solvers.discounted_policy_q(discounted, jnp.asarray(policy)), q, rtol=1e-5)


def test_value_iteration_finds_the_best_policy(discounted):
    policies = _all_policies(3, num_actions=2)
    best = np.max([solvers.discounted_policy_q(discounted, jnp.asarray(policy)) for policy in policies], 0)
    np.testing.assert_allclose(solvers.value_iteration(discounted), best, atol=1e-5)


def test_greedy_shares_ties():
    np.testing.assert_array_equal(
        solvers.greedy(jnp.array([[1.0, 2.0, 2.0], [3.0, 0.0, 1.0]])), [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
    )


def test_deep_sea_is_the_environment():
    size, seed = 5, 7
    mdp = mdps.deep_sea(size, seed)
    environment = deep_sea.make_deep_sea(size)
    start = deep_sea.initial_state(deep_sea.action_mapping(size, seed))
    step = jax.jit(environment.step)
    for row, column, action in itertools.product(range(size), range(size), range(2)):
        state = start._replace(row=jnp.int32(row), column=jnp.int32(column))
        after, timestep = step(state, jnp.int32(action), None)
        np.testing.assert_allclose(mdp.rewards[row, column, action], timestep.reward, atol=1e-6)
        np.testing.assert_array_equal(mdp.transitions[row, column, action], np.eye(size)[after.column])
    np.testing.assert_allclose(solvers.optimal_return(mdp), 0.99, atol=1e-6)


def test_river_swim_by_hand():
    mdp = mdps.river_swim(num_states=3, horizon=2)
    np.testing.assert_allclose(mdp.transitions[0, :, 0], [[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(mdp.transitions[1, :, 1], [[0.4, 0.6, 0], [0.05, 0.6, 0.35], [0, 0.4, 0.6]])
    # Two steps from the left end cannot reach the right end and swim there: staying pays twice.
    np.testing.assert_allclose(solvers.optimal_return(mdp), 0.01, rtol=1e-6)
    np.testing.assert_allclose(solvers.optimal_q(mdp)[0, 2], [0.0, 1.6], atol=1e-6)


def test_dirichlet_rows_have_the_prior_moments():
    rows = mdps.dirichlet(jax.random.key(0), 4, 2, 2500, beta=3.0).transitions[..., 0].ravel()  # Beta(0.75, 2.25)
    variance = 0.25 * 0.75 / 4.0
    assert abs(rows.mean() - 0.25) < 5 * math.sqrt(variance / rows.size)
    assert abs(rows.var() / variance - 1.0) < 0.05


@pytest.mark.parametrize(
    "change, message",
    [
        ({"transitions": np.full((3, 2, 2, 2), 0.4)}, r"transitions\[0, 0, 0\] must sum to one, but sums to 0.8"),
        ({"transitions": np.tile([1.5, -0.5], (3, 2, 2, 1))}, "must be probabilities"),
        ({"transitions": np.ones((3, 2, 2))}, r"must have shape \[H, S, A, S\], got \[3, 2, 2\]"),
        ({"rewards": np.zeros((3, 2))}, r"rewards must have shape \[3, 2, 2\]"),
        ({"rewards": np.full((3, 2, 2), np.nan)}, "rewards must be finite"),
        ({"start": np.array([0.5, 0.6])}, "start must sum to one, but sums to 1.1"),
    ],
)
def test_a_bad_mdp_is_refused(tiny, change, message):
    with pytest.raises(ValueError, match=message):
        mdps.make_finite(**{**tiny._asdict(), **change})


def test_a_discount_of_one_is_refused(discounted):
    with pytest.raises(ValueError, match="below 1, got 1.0"):
        mdps.make_discounted(*discounted[:3], 1.0)


def test_load_reads_what_was_saved(tiny, tmp_path):
    np.savez(tmp_path / "mdp.npz", **tiny._asdict())
    for loaded, saved in zip(mdps.load(tmp_path / "mdp.npz"), tiny, strict=True):
        np.testing.assert_array_equal(loaded, saved)
    np.savez(tmp_path / "part.npz", start=tiny.start)
    (tmp_path / "text.npz").write_text("nothing")
    for name in ("part.npz", "text.npz", "none.npz"):
        with pytest.raises(ValueError, match="is not an npz file with the arrays transitions, rewards, start"):
            mdps.load(tmp_path / name)


def test_incremental_equals_batch():
    sigma, beta, rng = 2.5, 3.0, np.random.default_rng(0)
    with jax.enable_x64(True):
        z_0, z = rng.normal(size=8), rng.normal(size=(500, 8))
        m = jnp.asarray(sigma / math.sqrt(beta) * z_0)
        update = jax.jit(lambda m, n, z: closed_form.perturb(m, n, z, sigma=sigma, beta=beta))
        for n in range(500):
            m = update(m, float(n), z[n])
            if n in (0, 9, 499):
                batch = closed_form.perturbation_of_history(z_0, z[: n + 1], sigma=sigma, beta=beta)
                np.testing.assert_allclose(m, batch, rtol=0, atol=1e-12)
    # The minimiser of the loss itself: sum over visits |sigma z - m~|^2 + beta |m~ - sigma_0 z_0|^2.
    design = np.concatenate([np.ones(500), [math.sqrt(beta)]])[:, None]
    right = np.concatenate([sigma * z, math.sqrt(beta) * sigma / math.sqrt(beta) * z_0[None]])
    np.testing.assert_allclose(m, np.linalg.lstsq(design, right, rcond=None)[0][0], rtol=0, atol=1e-12)


def _random_statistics(rng, num_states=5, num_actions=3):
    moves = rng.integers(0, 4, (num_states, num_actions, num_states)).astype(float)
    return closed_form.Statistics(moves.sum(-1), moves)


def test_residual_perturbation_by_hand_and_its_spread():
    outcomes, z = jnp.array([1.0, 4.0, 7.0]), jnp.array([[1.0, 0.0], [3.0, 5.0], [2.0, -1.0]])
    # Residuals -3, 0 and 3: (-3 [1, 0] + 3 [2, -1]) / 3; standard deviation sqrt(6), of three outcomes.
    np.testing.assert_allclose(closed_form.residual_perturbation(outcomes, z), [1.0, -1.0], rtol=1e-6)
    assert float(closed_form.residual_std(outcomes)) == pytest.approx(math.sqrt(2))
    # Over many draws of z and xi the values m^T xi have that spread; none where outcomes are all the same.
    dim, key = 4, jax.random.key(5)
    z = indices.scaled_sphere(dim).sample(types.fold_in_tag(key, "z"), (20_000, 3))
    xi = indices.sphere(dim).sample(types.fold_in_tag(key, "xi"), (20_000,))
    m = jax.vmap(closed_form.residual_perturbation, (None, 0))(outcomes, z)
    assert float(jnp.std(jnp.sum(m * xi, axis=1))) == pytest.approx(math.sqrt(2), rel=0.02)
    np.testing.assert_array_equal(closed_form.residual_perturbation(jnp.full(3, 7.0), z[0]), 0.0)


def test_bellman_by_hand():
    statistics = closed_form.Statistics(jnp.array([[3.0]]), jnp.array([[[3.0]]]))
    # (2 * 10 + 3 * (1 + 0.5 * 4)) / (3 + 2) + 0.25
    q = closed_form.bellman(
        statistics,
        jnp.array([[1.0]]),
        jnp.array([[0.25]]),
        jnp.array([4.0]),
        prior_mean=10.0,
        beta=2.0,
        discount=0.5,
    )
    np.testing.assert_allclose(q, [[6.05]], rtol=1e-6)


def test_the_stochastic_bellman_operator_is_a_contraction():
    rng, discount, beta = np.random.default_rng(0), 0.9, 0.5

    @jax.jit
    def operator(q, statistics, rewards, noise):
        next_values = jnp.max(q, -1)
        return closed_form.bellman(
            statistics, rewards, noise, next_values, prior_mean=1.0, beta=beta, discount=discount
        )

    with jax.enable_x64(True):
        for _ in range(100):
            statistics = _random_statistics(rng)
            problem = (statistics, rng.random((5, 3)), rng.normal(size=(5, 3)))
            q, other = rng.normal(size=(2, 5, 3)) * 10 ** rng.uniform(-2, 2)
            moved = jnp.max(jnp.abs(operator(q, *problem) - operator(other, *problem)))
            assert moved <= discount * np.max(np.abs(q - other)) + 1e-12
            # A constant c moves by gamma N / (N + beta) c at every pair (proof of the lemma).
            shift = 2.0 * discount * statistics.visits / (statistics.visits + beta)
            np.testing.assert_allclose(operator(q + 2.0, *problem) - operator(q, *problem), shift, atol=1e-12)
        fixed = solvers.fixed_point(lambda q: operator(q, *problem), jnp.asarray(q), 1e-12)
        np.testing.assert_allclose(operator(fixed, *problem), fixed, atol=1e-11)


def test_norm_ratio_is_one_before_any_visit():
    m = 4.0 / math.sqrt(3.0) * jnp.array([[0.6, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(closed_form.norm_ratio(m, jnp.zeros(2), sigma=4.0, beta=3.0), 1.0, rtol=1e-6)


def test_index_dim_of_the_lemma_by_hand():
    # 16 * 1.5 / 0.25 = 96; log(400 / 0.1) + log(1 + 1000 / 3) = 8.2940 + 5.8122
    assert closed_form.index_dim_of_lemma(400, 1000, 3.0, epsilon=0.5, delta=0.1) == math.ceil(96 * 14.10623)
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        closed_form.index_dim_of_lemma(400, 1000, 3.0, epsilon=1.5)


def test_regret_bound_by_hand():
    # S A = 6, H = 4, K = 100: log+(1 + 2400) = 7.7836, log+(1 + 100 / 6) = 2.8717
    expected = 18 * 16 * math.sqrt(3 * 6 * 100 * 7.78364) * 2.87168
    np.testing.assert_allclose(closed_form.regret_bound(3, 2, 4, 100, 3.0), expected, rtol=1e-4)
    # With one episode the last logarithm is cut at one.
    np.testing.assert_allclose(
        closed_form.regret_bound(3, 2, 4, 1, 3.0), 18 * 16 * math.sqrt(18 * math.log(25)), rtol=1e-5
    )
