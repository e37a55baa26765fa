"""Locks a run directory for one driver and the tasks it has started, on this host or on others."""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import io
import json
import os
import pathlib
import socket
import sys
import time
from typing import Any

from hyperagent_jax import errors

# Errors of flock on file systems without locks, such as some network file systems; others mean that it is taken.
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
# A worker notices within a second that its driver is gone.
_SECONDS_TO_END = 10.0


def _flock(file: io.FileIO, operation: int) -> bool | None:
    """Takes a lock without waiting; returns False if another process holds it, None without lock support."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _UNSUPPORTED else False
    return True


def _open(file: pathlib.Path) -> io.FileIO:
    return io.FileIO(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")


def _tasks_file(folder: pathlib.Path) -> pathlib.Path:
    return folder / ".tasks"


@contextlib.contextmanager
def shared(folder: str) -> Iterator[None]:
    """Holds the lock that every task takes while it runs, so that no new driver starts while tasks still write."""
    if not folder:  # a task without a driver
        yield
        return
    try:
        file = _open(_tasks_file(pathlib.Path(folder)))
    except OSError:
        yield  # the first write will report the error
        return
    with file:
        _flock(file, fcntl.LOCK_SH)
        yield


class Lock:
    """The lock of a run directory, which its driver holds until it exits, however it exits."""

    def __init__(self, folder: pathlib.Path):
        """Takes the lock; raises an error that names the owner if it is taken."""
        self._file = folder / ".lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = _open(self._file)
        except OSError as error:
            raise errors.UserError(f"cannot write to --logdir={folder}: {error.strerror}") from error
        self._identity = self._stat(self._handle.fileno())
        try:
            self._take(folder)
            self._wait_for_tasks(folder)
        except BaseException:
            self._handle.close()
            raise
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._handle.truncate(0)
        os.pwrite(self._handle.fileno(), json.dumps(owner).encode(), 0)

    def _take(self, folder: pathlib.Path) -> None:
        self._is_locked = _flock(self._handle, fcntl.LOCK_EX)
        if self._is_locked:
            return
        owner = self._owner()
        who = "process {pid} on {host} since {since}".format(**owner) if owner else "another run"
        if self._is_locked is False:
            raise errors.UserError(f"--logdir={folder} is in use by {who}: choose another --logdir")
        # Without locks, rely on the owner's entry. A killed owner leaves its entry behind, which is visible here.
        if owner and (owner["host"] != socket.gethostname() or _is_alive(owner["pid"])):
            raise errors.UserError(
                f"--logdir={folder} seems to be in use by {who} (its file system does not support locks): choose "
                f"another --logdir, or delete {self._file} if that run has ended"
            )
        print(
            f"the file system of --logdir={folder} does not support locks: make sure that no other run uses it",
            file=sys.stderr,
        )

    def _owner(self) -> dict[str, Any] | None:
        try:
            owner = json.loads(os.pread(self._handle.fileno(), 4096, 0))
            return {"host": str(owner["host"]), "pid": int(owner["pid"]), "since": str(owner["since"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _wait_for_tasks(self, folder: pathlib.Path) -> None:
        """Waits for tasks of a killed driver; they exit on their own, unless they run on a cluster."""
        try:
            file = _open(_tasks_file(folder))
        except OSError as error:
            raise errors.UserError(f"cannot write {_tasks_file(folder)}: {error.strerror}") from error
        with file:
            deadline = time.monotonic() + _SECONDS_TO_END
            while _flock(file, fcntl.LOCK_EX) is False:
                if time.monotonic() > deadline:
                    raise errors.UserError(
                        f"--logdir={folder} is still in use by tasks of an earlier run whose driver was killed: "
                        "wait for them to finish, or cancel them, then continue with --resume"
                    )
                time.sleep(0.1)

    @staticmethod
    def _stat(place: Any) -> tuple[int, int] | None:
        try:
            found = os.stat(place)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def require(self) -> None:
        """Raises an error if the directory has been removed, renamed or replaced."""
        if self._stat(self._file) != self._identity:
            raise errors.UserError(
                f"--logdir={self._file.parent} was removed or renamed during the run: restore it and continue "
                "with --resume"
            )

    def release(self) -> None:
        """Releases the lock, as does the end of the process."""
        if not self._handle.closed:
            if not self._is_locked:
                self._handle.truncate(0)
            self._handle.close()


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
