"""Wrong command lines of a script, many for one import: a process that has imported the package forks for each."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

# As the scripts do, it imports `common` first. It uses jax for nothing, which would start threads.
_STARTER = """
import json, os, runpy, sys
script, folder, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, os.path.dirname(script))
import common
from hyperagent_jax.experiment import driver
for i, arguments in enumerate(cases):
    process = os.fork()
    if process == 0:
        os.dup2(os.open(f"{folder}/{i}.stderr", os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with open(f"{folder}/{i}.code", "w") as file:
        file.write(str(code))
"""


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of a csv file, and an empty list before it exists."""
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def check_errors(
    script: pathlib.Path, expected: Mapping[Sequence[str], str], folder: pathlib.Path, options: Sequence[str] = ()
) -> None:
    """Runs the script once per list of arguments and checks how it refuses them.

    Args:
        script: a script of experiments/.
        expected: what the one line on stderr must contain, by arguments.
        folder: an empty folder; runs write to folder/run, unless they name
            another --logdir, and must not make it.
        options: more arguments for all runs.
    """
    logdir = f"--logdir={folder / 'run'}"
    cases = [[*options, *case] + [logdir] * ("--logdir=" not in " ".join(case)) for case in expected]
    (folder / "ends").mkdir()
    command = [sys.executable, "-c", _STARTER, str(script), str(folder / "ends"), json.dumps(cases)]
    subprocess.run(command, check=True, timeout=280)
    for i, (arguments, message) in enumerate(expected.items()):
        code, line = ((folder / "ends" / f"{i}.{kind}").read_text() for kind in ("code", "stderr"))
        assert code == "2" and line.count("\n") == 1, (arguments, line)
        assert line.startswith("error: ") and message in line, (arguments, line)
    assert not (folder / "run").exists()


def kill_in_the_middle(
    command: Sequence[str], folder: pathlib.Path, is_in_the_middle: Callable[[], bool], attempts: int = 5
) -> None:
    """Starts a run and kills all of its processes with -9 in the middle.

    On a busy machine a run can be past the middle before this process looks at it; it is then deleted and started
    again.

    Args:
        command: a script with --logdir and --resume.
        folder: its --logdir, which does not exist yet.
        is_in_the_middle: says from the run's files whether this is the moment; must hold after the kill, too.
        attempts: how often the run is started.
    """
    for _ in range(attempts):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None and not is_in_the_middle():
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if is_in_the_middle():
            return
        shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError(f"none of {attempts} runs was caught in the middle")
