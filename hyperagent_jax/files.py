"""Writes files atomically: under a temporary name first, which is then renamed."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import socket
from typing import Any
import uuid

from hyperagent_jax import errors

_UNFINISHED = ".unfinished"


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Converts an OSError to a one-line error that names the file."""
    try:
        yield
    except OSError as error:
        raise errors.UserError(f"cannot write {path}: {error.strerror or error}") from error


def process_name() -> str:
    """Returns a name of this process that is unique on this host and on all that share its disk."""
    return f"{socket.gethostname()}-{os.getpid()}"


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns this process's temporary name for the file at `path`; it is different for every process."""
    return path.with_name(f"{path.name}.{process_name()}-{uuid.uuid4().hex[:6]}{_UNFINISHED}")


def delete_unfinished(folder: pathlib.Path, name: str = "") -> None:
    """Deletes temporary files that any process left behind, of that file in a folder or of all its files."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            if file.name.startswith(f"{name}." if name else "") and file.name.endswith(_UNFINISHED):
                file.unlink(missing_ok=True)


def sync_folder(folder: pathlib.Path) -> None:
    """Makes the names in a folder survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def replacing(path: pathlib.Path, mode: str = "w", keep: pathlib.Path | None = None) -> Iterator[Any]:
    """Opens a file ("w" for text, "w+b" for bytes) that replaces the one at `path` once it is complete.

    With `keep`, the previous file at `path` is kept under that name.
    """
    own = unfinished(path)
    text = {} if "b" in mode else {"newline": "", "encoding": "utf-8"}
    with writing(path):
        try:
            with open(own, mode, **text) as f:  # type: ignore[call-overload]  # only text has these options
                yield f
                f.flush()
                os.fsync(f.fileno())
            if keep:
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, keep)
            os.replace(own, path)
        except BaseException:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
