"""Who may write to a run directory, with locks and where there are none."""

import errno
import json
import os
import socket

import pytest

from hyperagent_jax import errors
from hyperagent_jax.experiment import lock


def _refusal(folder):
    with pytest.raises(errors.UserError) as error:
        lock.Lock(folder)
    return str(error.value)


def test_the_owner_is_named(tmp_path):
    first = lock.Lock(tmp_path)
    message = _refusal(tmp_path)
    assert f"is in use by process {os.getpid()} on {socket.gethostname()} since " in message
    assert message.endswith(": choose another --logdir")
    (tmp_path / ".lock").write_text("damaged")
    assert _refusal(tmp_path) == f"--logdir={tmp_path} is in use by another run: choose another --logdir"
    first.release()
    lock.Lock(tmp_path).release()


@pytest.mark.parametrize("name", [".lock", ".tasks"])
def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path, name):
    (tmp_path / name).mkdir()
    assert _refusal(tmp_path).startswith("cannot write ") and _refusal(tmp_path).endswith(": Is a directory")


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without flock."""

    def missing(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", missing)


def test_without_locks_the_entry_of_the_owner_must_do(tmp_path, no_locks, capsys):
    first = lock.Lock(tmp_path)
    assert capsys.readouterr().err == (
        f"the file system of --logdir={tmp_path} does not support locks: make sure that no other run uses it\n"
    )
    entry = json.loads((tmp_path / ".lock").read_text())
    assert (entry["host"], entry["pid"]) == (socket.gethostname(), os.getpid())
    for changed in ({"pid": os.getppid()}, {"host": "elsewhere"}):
        (tmp_path / ".lock").write_text(json.dumps(entry | changed))
        message = _refusal(tmp_path)
        assert "seems to be in use by process" in message and "does not support locks" in message
        assert message.endswith(f"or delete {tmp_path / '.lock'} if that run has ended")
    (tmp_path / ".lock").write_text(json.dumps(entry | {"pid": 2**22 + 1}))  # which no process can have
    lock.Lock(tmp_path).release()
    first.release()
    assert (tmp_path / ".lock").read_text() == ""
    with lock.shared(str(tmp_path)):
        lock.Lock(tmp_path)


def test_tasks_whose_driver_is_gone_are_waited_for(tmp_path, monkeypatch):
    with lock.shared(str(tmp_path)), lock.shared(str(tmp_path)):  # as many as there are
        monkeypatch.setattr(lock, "_SECONDS_TO_END", 0.3)
        assert "is still in use by tasks of an earlier run whose driver was killed: wait for them" in _refusal(
            tmp_path
        )
    lock.Lock(tmp_path).release()


def test_a_folder_that_is_gone_or_another_one_is_noticed(tmp_path):
    folder = tmp_path / "run"
    ours = lock.Lock(folder)
    ours.require()
    folder.rename(tmp_path / "renamed")
    for _ in range(2):
        with pytest.raises(errors.UserError, match="was removed or renamed during the run: restore it"):
            ours.require()
        lock.Lock(folder).release()  # made again by somebody else
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".tasks").unlink()
    (tmp_path / "run").rmdir()
    (tmp_path / "renamed").rename(folder)
    ours.require()
