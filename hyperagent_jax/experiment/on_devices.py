"""Runs tasks on all accelerators of this machine, from one process: `--launcher=devices`.

Every device has a thread that dispatches one task after the other to it. The results of a task are bit-identical
on every device: each task runs the whole program of its group of seeds, and tasks share nothing.
"""

from collections.abc import Callable, Sequence
import queue as queue_lib
import threading
from typing import Any

import jax

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching


class _Slot:
    """A device, its thread and its current task."""

    def __init__(self, device: jax.Device, work: Callable[["_Slot", Any], None]):
        self.task: Any = None
        self._inbox: queue_lib.SimpleQueue[Any] = queue_lib.SimpleQueue()

        def serve() -> None:
            with jax.default_device(device):
                while (task := self._inbox.get()) is not None:
                    work(self, task)

        threading.Thread(target=serve, daemon=True).start()

    def give(self, task: Any) -> None:
        """Hands over a task, or None to end the thread."""
        self.task = task
        self._inbox.put(task)


def run_tasks(
    function: launching.TaskFunction,
    tasks: Sequence[Any],
    num_workers: int,
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None = None,
    group: Callable[[Any], Any] = lambda task: None,
    seconds_to_save: float = 120.0,
    retries: int = 0,
    on_lost: Callable[[Any, str], None] = lambda task, text: None,
) -> bool:
    """Runs all tasks, on at most `num_workers` devices; see `workers.run_tasks`."""
    del seconds_to_save  # threads cannot be killed: they save and return
    queue = launching.Queue(tasks, group, retries)
    failures = launching.Failures(queue, on_failure, on_lost)
    messages: queue_lib.SimpleQueue[tuple[_Slot, str, Any]] = queue_lib.SimpleQueue()
    with launching.stop_signal(*launching.STOP_SIGNALS) as asked:

        def should_stop() -> bool:
            return bool(failures.message) or asked()

        def work(slot: _Slot, task: Any) -> None:
            try:
                function(task, lambda event: messages.put((slot, "event", event)), should_stop)
                messages.put((slot, "done", None))
            except Exception as error:
                messages.put((slot, "failed", launching.failure(error, on_failure is not None)))

        slots = [_Slot(device, work) for device in jax.local_devices()[: min(num_workers, len(tasks))]]

        def give(slot: _Slot) -> None:
            taken = [other.task for other in slots if other.task is not None]
            waiting = [] if should_stop() else queue.take(begun=slot.task, taken=taken)
            slot.give(waiting[0] if waiting else None)

        for slot in slots:
            give(slot)
        while any(slot.task is not None for slot in slots):
            try:
                slot, kind, content = messages.get(timeout=0.2)  # wakes up regularly to notice signals
            except queue_lib.Empty:
                continue
            if kind == "event":
                on_event(content)
                continue
            if kind == "failed":
                failures.fail(slot.task, content, content)
            give(slot)
        if failures.message:
            raise errors.UserError(failures.message)
        return not asked()
