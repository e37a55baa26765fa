"""run_gymnasium.py as a user runs it: rows, picture, exact resume, one line for bad input."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scripts

from hyperagent_jax import agents
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import gymnasium as gymnasium_lib
from hyperagent_jax.experiment import run_context

pytest.importorskip("gymnasium")

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_gymnasium.py"
RESULT_COLUMNS = (
    "env,agent,seed,final_return,best_return,interactions,episodes,num_params,train_seconds,"
    "interactions_per_second,error"
)
CURVE_COLUMNS = "seed,interactions,episodes,train_return,eval_return,eval_std,loss"
SMALL = ["--agent=ddqn", "--hidden_sizes=8", "--batch_size=4", "--min_replay=40", "--noprogress"]


def _command(*options):
    return [sys.executable, str(SCRIPT), *SMALL, *options]


def _script(*options):
    return subprocess.run(_command(*options), capture_output=True, text=True, timeout=240)


def _without_times(rows):
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


@pytest.mark.timeout(600)  # several starts of a script
def test_results_and_interrupted_equals_unbroken(tmp_path):
    """Two seeds at once; and one at a time, ended by Ctrl-C and resumed: the same rows."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    settings = ["--env=CartPole-v1", "--num_seeds=2", "--steps=1500", "--eval_every=600", "--eval_episodes=3"]
    done = _script(*settings, "--num_workers=2", f"--logdir={unbroken}")
    assert done.returncode == 0, done.stderr
    assert "ddqn on CartPole-v1: " in done.stdout and "2 of 2 runs finished" in done.stdout
    assert (unbroken / "results.csv").read_text().splitlines()[0] == RESULT_COLUMNS
    assert (unbroken / "curve.csv").read_text().splitlines()[0] == CURVE_COLUMNS
    rows = sorted(scripts.rows(unbroken / "results.csv"), key=lambda row: row["seed"])
    curve = sorted(scripts.rows(unbroken / "curve.csv"), key=lambda row: (row["seed"], int(row["interactions"])))
    assert [row["seed"] for row in rows] == ["0", "1"]
    for row in rows:
        own = [point for point in curve if point["seed"] == row["seed"]]
        assert [int(point["interactions"]) for point in own] == [600, 1200, 1500]
        returns = [float(point["eval_return"]) for point in own]
        assert float(row["final_return"]) == returns[-1] and float(row["best_return"]) == max(returns)
        assert int(row["episodes"]) == int(own[-1]["episodes"])
        assert (row["env"], row["agent"], row["interactions"], row["error"]) == ("CartPole-v1", "ddqn", "1500", "")
        assert int(row["num_params"]) == (4 * 8 + 8) + (8 * 2 + 2)
    assert curve[0]["eval_return"] != curve[3]["eval_return"]  # seeds differ
    identity = json.loads((unbroken / "config.json").read_text())["identity"]
    assert identity["experiment"] == "gymnasium" and identity["protocol"]["env"] == "CartPole-v1"
    assert (unbroken / "gymnasium.png").read_bytes().startswith(b"\x89PNG")
    assert not list(unbroken.glob("checkpoints/*"))

    options = [*settings, "--num_workers=1", "--checkpoint_seconds=0", "--resume", f"--logdir={broken}"]
    process = subprocess.Popen(_command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not list(broken.glob("checkpoints/*.npz")):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "repeat the command with --resume" in stderr
    done = _script(*options)
    assert done.returncode == 0, done.stderr
    assert "resumes at" in done.stdout
    for name in ("results.csv", "curve.csv"):
        one, other = (_without_times(scripts.rows(folder / name)) for folder in (unbroken, broken))
        assert sorted(map(str, one)) == sorted(map(str, other))
    refused = _script(*options, "--steps=1600")
    assert refused.returncode == 2 and "different configuration (steps was 1500, is now 1600)" in refused.stderr


def _task(folder="", env="CartPole-v1"):
    config = agents.CONFIGS["hyperagent"](hidden_sizes=(8,), batch_size=4, min_replay=40, replay_capacity=500)
    protocol = gymnasium_lib.Protocol(env, steps=500, eval_every=300, eval_episodes=2)
    return base.Task("gymnasium", "hyperagent", config, protocol, (3,), folder=folder)


def _run(task, stop_after=None, asked=None):
    """Runs a task; stops when the question was asked that often. Returns the rows it reported."""
    asked, rows = [] if asked is None else asked, []

    def should_stop():
        asked.append(None)
        return stop_after is not None and len(asked) > stop_after

    def report(event):
        if event.kind in ("curve", "result"):
            rows.append(event.row)

    gymnasium_lib.EXPERIMENT.run(task, run_context.RunContext(task, report, should_stop))
    return _without_times(rows)


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])  # arrays and integers
def test_stopped_anywhere_and_resumed_is_the_unbroken_run(env, tmp_path):
    asked = []
    expected = _run(_task(env=env), asked=asked)
    assert [row["interactions"] for row in expected] == [300, 500, 500]
    for stop_after in {0, 1, 2, len(asked) // 2, len(asked) - 1}:
        (folder := tmp_path / f"{stop_after}").mkdir()
        task = _task(str(folder), env)
        before = _run(task, stop_after)
        assert before == expected[: len(before)] and len(before) < 3
        assert _run(task) == expected  # a resumed task reports its rows again


def test_episodes_of_training_are_all_counted():
    """A pole that stands for a step earns 1: the returns of all episodes add up to their steps."""
    first, second, result = _run(_task())
    steps = first["train_return"] * first["episodes"]
    steps += second["train_return"] * (second["episodes"] - first["episodes"])
    assert 500 - 200 < steps <= 500 and np.isclose(steps, round(steps), atol=1e-2)  # the last may be unfinished
    assert result["episodes"] == second["episodes"] > 5


def test_bad_input_is_one_line_and_writes_nothing(tmp_path):
    expected = {
        ("--env=NoSuchGame-v3",): (
            "error: gymnasium cannot make NoSuchGame-v3: Environment `NoSuchGame` doesn't exist"
        ),
        ("--env=Pendulum-v1",): "error: Pendulum-v1 does not have discrete actions: Box(-2.0, 2.0, (1,), float32)",
        ("--eval_every=0",): "error: --eval_every must be at least 1, got 0",
    }
    scripts.check_errors(SCRIPT, expected, tmp_path, SMALL)


@pytest.mark.slow
def test_cartpole_is_learned(tmp_path):
    """Random actions balance the pole for some 22 steps."""
    settings = ["--steps=8000", "--eval_every=2000", "--noprogress", f"--logdir={tmp_path}"]
    done = subprocess.run([sys.executable, str(SCRIPT), *settings], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (row,) = scripts.rows(tmp_path / "results.csv")
    assert float(row["best_return"]) > 150
