"""Tasks as jobs of several: on a cluster in this process, with submitit on this machine, and with Ray."""

import contextlib
from importlib.util import find_spec
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from hyperagent_jax import errors
from hyperagent_jax.experiment import launching


class Work:
    """A task, which is a file: its length is how far it has come."""

    def __init__(self, path, deaths=()):
        self.path, self.deaths, self.name = str(path), deaths, path.name


def work(task, report, should_stop):
    path = pathlib.Path(task.path)
    if path.name == "bad":
        raise errors.UserError("this one is bad")
    for step in range(len(path.read_text()), 4):
        if should_stop():
            return False
        path.write_text("x" * (step + 1))
        if step in task.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
    report((path.name, path.read_text()))
    return True


def _works(tmp_path, **deaths):
    works = []
    for name, steps in deaths.items():
        (tmp_path / name).write_text("")
        works.append(Work(tmp_path / name, steps))
    return works


class Fake:
    """A cluster that runs a job when it is asked; at a death the job is gone."""

    def __init__(self, keep_going=True, stop_at=None):
        self.jobs, self.submitted, self._keep_going, self._stop_at = {}, [], keep_going, stop_at

    def submit(self, job, tasks):
        self.jobs[job] = tasks
        self.submitted.append([task.name for task in tasks])

    def poll(self):
        job, tasks = next(iter(self.jobs.items()))
        messages, why = [], ""

        def function(task, report, should_stop):
            if task.deaths:
                task.deaths = task.deaths[1:]
                raise KeyboardInterrupt  # not an error of the task's
            return work(task, report, should_stop)

        try:
            launching.run_job(
                function,
                tasks,
                lambda i, event: messages.append((job, "event", event)),
                lambda i, outcome: messages.append((job, "outcome", (i, outcome))),
                lambda: False,
                self._keep_going,
            )
        except KeyboardInterrupt:
            why = "process died (by hand)"
        yield from messages
        del self.jobs[job]
        yield job, "ended", why

    def stop(self):
        self.jobs = dict(list(self.jobs.items())[:1])

    def kill(self):
        self.jobs = {}


def _run(cluster, works, on_failure=None, retries=1, **options):
    seen, lost = [], []
    settings = {"group": lambda task: task.name[0], "tasks_per_job": 2, "most_jobs": 2, "seconds_to_save": 5.0}
    completed = launching.run_on_cluster(
        cluster,
        works,
        seen.append,
        on_failure,
        lambda task, text: lost.append((task.name, text)),
        retries=retries,
        **{**settings, **options},
    )
    return completed, seen, lost


def test_a_lost_job_costs_only_the_task_that_ran(tmp_path):
    works = _works(tmp_path, a1=(), a2=(0,), a3=(), b1=())
    cluster = Fake()
    completed, seen, lost = _run(cluster, works)
    assert completed and sorted(seen) == [(name, "xxxx") for name in ("a1", "a2", "a3", "b1")]
    assert lost == [("a2", "process died (by hand); running it again from its checkpoint (retry 1 of 1)")]
    assert cluster.submitted == [["a1", "a2"], ["a3"], ["a2"], ["b1"]]


def test_tasks_that_are_lost_too_often_fail(tmp_path):
    failures = []
    works = _works(tmp_path, a1=(0, 0), b1=())
    completed, seen, lost = _run(Fake(), works, lambda task, text: failures.append((task.name, text)))
    assert completed and seen == [("b1", "xxxx")] and len(lost) == 1
    assert failures == [("a1", "process died (by hand)")]
    with pytest.raises(errors.UserError, match=r"a worker process died \(by hand\); --resume continues"):
        _run(Fake(), _works(tmp_path, a1=(0, 0), b1=()))


def test_failures_are_rows_or_the_end(tmp_path):
    failures = []
    works = _works(tmp_path, a1=(), bad=(), b1=())
    completed, seen, _ = _run(Fake(), works, lambda task, text: failures.append((task.name, text)))
    assert completed and sorted(seen) == [("a1", "xxxx"), ("b1", "xxxx")]
    assert failures == [("bad", "UserError: this one is bad")]
    with pytest.raises(errors.UserError, match="^this one is bad$"):
        _run(Fake(keep_going=False), _works(tmp_path, bad=(), c1=()))


def _settings(tmp_path, address, environment):
    root = str(pathlib.Path(__file__).parents[1])
    path = os.pathsep.join([root, str(pathlib.Path(__file__).parent)])
    # Of a job of submitit's that died only the rows on disk tell what it had done, and these tasks have none.
    size = 1 if address else 2
    environment = {"PYTHONPATH": path, **dict(environment)}
    return launching.ClusterSettings(str(tmp_path), address, tasks_per_job=size, environment=environment)


def _check_launcher(name, tmp_path, address, monkeypatch, environment=(), on_event=lambda: None):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the launcher sets it
    (tmp_path / "tasks").mkdir()
    works = _works(tmp_path / "tasks", a1=(), a2=(1,), a3=(2,), bad=())
    seen, lost, failures = [], [], []
    settings = _settings(tmp_path, address, environment)

    def note(event):
        seen.append(event)
        on_event()

    assert launching.load(name, settings.environment).run_tasks(
        work,
        works,
        2,
        note,
        lambda task, text: failures.append((task.name, text)),
        settings=settings,
        group=lambda task: task.name[0],
        seconds_to_save=20.0,
        retries=1,
        on_lost=lambda task, text: lost.append(task.name),
    )
    assert sorted(set(seen)) == [(name, "xxxx") for name in ("a1", "a2", "a3")]
    assert sorted(lost) == ["a2", "a3"] and failures == [("bad", "UserError: this one is bad")]


@pytest.mark.skipif(not find_spec("submitit"), reason="needs submitit")
def test_jobs_of_submitit_in_this_process(tmp_path):
    """Its executor for debugging starts nothing, so this costs little; processes that die are a slow test."""
    works, seen, failures = _works(tmp_path, a1=(), a2=(), bad=(), b1=()), [], []
    on_slurm = launching.load("on_slurm", {})
    settings = launching.ClusterSettings(str(tmp_path), "debug", tasks_per_job=2)
    on_failure = lambda task, text: failures.append((task.name, text))  # noqa: E731
    options = {"group": lambda task: task.name[0], "seconds_to_save": 5.0, "retries": 1, "on_lost": print}
    assert on_slurm.run_tasks(work, works, 2, seen.append, on_failure, settings=settings, **options)
    assert sorted(seen) == [(name, "xxxx") for name in ("a1", "a2", "b1")]
    assert failures == [("bad", "UserError: this one is bad")]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("submitit"), reason="needs submitit")
def test_submitit_on_this_machine(tmp_path, monkeypatch):
    _check_launcher("on_slurm", tmp_path, "local", monkeypatch)


def _listening():
    """Addresses at which processes that this one started listen, as /proc has them."""
    parents, sockets, addresses = {}, {}, {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                for descriptor in (entry / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        sockets.setdefault(int(entry.name), set()).add(os.readlink(descriptor))
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                addresses[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    found = set()
    for pid, own in sockets.items():
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            found |= {addresses[one] for one in own if one in addresses}
    return found


# Starting a Ray takes some ten seconds of a core: too much for the fast tests.
@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
def test_ray_on_this_machine_which_no_other_reaches(tmp_path, monkeypatch):
    for name in launching.RAY_ON_LOOPBACK:
        monkeypatch.delenv(name, raising=False)
    addresses = set()
    _check_launcher(
        "on_ray", tmp_path, None, monkeypatch, launching.RAY_ON_LOOPBACK, lambda: addresses.update(_listening())
    )
    # 127.0.0.1, as such and as an address of IPv6.
    assert addresses and addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
def test_what_ends_the_start_of_ray(tmp_path, monkeypatch):
    """A node that does not start in time is one line; SIGTERM, which Ray answers itself, is like Ctrl-C."""
    on_ray = launching.load("on_ray", {})
    settings = launching.ClusterSettings(str(tmp_path), "auto")
    before = signal.getsignal(signal.SIGTERM)
    late, ended = Exception("The node timed out.\nMore"), SystemExit(15)
    for raised, expected, message in (
        (
            late,
            errors.UserError,
            "^cannot connect to --ray_address=auto: Exception: The node timed out.$",
        ),
        (ended, KeyboardInterrupt, ""),
    ):

        def init(*_, raised=raised, **__):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise raised

        monkeypatch.setattr(on_ray.ray, "init", init)
        with pytest.raises(expected, match=message):
            on_ray.run_tasks(work, [1], 1, print, None, settings=settings)
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
@pytest.mark.parametrize("form, kind", [("127.0.0.1:{}", "ConnectionRefusedError"), ("ray://[::1]:{}", "")])
def test_an_address_where_nobody_listens_is_refused_at_once(form, kind, tmp_path):
    on_ray = launching.load("on_ray", {})
    with socket.socket() as bound:  # nobody else gets the port, and a socket that does not listen refuses
        bound.bind(("127.0.0.1", 0))
        address = form.format(bound.getsockname()[1])
        message = rf"^cannot connect to --ray_address={re.escape(address)}: {kind}"
        with pytest.raises(errors.UserError, match=message):
            on_ray._start(2, launching.ClusterSettings(str(tmp_path), address))


@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
@pytest.mark.parametrize("gpus, fraction", [(0.25, "0.225"), (1, None), (0, None)])
def test_jobs_that_share_a_gpu_share_its_memory(gpus, fraction, tmp_path, monkeypatch):
    on_ray = launching.load("on_ray", {})
    options, submitted = [], []

    class Remote:
        def remote(self, *arguments):
            submitted.append(arguments)
            return object()

    def remote(**given):
        options.append(given)
        return lambda function: Remote()

    monkeypatch.setattr(on_ray.ray, "remote", remote)
    settings = launching.ClusterSettings(str(tmp_path), gpus_per_task=gpus, environment={"NPROC": "1"})
    on_ray._Ray(work, True, settings).submit(0, [])
    assert options[0]["num_gpus"] == gpus
    environment = submitted[-1][-1]
    assert environment["NPROC"] == "1" and environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == fraction


@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
@pytest.mark.parametrize("failures", [3, 4])
def test_a_ray_that_does_not_start_in_time_is_started_again(failures, tmp_path, monkeypatch, capsys):
    on_ray = launching.load("on_ray", {})
    killed, started = [], []

    class Node:  # as Ray's: it raises while it is made, and nobody else has a handle of it
        def __init__(self):
            raise Exception("The node timed out.\nMore")

        def kill_all_processes(self, check_alive, wait):
            assert not check_alive and wait
            killed.append(self)

    def init(address, **_):
        started.append(address)
        if len(started) <= failures:
            Node()

    monkeypatch.setattr(on_ray.ray, "init", init)
    monkeypatch.setattr(on_ray.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    if failures == 3:
        on_ray._start(2, launching.ClusterSettings(str(tmp_path)))
    else:
        message = "^cannot connect to a local Ray: Exception: The node timed out.$"
        with pytest.raises(errors.UserError, match=message):
            on_ray._start(2, launching.ClusterSettings(str(tmp_path)))
    assert started == 4 * ["local"] and len(killed) == failures
    said = "Ray did not start, trying again (Exception: The node timed out.)\n"
    assert capsys.readouterr().err == 3 * said


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("ray"), reason="needs ray")
def test_a_ray_that_others_could_reach_is_not_started(tmp_path):
    code = f"""
from hyperagent_jax.experiment import launching
settings = launching.ClusterSettings({str(tmp_path)!r})
launching.load("on_ray", {{}}).run_tasks(print, [0], 1, print, print, settings=settings)
"""
    environment = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1_000
    )
    assert "UserError: a Ray started here would be open to other machines" in done.stderr
