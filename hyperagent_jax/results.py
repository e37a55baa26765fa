"""A run's directory: results.csv, curve.csv and config.json, which survive any interruption."""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import csv
import fcntl
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import types
from typing import Any, TextIO

from hyperagent_jax import config as config_lib
from hyperagent_jax import errors

# What became of a run: all of it; less, as asked for; not run, because something is missing here; crashed.
FINISHED, PARTIAL, SKIPPED, FAILED = "finished", "partial", "skipped", "failed"

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "chex", "rlax", "numpy", "dm-env", "bsuite", "envpool")


def provenance() -> dict[str, Any]:
    """What a result depends on besides its configuration: versions, commit, command and machine."""
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
    def git(*arguments):
        folder = pathlib.Path(__file__).parent
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "-uno", ":/hyperagent_jax", ":/experiments", ":/requirements.txt")
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def number(x) -> float:
    """A number as rows of results have it."""
    return float(f"{float(x):.6g}")


def ratio(total, count) -> float | str:
    """An average as rows of results have it; blank of nothing."""
    return number(total / count) if count else ""


def read_csv(path: pathlib.Path) -> list[dict[str, str]]:
    """The complete rows of a csv file; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    try:
        with open(path, newline="") as f:
            text = f.read()
        rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
        if any(None in row or None in row.values() for row in rows):
            raise csv.Error
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no text file" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise errors.UserError(f"cannot read {path}: {reason}") from error
    except csv.Error as error:
        raise errors.UserError(f"{path} is damaged: mend or delete it") from error
    return rows


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    """Makes one clear line of what keeps a file from being written."""
    try:
        yield
    except OSError as error:
        raise errors.UserError(f"cannot write {path}: {error.strerror}") from error


def _csv_writer(f: TextIO, fields: Iterable[str]) -> csv.DictWriter:
    """Returns a writer of rows that end in a line feed.

    With that as its own line terminator, csv would leave a carriage return within a value unquoted.
    """
    lines = types.SimpleNamespace(write=lambda line: f.write(line.removesuffix("\r\n") + "\n"))
    return csv.DictWriter(lines, list(fields), lineterminator="\r\n")


def write_csv(path: pathlib.Path, fields: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Replaces a csv file at once."""
    unfinished = path.with_name(path.name + ".unfinished")
    with _writing(path), open(unfinished, "w", newline="") as f:
        writer = _csv_writer(f, fields)
        writer.writeheader()
        writer.writerows(rows)
        f.flush()
        os.fsync(f.fileno())
    os.replace(unfinished, path)


def _first_difference(name: str, was: Any, now: Any) -> tuple[str, Any, Any] | None:
    """Name, old and new value of the first entry in which two nested dicts differ."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return None if was == now else (name, was, now)
    # The experiment comes first: of two different ones nothing else is comparable. The agent's settings come last:
    # some follow from the protocol.
    for key in sorted({*was, *now}, key=lambda key: (key != "experiment", key.startswith("config"), key)):
        if difference := _first_difference(key, was.get(key), now.get(key)):
            return difference
    return None


class RunDirectory:
    """The files of one run; only one process writes them."""

    _TABLES = ("results.csv", "curve.csv", "bench.csv", "memory.csv")

    def __init__(
        self,
        path: str,
        identity: dict[str, Any],
        *,
        resume: bool | None,
        overwrite: bool,
        extensible: Sequence[str] = (),
        new: dict[str, Any] | None = None,
        notes: dict[str, Any] | None = None,
    ):
        """Opens or makes the directory.

        Args:
            path: the directory.
            identity: the resolved configuration; results of another one never mix with it.
            resume: go on with what is there; None where that cannot be asked for.
            overwrite: delete results that are there.
            extensible: parts of the identity, dicts themselves, that may gain entries when a run is resumed.
            new: values of the identity's settings that an older version may not have filed: `config.completed`.
            notes: what else config.json tells; when a run is resumed the new ones replace the old.

        A run that is resumed elsewhere, or by another version, has a list of where under "resumed".
        """
        self.path = pathlib.Path(path)
        self._config = self.path / "config.json"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w")
        except OSError as error:
            raise errors.UserError(f"cannot write to --logdir={path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise errors.UserError(f"--logdir={path} is in use by another run: choose another --logdir") from error
        if resume and overwrite:
            raise errors.UserError("--resume goes on with what --overwrite deletes: give one of them")
        record = {"identity": json.loads(json.dumps(identity)), **(notes or {})}
        if any(self.path.glob("csv/*")) and not self._config.exists():
            raise errors.UserError(f"--logdir={path} holds logs of another program: choose another --logdir")
        tables = [name for name in self._TABLES if (self.path / name).exists()]
        if tables and not self._config.exists():
            raise errors.UserError(
                f"--logdir={path} holds a {tables[0]} without the config.json that tells what it is of: "
                "choose another --logdir"
            )
        if self._config.exists() and not tables and not (self.path / "checkpoints").exists():
            self._config.unlink()  # a run that ended before it had anything to show
        if self._config.exists():
            if overwrite:
                self._delete()
            elif not resume:
                advice = "" if resume is None else "--resume to go on, "
                raise errors.UserError(
                    f"--logdir={path} already holds a run: add {advice}--overwrite to delete it, "
                    "or choose another --logdir"
                )
            else:
                record = self._resumed(record, extensible, new or {})
        origin = provenance()
        if not self._config.exists():
            record.update(origin)
        else:
            filed = [record, *record.get("resumed", [])][-1]
            if any(filed.get(part) != origin[part] for part in ("commit", "versions", "machine")):
                record["resumed"] = [*record.get("resumed", []), origin]
        unfinished = self._config.with_suffix(".unfinished")
        with _writing(self._config):
            unfinished.write_text(json.dumps(record, indent=2) + "\n")
            os.replace(unfinished, self._config)

    def close(self) -> None:
        """Lets other processes open the directory; also happens when this one ends."""
        self._lock.close()

    def _delete(self):
        for name in self._TABLES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("checkpoints/*", "maps/*", "csv/*", "*.png", "*.gif"):
            for file in filter(pathlib.Path.is_file, self.path.glob(pattern)):
                file.unlink()
        self._config.unlink(missing_ok=True)  # last: it tells what the rest is

    def _resumed(self, record, extensible, settings):
        """The record on file, with what is new in `record`; refuses one of another configuration."""
        try:
            filed = json.loads(self._config.read_text())
            old, new = filed["identity"], record["identity"]
            if not isinstance(old, dict):
                raise ValueError("identity is no object")
        except (ValueError, KeyError, TypeError) as error:
            raise errors.UserError(f"{self._config} is damaged: use --overwrite or another --logdir") from error
        old = config_lib.completed(old, new, settings)
        for part in extensible:
            before, now = old.get(part, {}), new[part]
            old[part], new[part] = {**now, **before}, {**before, **now}
        if difference := _first_difference("", old, new):
            name, was, now = difference
            raise errors.UserError(
                f"--logdir={self.path} holds a run with another configuration ({name} was {was}, is now {now}): "
                "choose another --logdir or --overwrite"
            )
        return {**filed, **record}

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of results.csv ("results") or curve.csv ("curve")."""
        return read_csv(self.path / f"{name}.csv")

    def require_numbers(self, name: str, *columns: str) -> None:
        """Refuses a csv file without these columns of whole numbers."""
        try:
            for row in self.rows(name):
                for column in columns:
                    int(row[column])
        except (KeyError, ValueError) as error:
            raise errors.UserError(f"{self.path / name}.csv is damaged: mend or delete it") from error

    def add(self, name: str, fields: tuple[str, ...], row: dict[str, Any]) -> None:
        """Appends one row to a csv file."""
        path = self.path / f"{name}.csv"
        is_new = not path.exists()
        with _writing(path), open(path, "a", newline="") as f:
            writer = _csv_writer(f, fields)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
            f.flush()
            os.fsync(f.fileno())

    def keep(self, name: str, fields: tuple[str, ...], condition) -> None:
        """Drops the rows of a csv file that do not meet a condition, and any line cut short.

        Columns that the file does not have yet, because an older version wrote it, are left blank.
        """
        path = self.path / f"{name}.csv"
        rows = [row for row in self.rows(name) if condition(row)]
        if unknown := [column for column in (rows[0] if rows else ()) if column not in fields]:
            raise errors.UserError(
                f"{path} has columns that this version does not write ({', '.join(unknown)}): use another --logdir"
            )
        if path.exists():
            write_csv(path, fields, rows)
