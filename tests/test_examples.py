"""The examples run as they are, and learn."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
CUSTOM_LOOP = ROOT / "examples" / "custom_loop.py"
LINEAR_BANDIT = ROOT / "examples" / "linear_bandit.py"
PUREJAXRL_STYLE = ROOT / "examples" / "purejaxrl_style.py"
ONLY_THE_HEAD = ROOT / "examples" / "only_the_head.py"
REGRESSION = ROOT / "examples" / "regression_uncertainty.py"
JAX_ENVIRONMENT = ROOT / "examples" / "jax_environment.py"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def custom_loop():
    return load(CUSTOM_LOOP)


@pytest.fixture(scope="module")
def linear_bandit():
    return load(LINEAR_BANDIT)


@pytest.mark.parametrize(
    "path",
    [CUSTOM_LOOP, PUREJAXRL_STYLE, ONLY_THE_HEAD, REGRESSION, JAX_ENVIRONMENT],
    ids=lambda x: x.stem,
)
def test_examples_are_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(list(filter(None, lines))) < 60


def test_custom_loop_environment_pays_only_the_right_steps(custom_loop):
    environment = custom_loop.Tightrope()
    num_actions = environment.action_spec().num_values
    returns = []
    for code in range(num_actions**8):  # every sequence of eight actions
        step, total, t = environment.reset(), 0.0, 0
        assert step.first()
        while not step.last():
            step = environment.step((code >> t) % num_actions)
            environment.observation_spec().validate(step.observation)
            total, t = total + step.reward, t + 1
        assert step.discount == 0.0
        returns.append(total)
    assert sorted(returns) == [0.0] * 255 + [1.0]
    assert returns[0b10101010] == 1.0


def test_custom_loop_learns(custom_loop):
    assert custom_loop.main(steps=0) == 0.0
    assert custom_loop.main() == 1.0


def test_jax_environment_by_hand():
    environment = load(JAX_ENVIRONMENT).make_lock(4)

    def play(actions, noise):
        place, timestep = environment.reset(None, noise)
        shown = []
        for action in actions:
            place, timestep = environment.step(place, action, noise)
            shown.append((int(place), *(float(x) for x in timestep[1:])))  # reward, discount, last
        return shown

    assert play([0, 1, 0, 1], 0.5) == [(1, 0, 1, 0), (2, 0, 1, 0), (3, 0, 1, 0), (3, 1, 0, 1)]
    assert play([0, 0], 0.5) == [(1, 0, 1, 0), (2, 0, 0, 1)]
    assert play([0, 1, 0], 0.01) == [(1, 0, 1, 0), (2, 0, 1, 0), (3, 0, 1, 1)]  # truncated
    assert play([0, 1, 1], 0.01)[-1] == (3, 0, 0, 1)


def test_jax_environment_is_learned():
    """With 6 digits random actions open the lock in 1.6% of episodes."""
    np.testing.assert_array_less(0.8, load(JAX_ENVIRONMENT).main(length=6, seeds=2, steps=5_000))


def test_purejaxrl_style_learns():
    """Random actions are rewarded in 1 of 1,024 episodes."""
    pytest.importorskip("flashbax")
    example = load(PUREJAXRL_STYLE)
    place, rewards = 0, []
    for action in example.RIGHT:  # the right actions lead to the one reward
        place, reward, done = example.env_step(place, action)
        rewards.append(float(reward))
    assert rewards == [0.0] * 9 + [1.0] and bool(done) and int(place) == 0
    assert bool(example.env_step(3, 1 - example.RIGHT[3])[2])
    np.testing.assert_array_less(0.9, example.main(seeds=2))


def test_only_the_head_learns():
    """Random actions are rewarded in 1 of 256 episodes."""
    example = load(ONLY_THE_HEAD)
    assert example.main(steps=200) < 0.5
    assert example.main() > 0.9


def test_regression_knows_what_it_does_not_know():
    outcome = load(REGRESSION).main()
    assert outcome["on data"]["error"] < 0.05 and outcome["on data"]["std"] < 0.05
    # Between the data and beyond, more than twice and five times as uncertain as on them.
    assert outcome["in the gap"]["std"] > 2 * outcome["on data"]["std"]
    assert outcome["outside"]["std"] > 5 * outcome["on data"]["std"]
    assert outcome["in the gap"]["error"] < 3 * outcome["in the gap"]["std"]


def _script(path, *options):
    done = subprocess.run(
        [sys.executable, str(path), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path, flag, output",
    [
        (CUSTOM_LOOP, "--steps=3", r"greedy return: [01]\.0\n"),
        (LINEAR_BANDIT, "--rounds=3", r"regret: \d+\.\d+\n(.*: \d+\.\d+\n){3}"),
    ],
)
def test_examples_run_as_scripts(path, flag, output):
    assert re.fullmatch(output, _script(path, flag))


def test_exact_posterior_of_the_linear_bandit_by_hand(linear_bandit):
    # One context e_1 with reward 2 for arm 0: precision 1 / 0.25 + 1 there, 1 elsewhere.
    prior_mean = np.zeros((3, 4))
    prior_mean[0, 0] = 0.5
    means, covariances = linear_bandit.exact_posterior(np.eye(4)[:1], np.array([0]), np.array([2.0]), prior_mean)
    np.testing.assert_allclose(means[0], [(2.0 * 4 + 0.5) / 5, 0, 0, 0])
    np.testing.assert_allclose(covariances[0], np.diag([0.2, 1, 1, 1]))
    np.testing.assert_allclose(covariances[1], np.eye(4))


def test_linear_bandit_finds_the_exact_posterior(linear_bandit):
    outcome = linear_bandit.main(rounds=150)
    assert outcome["relative error of the mean"] < 0.02
    # A random projection to M = 128 dimensions of 4 by 4 matrices is off by about sqrt(5 / 128) = 0.2.
    assert 0.05 < outcome["relative error of the covariance"] < 0.35
    assert 0.0 < outcome["regret"] < 2.0 * outcome["regret of exact Thompson sampling"]
