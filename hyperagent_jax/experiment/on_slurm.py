"""Runs tasks as Slurm jobs, using submitit: `--launcher=slurm`."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import launching
from hyperagent_jax.experiment import rows

with errors.optional_library("submitit", "slurm"):
    import submitit

# Jobs per job array; Slurm's default limit is 1,001.
_ARRAY = 1_000
_KEPT = ("curve", "result")


def run_job(
    function: launching.TaskFunction, tasks: Sequence[Any], keep_going: bool
) -> list[tuple[int, launching.Outcome, list[Any]]]:
    """Runs a job on a node; returns the outcomes of its tasks and the events they reported."""
    events: dict[int, list[Any]] = {}
    outcomes = []
    # These include the signal that Slurm sends before the time limit or preemption: the job saves its state, and
    # the driver resubmits the remaining tasks.
    with launching.stop_signal(*launching.STOP_SIGNALS) as should_stop:
        launching.run_job(
            function,
            tasks,
            lambda i, event: events.setdefault(i, []).append(event),
            lambda i, outcome: outcomes.append((i, outcome)),
            should_stop,
            keep_going,
        )
    return [
        (i, outcome, [event for event in events.get(i, []) if getattr(event, "kind", "result") in _KEPT])
        for i, outcome in outcomes
    ]


class _Slurm:
    """The cluster; see `launching.Cluster`."""

    def __init__(self, function: launching.TaskFunction, keep_going: bool, settings: launching.ClusterSettings):
        self._function, self._keep_going = function, keep_going
        self._is_local = settings.address == "local"
        self._folder = settings.folder
        self._pending: list[tuple[int, list[Any]]] = []
        self._jobs: dict[int, Any] = {}
        self._names: dict[str, tuple[int, int]] = {}  # job and position, by task name
        self._reader = rows.Reader(settings.folder)
        with contextlib.suppress(StopIteration):
            list(self._reader.new())  # existing records are in the tables already
        try:
            self._executor = submitit.AutoExecutor(
                folder=str(pathlib.Path(settings.folder) / "slurm"), cluster=settings.address
            )
            parameters: dict[str, Any] = {
                "cpus_per_task": max(1, round(settings.cpus_per_task)),
                "timeout_min": settings.minutes,
            }
            if settings.gpus_per_task:
                parameters["gpus_per_node"] = max(1, round(settings.gpus_per_task))
            if not self._is_local:
                parameters["slurm_array_parallelism"] = settings.most_jobs or _ARRAY
                parameters.update({f"slurm_{name}": value for name, value in settings.options.items()})
            self._executor.update_parameters(**parameters)
        except (RuntimeError, ValueError, NameError, TypeError, OSError) as error:
            raise errors.UserError(f"cannot use --launcher=slurm: {launching.describe(error)}") from error

    def submit(self, job: int, tasks: Sequence[Any]) -> None:
        self._pending.append((job, list(tasks)))

    def _submit_pending(self) -> None:
        while self._pending:
            jobs, self._pending = self._pending[:_ARRAY], self._pending[_ARRAY:]
            try:
                with self._executor.batch():
                    handles = [
                        self._executor.submit(run_job, self._function, tasks, self._keep_going)
                        for _, tasks in jobs
                    ]
            except (submitit.core.utils.FailedJobError, subprocess.SubprocessError, OSError) as error:
                raise errors.UserError(f"Slurm rejected the jobs: {launching.describe(error)}") from error
            for (job, tasks), handle in zip(jobs, handles, strict=True):
                self._jobs[job] = handle
                self._names.update({getattr(task, "name", ""): (job, i) for i, task in enumerate(tasks)})

    def poll(self) -> Iterator[tuple[int, str, Any]]:
        self._submit_pending()
        time.sleep(0.3)
        ended = {job: handle for job, handle in self._jobs.items() if handle.done()}
        # Rows of finished tasks whose jobs are still running later tasks.
        for record in self._reader.new():
            if record.task in self._names:
                job, i = self._names[record.task]
                for seed, row in record.curve:
                    yield job, "event", base.Event("curve", record.task, seed, row, reached=row["interactions"])
                for seed_text, row in record.results.items():
                    yield job, "event", base.Event("result", record.task, int(seed_text), row)
                yield job, "outcome", (i, launching.Outcome("done"))
        for job, handle in ended.items():
            why = ""
            try:
                for i, outcome, events in handle.result():
                    for event in events:
                        yield job, "event", event
                    yield job, "outcome", (i, outcome)
            except submitit.core.utils.UncompletedJobError:
                why = f"process died (job {handle.job_id}: {handle.state.lower()})"
            except Exception as error:  # from submitit itself, or something that it could not pickle
                why = f"process died (job {handle.job_id}: {launching.describe(error)})"
            del self._jobs[job]
            yield job, "ended", why

    def _signal(self, number: signal.Signals) -> None:
        identities = [str(handle.job_id) for handle in self._jobs.values()]
        if self._is_local:
            for identity in identities:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(identity), number)
        elif identities:
            name = number.name.removeprefix("SIG")
            command = ["scancel", *(["--signal", name] if number != signal.SIGKILL else []), *identities]
            subprocess.run(command, check=False, capture_output=True)

    def stop(self) -> None:
        self._pending = []
        if not self._is_local:  # jobs that have not started have nothing to save
            waiting = [str(handle.job_id) for handle in self._jobs.values()]
            subprocess.run(["scancel", "--state=PENDING", *waiting], check=False, capture_output=True)
        self._signal(signal.SIGTERM if self._is_local else signal.SIGUSR2)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)


def run_tasks(
    function: launching.TaskFunction,
    tasks: Sequence[Any],
    num_workers: int,
    on_event: Callable[[Any], None],
    on_failure: Callable[[Any, str], None] | None,
    *,
    settings: launching.ClusterSettings,
    **options: Any,
) -> bool:
    """Runs all tasks as Slurm jobs; see `workers.run_tasks`."""
    if not tasks:
        return True
    is_local = settings.address == "local"
    slots = num_workers if is_local else settings.most_jobs or 100
    return launching.run_on_cluster(
        _Slurm(function, on_failure is not None, settings),
        tasks,
        on_event,
        on_failure,
        tasks_per_job=settings.job_size(len(tasks), slots),
        # Slurm has a queue; submitit's local executor starts all jobs immediately.
        most_jobs=num_workers if is_local else None,
        **options,
    )
