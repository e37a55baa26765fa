"""Tasks spread over processes, one core each, with their reports gathered in one place.

On a CPU small networks run fastest on one thread each (see BUILD_NOTES.md), so many seeds are many
processes there. On an accelerator one process with vmapped seeds is the better choice.
"""

from collections.abc import Callable, Sequence
import multiprocessing
from multiprocessing import connection as connection_lib
import os
import signal
import threading
import time
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching

# What a terminal or Slurm sends to all processes; the parent answers for them.
_PARENTS = tuple(number for number in launching.STOP_SIGNALS if number != signal.SIGTERM)


def _end_with_parent() -> None:
    """Ends this process when its parent is gone: nobody would write what it reports."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # workers have one
    parent.join()
    os._exit(1)


def _work(function: launching.TaskFunction, connection: connection_lib.Connection, keep_going: bool) -> None:
    """A worker process: takes tasks one by one until it is given None or asked to stop."""
    for number in _PARENTS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PARENTS)
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

    with launching.stop_signal(signal.SIGTERM) as should_stop:
        send("ready")
        while not should_stop() and (task := receive()) is not None:
            try:
                is_done = function(task, lambda event: send("event", event), should_stop)
            except Exception as error:
                send("failed", launching.failure(error, keep_going))
                if not keep_going:
                    return
            else:
                send("stopped" if should_stop() and not is_done else "done")


class _Worker:
    """A process, the pipe to it and the task it holds.

    Every worker has a pipe of its own: a process that is killed while it holds the lock of a shared queue would
    leave the others waiting forever.
    """

    def __init__(self, function: launching.TaskFunction, keep_going: bool):
        context = multiprocessing.get_context("spawn")
        self.task: Any = None
        self.has_begun = False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs, keep_going), daemon=True)
        # The new process inherits what is blocked: Ctrl-C must not end it while it is still importing.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS)
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
    function: launching.TaskFunction,
    tasks: Sequence[Any],
    num_workers: int,
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None = None,
    isolate: bool = False,
    group: Callable[[Any], Any] = lambda task: None,
    seconds_to_save: float = 120.0,
    retries: int = 0,
    on_lost: Callable[[Any, str], None] = lambda task, text: None,
) -> bool:
    """Runs all tasks; `on_event` sees every report, in this process.

    Args:
        function: the task function; importable by name.
        tasks: picklable tasks, none of them None, started in this order as far as `group` allows.
        num_workers: number of processes; 1 runs everything in this one.
        on_event: called with each report.
        on_failure: called with a task that raised an exception or was lost too often, and one line that says so;
            the other tasks continue. Without it the first failure ends them all.
        isolate: whether a single worker is a process of its own too, so that its death is not this one's.
        group: maps a task to a value that tasks share that fit together, say one compiled program. A worker
            prefers the group it has begun, then one that no other worker is at, so that few have to begin a group.
        seconds_to_save: after this long a worker that was asked to stop is killed.
        retries: how often a task whose process was killed is run again, in a new one.
        on_lost: called with such a task, and one line that says so.

    Returns:
        Whether all tasks ran; False when the user asked to stop.
    """
    num_workers = min(num_workers, len(tasks))
    with launching.stop_signal(*launching.STOP_SIGNALS) as should_stop:
        if num_workers > 1 or (isolate and tasks):
            queue = launching.Queue(tasks, group, retries)
            failures = launching.Failures(queue, on_failure, on_lost)
            return _Pool(function, num_workers, queue, failures, on_event, should_stop, seconds_to_save).run(
                keep_going=on_failure is not None
            )
        for task in tasks:
            try:
                function(task, on_event, should_stop)
            except Exception as error:
                if on_failure is None:
                    raise
                on_failure(task, launching.failure(error))
            if should_stop():
                return False
        return True


class _Pool:
    """Worker processes, and who is at what."""

    def __init__(
        self,
        function: launching.TaskFunction,
        num_workers: int,
        queue: launching.Queue,
        failures: launching.Failures,
        on_event: Callable[[Any], None],
        should_stop: Callable[[], bool],
        seconds_to_save: float,
    ):
        self._function, self._num_workers, self._seconds_to_save = function, num_workers, seconds_to_save
        self._queue, self._failures, self._on_event, self._should_stop = queue, failures, on_event, should_stop
        self._workers: dict[Any, _Worker] = {}  # by their connections

    def _is_stopping(self) -> bool:
        return bool(self._failures.message) or self._should_stop()

    def _next_task(self, worker: _Worker) -> Any:
        if self._is_stopping():
            return None
        taken = [other.task for other in self._workers.values() if other.task is not None]
        return next(iter(self._queue.take(begun=worker.task, taken=taken)), None)

    def run(self, keep_going: bool) -> bool:
        """Runs all tasks; returns False when the user asked to stop."""
        deadline: float | None = None
        workers, failures = self._workers, self._failures

        def start() -> None:
            worker = _Worker(self._function, keep_going)
            workers[worker.connection] = worker

        try:
            for _ in range(self._num_workers):
                start()
            while workers:
                if deadline is None and self._is_stopping():
                    deadline = time.monotonic() + self._seconds_to_save
                    for worker in workers.values():
                        worker.process.terminate()  # SIGTERM: the task saves its state and returns
                if deadline is not None and time.monotonic() > deadline:
                    for worker in workers.values():
                        worker.process.kill()
                for connection in connection_lib.wait(list(workers), timeout=0.2):
                    worker = workers[connection]
                    task, (kind, content) = worker.task, worker.take()
                    if kind == "event":
                        self._on_event(content)
                    elif kind == "ended":
                        del workers[connection]
                        died = f"process died (exit code {content})"
                        if task is not None and not self._is_stopping():
                            failures.lose(task, died)
                        if self._queue and not self._is_stopping():
                            if worker.has_begun:
                                start()
                            elif not workers:  # another one would end as soon
                                failures.message = f"a worker {died} before it could begin"
                    elif kind == "stopped":
                        worker.task = None
                        if not self._is_stopping():
                            failures.lose(task, "process was asked to end")
                    else:  # ready, done or failed
                        if kind == "failed":
                            failures.fail(task, content, content)
                        worker.give(self._next_task(worker))
        finally:
            # After an exception of a callback nobody reads what workers still send: they must not wait for it.
            for connection in workers:
                connection.close()
        if failures.message:
            raise errors.UserError(failures.message)
        return not self._should_stop()
