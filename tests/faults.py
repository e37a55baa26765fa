"""Breaks runs on purpose and compares what they end in with an unbroken run: `make test-faults`.

Every script and every launcher is killed with -9 at random moments, whole or a worker alone, and continued with
--resume; files are damaged, disks filled, and two drivers let loose on one folder. Rows must be those of an
unbroken run, all columns but times. Prints a table of what was tried and what held.
"""

import argparse
from collections.abc import Callable, Sequence
import csv
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL = ["--hidden_sizes=16,16", "--batch_size=32", "--eval_episodes=10"]
TINY_GRID = {
    "size": [4, 6],
    "seed": [0, 1, 2, 3, 4, 5],
    "hidden_sizes": [16, 16],
    "batch_size": 32,
    "eval_episodes": 10,
    "eval_every": 100,
    "max_episodes": 2_500,
    "solved_return": 2,
    "replay_capacity": 400,
}
SWEEP = ["sweep.py", f"--grid={json.dumps(TINY_GRID)}", "--num_workers=2"]
# What the processes that run tasks are called, by launcher.
WORKERS = {"local": "spawn_main", "ray": "ray::_run", "slurm": "submitit.core._submit"}


class Case(NamedTuple):
    """A command to break."""

    name: str
    command: Sequence[str]
    launcher: str = "local"
    is_single: bool = False  # in one process, so that there is no worker to kill


CASES = [
    Case("run_deepsea.py, 2 workers", ["run_deepsea.py", "--size=6", "--num_seeds=3", "--num_workers=2",
                                       "--max_episodes=4000", "--eval_every=200", "--solved_return=2", *SMALL]),
    Case("run_deepsea.py, 1 process", ["run_deepsea.py", "--size=6", "--num_workers=1", "--max_episodes=6000",
                                       "--eval_every=200", "--solved_return=2", *SMALL], is_single=True),
    Case("sweep.py, 12 runs, local", SWEEP),
    Case("sweep.py, 12 runs, Ray", [*SWEEP, "--launcher=ray"], "ray"),
    Case("sweep.py, 12 runs, submitit", [*SWEEP, "--launcher=slurm", "--slurm_cluster=local", "--tasks_per_job=3"],
         "slurm"),
    Case("run_bsuite.py, 2 ids", ["run_bsuite.py", "--bsuite_id=catch/0,bandit/0", "--max_episodes=300",
                                  "--num_workers=2", "--hidden_sizes=16", "--min_replay=50"]),
    Case("run_gymnasium.py, 2 seeds", ["run_gymnasium.py", "--steps=2000", "--eval_every=400", "--eval_episodes=2",
                                       "--num_seeds=2", "--num_workers=2", "--hidden_sizes=16"]),
    Case("run_jax.py, 2 seeds", ["run_jax.py", "--env=explore/mountain_car", "--steps=20000", "--eval_every=4000",
                                 "--eval_episodes=2", "--num_seeds=2", "--num_workers=2", "--hidden_sizes=16"]),
    Case("run_atari.py, 2 seeds", ["run_atari.py", "--game=Pong", "--agent=ddqn", "--hidden_sizes=8",
                                   "--steps=300", "--num_envs=2", "--eval_every=100", "--eval_episodes=1",
                                   "--final_eval_episodes=1", "--max_frames=400", "--batch_size=4",
                                   "--min_replay=40", "--replay_capacity=300", "--num_seeds=2",
                                   "--num_workers=2"]),
]  # fmt: skip


def start(command: Sequence[str], folder: pathlib.Path, *more: str) -> subprocess.Popen:
    """Starts a script in a session of its own; what it says is kept next to the folder."""
    script, *arguments = command
    full = [
        sys.executable,
        str(ROOT / "experiments" / script),
        *arguments,
        "--noprogress",
        "--checkpoint_seconds=0",
    ]
    said = open(folder.with_name(f"{folder.name}.log"), "a")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*full, f"--logdir={folder}", *more], stdout=said, stderr=said, env=environment, start_new_session=True
    )


def descendants(pid: int, name: str) -> list[int]:
    """Processes below one whose command line has that name."""
    parents: dict[int, list[int]] = {}
    names = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError, IndexError):
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            waiting.append(child)
            if name in names[child]:
                found.append(child)
    return found


def tree(pid: int) -> list[int]:
    return descendants(pid, "")


def kill_all(process: subprocess.Popen) -> None:
    """Kills a script and everything it started, at once."""
    for pid in [process.pid, *tree(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def rows(folder: pathlib.Path) -> dict[str, list[list[str]]]:
    """All tables of a folder, in their order, without times."""
    found = {}
    for file in sorted([*folder.glob("*.csv"), *folder.glob("csv/*.csv")]):
        with open(file, newline="") as f:
            found[file.name] = [
                [value for name, value in row.items() if "second" not in name] for row in csv.DictReader(f)
            ]
    return found


def is_right(folder: pathlib.Path, expected: dict[str, list[list[str]]]) -> bool:
    """Whether a folder has the rows of the unbroken run, in the same order, and nothing is left behind."""
    left = [file for file in folder.glob("checkpoints/*") if not file.name.endswith("_best.npz")]
    left += [*folder.rglob("*unfinished"), *folder.glob("rows/*")]
    said = folder.with_name(f"{folder.name}.log").read_text()
    return rows(folder) == expected and not left and "Traceback" not in said


def finish(case: Case, folder: pathlib.Path, *more: str) -> bool:
    return start(case.command, folder, "--resume", *more).wait(timeout=900) == 0


class Bench:
    """The place where runs are broken."""

    def __init__(self, folder: pathlib.Path, trials: int, seed: int):
        self.folder, self.trials, self.random = folder, trials, random.Random(seed)
        self.table: list[tuple[str, str, int, int]] = []
        self._numbers = itertools.count()
        self._unbroken: dict[str, tuple[dict[str, list[list[str]]], float]] = {}

    def new_folder(self) -> pathlib.Path:
        return self.folder / f"run_{next(self._numbers)}"

    def add(self, what: str, how: str, held: Sequence[bool]) -> None:
        self.table.append((what, how, len(held), sum(held)))
        print(f"| {what} | {how} | {len(held)} | {sum(held)} |", flush=True)

    def unbroken(self, case: Case) -> tuple[dict[str, list[list[str]]], float]:
        """Rows and seconds of a run that nobody disturbs; the first one compiles, the second is timed."""
        if case.name in self._unbroken:
            return self._unbroken[case.name]
        for _ in range(2):
            folder, begin = self.new_folder(), time.monotonic()
            process = start(case.command, folder)
            if process.wait(timeout=900):
                raise SystemExit(
                    f"{case.name} fails unbroken: {folder.with_name(folder.name + '.log').read_text()}"
                )
        self._unbroken[case.name] = rows(folder), time.monotonic() - begin
        return self._unbroken[case.name]

    def kill_whole(self, case: Case, expected: dict[str, list[list[str]]], seconds: float) -> bool:
        """Kills everything at up to two random moments, and lets the third attempt end."""
        folder = self.new_folder()
        for _ in range(self.random.choice([1, 2])):
            process = start(case.command, folder, "--resume")
            time.sleep(self.random.uniform(0.2, 1.0) * seconds)
            kill_all(process)
        return finish(case, folder) and is_right(folder, expected)

    def kill_workers(self, case: Case, expected: dict[str, list[list[str]]], seconds: float) -> bool:
        """Kills two workers at random moments of a run that nobody resumes."""
        folder = self.new_folder()
        process = start(case.command, folder)
        killed, deadline = 0, time.monotonic() + 3 * seconds + 60
        while process.poll() is None and killed < 2 and time.monotonic() < deadline:
            time.sleep(self.random.uniform(0.05, 0.4) * seconds)
            if workers := descendants(process.pid, WORKERS[case.launcher]):
                try:
                    os.kill(self.random.choice(workers), signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
        return process.wait(timeout=900) == 0 and is_right(folder, expected)

    def moments(self, case: Case) -> None:
        """Kills at random moments, whole and workers in turn."""
        expected, seconds = self.unbroken(case)
        kinds: dict[str, Callable[..., bool]] = {"kill -9 of everything, --resume": self.kill_whole}
        if not case.is_single:
            kinds["kill -9 of two workers"] = self.kill_workers
        share = -(-self.trials // len(kinds))
        for how, kill in kinds.items():
            self.add(case.name, how, [kill(case, expected, seconds) for _ in range(share)])

    def stopped(self, case: Case, number: signal.Signals) -> None:
        """Asks the driver to stop at a random moment; continues with --resume, on the local pool."""
        expected, seconds = self.unbroken(case)
        held = []
        for _ in range(max(1, self.trials // 5)):
            folder = self.new_folder()
            process = start(case.command, folder)
            time.sleep(self.random.uniform(0.3, 0.9) * seconds)
            os.kill(process.pid, number)
            code = process.wait(timeout=300)
            local = [part for part in case.command if not part.startswith(("--launcher", "--slurm", "--tasks"))]
            held.append(
                code in (0, 130) and finish(case._replace(command=local), folder) and is_right(folder, expected)
            )
        self.add(case.name, f"{number.name}, then --resume on the local pool", held)

    def damaged(self, case: Case) -> None:
        """Kills a run, damages its checkpoints, and continues."""
        expected, seconds = self.unbroken(case)
        for how in ("cut short", "a byte changed", "emptied"):
            held = []
            for _ in range(max(1, self.trials // 5)):
                folder = self.new_folder()
                for _ in range(10):
                    process = start(case.command, folder, "--resume")
                    time.sleep(self.random.uniform(0.4, 0.9) * seconds)
                    kill_all(process)
                    if files := sorted(folder.glob("checkpoints/*.npz")):
                        break
                file = self.random.choice(files)
                content = bytearray(file.read_bytes())
                if how == "a byte changed":
                    content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
                file.write_bytes(
                    content[: len(content) // 2] if how == "cut short" else content * (how != "emptied")
                )
                done = finish(case, folder)
                for aside in folder.glob("checkpoints/*.damaged"):
                    aside.unlink()
                held.append(done and is_right(folder, expected))
            self.add(case.name, f"a checkpoint {how}, --resume", held)

    def two_drivers(self, case: Case) -> None:
        """Starts the same command twice: one is refused in a line that names the other, which ends well."""
        expected, seconds = self.unbroken(case)
        held = []
        for _ in range(max(1, self.trials // 5)):
            folder = self.new_folder()
            first = start(case.command, folder)
            while not (folder / "config.json").exists() and first.poll() is None:
                time.sleep(0.05)
            second = start(case.command, folder, "--resume")
            is_refused = second.wait(timeout=300) == 2
            said = folder.with_name(f"{folder.name}.log").read_text()
            is_named = f"is in use by process {first.pid} on " in said
            held.append(is_refused and is_named and first.wait(timeout=900) == 0 and is_right(folder, expected))
        self.add(case.name, "two drivers of one folder", held)

    def full_disk(self, case: Case) -> None:
        """Runs on a disk that is too small for checkpoints, then on one with room again."""
        expected, _ = self.unbroken(case)
        place = self.folder / "small_disk"
        place.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", str(place)]
        if subprocess.run(mount, capture_output=True).returncode:
            print("a full disk was not tried: only root can make a small one", flush=True)
            return
        held = []
        try:
            for _ in range(max(1, self.trials // 5)):
                folder = place / "run"
                code = start(case.command, folder).wait(timeout=900)
                said = (place / "run.log").read_text() if (place / "run.log").exists() else ""
                moved = self.new_folder()
                shutil.copytree(folder, moved)
                moved.with_name(f"{moved.name}.log").write_text(said)
                done = code in (0, 2) and "Traceback" not in said and finish(case, moved)
                held.append(done and is_right(moved, expected))
                shutil.rmtree(folder)
                (place / "run.log").unlink(missing_ok=True)
        finally:
            subprocess.run(["umount", str(place)], check=False)
        self.add(case.name, "a full disk, --resume where there is room", held)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="kills of every script and launcher")
    parser.add_argument("--only", default="", help="part of the names of cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="file for the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyperagent_jax_faults_") as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(folder) / "cache")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        bench = Bench(pathlib.Path(folder), arguments.trials, arguments.seed)
        heading = "| what | fault | tried | held |\n|---|---|---|---|"
        print(heading, flush=True)
        chosen = [case for case in CASES if arguments.only in case.name]
        for case in chosen:
            bench.moments(case)
        sweeps = [case for case in chosen if case.name.startswith("sweep.py")]
        for case in sweeps:
            bench.stopped(case, signal.SIGTERM)
        for case in sweeps[:1]:
            bench.stopped(case, signal.SIGHUP)
            bench.damaged(case)
            bench.two_drivers(case)
            bench.full_disk(case)
    if arguments.out:
        lines = [heading, *(f"| {' | '.join(map(str, row))} |" for row in bench.table)]
        arguments.out.write_text("\n".join(lines) + "\n")
    return 0 if all(tried == held for _, _, tried, held in bench.table) else 1


if __name__ == "__main__":
    sys.exit(main())
