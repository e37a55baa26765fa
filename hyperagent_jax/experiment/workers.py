"""Distributes tasks over processes with one core each, and collects their reports in this process.

On a CPU small networks run fastest on one thread each (see BUILD_NOTES.md), so each seed is a process there. On an
accelerator, one process with vmapped seeds is faster.
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

# Signals that a terminal or Slurm sends to all processes; only the parent handles them.
_PARENTS = tuple(number for number in launching.STOP_SIGNALS if number != signal.SIGTERM)
# Workers that may be killed while they still import; on a machine short of memory that would never end.
_MOST_EARLY_KILLS = 10


def _end_with_parent() -> None:
    """Exits this process when its parent dies: nobody would write what it reports."""
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
        except ConnectionError:
            os._exit(1)  # the parent is dead or has given up

    def receive() -> Any:
        try:
            return connection.recv()
        except (EOFError, ConnectionError):  # a reset if the parent left something unread
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
    """A process, the pipe to it and its current task.

    Every worker has its own pipe: if a process were killed while holding the lock of a shared queue, the others
    would wait forever.
    """

    def __init__(self, function: launching.TaskFunction, keep_going: bool):
        context = multiprocessing.get_context("spawn")
        self.task: Any = None
        self.has_begun = False
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs, keep_going), daemon=True)
        # The new process inherits the blocked signals: Ctrl-C must not kill it while it is still importing.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PARENTS)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the pipe closes with the process

    def give(self, task: Any) -> None:
        """Hands over a task, or None to end the process."""
        self.task = task
        try:
            self.connection.send(task)
        except ConnectionError:
            pass  # it died; reading from the pipe will show that

    def take(self) -> tuple[str, Any]:
        """Returns the next message, or ("ended", exit code) if the process has exited."""
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
    """Runs all tasks and passes every report to `on_event`, in this process.

    Args:
        function: the task function; importable by name.
        tasks: picklable tasks, none of them None, started in this order as far as `group` allows.
        num_workers: number of processes; 1 runs everything in this one.
        on_event: called with each report.
        on_failure: called with a task that raised an exception or was lost too often, and a one-line message; the
            other tasks continue. Without it, the first failure ends all tasks.
        isolate: whether a single worker runs in a separate process too, so that its crash does not end this one.
        group: maps a task to its group, such as the compiled program that the tasks of a group share. A worker
            prefers its current group, then one without a worker, so that few workers have to compile each program.
        seconds_to_save: workers that were asked to stop are killed after this time.
        retries: how often to rerun a task whose process was killed, in a new process.
        on_lost: called with such a task and a one-line message.

    Returns:
        Whether all tasks ran; False if the user asked to stop.
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
    """The worker processes and their tasks."""

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
        self._workers: dict[Any, _Worker] = {}  # by connection
        self._early_kills = 0

    def _is_stopping(self) -> bool:
        return bool(self._failures.message) or self._should_stop()

    def _next_task(self, worker: _Worker) -> Any:
        if self._is_stopping():
            return None
        taken = [other.task for other in self._workers.values() if other.task is not None]
        return next(iter(self._queue.take(begun=worker.task, taken=taken)), None)

    def run(self, keep_going: bool) -> bool:
        """Runs all tasks; returns False if the user asked to stop."""
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
                            is_killed = content is not None and content < 0
                            self._early_kills += is_killed and not worker.has_begun
                            if worker.has_begun or (is_killed and self._early_kills <= _MOST_EARLY_KILLS):
                                start()
                            elif not workers:  # a new one would die, too
                                failures.message = f"a worker {died} before it could start"
                    elif kind == "stopped":
                        worker.task = None
                        if not self._is_stopping():
                            failures.lose(task, "process was asked to stop")
                    else:  # ready, done or failed
                        if kind == "failed":
                            failures.fail(task, content, content)
                        worker.give(self._next_task(worker))
        finally:
            # After an exception in a callback, nobody reads what workers send: they must not wait for that.
            for connection in workers:
                connection.close()
        if failures.message:
            raise errors.UserError(failures.message)
        return not self._should_stop()
