"""run_jax.py as a user runs it: rows, picture, kill -9 and exact resume, one line for bad input."""

import json
import pathlib
import subprocess
import sys

import pytest
import scripts

pytest.importorskip("gymnax")

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_jax.py"
SMALL = ["--agent=hyperagent", "--hidden_sizes=8", "--batch_size=8", "--min_replay=40", "--noprogress"]


def _command(*options):
    return [sys.executable, str(SCRIPT), *SMALL, *options]


def _script(*options):
    return subprocess.run(_command(*options), capture_output=True, text=True, timeout=240)


def _without_times(path):
    rows = [{name: value for name, value in row.items() if "second" not in name} for row in scripts.rows(path)]
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
    (row,) = scripts.rows(unbroken / "results.csv")
    curve = scripts.rows(unbroken / "curve.csv")
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

    def is_in_the_middle():
        return 2 <= len(scripts.rows(broken / "curve.csv")) < 12 and any(broken.glob("checkpoints/*.npz"))

    scripts.kill_in_the_middle(_command(*options), broken, is_in_the_middle)
    done = _script(*options)
    assert done.returncode == 0 and "resumes at" in done.stdout, done.stderr
    for name in ("results.csv", "curve.csv"):
        assert _without_times(broken / name) == _without_times(unbroken / name)
    assert not list(broken.glob("checkpoints/*"))


@pytest.mark.parametrize(
    "options, message",
    [
        (["--env=gymnax/Nothing-v0"], "error: gymnax has no 'Nothing-v0'; choose one of Acrobot-v1"),
        (["--env=Breakout"], "error: unknown environment 'Breakout': use explore/NAME, minatar/NAME"),
        (["--env=gymnax/Pendulum-v1"], "error: gymnax/Pendulum-v1 has continuous actions"),
        (["--env=gymnax/CartPole-v1", "--torso=small_conv"], "error: torso=small_conv is for images"),
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


SWEEP = {
    "env": "explore/door_key_5", "seed": 1, "steps": 6000, "eval_every": 2000, "eval_episodes": 3,
    "hidden_sizes": [8], "batch_size": 8, "min_replay": 40,
}  # fmt: skip


def _sweep(folder, *options, **grid):
    """The command of a sweep."""
    text = json.dumps({**SWEEP, **grid})
    script = [sys.executable, str(SCRIPT.with_name("sweep.py")), "--experiment=jax", "--noprogress"]
    return [*script, f"--grid={text}", "--num_workers=1", f"--logdir={folder}", *options]


def _run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.timeout(600)  # several starts of a script
def test_a_sweep_resumes_and_is_reported(tmp_path):
    """A cell, then two: rows, curves with the columns that tell runs apart, a report."""
    folder, out = tmp_path / "sweep", tmp_path / "out"
    done = _run(_sweep(folder, agent="ddqn"))
    assert done.returncode == 0 and "1 of 1 runs finished" in done.stdout, done.stderr
    before = scripts.rows(folder / "curve.csv")
    done = _run(_sweep(folder, "--resume", agent=["ddqn", "hyperagent"]))
    assert done.returncode == 0 and "1 of 2 runs are already done" in done.stdout, done.stderr
    assert "2 of 2 runs finished" in done.stdout
    rows, curve = scripts.rows(folder / "results.csv"), scripts.rows(folder / "curve.csv")
    assert [(row["agent"], row["env"], row["seed"], row["error"]) for row in rows] == [
        (agent, "explore/door_key_5", "1", "") for agent in ("ddqn", "hyperagent")
    ]
    assert curve[:3] == before and list(curve[0])[:4] == ["agent", "env", "seed", "steps"]
    assert [(row["agent"], row["seed"], row["batch_size"], row["interactions"]) for row in curve] == [
        (agent, "1", "8", str(2000 * k)) for agent in ("ddqn", "hyperagent") for k in (1, 2, 3)
    ]
    for row, last in zip(rows, (curve[2], curve[5]), strict=True):
        assert row["final_return"] == last["eval_return"]
        assert 0.0 <= float(row["random_return"]) < 0.9  # random actions rarely reach the goal
    done = _run([sys.executable, str(SCRIPT.with_name("report.py")), f"--results={folder}", f"--out={out}"])
    assert done.returncode == 0 and "2 runs in 1 environment(s)" in done.stdout, done.stderr
    assert (out / "curves.png").exists() and len(scripts.rows(out / "scores.csv")) == 2


@pytest.mark.slow
def test_a_killed_sweep_equals_an_unbroken_one(tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    grid = {"agent": ["hyperagent", "ddqn"], "seed": [0, 1], "steps": 40_000}
    done = _run(_sweep(unbroken, **grid))
    assert done.returncode == 0 and "4 of 4 runs finished" in done.stdout, done.stderr
    command = _sweep(broken, "--resume", **grid)

    def is_in_the_middle():
        is_in_second_run = len(scripts.rows(broken / "curve.csv")) >= 25
        return is_in_second_run and 1 <= len(scripts.rows(broken / "results.csv")) < 4

    scripts.kill_in_the_middle(command, broken, is_in_the_middle)
    done = _run(command)
    assert done.returncode == 0 and "of 4 runs are already done" in done.stdout, done.stderr
    for name in ("results.csv", "curve.csv"):
        assert _without_times(broken / name) == _without_times(unbroken / name)


@pytest.mark.slow
def test_bench(tmp_path):
    pytest.importorskip("pgx")
    arguments = ["--benchmark=minatar", "--steps=8", "--repeats=1", "--minatar_capacities=1000,2000"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("bench.py")), *arguments, f"--logdir={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = scripts.rows(tmp_path / "bench.csv")
    assert [(row["agent"], row["num_envs"], row["update_period"], row["replay_capacity"]) for row in rows] == [
        ("hyperagent", "1", "4", "100000"),
        ("ddqn", "1", "4", "100000"),
        ("hyperagent", "8", "4", "100000"),
        ("hyperagent", "1", "4", "1000"),
        ("hyperagent", "1", "4", "2000"),
        ("hyperagent", "1", "400", "100000"),
        ("hyperagent", "8", "400", "100000"),
    ]
    assert all(float(row[name]) > 0 for row in rows for name in ("step_us", "cpu_us", "game_us", "of_limit"))
    for text in (
        "hyperagent against ddqn: ",
        "8 parallel games: ",
        "replay of 2,000 against 1,000 transitions: ",
    ):
        assert text in done.stdout
