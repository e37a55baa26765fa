"""What a running task talks to: progress in its checkpoint, rows reported again, and when it must end."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import display as display_lib
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import rows
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import tables as tables_lib


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
    message = "seed 4: the loss is not finite after {} interactions; lower --learning_rate or check the rewards"
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
        {"fingerprint": settings, "progress": [progress]},
        {"fingerprint": settings, "progress": {**progress, "curve": None}},
        {"fingerprint": settings, "progress": {**progress, "curve": [[4, {"interactions": "x"}]]}},
        {"fingerprint": settings, "progress": {**progress, "curve": [[4]]}},
        {"fingerprint": settings, "progress": {**progress, "results": {"x": {}}}},
        {"fingerprint": settings, "progress": {**progress, "results": {"4": []}}},
        {"fingerprint": settings, "progress": {**progress, "notes": []}},
        {"fingerprint": settings, "progress": {**progress, "train_seconds": "x"}},
        {"fingerprint": None, "progress": progress},
    ):
        checkpoint.save(file, {}, facts)
        with pytest.raises(checkpoint.CheckpointError, match="is corrupt or from another version: move it away"):
            _context(_task(tmp_path))
    checkpoint.save(file, {}, {"fingerprint": settings, "progress": {"reached": 7}})  # the rest has defaults
    assert _context(_task(tmp_path))[0].progress == run_context.Progress(reached=7)


def test_a_finished_task_files_its_rows_and_deletes_its_checkpoint(tmp_path, capsys):
    settings = fingerprint.make({"experiment": "deepsea"})
    directory = run_directory.RunDirectory(str(tmp_path), settings, resume=False, overwrite=False)
    experiment, task = deep_sea.EXPERIMENT, dataclasses.replace(_task(tmp_path), protocol=deep_sea.Protocol())
    plan = base.Plan(experiment, (task,), str(tmp_path), settings, ("seed",))
    assert (plan.result_fields, plan.curve_fields) == (experiment.result_fields, experiment.curve_fields)
    assert not plan.is_sweep and not plan.records_failures
    cells = tuple(dataclasses.replace(task, seeds=(seed,)) for seed in task.seeds)
    tables = tables_lib.Tables(plan._replace(tasks=cells), directory)
    display = display_lib.Display(plan, tables, [task], {}, has_bar=False)
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
    assert resumed.finish()
    display.close()
    assert not list(tmp_path.glob("checkpoints/*"))
    (record,) = rows.Reader(tmp_path).new()
    assert list(record.results) == ["4", "5"] and [seed for seed, _ in record.curve] == [4, 5]
    tables.finish()
    assert not (tmp_path / "rows").exists()
    assert [row["seed"] for row in directory.rows("results")] == ["4", "5"]
    assert [row["seed"] for row in directory.rows("curve")] == ["4", "5"]
    assert {row["agent"] for row in directory.rows("results")} == {"x"}
    assert capsys.readouterr().out.count("solved in 1 episodes") == 2


def test_a_checkpoint_that_cannot_be_written_is_said_and_training_continues(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(run_context.time, "monotonic", lambda: clock[0])
    context, events = _context(_task(tmp_path))
    context.progress.reached = 5
    context.save({"x": jnp.arange(3)})

    def full_disk(file, arrays):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", full_disk)
        for now in (110.0, 120.0, 170.0):  # not said again within a minute
            clock[0] = now
            context.progress.reached = int(now)
            context.save({"x": jnp.zeros(3)})
    file = tmp_path / "checkpoints" / "seeds_4_to_5.npz"
    assert [event.kind for event in events] == ["note", "note"]
    assert events[0].text == (
        f"cannot write checkpoint {file}: No space left on device; training continues, and the previous "
        "checkpoint is kept"
    )
    assert _context(_task(tmp_path))[0].progress.reached == 5
    context.save({"x": jnp.arange(3)})  # there is room again
    assert _context(_task(tmp_path))[0].progress.reached == 170


def test_a_folder_that_is_gone_is_not_made_again(tmp_path):
    context, _ = _context(_task(tmp_path / "run"))
    with pytest.raises(
        errors.UserError, match=r"--logdir=.*run was removed or renamed during the run: restore it"
    ):
        context.save({})
    assert not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_costs_what_was_after_the_one_before_it(tmp_path):
    context, _ = _context(_task(tmp_path))
    for reached in (3, 6):
        context.progress.reached = reached
        context.save({"x": jnp.full(2, reached)})
    file = tmp_path / "checkpoints" / "seeds_4_to_5.npz"
    file.write_bytes(file.read_bytes()[:100])
    context, (event,) = _context(_task(tmp_path))
    assert event.kind == "note" and event.text.endswith("continuing from the previous one")
    assert context.progress.reached == 3 and context.load({"x": jnp.zeros(2, int)})["x"].tolist() == [3, 3]
    (file.parent / "seeds_4_to_5.npz.previous").write_text("damaged too")
    context, (event,) = _context(_task(tmp_path))
    assert not context.is_resumed and event.text.endswith("the run starts from the beginning")
