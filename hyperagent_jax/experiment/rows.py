"""Records of finished tasks, written by the process that ran them, so that no result is lost with the driver.

Every process appends to its own file in `<logdir>/rows`, one line per finished task, with a digest. The driver
collects the records in results.csv and curve.csv and then deletes them.
"""

from collections.abc import Iterator
import functools
import hashlib
import json
import os
import pathlib
from typing import Any, NamedTuple
import uuid

from hyperagent_jax import errors
from hyperagent_jax import files


class Record(NamedTuple):
    """All rows of one task."""

    task: str  # its name
    columns: dict[str, str]  # that identify it, besides the seed
    results: dict[str, dict[str, Any]]  # by seed
    curve: list[tuple[int, dict[str, Any]]]  # with their seeds


def _folder(logdir: str | os.PathLike) -> pathlib.Path:
    return pathlib.Path(logdir) / "rows"


@functools.lru_cache(maxsize=1)
def _own_name(pid: int) -> str:
    """Returns the name of this process's file; in different containers, process ids may coincide."""
    del pid  # makes a forked process choose a new name
    return f"{files.process_name()}-{uuid.uuid4().hex[:8]}.jsonl"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def add(logdir: str, record: Record) -> None:
    """Appends a record to the file of this process, and waits until it is on disk."""
    text = json.dumps(record._asdict())
    path = _folder(logdir) / _own_name(os.getpid())
    with files.writing(path):
        path.parent.mkdir(exist_ok=True)
        is_new = not path.exists()
        # Start a new line, even after a line that was truncated by a full disk.
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"\n{_digest(text)} {text}\n")
            f.flush()
            os.fsync(f.fileno())
        if is_new:
            files.sync_folder(path.parent)


class Reader:
    """Reads records as they arrive, each once. Incomplete lines are skipped."""

    def __init__(self, logdir: str | os.PathLike):
        self._folder = _folder(logdir)
        self._offsets: dict[pathlib.Path, int] = {}

    def new(self) -> Iterator[Record]:
        """Yields the records added since the last call."""
        for path in sorted(self._folder.glob("*.jsonl")):
            begin = self._offsets.get(path, 0)
            try:
                with open(path, "rb") as f:
                    f.seek(begin)
                    content = f.read()
            except OSError as error:
                raise errors.UserError(f"cannot read {path}: {error.strerror}") from error
            whole = content.rfind(b"\n") + 1
            self._offsets[path] = begin + whole
            for line in content[:whole].splitlines():
                if (record := _parse(line)) is not None:
                    yield record


def _parse(line: bytes) -> Record | None:
    try:
        digest, _, text = line.decode().partition(" ")
        if digest != _digest(text):
            return None
        record = Record(**json.loads(text))
        record = record._replace(curve=[(seed, row) for seed, row in record.curve])
        rows = [*record.results.values(), *(row for _, row in record.curve)]
        seeds = [*map(int, record.results), *(seed for seed, _ in record.curve)]
    except (ValueError, TypeError, AttributeError):
        return None
    is_ours = isinstance(record.columns, dict) and all(isinstance(row, dict) for row in rows)
    return record if is_ours and all(isinstance(seed, int) for seed in seeds) else None


def delete(logdir: str | os.PathLike) -> None:
    """Deletes all records, once they are in the tables."""
    for path in _folder(logdir).glob("*.jsonl"):
        path.unlink(missing_ok=True)
    if _folder(logdir).is_dir() and not any(_folder(logdir).iterdir()):
        _folder(logdir).rmdir()
