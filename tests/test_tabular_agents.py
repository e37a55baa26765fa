"""Tabular agents: their updates by hand, their distributions, and that they learn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import indices
from hyperagent_jax import prng
from hyperagent_jax.tabular import agents
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular import bayes_ucbvi
from hyperagent_jax.tabular import closed_form
from hyperagent_jax.tabular import hyperagent
from hyperagent_jax.tabular import lmc_lsvi
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular import numpy_loop
from hyperagent_jax.tabular import q_learning
from hyperagent_jax.tabular import rmax
from hyperagent_jax.tabular import solvers

SIZE = base.Size(num_states=4, num_actions=2, horizon=3)


@pytest.fixture(scope="module")
def mdp():
    return mdps.dirichlet(jax.random.key(2), SIZE.num_states, SIZE.num_actions, SIZE.horizon, beta=3.0)


def _episodes(count, seed=0):
    """Random episodes, stacked."""
    rng = np.random.default_rng(seed)
    return base.Episode(
        jnp.asarray(rng.integers(SIZE.num_states, size=(count, SIZE.horizon + 1))),
        jnp.asarray(rng.integers(SIZE.num_actions, size=(count, SIZE.horizon))),
    )


def _keys(count, seed=0):
    return jax.random.split(prng.hash_key(jax.random.key(seed)), count)


def test_hyperagent_keeps_the_closed_form_of_its_history():
    config = hyperagent.Config(beta=0.5, sigma=2.0, index_dim=6)
    agent = hyperagent.make_agent(config, SIZE)
    keys, episodes = _keys(30), _episodes(30)
    first = agent.init(keys[0])
    state, _ = jax.lax.scan(lambda state, x: (agent.update(state, None, *x), None), first, (episodes, keys))
    z = np.asarray(jax.vmap(lambda key: indices.sphere(6).sample(key, (SIZE.horizon,)))(keys))
    z_0 = np.asarray(first.m) / (2.0 / math.sqrt(0.5))
    for h, x, a in np.ndindex(*SIZE.pairs):
        is_here = (episodes.states[:, h] == x) & (episodes.actions[:, h] == a)
        history = z[is_here, h]
        expected = closed_form.perturbation_of_history(z_0[h, x, a], history, sigma=2.0, beta=0.5)
        np.testing.assert_allclose(state.m[h, x, a], expected, atol=1e-5)
        assert state.statistics.visits[h, x, a] == len(history)
        followers = np.bincount(np.asarray(episodes.states[:, h + 1])[is_here], minlength=SIZE.num_states)
        np.testing.assert_array_equal(state.statistics.moves[h, x, a], followers)
    np.testing.assert_array_equal(state.factor, hyperagent.triangular_root(state.m))


@pytest.mark.parametrize("num_actions, index_dim", [(2, 5), (4, 4), (3, 1), (3, 2), (1, 3)])
def test_triangular_root(num_actions, index_dim):
    m = jax.random.normal(jax.random.key(1), (7, num_actions, index_dim))
    root = np.moveaxis(hyperagent.triangular_root(m), (0, 1), (-2, -1))
    assert np.all(np.triu(root, 1) == 0.0)
    np.testing.assert_allclose(root @ np.swapaxes(root, -1, -2), m @ np.swapaxes(m, -1, -2), atol=2e-5)


@pytest.mark.parametrize("index_map", ["state", "episode"])
def test_noise_has_the_covariance_of_the_hypermodel(index_map):
    m = jax.random.normal(jax.random.key(2), (1, 2, 2, 3))  # one stage, two states, two actions, M = 3
    if index_map == "state":
        root = hyperagent.triangular_root(m)
        sample = lambda key: hyperagent.state_noise(root, 1, key)  # noqa: E731
    else:
        sample = lambda key: hyperagent.episode_noise(m, 1, key)  # noqa: E731
    noise = np.asarray(jax.vmap(sample)(_keys(40_000))).reshape(-1, 4)
    flat = np.asarray(m).reshape(4, 3)
    expected = flat @ flat.T
    if index_map == "state":  # an index of its own at each state
        expected[:2, 2:] = expected[2:, :2] = 0.0
    error = 5.0 * np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / 40_000)
    assert np.all(np.abs(np.cov(noise.T) - expected) < error)


def test_optimistic_noise_is_the_largest_of_several():
    m = jnp.array([[[[3.0, 4.0]]]])  # norm 5
    for sample in (
        lambda key: hyperagent.state_noise(hyperagent.triangular_root(m), 5, key),
        lambda key: hyperagent.episode_noise(m, 5, key),
    ):
        noise = jax.vmap(sample)(_keys(20_000))
        # The largest of five standard normals has mean 1.16296 and standard deviation 0.669.
        assert abs(noise.mean() / 5.0 - 1.16296) < 5 * 0.669 / math.sqrt(20_000)


def _kolmogorov_smirnov(x, y):
    """Whether two samples of one size differ at the level 0.001."""
    x, y = np.sort(x), np.sort(y)
    both = np.concatenate([x, y])
    distance = np.max(np.abs(np.searchsorted(x, both, "right") - np.searchsorted(y, both, "right"))) / len(x)
    return distance > math.sqrt(-math.log(0.001 / 2) / len(x))


def test_rlsvi_and_hyperagent_agree_in_distribution_when_covariances_match(mdp):
    config = hyperagent.Config(beta=1.0, sigma=1.0, prior_mean=2.0, index_dim=2)
    statistics = closed_form.no_statistics(SIZE.pairs)
    for i in range(25):
        statistics = base.count(statistics, jax.tree.map(lambda x, i=i: x[i], _episodes(25)))
    spread = config.sigma / jnp.sqrt(statistics.visits + config.beta)
    orthogonal = spread[..., None] * jnp.eye(2)  # norms as the lemma wants them, actions independent
    parallel = spread[..., None] * jnp.array([1.0, 0.0])  # the same norms, actions dependent

    def start_values(noise):
        q = hyperagent.plan(config, statistics, mdp.rewards, noise)[0, 0]
        return jnp.array([q[0], q[1], q[0] - q[1], jnp.max(q)])

    def hyperagent_values(m, seed):
        root = hyperagent.triangular_root(m)
        return jax.vmap(lambda key: start_values(hyperagent.state_noise(root, 1, key)))(_keys(4000, seed)).T

    rlsvi = jax.vmap(lambda key: start_values(spread * jax.random.normal(key, SIZE.pairs)))(_keys(4000, 1)).T

    def differ(m):
        return [_kolmogorov_smirnov(*pair) for pair in zip(rlsvi, hyperagent_values(m, 2), strict=True)]

    assert not any(differ(orthogonal))
    # The test has power: it sees dependent actions where they matter, and 20% more noise.
    assert all(differ(parallel)[2:])
    assert all(differ(1.2 * orthogonal)[:3])


def test_theory_preset():
    config = hyperagent.theory(base.Size(5, 2, 10), 1000, beta=3.0, delta=0.1)
    assert (config.beta, config.prior_mean) == (3.0, 10.0)
    np.testing.assert_allclose([config.sigma**2, config.sigma**2 / config.beta], [600.0, 200.0])
    assert config.index_dim == closed_form.index_dim_of_lemma(100, 1000, 3.0, epsilon=0.5, delta=0.1)
    with pytest.raises(ValueError, match="beta must be at least 3 with the theory preset .*, got 2"):
        hyperagent.theory(SIZE, 10, beta=2.0)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"index_dim": 0}, "index_dim must be at least 1, got 0"),
        ({"num_ois": 0}, "num_ois must be at least 1"),
        ({"beta": 0.0}, "beta must be above 0"),
        ({"sigma": -1.0}, "sigma must be at least 0"),
        ({"index_map": "step"}, "index_map must be one of state, episode"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        hyperagent.Config(**settings)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 7.0])
def test_gamma_samples(alpha):
    samples = np.exp(mdps.log_gamma_samples(_keys(1)[0], jnp.full(100_000, alpha)))
    assert abs(samples.mean() - alpha) < 5 * math.sqrt(alpha / 100_000)
    fourth = 3 * alpha**2 + 6 * alpha  # the fourth central moment of Gamma(alpha, 1)
    assert abs(samples.var() - alpha) < 5 * math.sqrt((fourth - alpha**2) / 100_000)


def test_lmc_draws_where_its_steps_end():
    visits = jnp.array([[0.0, 3.0], [20.0, 1.0]])
    targets, weights = jnp.array([[0.0, 2.0], [30.0, 1.5]]), jnp.array([[5.0, -1.0], [0.0, 2.0]])
    arguments = (weights, targets, visits, jnp.asarray(7.0))

    def samples(sigma, is_stepwise, count):
        config = lmc_lsvi.Config(beta=0.5, sigma=sigma, is_stepwise=is_stepwise)
        return jax.vmap(lambda key: lmc_lsvi.langevin(config, *arguments, key))(_keys(count))

    # Without noise it is gradient descent, which is easily done by hand.
    w, eta = np.asarray(weights), 0.25 / 20.5
    for _ in range(7):
        w = w - 2 * eta * ((np.asarray(visits) + 0.5) * w - np.asarray(targets))
    for is_stepwise in (False, True):
        np.testing.assert_allclose(samples(0.0, is_stepwise, 1)[0], w, rtol=1e-5)
    at_once, stepwise = samples(2.0, False, 20_000), samples(2.0, True, 20_000)
    np.testing.assert_allclose(at_once.mean(0), stepwise.mean(0), atol=0.1)
    np.testing.assert_allclose(at_once.var(0) / stepwise.var(0), 1.0, atol=5 * math.sqrt(4 / 20_000))


def test_lmc_takes_more_steps_as_episodes_go_by():
    config = lmc_lsvi.Config(num_episodes=100, beta=0.5)
    visits = jnp.zeros((4, 2)).at[0, 0].set(100.0)
    # 2 (100.5 / 0.5) log(4 * 3 * 100 * 8)
    assert lmc_lsvi.num_steps(config, visits, SIZE) == math.ceil(402 * math.log(9600))


def test_bayes_ucbvi_by_hand():
    agent = bayes_ucbvi.make_agent(bayes_ucbvi.Config(num_members=1, prior_visits=4.0), SIZE)
    rewards = jnp.zeros(SIZE.pairs).at[1, 2, 0].set(0.5)
    state = agent.init(_keys(1)[0])
    np.testing.assert_array_equal(state.averages[0, :, 0, 0], [2.0, 1.0, 0.0])
    episode = base.Episode(jnp.array([1, 2, 0, 3]), jnp.array([0, 0, 1]))
    key = _keys(2)[1]
    after = agent.update(state, rewards, episode, key)
    new = jax.random.exponential(key, (1, 3))[0]
    weight = state.weights[0, 0, 1, 0]
    # What follows stage 0 is state 2 in stage 1, worth at most 0.5 + 1.
    average = (weight * 2.0 + new[0] * 1.5) / (weight + new[0])
    np.testing.assert_allclose(after.averages[0, 0, 1, 0], average, rtol=1e-6)
    np.testing.assert_allclose(after.weights[0, 0, 1, 0], weight + new[0], rtol=1e-6)
    assert after.averages[0, 0, 0, 0] == 2.0 and after.averages[0, 2, 0, 1] == 0.0


def test_q_learning_by_hand():
    agent = q_learning.make_agent(q_learning.Config(epsilon_power=0.5), SIZE)
    rewards = jnp.zeros(SIZE.pairs).at[2, 0, 1].set(1.0)
    state, episode = agent.init(None), base.Episode(jnp.array([1, 2, 0, 3]), jnp.array([0, 0, 1]))
    for _ in range(3):
        state = agent.update(state, rewards, episode, None)
    # Step sizes are 1, 4/5, 4/6: the value of the last stage is 1 at once and moves up one stage per episode.
    np.testing.assert_allclose(state.q[2, 0, 1], 1.0)
    np.testing.assert_allclose(state.q[1, 2, 0], 0.8 + 4 / 6 * 0.2, rtol=1e-6)
    np.testing.assert_allclose(state.q[0, 1, 0], 4 / 6 * 0.8, rtol=1e-6)
    policy = agent.policy(state, rewards, None)  # epsilon is 1 / sqrt(4)
    np.testing.assert_allclose(policy.probabilities()[2, 0], [0.25, 0.75], rtol=1e-6)
    np.testing.assert_allclose(policy.probabilities(2, 0), [0.25, 0.75], rtol=1e-6)


def test_rmax_by_hand():
    agent = rmax.make_agent(rmax.Config(unknown_value=5.0, min_visits=2), SIZE)
    rewards = jnp.zeros(SIZE.pairs).at[2, 0, 1].set(1.0).at[1, 2, 0].set(0.25)
    state = agent.init(None)
    for third in (0, 3):  # from state 2 of the second stage once to state 0 and once to state 3
        episode = base.Episode(jnp.array([1, 2, third, 3]), jnp.array([0, 0, 1]))
        state = agent.update(state, rewards, episode, None)
    q = agent.policy(state, rewards, None).q
    np.testing.assert_array_equal(q[2], 5.0)  # every pair of the last stage has one visit at most
    np.testing.assert_array_equal(q[1, 2], [5.25, 5.0])  # 0.25 + (5 + 5) / 2
    np.testing.assert_array_equal(q[0, 1], [5.25, 5.0])
    state = agent.update(state, rewards, base.Episode(jnp.array([0, 1, 0, 3]), jnp.array([1, 1, 1])), None)
    q = agent.policy(state, rewards, None).q
    np.testing.assert_array_equal(q[2, 0], [5.0, 1.0])  # two visits of (2, 0, 1): its own reward
    with pytest.raises(ValueError, match="min_visits must be at least 1, got 0"):
        rmax.Config(1.0, min_visits=0)


def test_rollouts_follow_the_probabilities(mdp):
    policy = base.Policy(jax.random.normal(jax.random.key(1), SIZE.pairs), epsilon=0.4)
    task = base.make_task(mdp)
    episodes = jax.vmap(lambda key: base.rollout(task, policy, key))(_keys(20_000))
    returns = jax.vmap(lambda episode: base.episode_return(task, None, episode, None))(episodes)
    error = returns.std() / math.sqrt(20_000)
    assert abs(returns.mean() - solvers.policy_return(mdp, policy.probabilities())) < 4 * error


def test_no_draw_has_probability_zero():
    cumulative = base._cumulative(jnp.array([0.1, 0.2, 0.7, 0.0]))
    draws = [int(base._draw(cumulative, u)) for u in (0.0, 0.0999, 0.1001, 0.9999999)]
    assert draws == [0, 0, 1, 2]


def test_many_runs_are_single_runs(mdp):
    agent = agents.AGENTS["hyperagent"](agents.Settings(), SIZE)
    many = base.run_many(agent, mdp, jnp.arange(5), 20, seeds_per_group=2)
    own = base.run_many(agent, jax.tree.map(lambda x: jnp.stack([x] * 5), mdp), jnp.arange(5), 20)
    one = jax.jit(lambda seed: base.run(agent, mdp, seed, 20))
    for seed in range(5):
        np.testing.assert_allclose(many[seed], one(seed), atol=1e-5)
        np.testing.assert_allclose(own[seed], one(seed), atol=1e-5)
    assert np.all(many > -1e-5) and not np.allclose(many[0], many[1])


def test_the_numpy_loop_is_the_same_algorithm(mdp):
    config = hyperagent.Config(beta=0.5, sigma=0.5, prior_mean=2.0, index_dim=3)
    agent = hyperagent.make_agent(config, SIZE)
    jitted = np.asarray(base.run_many(agent, mdp, jnp.arange(400), 30, base.episode_return))
    looped = np.stack([numpy_loop.run(config, mdp, seed, 30, is_tuned=seed % 2 == 0) for seed in range(150)])
    for part in (slice(0, 5), slice(5, 15), slice(15, 30)):
        x, y = jitted[:, part].mean(1), looped[:, part].mean(1)
        assert abs(x.mean() - y.mean()) < 4 * math.sqrt(x.var() / len(x) + y.var() / len(y))
    assert looped[:, 20:].mean() > looped[:, :5].mean() + 0.1  # it learns, so that there is something to compare


# The theory preset takes too long, and R-max after one visit is for outcomes that are not random.
@pytest.mark.parametrize("name", [name for name in agents.AGENTS if name not in ("hyperagent_theory", "rmax")])
def test_agents_learn(mdp, name):
    settings = agents.Settings(num_episodes=400)
    regret = base.run_many(agents.AGENTS[name](settings, SIZE), mdp, jnp.arange(8), 400)
    random = solvers.optimal_return(mdp) - solvers.policy_return(mdp, jnp.full(SIZE.pairs, 1 / SIZE.num_actions))
    share = {"lmc_lsvi": 0.4, "q_learning": 0.3}.get(name, 0.05)  # of what random actions lose
    assert regret[:, -100:].mean() < share * random
