"""Tasks as jobs of Slurm, by submitit: `--launcher=slurm`."""

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

# Jobs of one array; clusters allow 1,001 unless they are set up otherwise.
_ARRAY = 1_000
_KEPT = ("curve", "result")


def run_job(
    function: launching.TaskFunction, tasks: Sequence[Any], keep_going: bool
) -> list[tuple[int, launching.Outcome, list[Any]]]:
    """Runs a job on a node; returns how its tasks ended, with what they reported."""
    events: dict[int, list[Any]] = {}
    outcomes = []
    # Also what Slurm sends when the time is nearly over or others need the node: the state is saved, and whoever
    # submitted the job submits what is left of it again.
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
        self._names: dict[str, tuple[int, int]] = {}  # jobs and positions, by the names of tasks
        self._reader = rows.Reader(settings.folder)
        with contextlib.suppress(StopIteration):
            list(self._reader.new())  # what is there is in the tables already
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
                raise errors.UserError(f"Slurm refused the jobs: {launching.describe(error)}") from error
            for (job, tasks), handle in zip(jobs, handles, strict=True):
                self._jobs[job] = handle
                self._names.update({getattr(task, "name", ""): (job, i) for i, task in enumerate(tasks)})

    def poll(self) -> Iterator[tuple[int, str, Any]]:
        self._submit_pending()
        time.sleep(0.3)
        ended = {job: handle for job, handle in self._jobs.items() if handle.done()}
        # Rows of tasks whose jobs are still at the next ones.
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
            except Exception as error:  # of submitit's own, or what it could not pickle
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
        if not self._is_local:  # those that have not begun have nothing to save
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
    """Runs all tasks as jobs of Slurm; see `workers.run_tasks`."""
    if not tasks:
        return True
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)  # jobs inherit it
    is_local = settings.address == "local"
    slots = num_workers if is_local else settings.most_jobs or 100
    return launching.run_on_cluster(
        _Slurm(function, on_failure is not None, settings),
        tasks,
        on_event,
        on_failure,
        tasks_per_job=settings.job_size(len(tasks), slots),
        # Slurm has a queue; the executor of this machine starts everything at once.
        most_jobs=num_workers if is_local else None,
        **options,
    )
