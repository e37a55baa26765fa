"""Reads and writes csv files, and records the origin of results: versions, commit, command and machine."""

from collections.abc import Iterable
import csv
import importlib.metadata
import io
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import types
from typing import Any, SupportsFloat, TextIO

from hyperagent_jax import errors
from hyperagent_jax import files

# How a run ended: complete; stopped early on request; not run, because something is missing; crashed.
FINISHED, PARTIAL, SKIPPED, FAILED = "finished", "partial", "skipped", "failed"

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "rlax", "numpy", "dm-env", "bsuite", "envpool")


def provenance() -> dict[str, Any]:
    """Returns what a result depends on besides its configuration: versions, commit, command and machine."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "versions": versions,
        "machine": {"cores": os.cpu_count(), "processor": _processor(), "system": platform.system()},
    }


def _processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        folder = pathlib.Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "-uno", ":/hyperagent_jax", ":/experiments", ":/requirements.txt")
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def number(x: SupportsFloat) -> float:
    """Rounds a number for the rows of a csv file."""
    return float(f"{float(x):.6g}")


def ratio(total: Any, count: Any) -> float | str:
    """Returns an average rounded for the rows of a csv file; an empty string if the count is zero."""
    return number(total / count) if count else ""


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the complete rows of a csv file, omitting a last line that was truncated by a crash."""
    if not path.exists():
        return []
    try:
        with open(path, newline="") as f:
            text = f.read()
        rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
        if any(None in row or None in row.values() for row in rows):
            raise csv.Error
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text file" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise errors.UserError(f"cannot read {path}: {reason}") from error
    except csv.Error as error:
        raise errors.UserError(f"{path} is corrupt: fix or delete it") from error
    return rows


def csv_writer(f: TextIO, fields: Iterable[str]) -> csv.DictWriter:
    """Returns a writer of rows that end in a line feed.

    If csv used that as its line terminator, it would leave carriage returns within values unquoted.
    """
    lines = types.SimpleNamespace(write=lambda line: f.write(line.removesuffix("\r\n") + "\n"))
    return csv.DictWriter(lines, list(fields), lineterminator="\r\n")


def write_csv(path: pathlib.Path, fields: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Replaces a csv file atomically."""
    with files.replacing(path) as f:
        writer = csv_writer(f, fields)
        writer.writeheader()
        writer.writerows(rows)
