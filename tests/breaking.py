"""Starts scripts, kills their processes at chosen moments and counts the kills; tests/faults.py uses it."""

import atexit
from collections.abc import Callable, Sequence
import contextlib
import csv
import os
import pathlib
import random
import runpy
import signal
import sys
import time
import traceback
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What the processes that run tasks are called, by launcher.
WORKERS = {"local": "spawn_main", "ray": "ray::_run", "slurm": "submitit.core._submit"}
# In the environment of all processes that a script starts.
_MARK = "HYPERAGENT_JAX_FAULTS"
Rows = dict[str, list[list[str]]]
_RUNNING: dict[int, "Script"] = {}


class Script:
    """A script that runs in a session of its own.

    It is forked from this process, which has imported the libraries: that saves most of a start.
    """

    def __init__(self, command: Sequence[str], folder: pathlib.Path, *more: str):
        """Starts it; what it prints is added to a file next to the folder."""
        self.folder, self._mark, self.code = folder, uuid.uuid4().hex, None
        script, *arguments = command
        self._ended_at: float | None = None
        self.pid = os.fork()
        _RUNNING[self.pid] = self
        if not self.pid:
            for number in (signal.SIGTERM, signal.SIGHUP):  # nohup has the second ignored, and scripts leave it so
                signal.signal(number, signal.SIG_DFL)
            self._become(ROOT / "experiments" / script, [*arguments, f"--logdir={folder}", *more])

    def _become(self, script: pathlib.Path, arguments: Sequence[str]) -> None:
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            said = os.open(log(self.folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.environ[_MARK] = self._mark
            sys.path.insert(0, str(script.parent))
            sys.argv = [str(script), *arguments]
            runpy.run_path(str(script), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                del _RUNNING[self.pid]
        return self.code

    def wait(self, timeout: float) -> int | None:
        """Waits for the end, and kills what takes too long; returns the exit code."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                print(f"{self.folder.name} was given up after {timeout:.0f} s", flush=True)
                self.kill("both", "")
            time.sleep(0.02)
        return self.code

    def processes(self, name: str) -> list[int]:
        """What the script has started and is alive, by a part of the command line."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    if f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        if name in command and _is_alive(int(entry.name)):
                            found.append(int(entry.name))
        return found

    def kill(self, whom: str, worker: str, choose: Callable[[list[int]], int] = min) -> int:
        """Kills the "parent", one of the "workers", or "both": everything; returns how many kills landed.

        Of what else a launcher has started, everything is killed too with "both", but not counted.
        """
        workers = self.processes(worker) if worker else []
        if whom == "workers":
            return _kill(choose(workers)) if workers else 0
        landed = 0
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.005)
            landed = int(self.code == -signal.SIGKILL)
        if whom == "both":
            landed += sum(map(_kill, workers))
            while others := self.processes(""):
                for pid in others:
                    _kill(pid)
        return landed


def _is_alive(pid: int) -> bool:
    try:
        return (pathlib.Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _kill(pid: int) -> int:
    """Kills one process and waits until it is gone; returns 1 if it was alive, else 0."""
    if not _is_alive(pid):
        return 0
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    while _is_alive(pid):
        time.sleep(0.005)
    return 1


def end_all() -> None:
    """Kills the scripts that still run."""
    for script in list(_RUNNING.values()):
        script.kill("both", "")


def log(folder: pathlib.Path) -> pathlib.Path:
    """Where the scripts of a folder print."""
    return folder.with_name(f"{folder.name}.log")


class Moment:
    """A random moment in a script's life; one that the script did not reach can be tried again, earlier."""

    def __init__(self, chance: random.Random, seconds: float, kinds: Sequence[str] = ("time", "save", "row")):
        """Chooses a moment.

        Args:
            chance: the source of randomness.
            seconds: how long the script runs unbroken.
            kinds: "time": after a random time; "save": while a checkpoint is written; "row": after a row of a
                table was.
        """
        self.kind = chance.choice(list(kinds))
        self.lived: float | None = None  # how long a script lived that did not reach the moment
        self._seconds = chance.uniform(0.1, 0.9) * seconds
        self._number = chance.randint(1, 8)  # of saves or of rows
        self._delay = chance.uniform(0.0, 0.02)

    def earlier(self, times: int) -> None:
        """Brings a moment forward that counts saves or rows; one in time needs to know how long scripts live."""
        self._number = max(1, self._number >> times)

    def wait(self, script: Script) -> bool:
        """Waits for the moment; returns whether the script lived to see it."""
        reached = {"time": self._is_time, "save": self._is_save, "row": self._is_row}[self.kind]
        self._begin, self._seen = time.monotonic(), set()
        while not reached(script.folder) and script.poll() is None:
            time.sleep(0.002)
        if self.kind == "row":
            time.sleep(self._delay)
        if script.poll() is None:
            return True
        self.lived = time.monotonic() - self._begin
        return False

    def _is_time(self, folder: pathlib.Path) -> bool:
        return time.monotonic() - self._begin >= self._seconds

    def _is_save(self, folder: pathlib.Path) -> bool:
        """Whether the n-th checkpoint that was seen is being written."""
        with contextlib.suppress(OSError):
            writing = {name for name in os.listdir(folder / "checkpoints") if name.endswith("unfinished")}
            self._seen |= writing
            return bool(writing) and len(self._seen) >= self._number
        return False

    def _is_row(self, folder: pathlib.Path) -> bool:
        """Whether tables, or what tasks file, have grown that often."""
        for file in (*folder.glob("*.csv"), *folder.glob("rows/*")):
            with contextlib.suppress(OSError):
                self._seen.add((file.name, file.stat().st_size))
        return len(self._seen) >= self._number


def half_written(folder: pathlib.Path) -> int:
    """Files whose writing was cut short."""
    return sum(1 for _ in folder.rglob("*unfinished"))


def rows(folder: pathlib.Path) -> Rows:
    """All tables of a folder, in their order, without times."""
    found = {}
    for file in sorted([*folder.glob("*.csv"), *folder.glob("csv/*.csv")]):
        with open(file, newline="") as f:
            found[file.name] = [
                [value for name, value in row.items() if "second" not in name] for row in csv.DictReader(f)
            ]
    return found


def problem(folder: pathlib.Path, expected: Rows) -> str:
    """What is wrong with a folder, next to an unbroken run: rows, their order, leftovers; blank if nothing."""
    found = rows(folder)
    for name, table in expected.items():
        if (ours := found.get(name, [])) != table:
            kind = "order of rows" if sorted(ours) == sorted(table) else f"{len(ours)} rows of {len(table)}"
            return f"{name}: {kind if len(ours) != len(table) or kind[0] == 'o' else 'other values'}"
    left = [file for file in folder.glob("checkpoints/*") if not file.name.endswith("_best.npz")]
    if left := [*left, *folder.rglob("*unfinished"), *folder.glob("rows/*")]:
        return f"left over: {left[0].name}"
    return "a traceback" if "Traceback" in log(folder).read_text() else ""
