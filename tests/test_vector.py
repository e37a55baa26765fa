"""Tests of the loop over many environments, with scripted ones and with envpool's."""

import functools

import fake_vector
import jax
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets as presets
from hyperagent_jax.environments import atari
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import vector

SHAPE = (4, 36, 36)
SCRIPTS = [
    [(7, fake_vector.LIFE), (1, fake_vector.OVER), (12, fake_vector.CUT)],
    [(3, fake_vector.OVER)],
    [(40, fake_vector.LIFE), (9, fake_vector.OVER)],
]
SMALL = dict(hidden_sizes=(16,), batch_size=8, min_replay=20, replay_capacity=60, n_step=3)


def make_runner(name="hyperagent", seed=0, environment=None, **settings):
    environment = environment or fake_vector.FakeVector(SCRIPTS, SHAPE)
    config = presets.configs("paper")[name](**{**SMALL, **settings})
    runner = vector.VectorRunner(agents.make_agent(name, config, environment.spec), environment, seed)
    share_programs(runner, name, tuple(sorted(settings.items())))
    return runner


@functools.cache
def programs(name, settings):
    return {}


def share_programs(runner, name, settings):
    """Runners that differ in their seed share what was compiled."""
    shared = programs(name, settings)
    runner._act, runner._update = (
        shared.setdefault(kind, function) for kind, function in (("act", runner._act), ("update", runner._update))
    )


def assert_same(one, other):
    one, other = (jax.tree.map(as_data, runner.tree()) for runner in (one, other))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def as_data(leaf):
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_counts_and_replay():
    runner = make_runner(resample_probability=0.0)
    shown, indices = [], []
    runner.begin()
    while runner.interactions < 100:
        shown.append(runner._step)
        runner.advance()
        indices.append(np.asarray(runner._indices))
    shown.append(runner._step)
    # An interaction is a step that does not begin an episode; updates come one per interaction after the first 20
    # of which the replay knows, those of the last round excepted.
    in_replay = sum(np.sum(~step.is_first) for step in shown[:-1])
    assert runner.interactions == in_replay + np.sum(~shown[-1].is_first)
    assert runner.updates == in_replay - 20 == int(runner.learner.count)
    totals = runner.take_totals()
    assert totals.updates == runner.updates and np.isfinite(totals.loss) and totals.loss > 0
    assert runner.take_totals() == vector.Totals(0.0, 0, [])
    # Scores of whole games, ten times the frames' numbers + 1: the game of environment 1 is frames 0 to 3.
    ended = sum(int(np.sum(step.game_over)) for step in shown)
    assert runner.games == len(totals.scores) == ended and totals.scores[0] == 10 * (2 + 3 + 4)
    # An index stays until the next episode of its own environment begins, whether a life or a game ended.
    for t in range(1, len(indices)):
        changed = np.any(indices[t] != indices[t - 1], axis=(1, 2))
        np.testing.assert_array_equal(changed, shown[t].is_first)
    # The first 20 interactions are random, and the environments got what the replay has.
    batch, _ = runner.replay.sample(np.arange(runner.replay.size, dtype=np.uint32))
    for stack, action in zip(batch.transitions.o_tm1, batch.transitions.a_tm1, strict=True):
        env, number = stack[-1, 0, 0], stack[-1, 1, 0]
        assert runner.environment.actions[env][number] == action
    assert set(runner.environment.actions[0][:20]) == {0, 1, 2}
    # The prior's coefficients in the replay are those of the prior network.
    prior = jax.jit(jax.vmap(runner.agent.network.prior, (None, 0)))
    observations = np.moveaxis(batch.transitions.o_t, 1, -1)
    np.testing.assert_allclose(batch.prior_t, prior(runner.learner.prior, observations), rtol=1e-4, atol=1e-5)
    runner.close()


def test_batches_do_not_depend_on_prefetching(monkeypatch):
    ahead, inline = make_runner(), make_runner()
    chosen = []
    prefetch = inline.replay.prefetch
    inline.replay.prefetch = lambda bits: (prefetch(bits), chosen.append(inline.replay._settle()))
    for runner in (ahead, inline):
        runner.begin()
        for _ in range(60):
            runner.advance()
    assert len(chosen) > 50  # each was gathered before anything else happened
    assert_same(ahead, inline)
    ahead.close(), inline.close()


@pytest.mark.parametrize(
    "name, settings",
    [
        ("hyperagent", {}),
        ("ddqn", {}),
        ("hyperagent_ois", {"priority_fraction": 0.5, "updates_per_step": 2}),
        ("rainbow", {"num_atoms": 5, "importance_beta_steps": 100, "random_start": False}),
        ("adam_lmc", {}),
    ],
)
@pytest.mark.parametrize("rounds", [3, 45])
def test_interrupted_equals_uninterrupted(name, settings, rounds, tmp_path):
    runner = make_runner(name, **settings)
    runner.begin()
    for _ in range(rounds):
        runner.advance()
    checkpoint.save(tmp_path / "run.npz", runner.tree(), runner.facts())
    resumed = make_runner(name, **settings)
    facts = checkpoint.load_facts(tmp_path / "run.npz")
    resumed.restore(facts, lambda like: checkpoint.load(tmp_path / "run.npz", like))
    for _ in range(40):
        runner.advance()
        resumed.advance()
    assert runner.facts() == resumed.facts()
    assert runner.updates > 50
    assert_same(runner, resumed)
    assert runner.take_totals() == resumed.take_totals()
    other = make_runner(name, seed=1, **settings)
    other.begin()
    other.advance()
    assert not np.array_equal(as_data(other._indices), as_data(runner._indices)) or not runner._indices.size
    for each in (runner, resumed, other):
        each.close()


def test_playing_again_can_be_stopped_and_is_checked(tmp_path):
    runner = make_runner()
    runner.begin()
    for _ in range(5):
        runner.advance()
    checkpoint.save(tmp_path / "run.npz", runner.tree(), runner.facts())
    load = lambda like: checkpoint.load(tmp_path / "run.npz", like)  # noqa: E731
    asked = []
    stopped = make_runner()
    assert not stopped.restore(runner.facts(), load, lambda: asked.append(None) or len(asked) == 4)
    assert len(asked) == 4 and len(stopped.environment.actions[0]) == 3  # a user need not wait for the rest
    resumed = make_runner(environment=fake_vector.FakeVector([[(2, fake_vector.OVER)]] * 3, SHAPE))
    with pytest.raises(Exception, match="recorded actions gave different observations"):
        resumed.restore(runner.facts(), load)


def test_asynchronous_environments(tmp_path):
    environment = fake_vector.FakeVector(SCRIPTS, SHAPE, batch_size=2)
    runner = make_runner(environment=environment)
    runner.begin()
    while runner.interactions < 80:
        runner.advance()
    assert runner.updates >= runner.interactions - 20 - 2
    # It continues with new episodes.
    checkpoint.save(tmp_path / "run.npz", runner.tree(), {})
    resumed = make_runner(environment=fake_vector.FakeVector(SCRIPTS, SHAPE, batch_size=2))
    resumed.restore(runner.facts(), lambda like: checkpoint.load(tmp_path / "run.npz", like))
    assert resumed._step.is_first.all() and resumed.interactions == runner.interactions
    for _ in range(10):
        resumed.advance()
    assert resumed.interactions > runner.interactions
    runner.close(), resumed.close()


def test_evaluator_plays_whole_games():
    runner = make_runner()
    play_games = evaluate.HostEvaluator(runner.agent, observe=vector.frames_last)
    variables = runner.agent.learner.variables(runner.learner)
    scripts = [[(3, fake_vector.OVER)], [(2, fake_vector.LIFE), (1, fake_vector.OVER)]]
    environment = fake_vector.FakeVector(scripts, SHAPE)
    scores = play_games(variables, environment, 3, jax.random.key(0))
    # Games of frames 0 1 2 3 and 4 5 6 7 of environment 0, and of 0 1 2 | 3 4 of environment 1.
    assert scores == [10 * (2 + 3 + 4), 10 * (6 + 7 + 8), 10 * (2 + 3 + 5)]
    assert play_games(variables, environment, 3, jax.random.key(0), lambda: True) is None


def test_evaluation_is_greedy_but_for_epsilon():
    """A network that always prefers action 1; with epsilon 0.3 a fifth of the actions are others."""
    runner = make_runner("ddqn")
    variables = runner.agent.learner.variables(runner.learner)
    params = jax.tree.map(lambda x: 0.0 * x, variables.params)
    params["head"]["bias"] = np.array([[[0.0], [1.0], [0.5]]], np.float32)
    shares = []
    for epsilon in (0.0, 0.3):
        environment = fake_vector.FakeVector([[(2_000, fake_vector.OVER)]], SHAPE)
        play_games = evaluate.HostEvaluator(runner.agent, epsilon, vector.frames_last)
        play_games(variables._replace(params=params), environment, 1, jax.random.key(0))
        shares.append(np.mean(np.array(environment.actions[0]) != 1))
    assert shares[0] == 0.0 and shares[1] == pytest.approx(0.2, abs=0.04)


# envpool


def play(environment, num_steps, seed=0):
    """Random actions; yields (action, VectorStep) pairs."""
    rng = np.random.default_rng(seed)
    step = environment.reset()
    yield None, step
    for _ in range(num_steps):
        actions = rng.integers(0, environment.spec.num_actions, len(step.env_ids))
        environment.send(actions, step.env_ids)
        step = environment.recv()
        yield actions, step


def test_training_games_in_lock_step_with_envpool():
    """Frames, clipped rewards, life loss and the step after an end are those of envpool's own interface."""
    import envpool

    game, num_steps = "Breakout", 400
    seed = int(np.random.SeedSequence((3, 1)).generate_state(1)[0]) % 2**31
    reference = envpool.make_gymnasium(
        f"{game}-v5",
        num_envs=2,
        seed=seed,
        stack_num=4,
        frame_skip=4,
        gray_scale=True,
        img_height=84,
        img_width=84,
        repeat_action_probability=0.0,
        reward_clip=True,
        episodic_life=True,
        max_episode_steps=27_000,
    )
    environment = atari.Atari(game, 2, (3, 1), is_training=True)
    assert environment.spec == types.EnvironmentSpec(4, (84, 84, 4))
    done, lives = np.ones(2, bool), None
    ends, games, clipped = 0, 0, 0
    for actions, step in play(environment, num_steps):
        if actions is None:
            observations, info = reference.reset()
            rewards = terminated = truncated = np.zeros(2)
        else:
            observations, rewards, terminated, truncated, info = reference.step(actions.astype(np.int32))
        np.testing.assert_array_equal(step.observations, observations)
        np.testing.assert_array_equal(step.is_first, done)
        np.testing.assert_array_equal(step.rewards, rewards)
        np.testing.assert_array_equal(step.terminated, terminated)
        assert not np.any(truncated)
        if lives is not None:  # an episode ends when a life is lost, a game with the last one
            lost = (info["lives"] < lives) & ~done
            np.testing.assert_array_equal(step.last, lost)
            np.testing.assert_array_equal(step.game_over, lost & (info["lives"] == 0))
            ends, games = ends + step.last.sum(), games + step.game_over.sum()
        np.testing.assert_array_equal(np.sign(step.scores), step.rewards)
        clipped += np.sum(step.scores != step.rewards)
        done, lives = step.last, info["lives"]
    assert ends > 20 and games >= 2 and np.all(np.abs(step.rewards) <= 1)
    reference.close()
    environment.close()


def test_replayed_games_are_what_was_shown():
    """Stacks, sums of five rewards and ends of a real game, each looked up in what envpool showed."""
    settings = vector.frames_lib.Settings(4_000, 2, (4, 84, 84), 5, 0.9, 1, (4, 1))
    replay = vector.frames_lib.FrameReplay(settings)
    environment = atari.Atari("Breakout", 2, (5,), is_training=True)
    shown = []
    pairs = list(play(environment, 400))
    for t, (_, step) in enumerate(pairs):
        actions = pairs[t + 1][0] if t + 1 < len(pairs) else np.zeros(2, int)
        shown.append(step)
        numbers = 1_000 * step.env_ids + t
        replay.add(step, actions, np.tile(numbers[:, None, None], (1, 4, 1)), numbers[:, None])
    batch, _ = replay.sample(np.arange(replay.size, dtype=np.uint32))
    t = batch.transitions
    short = rewarded = 0
    for i in range(replay.size):
        env, begin = divmod(int(t.z_t[i, 0]), 1_000)
        steps = shown[begin + 1 : begin + 6]
        length = next((k for k, step in enumerate(steps, 1) if step.last[env]), 5)
        end = shown[begin + length]
        np.testing.assert_array_equal(t.o_tm1[i], shown[begin].observations[env])
        np.testing.assert_array_equal(t.o_t[i], end.observations[env])
        total = sum(0.9**k * step.rewards[env] for k, step in enumerate(steps[:length]))
        assert t.r_t[i] == pytest.approx(total, rel=1e-6)
        assert t.discount_t[i] == np.float32(0.0 if end.terminated[env] else 0.9**length)
        assert t.a_tm1[i] == pairs[begin + 1][0][env] and not shown[begin].last[env]
        short, rewarded = short + (length < 5), rewarded + (total > 0)
    assert replay.size > 700 and short > 60 and rewarded > 20
    environment.close()


def test_truncation_is_not_termination():
    environment = atari.Atari("Pong", 2, (0,), is_training=True, max_frames=400)
    ends = []
    for t, (_, step) in enumerate(play(environment, 330)):
        for env in np.flatnonzero(step.last):
            ends.append((t, bool(step.terminated[env]), bool(step.game_over[env])))
    # A game of 100 steps, one step that begins the next.
    assert [t for t, *_ in ends[::2]] == [100, 201, 302]
    assert all(not terminated and game_over for _, terminated, game_over in ends)
    environment.close()


def test_evaluation_games_have_their_own_rewards_and_end_with_the_last_life():
    environment = atari.Atari("MsPacman", 2, (0,), is_training=False)
    rewards, over = [], 0
    for _, step in play(environment, 700):
        np.testing.assert_array_equal(step.rewards, step.scores)
        np.testing.assert_array_equal(step.last, step.game_over)
        rewards += step.rewards.tolist()
        over += int(step.game_over.sum())
    assert max(rewards) >= 10 and over >= 1
    environment.close()


@pytest.mark.parametrize("fires", [True, False])
def test_evaluation_games_go_on_after_a_lost_life(fires):
    """Who does nothing loses all five lives if the game fires for him, and waits for ever if not."""
    environment = atari.Atari("Breakout", 2, (1,), is_training=False, fires_after_life=fires)
    step, lengths = environment.reset(), []
    for t in range(1, 400):
        environment.send(np.zeros(2, int), step.env_ids)
        step = environment.recv()
        np.testing.assert_array_equal(step.last, step.game_over)
        lengths += [t] * int(step.game_over.sum())
    assert (len(lengths) >= 4 and 100 < lengths[0] < 200) if fires else not lengths
    environment.close()


@pytest.mark.parametrize("fires", [True, False])
def test_a_recording_is_in_lock_step(fires):
    environment = atari.Atari("Breakout", 1, (7,), is_training=False, fires_after_life=fires)
    screen = atari.Screen("Breakout", (7,), fires_after_life=fires)
    for actions, step in play(environment, 60):  # noqa: B007
        if actions is not None:
            screen.step(int(actions[0]))
    gray = screen.picture @ np.array([0.299, 0.587, 0.114])
    # 84 x 84 pixels from 210 x 160, each the average of the area it covers, as in the other's newest frame.
    rows = np.add.reduceat(np.repeat(gray, 2, axis=0), np.arange(0, 420, 5), axis=0) / 5
    small = np.add.reduceat(np.repeat(rows, 21, axis=1), np.arange(0, 3360, 40), axis=1) / 40
    assert np.abs(small - step.observations[0, -1]).max() < 3
    environment.close()
    screen.close()


def test_a_missing_envpool_is_one_line(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(Exception, match="envpool is not installed: pip install") as caught:
        atari.Atari("Pong", 1, (0,), is_training=True)
    assert "\n" not in str(caught.value)


def test_unknown_games():
    for game, message in (
        ("pong", "did you mean Pong?"),
        ("Chess", "unknown game 'Chess'; choose one of Alien, "),
    ):
        with pytest.raises(Exception, match=message.replace("?", r"\?")):
            atari.check_game(game)
    assert len(atari.GAMES_26) == 26 and len(atari.GAMES_55) == 55 and set(atari.GAMES_26) < set(atari.GAMES_55)
