"""Tasks in processes."""

from contextlib import nullcontext
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching
from hyperagent_jax.experiment import workers


def _double(task, report, should_stop):
    del should_stop
    if task == "bad":
        raise errors.UserError("task bad failed")
    if task == "wrong":
        raise KeyError("first line\nsecond line")
    if task == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "asked":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    report(2 * task)


def _wait_for_stop(task, report, should_stop):
    report("started")
    deadline = time.monotonic() + 60
    while not should_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    report(("saved", task, should_stop()))


def run_until_killed():
    """Run as a program by `test_workers_end_when_their_parent_is_killed`: prints a line per task, then waits."""
    workers.run_tasks(_wait_for_stop, [0, 1], 2, lambda event: print(event, flush=True))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_task_reports_once(num_workers):
    seen = []
    assert workers.run_tasks(_double, [1, 2, 3], num_workers, seen.append)
    assert sorted(seen) == [2, 4, 6]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_signals_go_where_they_went_before(num_workers):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    workers.run_tasks(_double, [1, 2], num_workers, lambda event: None)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


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


def _run_all(tasks, num_workers, **options):
    """Runs tasks of which some fail; returns what was reported and the failures."""
    seen, failures = [], []
    completed = workers.run_tasks(
        _double, tasks, num_workers, seen.append, lambda task, text: failures.append((task, text)), **options
    )
    assert completed
    return sorted(seen), sorted(failures)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_failures_can_be_left_to_the_caller(num_workers):
    seen, failures = _run_all(["bad", 1, "wrong", 2, 3], num_workers)
    assert seen == [2, 4, 6]
    assert failures == [("bad", "UserError: task bad failed"), ("wrong", r"KeyError: 'first line\nsecond line'")]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_new_process_takes_over_from_one_that_died(num_workers):
    lost = []
    seen, failures = _run_all(
        ["killed", 1, "asked", 2], num_workers, isolate=True, retries=1, on_lost=lambda *one: lost.append(one)
    )
    assert seen == [2, 4]
    assert failures == [("asked", "process was asked to stop"), ("killed", "process died (exit code -9)")]
    again = "; running it again from its checkpoint (retry 1 of 1)"
    assert sorted(lost) == [(task, text + again) for task, text in failures]


def _survive_two_kills(task, report, should_stop):
    """Dies twice at random places of its way, as if by kill -9, and continues where its file says."""
    del should_stop
    path = pathlib.Path(task)
    for step in range(len(path.read_text()), 10):
        path.write_text("x" * (step + 1))
        if step in (3, 7):
            os.kill(os.getpid(), signal.SIGKILL)
    report((path.name, path.read_text()))


@pytest.mark.parametrize("has_failures", [False, True])
def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path, has_failures):
    tasks, seen, failures, lost = [], [], [], []
    for name in "ab":
        (tmp_path / name).write_text("")
        tasks.append(str(tmp_path / name))
    assert workers.run_tasks(
        _survive_two_kills,
        tasks,
        2,
        seen.append,
        (lambda *one: failures.append(one)) if has_failures else None,
        retries=2,
        on_lost=lambda task, text: lost.append(text),
    )
    assert sorted(seen) == [("a", "x" * 10), ("b", "x" * 10)] and not failures
    message = "process died (exit code -9); running it again from its checkpoint (retry {} of 2)"
    assert sorted(lost) == [message.format(i) for i in (1, 1, 2, 2)]


def test_workers_that_cannot_begin_end_the_run(monkeypatch):
    module = types.ModuleType("only_in_the_parent")
    exec("def function(task, report, should_stop): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(errors.UserError, match=r"a worker process died \(exit code 1\)"):
        workers.run_tasks(module.function, [1, 2, 3], 2, print, lambda task, text: None)


class _KilledWhenRead:
    """A function that kills the process that unpickles it, as many times as its file has bytes."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return _double_unless_killed, (self.path,)


def _double_unless_killed(path):
    file = pathlib.Path(path)
    if left := file.read_text():
        file.write_text(left[1:])
        os.kill(os.getpid(), signal.SIGKILL)
    return _double


@pytest.mark.parametrize("kills, is_over", [(1, False), (2, True)])
def test_workers_that_are_killed_while_they_import_are_replaced(tmp_path, monkeypatch, kills, is_over):
    monkeypatch.setattr(workers, "_MOST_EARLY_KILLS", 1)
    (tmp_path / "kills").write_text("x" * kills)
    seen = []
    with pytest.raises(errors.UserError, match=r"died \(exit code -9\) before it") if is_over else nullcontext():
        workers.run_tasks(_KilledWhenRead(tmp_path / "kills"), [1, 2], 1, seen.append, print, isolate=True)
    assert sorted(seen) == ([] if is_over else [2, 4])


def _queue(*tasks, retries=0):
    return launching.Queue(tasks, lambda task: task[0], retries)


def test_a_worker_keeps_to_its_group_and_away_from_others():
    tasks = ("a1", "a2", "b1", "c1")
    assert _queue(*tasks).take() == ["a1"]
    assert _queue(*tasks).take(taken=["a0"]) == ["b1"]
    assert _queue(*tasks).take(begun="b0", taken=["a0", "b0"]) == ["b1"]
    assert _queue(*tasks).take(begun="d0", taken=["a0", "b0"]) == ["c1"]
    assert _queue(*tasks).take(begun="d0", taken=["a0", "b0", "c0"]) == ["a1"]  # better to help than to be idle
    assert _queue(*tasks).take(5) == ["a1", "a2"]
    queue = _queue(*tasks)
    assert [queue.take(2) for _ in range(4)] == [["a1", "a2"], ["b1"], ["c1"], []] and not queue


def test_lost_tasks_come_next_and_not_for_ever():
    queue = _queue("a1", "b1", "b2", retries=2)
    (task,) = queue.take(begun="b0")
    assert queue.lose(task) == "1 of 2" and queue.take() == ["b1"]
    assert queue.lose(task) == "2 of 2" and queue.take() == ["b1"]
    assert queue.lose(task) == ""
    queue.put_back(["c1", "c2"])
    assert [queue.take(2) for _ in range(3)] == [["c1", "c2"], ["b2"], ["a1"]]


def test_the_next_of_100000_tasks_is_found_at_once():
    """By counting, not by the clock: no group is asked of tasks that stay."""
    asked = []
    queue = launching.Queue(range(100_000), lambda task: asked.append(task) or task // 100, 0)
    assert len(asked) == 100_000
    assert queue.take(taken=[0, 100, 200]) == [300] and len(asked) <= 100_010


def test_an_exception_is_described_in_one_line():
    assert launching.describe(ValueError("first\nsecond")) == "ValueError: first"
    assert launching.describe(MemoryError()) == "MemoryError"


def test_an_error_of_the_caller_ends_the_workers(capfd):
    def on_event(event):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        workers.run_tasks(_double, [1, 2, 3, 4], 2, on_event)
    for process in multiprocessing.active_children():
        process.join(240)
    assert not multiprocessing.active_children()
    assert "Traceback" not in capfd.readouterr().err  # of a connection that was reset


def test_workers_end_when_their_parent_is_killed():
    folder = pathlib.Path(__file__).parent
    path = os.pathsep.join([str(folder), str(folder.parent)])
    parent = subprocess.Popen(
        [sys.executable, "-c", "import test_workers; test_workers.run_until_killed()"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert [parent.stdout.readline() for _ in range(2)] == ["started\n", "started\n"]
    parent.kill()
    # The workers hold the other end of this pipe: it ends when the last of them is gone. Their tasks would have
    # them wait for a minute.
    rest, _ = parent.communicate(timeout=45)
    assert rest == "" and parent.returncode == -signal.SIGKILL


@pytest.mark.parametrize("num_workers, number", [(1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGHUP)])
def test_signals_let_tasks_save(num_workers, number):
    seen = []

    def on_event(event):
        seen.append(event)
        if seen == ["started"] * num_workers:
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP, and so would the tasks
    try:
        assert not workers.run_tasks(_wait_for_stop, [0, 1], num_workers, on_event)
    finally:
        signal.signal(number, before)
    saved = sorted(event for event in seen if event != "started")
    assert saved == [("saved", task, True) for task in range(num_workers)]


def test_a_lost_terminal_does_not_stop_what_nohup_started():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launching.stop_signal(*launching.STOP_SIGNALS) as should_stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not should_stop() and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
