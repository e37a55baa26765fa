"""run_jax.py as a user runs it: rows, picture, kill -9 and exact resume, one line for bad input."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("gymnax")

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_jax.py"
SMALL = ["--agent=hyperagent", "--hidden_sizes=8", "--batch_size=8", "--min_replay=40", "--noprogress"]


def _command(*options):
    return [sys.executable, str(SCRIPT), *SMALL, *options]


def _script(*options):
    return subprocess.run(_command(*options), capture_output=True, text=True, timeout=240)


def _rows(path):
    with open(path) as f:
        return list(csv.DictReader(f))


def _without_times(path):
    rows = [{name: value for name, value in row.items() if "second" not in name} for row in _rows(path)]
    return sorted(map(str, rows))


@pytest.mark.timeout(600)  # several starts of a script
def test_results_and_killed_equals_unbroken(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    settings = [
        "--env=gymnax/CartPole-v1",
        "--num_envs=2",
        "--update_period=4",
        "--n_step=3",
        "--steps=60000",
        "--eval_every=5000",
        "--eval_episodes=3",
        "--eval_max_steps=50",
    ]
    done = _script(*settings, f"--logdir={unbroken}")
    assert done.returncode == 0, done.stderr
    (row,) = _rows(unbroken / "results.csv")
    curve = _rows(unbroken / "curve.csv")
    assert [int(point["interactions"]) for point in curve] == [5_000 * (k + 1) for k in range(12)]
    returns = [float(point["eval_return"]) for point in curve]
    assert float(row["final_return"]) == returns[-1] and float(row["best_return"]) == max(returns)
    assert float(row["mean_return"]) == pytest.approx(sum(returns) / 12, rel=1e-5)
    assert (row["env"], row["agent"], row["interactions"], row["error"]) == (
        "gymnax/CartPole-v1",
        "hyperagent",
        "60000",
        "",
    )
    identity = json.loads((unbroken / "config.json").read_text())["identity"]
    assert identity["experiment"] == "jax" and identity["config"]["update_period"] == 4
    assert (unbroken / "jax.png").read_bytes().startswith(b"\x89PNG")

    options = [*settings, f"--logdir={broken}", "--checkpoint_seconds=0", "--resume"]
    process = subprocess.Popen(_command(*options), stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if (broken / "curve.csv").exists() and len(_rows(broken / "curve.csv")) >= 2:
            break
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 2 <= len(_rows(broken / "curve.csv")) < 12 and list(broken.glob("checkpoints/*.npz"))
    done = _script(*options)
    assert done.returncode == 0 and "resumes after" in done.stdout, done.stderr
    for name in ("results.csv", "curve.csv"):
        assert _without_times(broken / name) == _without_times(unbroken / name)
    assert not list(broken.glob("checkpoints/*"))


@pytest.mark.parametrize(
    "options, message",
    [
        (["--env=gymnax/Nothing-v0"], "error: gymnax has no 'Nothing-v0'; it has Acrobot-v1"),
        (["--env=Breakout"], "error: unknown environment 'Breakout': names are explore/NAME, minatar/NAME"),
        (["--env=gymnax/Pendulum-v1"], "error: gymnax/Pendulum-v1 has continuous actions"),
        (["--env=gymnax/CartPole-v1", "--torso=small_conv"], "error: torso=small_conv is for pictures"),
        (
            ["--env=gymnax/CartPole-v1", "--num_envs=3", "--update_period=4"],
            "error: update_period=4 must be a multiple of num_envs=3",
        ),
        (["--env=minatar/seaquest", "--replay_capacity=900000000", "--steps=2000000000"], "needs"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, options, message):
    done = _script(*options, f"--logdir={tmp_path / 'run'}")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_environments_are_listed():
    done = _script("--env=list")
    assert done.returncode == 0 and "gymnax/CartPole-v1" in done.stdout.splitlines()
