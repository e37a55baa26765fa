"""Rows of a plan: filed by whoever made them, merged, checked, each once and in a fixed order."""

import dataclasses
import json

import pytest

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import rows
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import tables as tables_lib

RESULT = {
    "size": 4,
    "solved": True,
    "episodes_to_learn": 7,
    "interactions": 28,
    "final_return": 0.99,
    "num_params": 3,
    "num_output_params": 2,
    "compile_seconds": 0.5,
    "train_seconds": 1.5,
    "interactions_per_second": 18.7,
}


def _plan(path, num_seeds=3):
    protocol = deep_sea.EXPERIMENT.resolve(deep_sea.Protocol(size=4))
    task = base.Task("deepsea", "hyperagent", None, protocol, (0,), folder=str(path))
    tasks = tuple(dataclasses.replace(task, seeds=(seed,)) for seed in range(num_seeds))
    return base.Plan(deep_sea.EXPERIMENT, tasks, str(path), fingerprint.make({}), ("seed",))


def _open(path, plan=None):
    plan = plan or _plan(path)
    directory = run_directory.RunDirectory(str(path), plan.fingerprint, resume=True, overwrite=False)
    return plan, directory, tables_lib.Tables(plan, directory)


def _curve(seed, at):
    names = dict.fromkeys(deep_sea.EXPERIMENT.curve_fields, 0)
    return {**names, "seed": seed, "interactions": at}


def _record(seed, at=(10, 20), columns=None):
    return rows.Record(f"seed_{seed}", columns or {}, {str(seed): RESULT}, [(seed, _curve(seed, i)) for i in at])


def _seeds(path, name="results"):
    return [int(row["seed"]) for row in results.read_csv(path / f"{name}.csv")]


def test_records_are_read_once_and_only_whole(tmp_path):
    reader = rows.Reader(tmp_path)
    assert list(reader.new()) == []
    rows.add(str(tmp_path), _record(0))
    assert list(reader.new()) == [_record(0)] and list(reader.new()) == []
    rows.add(str(tmp_path), _record(1))
    (file,) = (tmp_path / "rows").iterdir()
    with open(file, "ab") as f:
        f.write(b'0123456789abcdef {"task": "cut sho')  # a full disk
    rows.add(str(tmp_path), _record(2))
    content = file.read_bytes()
    (tmp_path / "rows" / "elsewhere-7.jsonl").write_bytes(content.replace(b'"seed_1"', b'"seed_9"')[:-3])
    assert [record.task for record in reader.new()] == ["seed_0", "seed_1", "seed_2"]
    for damage in (b"", b"\x00" * 50, b"\xff\n", b"a b\n", content[:70]):
        file.write_bytes(damage)
        assert list(rows.Reader(tmp_path).new()) == [_record(0)]  # of the other file
    rows.delete(tmp_path)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    "change, is_read",
    [
        ({"results": [1]}, False),
        ({"results": {"7": 3}}, False),
        ({"results": {"x": RESULT}}, False),
        ({"curve": 3}, False),
        ({"curve": [[0, 3]]}, False),
        ({"curve": [["0", {}]]}, False),
        ({"columns": 3}, False),
        ({"more": 1}, False),
        ({"results": {"1": {"solved": True}}}, True),
        ({"curve": [[1, {"interactions": "x"}]]}, True),
    ],
)
def test_records_of_another_shape_are_skipped(tmp_path, change, is_read):
    rows.add(str(tmp_path), _record(0))
    for record in ([1], {**_record(1)._asdict(), **change}):
        text = json.dumps(record)
        (tmp_path / "rows" / f"{len(text)}.jsonl").write_text(f"{rows._digest(text)} {text}\n")
    assert len(list(rows.Reader(tmp_path).new())) == 1 + is_read
    *_, tables = _open(tmp_path)
    tables.begin({})
    tables.finish()
    assert set(_seeds(tmp_path)) == ({0, 1} if "curve" in change and is_read else {0})
    assert _seeds(tmp_path, "curve") == [0, 0]


def test_rows_end_in_the_order_of_the_plan(tmp_path):
    plan, directory, tables = _open(tmp_path)
    tables.begin({})
    for seed, at in ((2, 10), (0, 10), (2, 20), (1, 10), (0, 20)):
        tables.add_curve(plan.tasks[seed], seed, _curve(seed, at))
    for seed in (2, 0, 1, 2):
        tables.add_result(plan.tasks[seed], seed, RESULT)
    assert _seeds(tmp_path) == [2, 0, 1]
    rows.add(str(tmp_path), _record(2))
    assert list(tables.finish()) == [("0",), ("1",), ("2",)]
    assert _seeds(tmp_path) == [0, 1, 2]
    curve = [(int(row["seed"]), int(row["interactions"])) for row in directory.rows("curve")]
    assert curve == [(0, 10), (0, 20), (1, 10), (2, 10), (2, 20)]
    assert not (tmp_path / "rows").exists()


def test_what_tasks_had_filed_joins_the_rows_of_a_driver_that_was_killed(tmp_path):
    plan, directory, tables = _open(tmp_path)
    tables.begin({})
    tables.add_curve(plan.tasks[1], 1, _curve(1, 10))
    tables.add_result(plan.tasks[0], 0, RESULT)
    tables.add_result(plan.tasks[2], 2, RESULT)
    for seed in (0, 1, 7):  # the last is of a larger plan
        rows.add(str(tmp_path), _record(seed))
    directory.close()
    plan, directory, tables = _open(tmp_path)
    assert list(tables.done) == [("0",), ("2",), ("1",)] and tables.done[("1",)]["episodes_to_learn"] == "7"
    tables.begin({})
    assert sorted(_seeds(tmp_path, "curve")) == [0, 0, 1, 1]
    tables.finish()
    assert _seeds(tmp_path) == [0, 1, 2] and (tmp_path / "rows").exists()
    directory.close()
    _, directory, tables = _open(tmp_path, _plan(tmp_path, num_seeds=9))
    tables.begin({})
    tables.finish()
    assert _seeds(tmp_path) == [0, 1, 2, 7] and not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"solved": "maybe"}, "row 1: solved is 'maybe'"),
        ({"solved": "Tru\0e"}, "row 1: solved is"),
        ({"final_return": "nan"}, "row 1: final_return is nan"),
        ({"interactions": "x"}, "row 1: could not convert string to float: 'x'"),
        ({"interactions": ""}, "row 1: invalid literal"),
        ({"solved": "True", "episodes_to_learn": ""}, "row 1: invalid literal"),
        ({"seed": "1.5"}, "row 1: invalid literal"),
        ({"agent": "ddqn"}, "row 1: agent is 'ddqn'"),
        ({"size": "5"}, "row 1: size is '5'"),
        ({"interactions": "-5"}, "row 1: interactions is -5"),
        ({"seed": "-1"}, "row 1: seed is -1"),
        ({"seed": "1"}, "row 2: duplicate run"),
    ],
)
def test_damaged_rows_are_refused_and_stay_as_they_are(tmp_path, change, problem):
    plan, directory, tables = _open(tmp_path)
    row = {**tables.full_row(plan.tasks[0], 0, RESULT), **change}
    directory.write("results", plan.result_fields, [row, tables.full_row(plan.tasks[1], 1, RESULT)])
    before = (tmp_path / "results.csv").read_bytes()
    directory.close()
    with pytest.raises(errors.UserError) as error:
        _open(tmp_path)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/results.csv is corrupt ({problem}") and "\n" not in message
    assert message.endswith("fix it, or move the file away to run everything again")
    assert (tmp_path / "results.csv").read_bytes() == before


def test_curves_of_finished_runs_that_lack_their_end_are_named(tmp_path):
    plan, directory, tables = _open(tmp_path)
    tables.begin({})
    for seed in range(3):
        for at in (14, 28):
            tables.add_curve(plan.tasks[seed], seed, _curve(seed, at))
        tables.add_result(plan.tasks[seed], seed, RESULT)
    tables.finish()
    directory.close()
    path = tmp_path / "curve.csv"
    whole = path.read_text()
    for text, lost in ((whole, []), (whole[:-4], [("2",)]), ("", [("0",), ("1",), ("2",)])):
        path.write_text(text)
        _, directory, tables = _open(tmp_path)
        tables.begin({})
        assert tables.without_curve() == lost
        directory.close()


@pytest.mark.parametrize("heading", ["", "agent,si", "agent,size,seed"])
def test_tables_without_a_whole_heading_are_begun_again(tmp_path, heading):
    plan, directory, tables = _open(tmp_path)
    directory.close()
    for name in ("results", "curve"):
        (tmp_path / f"{name}.csv").write_text(heading)
    plan, directory, tables = _open(tmp_path)
    tables.begin({})
    tables.add_curve(plan.tasks[0], 0, _curve(0, 10))
    tables.add_result(plan.tasks[0], 0, RESULT)
    assert list(tables.finish()) == [("0",)]
    assert _seeds(tmp_path) == _seeds(tmp_path, "curve") == [0]


@pytest.mark.parametrize(
    "change", [{"loss": "abc"}, {"loss": "\0"}, {"interactions": "1.5"}, {"interactions": "-1"}, {"seed": ""}]
)
def test_damaged_curves_are_refused(tmp_path, change):
    plan, directory, _ = _open(tmp_path)
    directory.write("curve", plan.curve_fields, [{**_curve(0, 10), **change}])
    directory.close()
    *_, tables = _open(tmp_path)
    with pytest.raises(errors.UserError, match=r"curve.csv is corrupt \(row 1: "):
        tables.begin({})


def test_a_column_that_is_needed_and_gone_is_noticed_before_anything_is_written(tmp_path):
    plan, directory, tables = _open(tmp_path)
    row = tables.full_row(plan.tasks[0], 0, RESULT)
    del row["interactions_per_second"]
    results.write_csv(tmp_path / "results.csv", row, [row])
    before = (tmp_path / "results.csv").read_bytes()
    directory.close()
    with pytest.raises(errors.UserError, match=r"row 1: no column interactions_per_second"):
        _open(tmp_path)
    assert (tmp_path / "results.csv").read_bytes() == before
