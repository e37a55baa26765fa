"""The examples run as they are, and learn."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GYMNASIUM_AGENT = ROOT / "examples" / "gymnasium_agent.py"
CUSTOM_LOOP = ROOT / "examples" / "custom_loop.py"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def custom_loop():
    return _load(CUSTOM_LOOP)


def test_custom_loop_is_short():
    assert len(CUSTOM_LOOP.read_text(encoding="utf-8").splitlines()) < 60


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


def test_custom_loop_runs_as_a_script():
    assert re.fullmatch(r"greedy return: [01]\.0\n", _script(CUSTOM_LOOP, "--steps=3"))


def test_gymnasium_agent_runs_as_a_script():
    pytest.importorskip("gymnasium")
    output = _script(GYMNASIUM_AGENT, "--env=CartPole-v1", "--agent=ddqn", "--steps=400")
    pattern = r" +(\d+) steps: +(\d+) episodes, mean return ([\d.]+|nan)"
    lines = [re.fullmatch(pattern, line) for line in output.splitlines()]
    assert [int(line[1]) for line in lines] == list(range(40, 401, 40))
    assert sum(int(line[2]) for line in lines) > 5


@pytest.mark.slow
def test_gymnasium_agent_learns():
    """Random actions balance the pole for some 22 steps."""
    pytest.importorskip("gymnasium")
    assert _load(GYMNASIUM_AGENT).main(steps=8_000) > 150
