"""Runs tasks on a Ray cluster, or on a local Ray started for the run: `--launcher=ray`."""

from collections.abc import Callable, Iterator, Sequence
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from typing import Any
import warnings

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching

with errors.optional_library("ray", "ray"):
    import ray

# Attempts to start a Ray here.
_STARTS = 4
_CONNECT_SECONDS = 20.0
# Least time between two messages of a job.
_MESSAGE_SECONDS = 0.5


class _Mailbox:
    """Collects the messages of jobs, and tells them whether to stop."""

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._is_stopping = False

    def put(self, messages: list[Any]) -> bool:
        self._messages += messages
        return self._is_stopping

    def take(self) -> list[Any]:
        taken, self._messages = self._messages, []
        return taken

    def stop(self) -> None:
        self._is_stopping = True


class _Post:
    """A job's side of the mailbox. It does not wait for replies: it reads the reply to its previous message."""

    def __init__(self, mailbox: Any, job: int):
        self._mailbox, self._job = mailbox, job
        self._messages: list[Any] = []
        self._answer: Any = None
        self._sent_at = time.monotonic()
        self._is_stopping = False

    def add(self, kind: str, content: Any) -> None:
        self._messages.append((self._job, kind, content))
        self.should_stop()

    def add_outcome(self, position: int, outcome: launching.Outcome) -> None:
        """Sends an outcome before the next task starts, so that it survives a crash of that task."""
        self._messages.append((self._job, "outcome", (position, outcome)))
        self.send(wait=True)

    def should_stop(self) -> bool:
        if time.monotonic() - self._sent_at >= _MESSAGE_SECONDS:
            self.send()
        return self._is_stopping

    def send(self, wait: bool = False) -> None:
        if self._answer is not None:
            self._is_stopping = ray.get(self._answer)
        self._answer = self._mailbox.put.remote(self._messages)
        self._messages, self._sent_at = [], time.monotonic()
        if wait:
            ray.get(self._answer)


def _run(
    function: launching.TaskFunction,
    job: int,
    tasks: Sequence[Any],
    mailbox: Any,
    keep_going: bool,
    environment: dict[str, str],
) -> None:
    """Runs a job in a Ray worker."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    post = _Post(mailbox, job)
    launching.run_job(
        function,
        tasks,
        lambda i, event: post.add("event", event),
        post.add_outcome,
        post.should_stop,
        keep_going,
    )
    post.send(wait=True)


class _Ray:
    """The cluster; see `launching.Cluster`."""

    def __init__(self, function: launching.TaskFunction, keep_going: bool, settings: launching.ClusterSettings):
        self._function, self._keep_going = function, keep_going
        remote: Any = ray.remote
        options = {"num_cpus": settings.cpus_per_task, "num_gpus": settings.gpus_per_task, "max_retries": 0}
        self._remote = remote(**options)(_run)
        self._mailbox = remote(num_cpus=0)(_Mailbox).remote()
        self._environment = dict(settings.environment)
        if 0 < settings.gpus_per_task < 1:  # by default each job would preallocate 75% of the device
            self._environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * settings.gpus_per_task:.3f}"
        self._jobs: dict[Any, int] = {}  # by Ray reference

    def submit(self, job: int, tasks: Sequence[Any]) -> None:
        reference = self._remote.remote(
            self._function, job, list(tasks), self._mailbox, self._keep_going, self._environment
        )
        self._jobs[reference] = job

    def poll(self) -> Iterator[tuple[int, str, Any]]:
        waiting = list(self._jobs)
        ended, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0.3, fetch_local=False)
        try:
            yield from ray.get(self._mailbox.take.remote())
        except ray.exceptions.RayError as error:
            raise errors.UserError(
                f"lost the connection to Ray ({launching.describe(error)}): continue with --resume"
            ) from error
        for reference in ended:
            why = ""
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:
                why = f"process died ({type(error).__name__})"
            yield self._jobs.pop(reference), "ended", why

    def stop(self) -> None:
        ray.get(self._mailbox.stop.remote())

    def kill(self) -> None:
        for reference in self._jobs:
            ray.cancel(reference, force=True)


def _kill_half_started(error: Exception) -> None:
    """Kills the processes of a node that did not start in time, which would live as long as this one.

    Ray returns no handle of such a node, so it is taken from the frames that the exception went through.
    """
    trace = error.__traceback__
    while trace is not None:
        kill = getattr(trace.tb_frame.f_locals.get("self"), "kill_all_processes", None)
        if kill is not None:
            kill(check_alive=False, wait=True)
            return
        trace = trace.tb_next


def _start_here(num_cpus: int, **common: Any) -> None:
    """Starts a Ray that only this machine can reach, if necessary at a later attempt.

    Ray gives a node's helper processes 15 seconds and the node 30, neither of which can be set: on a busy machine
    that may be too short.
    """
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        raise errors.UserError(
            "a Ray started here would be open to other machines: leave RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER "
            "unset, and do not import ray before, or start a Ray yourself and give --ray_address"
        )
    for left in reversed(range(_STARTS)):
        try:
            ray.init("local", num_cpus=num_cpus, include_dashboard=False, **common)
            return
        except Exception as error:
            _kill_half_started(error)
            if not left:
                raise
            print(f"Ray did not start, trying again ({launching.describe(error)})", file=sys.stderr)


def _require_reachable(address: str) -> None:
    """Raises a one-line error if nobody listens at an address; Ray would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # auto, or something that Ray rejects
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise errors.UserError(
            f"cannot connect to --ray_address={address}: {launching.describe(error)}"
        ) from error


def _start(num_workers: int, settings: launching.ClusterSettings) -> None:
    """Connects to the cluster, or starts a Ray here."""
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray hides all devices
    common: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    # Ray starts programs, and jax warns of every fork, although an exec follows immediately.
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    handler = signal.getsignal(signal.SIGTERM)  # Ray has its own, which ends the process
    try:
        if settings.address:
            _require_reachable(settings.address)
            environment = {"env_vars": dict(settings.environment)}
            ray.init(settings.address, runtime_env=environment, **common)
        else:
            _start_here(max(1, round(num_workers * settings.cpus_per_task)), **common)
    except errors.UserError:
        raise
    except SystemExit as error:
        raise KeyboardInterrupt from error
    except Exception as error:  # of a node that does not start in time Ray raises just that
        place = f"--ray_address={settings.address}" if settings.address else "a local Ray"
        raise errors.UserError(f"cannot connect to {place}: {launching.describe(error)}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)


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
    """Runs all tasks on Ray; see `workers.run_tasks`."""
    if not tasks:
        return True
    _start(num_workers, settings)
    try:
        slots = int(ray.cluster_resources().get("CPU", num_workers) // max(settings.cpus_per_task, 1))
        return launching.run_on_cluster(
            _Ray(function, on_failure is not None, settings),
            tasks,
            on_event,
            on_failure,
            tasks_per_job=settings.job_size(len(tasks), max(slots, 1)),
            most_jobs=settings.most_jobs,
            **options,
        )
    finally:
        ray.shutdown()
