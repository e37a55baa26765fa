"""What all launchers share: tasks that wait, signals that ask to stop, and jobs of several tasks on a cluster.

A launcher is a module with a function `run_tasks`; `workers` is the one for this machine.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import signal
import time
import traceback
from typing import Any, NamedTuple, Protocol

from hyperagent_jax import errors

# A task function takes (task, report, should_stop). It calls report(event) with anything picklable, and
# returns early, its state saved, once should_stop() is true. It returns True if it is done nevertheless.
TaskFunction = Callable[[Any, Callable[[Any], None], Callable[[], bool]], bool | None]

# What asks a process to save and end: Ctrl-C, a scheduler, a lost terminal, Slurm shortly before the time is over.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Runs of a job unless the user says otherwise: starting one takes seconds, and a lost one is not all that lost.
_LARGEST_JOB = 50
_LOST = "{}; --resume continues from its checkpoint"


@contextlib.contextmanager
def stop_signal(*numbers: int) -> Iterator[Callable[[], bool]]:
    """Gives a function that is true once the process was asked to end; then gives the signals back."""
    asked: list[int] = []
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def note(number: int, _: Any) -> None:
        asked.append(number)
        if number == signal.SIGHUP:  # what is still said must not fail because nobody can read it
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in terminals:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)

    # What is ignored stays so: nohup has SIGHUP ignored.
    numbers = tuple(n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(error: BaseException) -> str:
    """An exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def failure(error: Exception, keep_going: bool = True) -> str:
    """What to report of an exception; of a bug, the traceback is printed.

    If the other tasks do not keep going, it is the last line that the user sees, and says no more than it must.
    """
    if isinstance(error, errors.UserError):
        return describe(error) if keep_going else str(error)
    traceback.print_exc()
    return describe(error)


class Queue:
    """Tasks that wait, in their order within groups that share a compiled program."""

    def __init__(self, tasks: Iterable[Any], group: Callable[[Any], Any], retries: int):
        self._group = group
        self._retries = retries
        self._losses: collections.Counter[int] = collections.Counter()  # by the tasks' identities
        self._groups: collections.OrderedDict[Any, collections.deque[Any]] = collections.OrderedDict()
        for task in tasks:
            self._groups.setdefault(group(task), collections.deque()).append(task)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def take(self, number: int = 1, begun: Any = None, taken: Iterable[Any] = ()) -> list[Any]:
        """Takes up to that many tasks of one group.

        It is the group of the task `begun` if there are more of it, else one that is of none of the tasks in
        `taken`, else any.
        """
        if not self._groups:
            return []
        group = self._group(begun) if begun is not None else None
        if begun is None or group not in self._groups:
            others = {self._group(task) for task in taken}
            group = next((one for one in self._groups if one not in others), next(iter(self._groups)))
        waiting = self._groups[group]
        chosen = [waiting.popleft() for _ in range(min(number, len(waiting)))]
        if not waiting:
            del self._groups[group]
        return chosen

    def put_back(self, tasks: Sequence[Any]) -> None:
        """Has tasks run next."""
        for task in reversed(tasks):
            self._groups.setdefault(self._group(task), collections.deque()).appendleft(task)
            self._groups.move_to_end(self._group(task), last=False)

    def lose(self, task: Any) -> str:
        """Has a task that was lost run again, and says for which time; blank when that was often enough."""
        self._losses[id(task)] += 1
        if self._losses[id(task)] > self._retries:
            return ""
        self.put_back([task])
        return f"{self._losses[id(task)]} of {self._retries}"


class Failures:
    """What happens when tasks fail or are lost: a row, another attempt, or the end of all."""

    def __init__(
        self,
        queue: Queue,
        on_failure: Callable[[Any, str], None] | None,
        on_lost: Callable[[Any, str], None],
    ):
        self._queue, self._on_failure, self._on_lost = queue, on_failure, on_lost
        self.message = ""  # why all others must end

    def fail(self, task: Any, text: str, text_of_all: str) -> None:
        """Takes a task that failed."""
        if self._on_failure is not None:
            self._on_failure(task, text)
        else:
            self.message = self.message or text_of_all

    def lose(self, task: Any, text: str) -> None:
        """Takes a task whose process was lost: it is run again, a limited number of times."""
        if count := self._queue.lose(task):
            self._on_lost(task, f"{text}; it is run again from its checkpoint ({count})")
        else:
            self.fail(task, text, _LOST.format(f"a worker {text}"))


class Outcome(NamedTuple):
    """How a task of a job ended."""

    kind: str  # "done", "failed" or "stopped"
    text: str = ""


def run_job(
    function: TaskFunction,
    tasks: Sequence[Any],
    report: Callable[[int, Any], None],
    on_outcome: Callable[[int, Outcome], None],
    should_stop: Callable[[], bool],
    keep_going: bool,
) -> None:
    """Runs the tasks of a job one after the other, on whatever host; reports come with the task's position."""
    for i, task in enumerate(tasks):
        if should_stop():
            return
        try:
            is_done = function(task, lambda event, i=i: report(i, event), should_stop)  # type: ignore[misc]
            outcome = Outcome("stopped" if should_stop() and not is_done else "done")
        except Exception as error:
            outcome = Outcome("failed", failure(error, keep_going))
        on_outcome(i, outcome)
        if outcome.kind == "failed" and not keep_going:
            return


@dataclasses.dataclass(frozen=True)
class ClusterSettings:
    """What a cluster is asked for.

    Attributes:
        folder: the run directory, which all hosts share.
        address: which cluster; blank for the launcher's default, "local" for this machine.
        cpus_per_task: cores of a job.
        gpus_per_task: accelerators of a job; on Ray a fraction lets several jobs share one.
        tasks_per_job: tasks that a job runs one after the other; None for a number that keeps all busy.
        most_jobs: jobs at a time; None for as many as the cluster takes.
        minutes: after which Slurm ends a job.
        options: further settings of Slurm by name.
        environment: variables that jobs need.
    """

    folder: str
    address: str | None = None
    cpus_per_task: float = 1
    gpus_per_task: float = 0
    tasks_per_job: int | None = None
    most_jobs: int | None = None
    minutes: int = 60
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def job_size(self, num_tasks: int, slots: int) -> int:
        """Tasks of a job: few enough that all slots have several jobs, so that none waits long for the last."""
        return self.tasks_per_job or max(1, min(_LARGEST_JOB, num_tasks // (4 * slots)))


class Cluster(Protocol):
    """Runs jobs somewhere else."""

    def submit(self, job: int, tasks: Sequence[Any]) -> None:
        """Starts a job."""

    def poll(self) -> Iterator[tuple[int, str, Any]]:
        """Yields (job, "event", event), (job, "outcome", (position, Outcome)) and, last, (job, "ended", why).

        Takes a moment, so that it can be called again and again.
        """

    def stop(self) -> None:
        """Asks all jobs to save and end."""

    def kill(self) -> None:
        """Ends all jobs."""


def run_on_cluster(
    cluster: Cluster,
    tasks: Sequence[Any],
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None,
    on_lost: Callable[[Any, str], None],
    group: Callable[[Any], Any],
    retries: int,
    tasks_per_job: int,
    most_jobs: int | None,
    seconds_to_save: float,
) -> bool:
    """Runs all tasks in jobs of several, at most `most_jobs` at a time; see `workers.run_tasks`."""
    queue = Queue(tasks, group, retries)
    failures = Failures(queue, on_failure, on_lost)
    jobs: dict[int, dict[int, Any]] = {}  # their tasks that have no outcome yet, by position
    submitted, deadline = 0, None
    with stop_signal(*STOP_SIGNALS[:3]) as should_stop:

        def is_stopping() -> bool:
            return bool(failures.message) or should_stop()

        while jobs or (queue and not is_stopping()):
            if is_stopping() and deadline is None:
                deadline = time.monotonic() + seconds_to_save
                cluster.stop()
            if deadline is not None and time.monotonic() > deadline:
                cluster.kill()
                break
            while queue and not is_stopping() and (most_jobs is None or len(jobs) < most_jobs):
                chosen = queue.take(tasks_per_job)
                jobs[submitted] = dict(enumerate(chosen))
                cluster.submit(submitted, chosen)
                submitted += 1
            for job, kind, content in cluster.poll():
                if job not in jobs:
                    continue
                if kind == "event":
                    on_event(content)
                elif kind == "ended":
                    rest = list(jobs.pop(job).values())
                    if rest and not is_stopping():
                        # The first is the one that ran; the others had not begun.
                        queue.put_back(rest[1:])
                        failures.lose(rest[0], content or "process ended")
                elif (task := jobs[job].pop(content[0], None)) is not None:
                    outcome = content[1]
                    if outcome.kind == "failed":
                        failures.fail(task, outcome.text, outcome.text)
                    elif outcome.kind == "stopped" and not is_stopping():
                        failures.lose(task, "process was asked to end")
        if failures.message:
            raise errors.UserError(failures.message)
        return not should_stop()
