"""Who writes to a run directory: one driver, and the tasks it has started, on this host or on others."""

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

# What flock raises where there is no such thing, as on some network file systems; else somebody else has it.
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
# A worker notices within a second that its driver is gone.
_SECONDS_TO_END = 10.0


def _flock(file: io.FileIO, operation: int) -> bool | None:
    """Takes a lock without waiting; False if another process has it, None if the file system has no locks."""
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
    """Held by every task while it runs, so that no driver takes over from one whose tasks still write."""
    if not folder:  # a task of no driver
        yield
        return
    try:
        file = _open(_tasks_file(pathlib.Path(folder)))
    except OSError:
        yield  # the first thing that is written says what is wrong
        return
    with file:
        _flock(file, fcntl.LOCK_SH)
        yield


class Lock:
    """Held by the driver of a run directory until it ends, however it ends."""

    def __init__(self, folder: pathlib.Path):
        """Takes the lock; refuses, in a line that names the owner, if somebody has it."""
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
        # Without locks the owner's entry must do. One that was killed leaves it: here that can be seen.
        if owner and (owner["host"] != socket.gethostname() or _is_alive(owner["pid"])):
            raise errors.UserError(
                f"--logdir={folder} seems to be in use by {who}, and its file system has no locks to tell: choose "
                f"another --logdir, or delete {self._file} if that run has ended"
            )
        print(
            f"the file system of --logdir={folder} has no locks: let no other run use it meanwhile",
            file=sys.stderr,
        )

    def _owner(self) -> dict[str, Any] | None:
        try:
            owner = json.loads(os.pread(self._handle.fileno(), 4096, 0))
            return {"host": str(owner["host"]), "pid": int(owner["pid"]), "since": str(owner["since"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _wait_for_tasks(self, folder: pathlib.Path) -> None:
        """Waits for tasks of a driver that was killed; they end by themselves, unless a cluster runs them."""
        with _open(_tasks_file(folder)) as file:
            deadline = time.monotonic() + _SECONDS_TO_END
            while _flock(file, fcntl.LOCK_EX) is False:
                if time.monotonic() > deadline:
                    raise errors.UserError(
                        f"--logdir={folder} is in use by tasks of an earlier run, whose driver is gone: wait "
                        "until they have ended, or cancel them, then continue with --resume"
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
        """Refuses to continue when the directory was removed or renamed, or is another one by now."""
        if self._stat(self._file) != self._identity:
            raise errors.UserError(
                f"--logdir={self._file.parent} was removed or renamed during the run: put it back and continue "
                "with --resume"
            )

    def release(self) -> None:
        """Gives the lock back; also happens when the process ends."""
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
