"""The fault test itself: what it counts, what it takes for broken, and its main trial."""

import csv
import os
import pathlib
import random
import subprocess
import sys
import time

import breaking
import faults
import pytest

ROWS = {"results.csv": [["0", "1.5"], ["1", "2.5"]]}


@pytest.mark.parametrize(
    "table, left, said, problem",
    [
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n", "", "", ""),
        ("seed,seconds,score\n1,7,2.5\n0,8,1.5\n", "", "", "results.csv: order of rows"),
        ("seed,seconds,score\n0,7,1.5\n0,7,1.5\n", "", "", "results.csv: other values"),
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n1,8,2.5\n", "", "", "results.csv: 3 rows of 2"),
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n", "checkpoints/a.npz", "", "left over: a.npz"),
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n", "maps/a.npz.x.unfinished", "", "left over: a.npz.x.unfinished"),
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n", "rows/a.jsonl", "", "left over: a.jsonl"),
        ("seed,seconds,score\n0,7,1.5\n1,8,2.5\n", "", "Traceback (most", "a traceback"),
    ],
)
def test_what_counts_as_broken(table, left, said, problem, tmp_path):
    folder = tmp_path / "run"
    for name, text in {"results.csv": table, **({left: ""} if left else {})}.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    breaking.log(folder).write_text(said)
    assert breaking.problem(folder, ROWS) == problem


def test_moments_that_scripts_did_not_live_to_see_are_chosen_in_the_time_that_they_lived(tmp_path, monkeypatch):
    class Ended:
        folder = tmp_path

        def poll(self):
            return 0

    moment = breaking.Moment(random.Random(0), 100.0, ["time"])
    assert not moment.wait(Ended()) and moment.lived < 10.0
    bench = faults.Bench(tmp_path, ["parent"])
    monkeypatch.setattr(bench, "unbroken", lambda command: ({}, 100.0))
    case = faults.CASES[0]
    assert bench._life(case) == 100.0
    moment.lived, hit = 5.0, breaking.Moment(random.Random(0), 100.0)
    assert bench._life(case, [hit, moment]) == 5.0 == bench._life(case)
    assert bench._life(faults.CASES[1]) == 100.0


def test_only_kills_that_landed_are_counted():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert breaking._kill(process.pid) == 1
    assert breaking._kill(process.pid) == 0  # not waited for yet, but dead
    assert process.wait() == -9
    assert breaking._kill(process.pid) == 0


class _Lines:
    """Lines whose trials need no script."""

    def __init__(self, tmp_path, tries):
        case = faults.CASES[0]
        self.bench = faults.Bench(tmp_path, ["parent"])
        self.bench.unbroken = lambda command: (ROWS, 1.0)
        self.all = [faults.Line(case, fault, trials, tries) for fault, trials in (("a", 4), ("b", 2))]
        self.record = faults.Record(None, 0)

    def run(self, side_by_side, seconds=60.0):
        self.runner = faults.Runner(self.bench, self.record, self.all, 0)
        self.runner.run(self.all, seconds, side_by_side)
        return [(row["fault"], int(row["trial"]), row["kind"]) for row in self.record.trials]


@pytest.mark.parametrize("side_by_side", [1, 3])
def test_trials_run_once_each_and_lines_advance_alike(tmp_path, side_by_side):
    lines = _Lines(tmp_path, lambda chance, number: faults.Trial(f"{chance.random()}", number, ""))
    tried = lines.run(side_by_side)
    assert sorted(tried)[:4] == sorted({(f, n, k) for f, n, k in tried if f == "a"}) and len(tried) == 6
    assert {(fault, number) for fault, number, _ in tried} == {*(("a", n) for n in range(4)), ("b", 0), ("b", 1)}
    if side_by_side == 1:
        assert [fault for fault, *_ in tried] == ["a", "b", "a", "a", "b", "a"]
    again = _Lines(tmp_path, lambda chance, number: faults.Trial(f"{chance.random()}", number, ""))
    assert sorted(again.run(2)) == sorted(tried)  # a trial's random numbers are its own


def test_a_trial_that_cannot_be_run_ends_the_others(tmp_path):
    def fail_or_wait(chance, number):
        if number == 0:
            time.sleep(600)
        raise RuntimeError("broken")

    lines = _Lines(tmp_path, fail_or_wait)
    with pytest.raises(SystemExit, match="a trial could not be run"):
        lines.run(4)
    assert lines.runner._lanes
    for lane in lines.runner._lanes.values():
        with pytest.raises(ChildProcessError):
            os.waitpid(lane._pid, os.WNOHANG)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["local", "Ray", "submitit"])
def test_twelve_runs_of_two_workers_that_are_both_killed(launcher, tmp_path):
    """Rows equal an unbroken run on the local pool, each once, in order; nothing is resumed by hand."""
    only = f"--only=sweep.py, 12 runs, {launcher}, parent"
    command = [sys.executable, "faults.py", only, "--kinds=workers", "--trials=1", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "out" / "results.csv", newline="") as f:
        (trial,) = csv.DictReader(f)
    assert (trial["kills"], trial["held"]) == ("2", "True"), trial
