"""Code shared by all launchers: the queue of tasks, signals that ask to stop, and cluster jobs of several tasks.

A launcher is a module with a function `run_tasks`; `workers` is the one for this machine.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import importlib
import os
import signal
import time
import traceback
from typing import Any, NamedTuple, Protocol

from hyperagent_jax import errors

# A task function takes (task, report, should_stop). It calls report(event) with any picklable event. Once
# should_stop() is true, it saves its state and returns. It returns whether the task is done.
TaskFunction = Callable[[Any, Callable[[Any], None], Callable[[], bool]], bool | None]

# Signals that ask a process to save and exit: Ctrl-C, a scheduler, a lost terminal, Slurm before its time limit.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Most tasks of a job by default: a job takes seconds to start, and a lost job should not lose many tasks.
_LARGEST_JOB = 50
# Gives a Ray that is started here the loopback address: whoever reaches a Ray can run anything on it. Its option
# `_node_ip_address` is not enough: Ray replaces 127.0.0.1 by the host's address, and with 127.0.0.2 one port still
# listens on all interfaces.
RAY_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_LOST = "{}; --resume continues from its checkpoint"


def load(module: str, environment: Mapping[str, str]) -> Any:
    """Imports the module of a launcher, whose library may read the environment when it is imported."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    return importlib.import_module(f"hyperagent_jax.experiment.{module}")


@contextlib.contextmanager
def stop_signal(*numbers: int) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether the process was asked to stop; restores signal handlers at exit."""
    asked: list[int] = []
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def note(number: int, _: Any) -> None:
        asked.append(number)
        if number == signal.SIGHUP:  # the terminal is gone, and printing must not fail
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in terminals:
                os.dup2(nowhere, descriptor)
            os.close(nowhere)

    # Signals that are ignored stay ignored: nohup ignores SIGHUP.
    numbers = tuple(n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(error: BaseException) -> str:
    """Returns an exception as one line of text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def failure(error: Exception, keep_going: bool = True) -> str:
    """Returns the message to report for an exception; prints the traceback if it is a bug.

    Unless the other tasks keep going, this is the last line that the user sees, so it contains only the message.
    """
    if isinstance(error, errors.UserError):
        return describe(error) if keep_going else str(error)
    traceback.print_exc()
    return describe(error)


class Queue:
    """Waiting tasks, grouped by compiled program and in order within each group."""

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
        """Removes up to `number` tasks of one group and returns them.

        Prefers the group of the task `begun`, then a group that no task in `taken` belongs to, then any.
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
        """Puts tasks back at the front of the queue."""
        for task in reversed(tasks):
            self._groups.setdefault(self._group(task), collections.deque()).appendleft(task)
            self._groups.move_to_end(self._group(task), last=False)

    def lose(self, task: Any) -> str:
        """Puts a lost task back and returns the number of its attempt; "" if it has none left."""
        self._losses[id(task)] += 1
        if self._losses[id(task)] > self._retries:
            return ""
        self.put_back([task])
        return f"{self._losses[id(task)]} of {self._retries}"


class Failures:
    """Handles tasks that fail or are lost: writes a row, runs them again, or ends all tasks."""

    def __init__(
        self,
        queue: Queue,
        on_failure: Callable[[Any, str], None] | None,
        on_lost: Callable[[Any, str], None],
    ):
        self._queue, self._on_failure, self._on_lost = queue, on_failure, on_lost
        self.message = ""  # why all tasks must end

    def fail(self, task: Any, text: str, text_of_all: str) -> None:
        """Handles a task that failed."""
        if self._on_failure is not None:
            self._on_failure(task, text)
        else:
            self.message = self.message or text_of_all

    def lose(self, task: Any, text: str) -> None:
        """Handles a task whose process was lost: it is run again, a limited number of times."""
        if count := self._queue.lose(task):
            self._on_lost(task, f"{text}; running it again from its checkpoint (retry {count})")
        else:
            self.fail(task, text, _LOST.format(f"a worker {text}"))


class Outcome(NamedTuple):
    """The outcome of a task of a job."""

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
    """Runs the tasks of a job one after the other, on any host; reports include the task's position."""
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
    """What to request from a cluster.

    Attributes:
        folder: the run directory, which all hosts share.
        address: which cluster; empty for the launcher's default, "local" for this machine.
        cpus_per_task: cores per job.
        gpus_per_task: accelerators per job; on Ray, a fraction lets several jobs share one.
        tasks_per_job: tasks that a job runs one after the other; None for a number that keeps all slots busy.
        most_jobs: maximum number of concurrent jobs; None for as many as the cluster accepts.
        minutes: time limit of a Slurm job.
        options: additional Slurm settings by name.
        environment: environment variables of the jobs and of the cluster's library.
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
        """Returns the tasks per job: few enough that every slot gets several jobs, which balances the load."""
        return self.tasks_per_job or max(1, min(_LARGEST_JOB, num_tasks // (4 * slots)))


class Cluster(Protocol):
    """Runs jobs elsewhere."""

    def submit(self, job: int, tasks: Sequence[Any]) -> None:
        """Submits a job."""

    def poll(self) -> Iterator[tuple[int, str, Any]]:
        """Yields (job, "event", event), (job, "outcome", (position, Outcome)) and finally (job, "ended", reason).

        Waits for a moment, so that callers can poll in a loop.
        """

    def stop(self) -> None:
        """Asks all jobs to save and exit."""

    def kill(self) -> None:
        """Kills all jobs."""


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
    """Runs all tasks in jobs of several tasks, at most `most_jobs` at a time; see `workers.run_tasks`."""
    queue = Queue(tasks, group, retries)
    failures = Failures(queue, on_failure, on_lost)
    jobs: dict[int, dict[int, Any]] = {}  # tasks without an outcome, by job and position
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
                        # The first was running; the others had not started.
                        queue.put_back(rest[1:])
                        failures.lose(rest[0], content or "process exited")
                elif (task := jobs[job].pop(content[0], None)) is not None:
                    outcome = content[1]
                    if outcome.kind == "failed":
                        failures.fail(task, outcome.text, outcome.text)
                    elif outcome.kind == "stopped" and not is_stopping():
                        failures.lose(task, "process was asked to stop")
        if failures.message:
            raise errors.UserError(failures.message)
        return not should_stop()
