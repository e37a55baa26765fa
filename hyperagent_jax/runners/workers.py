"""Tasks spread over processes, one core each, with their reports gathered in one place.

On a CPU small networks run fastest on one thread each (see BUILD_NOTES.md), so many seeds are many
processes there. On an accelerator one process with vmapped seeds is the better choice.
"""

from collections.abc import Callable, Sequence
import multiprocessing
import os
import queue as queue_lib
import signal
import threading
import time
from typing import Any

from hyperagent_jax import errors

# A task function takes (task, report, should_stop). It calls report(event) with anything picklable, and
# returns early, its state saved, once should_stop() is true.
TaskFunction = Callable[[Any, Callable[[Any], None], Callable[[], bool]], None]

# After this long a worker that was asked to stop is killed.
_SECONDS_TO_SAVE = 120.0


class _StopSignal:
    """True once the process was asked to end."""

    def __init__(self, signals: Sequence[int]):
        self._asked = False
        for number in signals:
            signal.signal(number, self._handle)

    def _handle(self, number, frame):
        del number, frame
        self._asked = True

    def __call__(self) -> bool:
        return self._asked


def _end_with_parent() -> None:
    """Ends this process when its parent is gone: nobody would write what it reports."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(function: TaskFunction, tasks, reports) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C for all
    threading.Thread(target=_end_with_parent, daemon=True).start()
    should_stop = _StopSignal([signal.SIGTERM])
    try:
        while not should_stop():
            task = tasks.get()
            if task is None:
                break
            function(task, lambda event: reports.put(("event", event)), should_stop)
    except errors.UserError as error:
        reports.put(("error", str(error)))
    reports.put(("end", None))


def run_tasks(
    function: TaskFunction, tasks: Sequence[Any], num_workers: int, on_event: Callable[[Any], None]
) -> bool:
    """Runs all tasks; `on_event` sees every report, in this process.

    Args:
        function: the task function; importable by name.
        tasks: picklable tasks, started in this order.
        num_workers: number of processes; 1 runs everything in this one.
        on_event: called with each report.

    Returns:
        Whether all tasks ran; False when the user asked to stop.
    """
    should_stop = _StopSignal([signal.SIGINT, signal.SIGTERM])
    num_workers = min(num_workers, len(tasks))
    if num_workers <= 1:
        for task in tasks:
            function(task, on_event, should_stop)
            if should_stop():
                return False
        return True

    context = multiprocessing.get_context("spawn")
    task_queue, reports = context.Queue(), context.Queue()
    for task in [*tasks, *[None] * num_workers]:
        task_queue.put(task)
    workers = [
        context.Process(target=_work, args=(function, task_queue, reports), daemon=True)
        for _ in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    running, message, deadline = num_workers, None, None
    while running:
        if deadline is None and (should_stop() or message):
            deadline = time.monotonic() + _SECONDS_TO_SAVE
            for worker in workers:
                worker.terminate()  # SIGTERM: the task saves its state and returns
        try:
            kind, content = reports.get(timeout=0.2)
        except queue_lib.Empty:
            if deadline is not None and time.monotonic() > deadline:
                for worker in workers:
                    worker.kill()
            # A worker that ended without a word was killed.
            dead = [w for w in workers if w.exitcode not in (None, 0)]
            if dead and message is None and deadline is None:
                message = f"a worker process died (exit code {dead[0].exitcode}); --resume goes on where it was"
            if dead and all(w.exitcode is not None for w in workers):
                break
            continue
        if kind == "event":
            on_event(content)
        elif kind == "error":
            message = message or content
        else:
            running -= 1
    for worker in workers:
        worker.join()
    if message:
        raise errors.UserError(message)
    return not should_stop()
