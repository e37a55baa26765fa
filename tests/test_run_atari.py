"""run_atari.py as a user runs it, with envpool's games."""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
from PIL import Image
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import host_memory
from hyperagent_jax.agents import atari_presets as presets
from hyperagent_jax.experiment import atari
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import run_context

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_atari.py"
SMALL = [
    "--hidden_sizes=8",
    "--batch_size=4",
    "--min_replay=40",
    "--num_envs=2",
    "--steps=240",
    "--eval_every=80",
    "--eval_episodes=2",
    "--final_eval_episodes=3",
    "--max_frames=240",
    "--noprogress",
]


def command(*arguments):
    return [sys.executable, str(SCRIPT), *arguments]


def run(*arguments, **environment):
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )


def read(path):
    with open(path) as f:
        return list(csv.DictReader(f))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--game=pong"], "unknown game 'pong'; did you mean Pong?"),
        (["--game=Ant"], "unknown game 'Ant'; choose one of Alien, "),
        (
            ["--network=all_layers"],
            "network=all_layers has no convolutions, so it cannot take images: use last_layer",
        ),
        (
            ["--agent=bbf"],
            "atari has no settings for bbf in this preset (see docs/agents.md); choose one of hyperagent, ",
        ),
        (["--replay_capacity=900000000", "--steps=900000000"], "GB of memory, but"),
        (["--n_step=300"], "n_step must be between 1 and 255, got 300"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, tmp_path):
    done = run(*arguments, f"--logdir={tmp_path / 'run'}", "--noprogress")
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "run").exists()


def test_a_missing_envpool_is_one_clear_line(tmp_path):
    (tmp_path / "envpool.py").write_text("raise ImportError('no such package')\n")
    done = run(f"--logdir={tmp_path / 'run'}", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.strip() == "error: envpool is not installed: pip install 'hyperagent_jax[atari]'"


@pytest.mark.timeout(900)  # many starts of a script
def test_results_and_killed_equals_unbroken(tmp_path):
    """A whole run; and the same one ended by kill -9 and by SIGTERM, and resumed: the same rows."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = run("--game=Breakout", "--record_video", f"--logdir={unbroken}", *SMALL)
    assert done.returncode == 0, done.stderr
    (row,) = read(unbroken / "results.csv")
    curve = read(unbroken / "curve.csv")
    assert [int(r["interactions"]) // 80 for r in curve] == [1, 2, 3]
    best = max(curve, key=lambda r: float(r["eval_score"]))
    assert row["best_eval_score"] == best["eval_score"] and row["best_interactions"] == best["interactions"]
    assert (row["game"], row["agent"], row["episodes"], row["error"]) == ("Breakout", "hyperagent", "3", "")
    facts = checkpoint.load_facts(unbroken / "checkpoints" / "Breakout_seed_0_best.npz")
    assert facts["best"]["interactions"] == int(row["best_interactions"])
    assert not (unbroken / "checkpoints" / "Breakout_seed_0.npz").exists()  # the replay is not needed any more
    record = json.loads((unbroken / "config.json").read_text())
    assert record["identity"]["preset"] == "paper" and record["versions"]["envpool"]
    assert (unbroken / "atari.png").stat().st_size > 10_000
    with Image.open(unbroken / "Breakout_seed_0.gif") as image:
        assert image.size == (320, 420) and image.n_frames > 5

    arguments = ["--game=Breakout", f"--logdir={broken}", "--checkpoint_seconds=0", "--resume", *SMALL]
    file = broken / "checkpoints" / "Breakout_seed_0.npz"
    for sign, least in ((signal.SIGKILL, 60), (signal.SIGTERM, 120)):
        process = subprocess.Popen(
            command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if interactions_in(file) >= least:
                break
            time.sleep(0.05)
        os.kill(process.pid, sign)
        _, stderr = process.communicate(timeout=120)
        assert interactions_in(file) >= least
        if sign == signal.SIGTERM:
            assert process.returncode == 130 and "repeat the command with --resume" in stderr
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Breakout_seed_0 resumes at" in done.stdout and "replaying its recorded actions" in done.stdout
    assert untimed_rows(unbroken) == untimed_rows(broken)
    refused = run(*arguments, "--sigma=0.5")
    assert refused.returncode == 2 and "sigma was 0.01, is now 0.5" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in presets.configs("paper") if name != "hyperagent"])
def test_every_system_resumes_exactly_after_kill(name, tmp_path):
    """A short run of every system, whole and ended by kill -9 while it learns: the same rows and parameters."""
    arguments = [
        "--game=Breakout",
        f"--agent={name}",
        *SMALL,
        "--replay_capacity=300",  # fewer than there are steps
        "--steps=480",
        "--eval_every=480",  # so that the best parameters are the last
    ]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = run(*arguments, f"--logdir={unbroken}")
    assert done.returncode == 0, done.stderr

    arguments += [f"--logdir={broken}", "--checkpoint_seconds=0", "--resume"]
    file = broken / "checkpoints" / "Breakout_seed_0.npz"
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and interactions_in(file) < 100:
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert 100 <= interactions_in(file) < 480
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Breakout_seed_0 resumes at" in done.stdout

    assert untimed_rows(unbroken) == untimed_rows(broken)
    one, other = (parameters(folder / "checkpoints" / "Breakout_seed_0_best.npz") for folder in (unbroken, broken))
    assert len(one) > 4 and one.keys() == other.keys()
    for key, array in one.items():
        np.testing.assert_array_equal(array, other[key])


def untimed_rows(folder):
    """The rows of a run's tables, without the times."""
    timed = ("seconds", "train_seconds", "interactions_per_second")
    return [
        [{k: v for k, v in row.items() if k not in timed} for row in read(folder / name)]
        for name in ("results.csv", "curve.csv")
    ]


def parameters(file):
    """The arrays of a checkpoint."""
    with np.load(file, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays if key != "facts"}


@pytest.mark.slow
def test_several_games_and_seeds(tmp_path):
    done = run(
        "--game=Pong,Breakout",
        "--num_seeds=2",
        "--agent=ddqn",
        "--num_workers=1",
        f"--logdir={tmp_path}",
        *SMALL,
        "--steps=60",
        "--eval_every=60",
        "--max_frames=80",
    )
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "results.csv")
    assert [(row["game"], row["seed"]) for row in rows] == [
        ("Pong", "0"),
        ("Pong", "1"),
        ("Breakout", "0"),
        ("Breakout", "1"),
    ]
    assert "4 of 4 runs finished" in done.stdout


def make_task(tmp_path, checkpoint_seconds=600.0, record_video=False):
    config = presets.configs("paper")["ddqn"](hidden_sizes=(8,), batch_size=4, min_replay=40, replay_capacity=200)
    protocol = atari.Protocol(
        steps=60, num_envs=2, eval_every=30, eval_episodes=1, final_eval_episodes=1, max_frames=80
    )
    return base.Task(
        "atari",
        "ddqn",
        config,
        protocol,
        seeds=(0,),
        options=atari.Options(record_video=record_video),
        columns=(("game", "Pong"),),
        folder=str(tmp_path),
        checkpoint_seconds=checkpoint_seconds,
    )


def run_task(task, report=lambda event: None, should_stop=lambda: False):
    """Runs a task of a new process."""
    atari.EXPERIMENT.run(task, run_context.RunContext(task, report, should_stop))


def interactions_in(file):
    """The interactions after which the newest checkpoint was made, 0 if there is none."""
    for generation in checkpoint.generations(file):
        with contextlib.suppress(checkpoint.CheckpointError):  # it has just been replaced
            return checkpoint.load_facts(generation)["progress"]["notes"]["runner"]["interactions"]
    return 0


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    task = make_task(tmp_path, checkpoint_seconds=0.0)
    saved, write, events = [], checkpoint._write, []

    def full_disk(file, arrays):
        if "Pong_seed_0.npz" in file.name:
            saved.append(json.loads(str(arrays["facts"]))["progress"]["notes"]["runner"]["rounds"])
            if len(saved) >= 4:
                file.write(b"half")
                raise OSError(28, "No space left on device")
        write(file, arrays)

    monkeypatch.setattr(checkpoint, "_write", full_disk)
    run_task(task, events.append)
    assert [event.kind for event in events if event.kind not in ("progress", "note")] == [
        "curve",
        "curve",
        "result",
    ]
    (note,) = [event.text for event in events if event.kind == "note"]
    assert note.startswith(
        f"cannot write checkpoint {task.checkpoint}: No space left on device; training continues"
    )
    assert checkpoint.load_facts(task.checkpoint)["progress"]["notes"]["runner"]["rounds"] == saved[2]
    names = {file.name for file in (tmp_path / "checkpoints").iterdir()}
    assert names == {"Pong_seed_0.npz", "Pong_seed_0.npz.previous", "Pong_seed_0_best.npz"}


def test_checkpoints_of_another_configuration_are_refused(tmp_path):
    task = make_task(tmp_path)
    run_task(task, should_stop=lambda: True)  # asked to stop at once: saves
    assert interactions_in(task.checkpoint) == 0
    other = dataclasses.replace(task, config=dataclasses.replace(task.config, learning_rate=0.5))
    with pytest.raises(errors.UserError, match="made with a different configuration: move it away"):
        run_task(other, should_stop=lambda: True)


def test_a_diverged_run_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    task = make_task(tmp_path, checkpoint_seconds=0.0)
    run_task(task, should_stop=lambda: True)
    monkeypatch.setattr(atari.vector.VectorRunner, "loss_is_finite", False)
    with pytest.raises(errors.UserError, match="Pong seed 0: the loss is not finite after 2 interactions"):
        run_task(task)
    assert interactions_in(task.checkpoint) == 0


def test_stopped_in_the_last_evaluation(tmp_path, monkeypatch):
    """It is made up for: the rows are those of an unbroken run."""
    play = atari.Run.play

    def stop_at_the_end(self, variables, purpose, num_episodes):
        return None if self.runner.interactions >= 60 else play(self, variables, purpose, num_episodes)

    events = []
    task = make_task(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(atari.Run, "play", stop_at_the_end)
        run_task(task, events.append)
    assert [event.kind for event in events if event.kind != "progress"] == ["curve"]
    run_task(task, events.append)
    unbroken = []
    folder = tmp_path / "unbroken"

    def no_room(self, variables):
        raise errors.UserError("no room")

    monkeypatch.setattr(atari.Run, "record", no_room)  # which costs the recording, not the result
    run_task(make_task(folder, record_video=True), unbroken.append)

    def rows(events):
        rows = [event.row for event in events if event.kind in ("curve", "result")]
        return [{k: v for k, v in row.items() if "second" not in k} for row in rows]

    shown = [event for event in unbroken if event.kind != "progress"]
    assert [event.kind for event in shown] == ["curve", "curve", "result", "note"]
    assert shown[3].text == "could not record Pong seed 0: no room"
    assert rows(events)[1:] == rows(unbroken)


def test_memory_is_checked_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 3_000_000_000)
    host_memory.require(2_999_999_999, "the run", "do less")
    with pytest.raises(errors.UserError, match="the run needs 3.50 GB of memory, but 3.00 GB are free: do less"):
        host_memory.require(3_500_000_000, "the run", "do less")
    assert host_memory.resident_bytes() > 50_000_000


def test_cache_of_files_is_not_used_memory(tmp_path, monkeypatch):
    for name, text in {
        "memory.max": "1000",
        "memory.current": "900",
        "memory.stat": "anon 300\nactive_file 200\ninactive_file 350\nfile 600",
    }.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(host_memory, "_CONTAINERS", ((str(tmp_path), "memory.max", "memory.current"),))
    assert host_memory.available_bytes() == 1000 - 900 + 200 + 350
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory.available_bytes() > 1000


@pytest.mark.slow
def test_bench(tmp_path):
    arguments = ["--benchmark=atari", "--turns=1", "--replay_capacity=2000", f"--logdir={tmp_path / 'bench'}"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT.with_name("bench.py")), *arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "bench" / "bench.csv")
    assert [row["agent"] for row in rows] == 2 * ["hyperagent", "hyperagent_ois", "ddqn"]
    assert [row["preset"] for row in rows] == 3 * ["paper"] + 3 * ["released"]
    for row in rows:
        assert float(row["update_ms"]) > 0 and float(row["loop_efficiency"]) > 0
        assert (float(row["of_ddqn"]) == 1) == (row["agent"] == "ddqn")
    (row,) = read(tmp_path / "bench" / "memory.csv")
    assert int(row["capacity"]) == 2000 and 0.3 < float(row["of_predicted"]) < 1.15
