"""Tasks as jobs of several: on a cluster in this process, with submitit on this machine, and with Ray."""

import os
import pathlib
import signal

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


def _settings(tmp_path, address=None):
    root = str(pathlib.Path(__file__).parents[1])
    path = os.pathsep.join([root, str(pathlib.Path(__file__).parent)])
    # Of a job of submitit's that died only the rows on disk tell what it had done, and these tasks have none.
    size = 1 if address else 2
    return launching.ClusterSettings(str(tmp_path), address, tasks_per_job=size, environment={"PYTHONPATH": path})


def _check_launcher(module, tmp_path, address, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the launcher sets it
    (tmp_path / "tasks").mkdir()
    works = _works(tmp_path / "tasks", a1=(), a2=(1,), a3=(2,), bad=())
    seen, lost, failures = [], [], []
    assert module.run_tasks(
        work,
        works,
        2,
        seen.append,
        lambda task, text: failures.append((task.name, text)),
        settings=_settings(tmp_path, address),
        group=lambda task: task.name[0],
        seconds_to_save=20.0,
        retries=1,
        on_lost=lambda task, text: lost.append(task.name),
    )
    assert sorted(set(seen)) == [(name, "xxxx") for name in ("a1", "a2", "a3")]
    assert sorted(lost) == ["a2", "a3"] and failures == [("bad", "UserError: this one is bad")]


@pytest.mark.slow
def test_submitit_on_this_machine(tmp_path, monkeypatch):
    on_slurm = pytest.importorskip("hyperagent_jax.experiment.on_slurm")
    _check_launcher(on_slurm, tmp_path, "local", monkeypatch)


@pytest.mark.slow
def test_ray_on_this_machine(tmp_path, monkeypatch):
    on_ray = pytest.importorskip("hyperagent_jax.experiment.on_ray")
    _check_launcher(on_ray, tmp_path, None, monkeypatch)
