"""Tasks spread over processes, one core each, with their reports gathered in one place.

On a CPU small networks run fastest on one thread each (see BUILD_NOTES.md), so many seeds are many
processes there. On an accelerator one process with vmapped seeds is the better choice.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import multiprocessing
from multiprocessing import connection as connection_lib
import os
import signal
import threading
import time
import traceback
from typing import Any

from hyperagent_jax import errors

# A task function takes (task, report, should_stop). It calls report(event) with anything picklable, and
# returns early, its state saved, once should_stop() is true.
TaskFunction = Callable[[Any, Callable[[Any], None], Callable[[], bool]], None]


@contextlib.contextmanager
def _stop_signal(*numbers: int) -> Iterator[Callable[[], bool]]:
    """Gives a function that is true once the process was asked to end; then gives the signals back."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Ends this process when its parent is gone: nobody would write what it reports."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # workers have one
    parent.join()
    os._exit(1)


def describe(error: BaseException) -> str:
    """An exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _failure(error: Exception) -> str:
    """What to report of an exception that must not end the other tasks; of a bug, the traceback is printed."""
    if not isinstance(error, errors.UserError):
        traceback.print_exc()
    return describe(error)


def _work(function: TaskFunction, connection: connection_lib.Connection, keep_going: bool) -> None:
    """A worker process: takes tasks one by one until it is given None or asked to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C for all
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def send(kind: str, content: Any = None) -> None:
        try:
            connection.send((kind, content))
        except BrokenPipeError:
            os._exit(1)  # the parent is gone or has given up

    def receive() -> Any:
        try:
            return connection.recv()
        except EOFError:
            return None

    with _stop_signal(signal.SIGTERM) as should_stop:
        send("ready")
        while not should_stop() and (task := receive()) is not None:
            try:
                function(task, lambda event: send("event", event), should_stop)
            except Exception as error:
                if keep_going:
                    send("failed", _failure(error))
                    continue
                if not isinstance(error, errors.UserError):
                    raise
                send("failed", str(error))
                return
            send("stopped" if should_stop() else "done")


class _Worker:
    """A process, the pipe to it and the task it holds.

    Every worker has a pipe of its own: a process that is killed while it holds the lock of a shared queue would
    leave the others waiting forever.
    """

    def __init__(self, function: TaskFunction, keep_going: bool):
        context = multiprocessing.get_context("spawn")
        self.task: Any = None
        self.has_begun = False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs, keep_going), daemon=True)
        # The new process inherits what is blocked: Ctrl-C must not end it while it is still importing.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the pipe ends with the process

    def give(self, task: Any) -> None:
        """Hands over a task, or None for the end."""
        self.task = task
        try:
            self.connection.send(task)
        except BrokenPipeError:
            pass  # it died, which the pipe's other direction will tell

    def take(self) -> tuple[str, Any]:
        """The next message; ("ended", exit code) when the process is gone."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):  # OSError: killed in the middle of a message
            self.connection.close()
            self.process.join()
            return "ended", self.process.exitcode
        self.has_begun = True
        return message


def run_tasks(
    function: TaskFunction,
    tasks: Sequence[Any],
    num_workers: int,
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None = None,
    isolate: bool = False,
    group: Callable[[Any], Any] = lambda task: None,
    seconds_to_save: float = 120.0,
) -> bool:
    """Runs all tasks; `on_event` sees every report, in this process.

    Args:
        function: the task function; importable by name.
        tasks: picklable tasks, none of them None, started in this order as far as `group` allows.
        num_workers: number of processes; 1 runs everything in this one.
        on_event: called with each report.
        on_failure: called with a task that raised an exception or whose process died, and one line that says so;
            the other tasks continue, in a new process if need be. Without it the first failure ends them all.
        isolate: whether a single worker is a process of its own too, so that its death is not this one's.
        group: maps a task to a value that tasks share that fit together, say one compiled program. A worker
            prefers the group it has begun, then one that no other worker is at, so that few have to begin a group.
        seconds_to_save: after this long a worker that was asked to stop is killed.

    Returns:
        Whether all tasks ran; False when the user asked to stop.
    """
    num_workers = min(num_workers, len(tasks))
    with _stop_signal(signal.SIGINT, signal.SIGTERM) as should_stop:
        if num_workers > 1 or (isolate and tasks):
            return _run_in_processes(
                function, tasks, num_workers, on_event, on_failure, group, should_stop, seconds_to_save
            )
        for task in tasks:
            try:
                function(task, on_event, should_stop)
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(task, _failure(error))
            if should_stop():
                return False
        return True


def _choose(groups: list[Any], begun: list[Any], taken: list[Any]) -> int:
    """Position of the first group that the worker has begun, else of the first that is not taken, else 0."""
    ranks = [0 if group in begun else 2 if group in taken else 1 for group in groups]
    return ranks.index(min(ranks))


def _run_in_processes(
    function: TaskFunction,
    tasks: Sequence[Any],
    num_workers: int,
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None,
    group: Callable[[Any], Any],
    should_stop: Callable[[], bool],
    seconds_to_save: float,
) -> bool:
    waiting = list(tasks)
    workers: dict[Any, _Worker] = {}  # by their connections
    message: str | None = None
    deadline: float | None = None
    lost = "a worker {}; --resume continues from its checkpoint"

    def start() -> None:
        worker = _Worker(function, keep_going=on_failure is not None)
        workers[worker.connection] = worker

    def next_task(worker: _Worker) -> Any:
        if not waiting or is_stopping():
            return None
        begun = [group(worker.task)] if worker.task is not None else []
        taken = [group(other.task) for other in workers.values() if other.task is not None]
        return waiting.pop(_choose([group(task) for task in waiting], begun, taken))

    def is_stopping() -> bool:
        return bool(message) or should_stop()

    def fail(task: Any, text: str, text_of_all: str) -> None:
        nonlocal message
        if on_failure is not None:
            on_failure(task, text)
        else:
            message = message or text_of_all

    try:
        for _ in range(num_workers):
            start()
        while workers:
            if deadline is None and is_stopping():
                deadline = time.monotonic() + seconds_to_save
                for worker in workers.values():
                    worker.process.terminate()  # SIGTERM: the task saves its state and returns
            if deadline is not None and time.monotonic() > deadline:
                for worker in workers.values():
                    worker.process.kill()
            for connection in connection_lib.wait(list(workers), timeout=0.2):
                worker = workers[connection]
                task, (kind, content) = worker.task, worker.take()
                if kind == "event":
                    on_event(content)
                elif kind == "ended":
                    del workers[connection]
                    died = f"process died (exit code {content})"
                    if task is not None and not is_stopping():
                        fail(task, died, lost.format(died))
                    if waiting and not is_stopping():
                        if worker.has_begun:
                            start()
                        elif not workers:  # another one would end as soon
                            message = lost.format(died)
                elif kind == "stopped":
                    worker.task = None
                    if not is_stopping():
                        fail(task, asked := "process was asked to end", lost.format(asked))
                else:  # ready, done or failed
                    if kind == "failed":
                        fail(task, content, content)
                    worker.give(next_task(worker))
    finally:
        # After an exception of a callback nobody reads what workers still send: they must not wait for it.
        for connection in workers:
            connection.close()
    if message:
        raise errors.UserError(message)
    return not should_stop()
