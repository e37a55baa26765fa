"""What a running task talks to: progress in its checkpoint, rows reported again, and when it must end."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3


@dataclasses.dataclass(frozen=True)
class Protocol:
    steps: int = 10


def _task(path=None, seeds=(4, 5), **config):
    folder = str(path) if path else ""
    return base.Task("deepsea", "x", Config(**config), Protocol(), seeds, folder=folder, checkpoint_seconds=0.0)


def _context(task):
    events = []
    return run_context.RunContext(task, events.append, lambda: False), events


def _row(interactions):
    return {"interactions": interactions, "score": 0.5 * interactions}


def test_progress_is_saved_and_restored(tmp_path):
    first, _ = _context(_task(tmp_path))
    assert not first.is_resumed and first.progress == run_context.Progress()
    with first.training():
        pass
    first.advance(7)
    first.add_curve(4, _row(3))
    first.add_result(5, {"solved": True})
    first.progress.notes["totals"] = [1.5, 2]
    first.save({"x": jnp.arange(3)})
    second, _ = _context(_task(tmp_path))
    assert second.is_resumed
    assert second.progress.reached == 7 and second.progress.train_seconds == first.progress.train_seconds > 0
    assert second.progress.results == {"5": {"solved": True}} and second.progress.notes == {"totals": [1.5, 2]}
    assert second.is_done(5) and not second.is_done(4)
    np.testing.assert_array_equal(second.load({"x": jnp.zeros(3, jnp.int32)})["x"], [0, 1, 2])
    with second.training():
        pass
    assert second.progress.train_seconds > first.progress.train_seconds


def test_rows_are_reported_again_after_a_resume(tmp_path):
    context, events = _context(_task(tmp_path))
    context.add_curve(4, _row(3), "score 1.5")
    context.add_curve(5, _row(3))
    context.add_result(5, {"solved": True})
    context.save({})
    context.add_curve(4, _row(6))  # after the checkpoint: forgotten by a process that is killed now
    assert [(event.kind, event.seed) for event in events] == [
        ("curve", 4),
        ("curve", 5),
        ("result", 5),
        ("curve", 4),
    ]
    assert events[0] == base.Event("curve", "seeds_4_to_5", 4, _row(3), reached=3, text="score 1.5")
    _, again = _context(_task(tmp_path))
    assert [(event.kind, event.seed, event.row) for event in again] == [
        (event.kind, event.seed, event.row) for event in events[:3]
    ]


def test_a_task_without_a_checkpoint_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context, _ = _context(_task())
    context.save({"x": jnp.zeros(2)})
    assert not context.is_resumed and not list(tmp_path.iterdir())


def test_checkpoints_are_due_after_the_time_between_them(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(run_context.time, "monotonic", lambda: clock[0])
    context, _ = _context(dataclasses.replace(_task(), checkpoint_seconds=10.0))
    for now, is_due, is_half_due in ((104.0, False, False), (105.0, False, True), (110.0, True, True)):
        clock[0] = now
        assert (context.is_save_due(), context.is_save_due(0.5)) == (is_due, is_half_due)
    context.save({})
    assert not context.is_save_due()


def test_progress_is_reported_now_and_then(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(run_context.time, "monotonic", lambda: clock[0])
    context, events = _context(_task())
    for reached, now in ((1, 100.0), (2, 100.1), (3, 100.25), (4, 100.3), (5, 100.5)):
        clock[0] = now
        context.advance(reached, f"at {reached}")
        assert context.progress.reached == reached
    assert [(event.kind, event.seed, event.reached, event.text) for event in events] == [
        ("progress", 4, 3, "at 3"),
        ("progress", 4, 5, "at 5"),
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), np.float32(-np.inf)])
def test_a_loss_that_is_not_finite_ends_the_run(loss):
    context, _ = _context(_task())
    context.check_loss(np.float32(1e30), "seed 4")
    context.advance(1_500)
    message = (
        "seed 4: the loss is no longer finite after {} interactions; lower --learning_rate or check the rewards"
    )
    for interactions, reached in (((), "1,500"), ((2_500,), "2,500")):
        with pytest.raises(errors.UserError) as error:
            context.check_loss(loss, "seed 4", *interactions)
        assert str(error.value) == message.format(reached)


def test_checkpoints_of_other_settings_or_versions_are_refused(tmp_path):
    context, _ = _context(_task(tmp_path))
    context.save({})
    file = tmp_path / "checkpoints" / "seeds_4_to_5.npz"
    for other in (_task(tmp_path, width=4), _task(tmp_path, seeds=(4, 2, 5))):  # files of the same name
        with pytest.raises(checkpoint.CheckpointError, match=f"{file} was made with a different configuration"):
            _context(other)
    settings = checkpoint.load_facts(file)["fingerprint"]
    progress = dataclasses.asdict(run_context.Progress())
    for facts in (
        {},
        {"fingerprint": settings},
        {"fingerprint": [], "progress": progress},
        {"fingerprint": settings, "progress": {**progress, "reached": "7"}},
        {"fingerprint": settings, "progress": {**progress, "unknown": 1}},
    ):
        checkpoint.save(file, {}, facts)
        with pytest.raises(checkpoint.CheckpointError, match="is of another version or corrupt: delete it"):
            _context(_task(tmp_path))
    checkpoint.save(file, {}, {"fingerprint": settings, "progress": {"reached": 7}})  # the rest has defaults
    assert _context(_task(tmp_path))[0].progress == run_context.Progress(reached=7)


def test_a_finished_task_has_its_checkpoint_deleted(tmp_path, monkeypatch, capsys):
    """By whoever writes the rows, and after they are written."""
    monkeypatch.setattr(driver, "FLAGS", types.SimpleNamespace(progress=False))
    settings = fingerprint.make({"experiment": "deepsea"})
    directory = run_directory.RunDirectory(str(tmp_path), settings, resume=False, overwrite=False)
    experiment, task = deep_sea.EXPERIMENT, dataclasses.replace(_task(tmp_path), protocol=deep_sea.Protocol())
    plan = base.Plan(experiment, (task,), str(tmp_path), settings, ("seed",))
    assert (plan.result_fields, plan.curve_fields) == (experiment.result_fields, experiment.curve_fields)
    assert not plan.is_sweep and not plan.records_failures
    display = driver.Display(plan, directory, [task], {})
    context = run_context.RunContext(task, display.on_event, lambda: False)
    measured = dict.fromkeys(experiment.result_fields, 1)
    context.save({})
    for seed in task.seeds:
        row = {**dict.fromkeys(experiment.curve_fields, 0), "seed": seed, "interactions": 10}
        context.add_curve(seed, row)
        context.add_result(seed, {**measured, "solved": True})
        assert task.checkpoint == tmp_path / "checkpoints" / "seeds_4_to_5.npz" and task.checkpoint.exists()
    context.save({})
    # Reported again by a resumed task: not written twice.
    resumed = run_context.RunContext(task, display.on_event, lambda: False)
    resumed.finish()
    display.close()
    assert not list(tmp_path.glob("checkpoints/*"))
    assert [row["seed"] for row in directory.rows("results")] == ["4", "5"]
    assert [row["seed"] for row in directory.rows("curve")] == ["4", "5"]
    assert {row["agent"] for row in directory.rows("results")} == {"x"}
    assert capsys.readouterr().out.count("solved in 1 episodes") == 2
