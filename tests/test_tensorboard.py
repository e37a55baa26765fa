"""Scalars for TensorBoard, read back from the event files."""

import struct
import sys

import pytest

from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import display
from hyperagent_jax.experiment import sweep
from hyperagent_jax.experiment import tensorboard

pytest.importorskip("tensorboardX")
RUN = "agent=hyperagent_size=4_sigma=0.1_seed=3"


def _events(folder):
    """Yields the events of all files in a folder: records of length, checksum, data, checksum."""
    from tensorboardX.proto import event_pb2

    for file in sorted(folder.iterdir()):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = event_pb2.Event()
            event.ParseFromString(data[place + 12 : place + 12 + length])
            yield event
            place += length + 16


def _scalars(folder):
    return {
        (value.tag, event.step): pytest.approx(value.simple_value)
        for event in _events(folder)
        for value in event.summary.value
    }


class _Tables:
    """Takes rows and keeps nothing."""

    def add_curve(self, task, seed, row):
        pass

    def add_result(self, task, seed, row):
        return {**row, **task.columns_of(seed), "error": row.get("error", "")}


@pytest.fixture
def plan(tmp_path):
    grid = {"size": 4, "sigma": 0.1, "seed": 3}
    return sweep.plan(base.get("deepsea"), [grid], str(tmp_path))


def _show(plan, events, reached=None):
    scalars = tensorboard.Writer(plan.logdir)
    shown = display.Display(plan, _Tables(), plan.tasks, reached or {}, has_bar=False, scalars=scalars)
    for kind, row in events:
        shown.on_event(base.Event(kind, plan.tasks[0].name, 3, row, row["interactions"], ""))
    shown.close()


CURVE = {"seed": 3, "interactions": 1000, "episodes": 250, "eval_return": 0.25, "loss": ""}
RESULT = {
    "solved": True,
    "episodes_to_learn": 500,
    "interactions": 2000,
    "final_return": 0.99,
    "num_params": 10,
    "num_output_params": 5,
    "compile_seconds": 1.0,
    "train_seconds": 2.0,
    "interactions_per_second": 1000.0,
}


def test_rows_are_scalars_at_their_interactions(plan, tmp_path):
    last = {**CURVE, "interactions": 2000, "eval_return": 0.99, "loss": 0.5}
    # The second row comes again from a process that took over from a lost one.
    _show(plan, [("curve", CURVE), ("curve", last), ("curve", last), ("result", RESULT)])
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert folder.name == RUN
    found = _scalars(folder)
    assert found["curve/eval_return", 1000] == 0.25 and found["curve/eval_return", 2000] == 0.99
    assert ("curve/loss", 1000) not in found and found["curve/loss", 2000] == 0.5
    assert found["result/episodes_to_learn", 2000] == 500
    assert not {"curve/seed", "curve/interactions", "result/solved"} & {tag for tag, _ in found}
    tags = [value.tag for event in _events(folder) for value in event.summary.value]
    assert tags.count("curve/eval_return") == 2


def test_a_resumed_run_drops_what_was_not_saved(plan, tmp_path):
    _show(plan, [("curve", CURVE)], {plan.key(plan.tasks[0].columns_of(3)): 500})
    starts = [event.step for event in _events(tmp_path / "tensorboard" / RUN) if event.HasField("session_log")]
    assert starts == [501]


def test_errors_are_not_scalars(plan, tmp_path):
    _show(plan, [("result", {**RESULT, "error": "no"})])
    assert not list((tmp_path / "tensorboard").glob("*"))


def test_without_tensorboardx_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(errors.UserError, match=r"pip install 'hyperagent_jax\[tensorboard\]'"):
        tensorboard.Writer(str(tmp_path))
