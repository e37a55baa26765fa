"""Tasks in processes."""

import os
import signal
import threading
import time

import pytest

from hyperagent_jax import errors
from hyperagent_jax.runners import workers


def _double(task, report, should_stop):
    del should_stop
    if task == "bad":
        raise errors.UserError("task bad failed")
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    report(2 * task)


def _wait_for_stop(task, report, should_stop):
    report("started")
    deadline = time.monotonic() + 60
    while not should_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    report(("saved", task, should_stop()))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_task_reports_once(num_workers):
    seen = []
    assert workers.run_tasks(_double, [1, 2, 3], num_workers, seen.append)
    assert sorted(seen) == [2, 4, 6]


def test_no_tasks_is_fine():
    assert workers.run_tasks(_double, [], 2, lambda event: None)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_reaches_the_parent(num_workers):
    seen = []
    with pytest.raises(errors.UserError, match="task bad failed"):
        workers.run_tasks(_double, [1, "bad"], num_workers, seen.append)
    assert seen == [2]


def test_a_killed_worker_is_noticed():
    with pytest.raises(errors.UserError, match="a worker process died"):
        workers.run_tasks(_double, ["killed", "killed"], 2, lambda event: None)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_sigterm_lets_tasks_save(num_workers):
    seen = []

    def on_event(event):
        seen.append(event)
        if seen == ["started"] * num_workers:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    assert not workers.run_tasks(_wait_for_stop, [0, 1], num_workers, on_event)
    saved = sorted(event for event in seen if event != "started")
    assert saved == [("saved", task, True) for task in range(num_workers)]
