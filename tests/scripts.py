"""Wrong command lines of a script, many for one import: a process that has imported the package forks for each."""

from collections.abc import Mapping, Sequence
import csv
import json
import pathlib
import subprocess
import sys

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
    """Returns the rows of a csv file."""
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
