"""Properties of files, grids and flags from anywhere: read, or refused in one line; nothing is executed."""

import dataclasses
import json
import pathlib
import tempfile

from absl import flags
import hypothesis
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import rows
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import sweep
from hyperagent_jax.experiment import tables
from hyperagent_jax.tabular import mdps

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=60)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
TEXTS = st.one_of(
    st.sampled_from(["0", "-1", "1.5", "nan", "inf", "1e999", "True", "", "x", "9" * 400, "1,2", ",", "\0"]),
    st.text(max_size=5),
)


def _in_one_line(function):
    try:
        return function()
    except errors.UserError as error:
        assert len(str(error).splitlines()) == 1, str(error)


def _task(folder):
    protocol = deep_sea.EXPERIMENT.resolve(deep_sea.Protocol(size=4))
    return base.Task("deepsea", "hyperagent", agents.CONFIGS["hyperagent"](), protocol, (0,), folder=folder)


@SETTINGS
@hypothesis.given(data=st.data())
def test_damaged_checkpoints(data):
    """Cut, filled with zeros, or with bytes changed: the run resumes or starts again."""
    with tempfile.TemporaryDirectory() as folder:
        task = _task(folder)
        context = run_context.RunContext(task, lambda event: None, lambda: False)
        context.progress.reached = 7
        context.save({"x": jnp.arange(50)})
        content = bytearray(task.checkpoint.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        begin = data.draw(st.integers(0, len(content)))
        damage = data.draw(st.sampled_from(["bytes", "cut", "zeros"]))
        if damage != "bytes":
            content[begin:] = b"" if damage == "cut" else bytes(len(content) - begin)
        task.checkpoint.write_bytes(content)

        def resume():
            again = run_context.RunContext(task, lambda event: None, lambda: False)
            assert again.progress.reached == 7 * again.is_resumed
            if again.is_resumed:
                assert again.load({"x": jnp.zeros(50, int)})["x"].tolist() == list(range(50))

        _in_one_line(resume)


@SETTINGS
@hypothesis.given(facts=JSON, progress=JSON, settings=JSON)
def test_facts_of_any_shape(facts, progress, settings):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.npz"
        for one in (facts, {"progress": progress, "fingerprint": settings}, {"progress": {"curve": progress}}):
            np.savez(path, facts=np.array(json.dumps(one)))
            _in_one_line(lambda: run_context.load_progress(path))


@SETTINGS
@hypothesis.given(content=st.binary(max_size=200))
def test_files_of_any_bytes(content):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "a.npz"
        path.write_bytes(content)
        _in_one_line(lambda: checkpoint.load(path, {}))
        try:
            mdps.load(path)
        except ValueError as error:
            assert "is not an npz file" in str(error)
        (pathlib.Path(folder) / "rows").mkdir()
        (pathlib.Path(folder) / "rows" / "a.jsonl").write_bytes(content)
        assert list(rows.Reader(folder).new()) == []


@SETTINGS
@hypothesis.given(record=JSON, content=st.one_of(st.text(max_size=20), st.sampled_from(["[" * 5000, "1" * 5000])))
def test_records_of_other_runs(record, content):
    for text in (json.dumps(record), json.dumps({"identity": record, "resumed": record}), content):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "config.json").write_text(text)
            (path / "results.csv").write_text("seed\n0\n")
            ours = fingerprint.make({"config": {"a": 1}})
            _in_one_line(
                lambda folder=folder, ours=ours: run_directory.RunDirectory(
                    folder, ours, resume=True, overwrite=False
                )
            )
            assert (path / "results.csv").read_text() == "seed\n0\n"


@SETTINGS
@hypothesis.given(data=st.data())
def test_tables_of_a_resumed_run(data):
    """With any cell changed, any row cut or doubled: refused, or as it was; what is refused is not touched."""
    with tempfile.TemporaryDirectory() as folder:
        task = _task(folder)
        fields = deep_sea.EXPERIMENT.result_fields
        values = ("hyperagent", 4, 0, True, 7, 28, 0.99, 3, 2, 0.5, 1.5, 18.7)
        good = [dict(zip(fields, values, strict=True)) | {"seed": seed} for seed in range(3)]
        row = data.draw(st.sampled_from(good))
        row[data.draw(st.sampled_from(fields))] = data.draw(TEXTS)
        path = pathlib.Path(folder) / "results.csv"
        ours = fingerprint.make({})
        run_directory.RunDirectory(folder, ours, resume=True, overwrite=False).close()
        results.write_csv(path, fields, good + data.draw(st.sampled_from([[], good[:1]])))
        text = path.read_bytes()
        path.write_bytes(text[: data.draw(st.integers(0, len(text)))] if data.draw(st.booleans()) else text)
        before = path.read_bytes()
        tasks = tuple(dataclasses.replace(task, seeds=(seed,)) for seed in range(3))
        plan = base.Plan(deep_sea.EXPERIMENT, tasks, folder, ours, ("seed",))

        def read():
            directory = run_directory.RunDirectory(folder, ours, resume=True, overwrite=False)
            found = tables.Tables(plan, directory)
            found.begin({})
            found.finish()
            return found

        if _in_one_line(read) is None:
            assert path.read_bytes() == before


@SETTINGS
@hypothesis.given(
    grid=st.dictionaries(
        st.sampled_from(["size", "seed", "agent", "sigma", "hidden_sizes", "loss", "mapping_seed", "x"]), JSON
    )
)
def test_grids(grid):
    _in_one_line(lambda: sweep.plan(deep_sea.EXPERIMENT, [grid], "logs/x"))
    _in_one_line(lambda: sweep.read(json.dumps(grid)))


@SETTINGS
@hypothesis.given(text=st.one_of(st.text(max_size=20), st.text('[{"size:4,}]', max_size=20), st.just("[" * 5000)))
def test_texts_of_grids(text):
    grids = _in_one_line(lambda: sweep.read(text))
    assert grids is None or all(isinstance(grid, dict) for grid in grids)


@SETTINGS
@hypothesis.given(data=st.data())
def test_flags(data):
    values = flags.FlagValues()
    classes = {"hyperagent": agents.CONFIGS["hyperagent"], "protocol": deep_sea.Protocol}
    config_lib.define_flags(classes, values)
    names = data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3))
    try:
        values(["script", *(f"--{name}={data.draw(TEXTS)}" for name in names)])
    except flags.Error:
        return  # said in one line by cli.run
    for name in classes:
        _in_one_line(lambda name=name: config_lib.from_flags(name, classes, values))
