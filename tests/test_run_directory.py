"""The files of a run: what survives an interruption, and what is never mixed or deleted by accident."""

import json
import os

import pytest

from hyperagent_jax import errors
from hyperagent_jax import files
from hyperagent_jax import results
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import run_directory

FIELDS = ("seed", "score")


def _open(path, settings=None, resume=False, overwrite=False, defaults=None, **options):
    ours = fingerprint.Fingerprint(settings or {"config": {"a": 1}}, defaults or {})
    return run_directory.RunDirectory(path, ours, resume=resume, overwrite=overwrite, **options)


def _record(path):
    return json.loads((path / "config.json").read_text())


def test_rows_survive_a_torn_last_line(tmp_path):
    directory = _open(tmp_path)
    for seed in range(3):
        directory.add("results", FIELDS, {"seed": seed, "score": seed * 0.5})
    with open(tmp_path / "results.csv", "a") as f:
        f.write("3,1.")  # killed while writing
    assert [row["seed"] for row in directory.rows("results")] == ["0", "1", "2"]
    directory.write("results", FIELDS, [row for row in directory.rows("results") if row["seed"] != "1"])
    assert (tmp_path / "results.csv").read_text() == "seed,score\n0,0.0\n2,1.0\n"


def test_config_records_where_results_come_from(tmp_path):
    _open(tmp_path)
    record = _record(tmp_path)
    assert record["identity"] == {"config": {"a": 1}}
    assert record["versions"]["jax"] and record["commit"] and record["command"]


def test_config_records_where_a_run_was_resumed(tmp_path, monkeypatch):
    directory = _open(tmp_path)
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.close()
    first = results.provenance()
    for commits, resumed in ((["a", "a", "b"], ["a", "b"]), (["b", "a"], ["a", "b", "a"])):
        for commit in commits:
            monkeypatch.setattr(results, "provenance", lambda commit=commit: {**first, "commit": commit})
            _open(tmp_path, resume=True).close()
        record = _record(tmp_path)
        assert record["commit"] == first["commit"]
        assert [other["commit"] for other in record["resumed"]] == resumed


def test_results_of_another_configuration_are_safe(tmp_path):
    directory = _open(tmp_path)
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    before = (tmp_path / "results.csv").read_bytes()
    with pytest.raises(errors.UserError, match=f"is in use by process {os.getpid()} on "):
        _open(tmp_path)
    directory.close()
    with pytest.raises(errors.UserError, match="already holds a run: add --resume to continue it, --overwrite"):
        _open(tmp_path)
    with pytest.raises(errors.UserError, match=r"a different configuration \(a was 1, is now 2\)"):
        _open(tmp_path, {"config": {"a": 2}}, resume=True)
    assert (tmp_path / "results.csv").read_bytes() == before
    assert len(_open(tmp_path, resume=True).rows("results")) == 1
    assert _open(tmp_path, {"config": {"a": 2}}, overwrite=True).rows("results") == []


def test_flags_that_exclude_each_other_delete_nothing(tmp_path):
    directory = _open(tmp_path)
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.close()
    with pytest.raises(errors.UserError, match="--resume and --overwrite are mutually exclusive"):
        _open(tmp_path, resume=True, overwrite=True)
    with pytest.raises(errors.UserError, match="already holds a run: add --overwrite to delete it, or choose"):
        _open(tmp_path, resume=None)
    assert len(_open(tmp_path, resume=True).rows("results")) == 1


def test_overwriting_deletes_the_files_of_a_run_and_no_others(tmp_path):
    directory = _open(tmp_path)
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.close()
    ours = ["curve.csv", "maps/seed_0.npz", "checkpoints/seed_1.npz", "deepsea.png"]
    for name in (*ours, "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    _open(tmp_path, {"config": {"a": 2}}, overwrite=True)
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {".lock", ".tasks", "config.json", "notes.txt"}
    assert _record(tmp_path)["identity"] == {"config": {"a": 2}}


def test_what_a_killed_run_left_half_written_is_deleted_on_resume(tmp_path):
    _open(tmp_path).close()
    left = ["config.json", "results.csv", "maps/seed_0.npz", "checkpoints/seed_1.npz"]
    left = [files.unfinished(tmp_path / name) for name in left]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.write_text("half")
    (tmp_path / "results.csv").write_text("seed,score\n")
    with pytest.raises(errors.UserError, match="a different configuration"):
        _open(tmp_path, {"config": {"a": 2}}, resume=True)
    assert all(file.exists() for file in left)
    _open(tmp_path, resume=True)
    assert not list(tmp_path.rglob("*unfinished"))


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
def test_results_that_nobody_can_vouch_for_are_left_alone(flags, tmp_path):
    (tmp_path / "results.csv").write_text("seed,score\n0,1\n")
    with pytest.raises(errors.UserError, match="contains a results.csv without its config.json"):
        _open(tmp_path, **flags)
    assert (tmp_path / "results.csv").read_text() == "seed,score\n0,1\n"


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
def test_logs_of_another_program_are_left_alone(flags, tmp_path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "bsuite_id_-_catch-0.csv").write_text("steps\n1\n")
    with pytest.raises(errors.UserError, match="contains logs of another program: choose another --logdir"):
        _open(tmp_path, **flags)
    assert [file.name for file in (tmp_path / "csv").iterdir()] == ["bsuite_id_-_catch-0.csv"]


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    directory, row = _open(tmp_path), {"seed": 0, "score": 1}
    directory.add("results", FIELDS, row)
    (tmp_path / "curve.csv").symlink_to("/dev/full")
    with pytest.raises(errors.UserError, match="cannot write .*curve.csv: No space left on device"):
        directory.add("curve", FIELDS, row)
    (tmp_path / "curve.csv").unlink()
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(errors.UserError, match="cannot write .*results.csv: No space left on device"):
        directory.write("results", FIELDS, [])
    assert directory.rows("results") == [{"seed": "0", "score": "1"}]
    assert not list(tmp_path.glob("*unfinished"))
    directory.close()
    with pytest.raises(errors.UserError, match="cannot write .*config.json: No space left on device"):
        _open(tmp_path, resume=True)


def test_what_follows_from_the_protocol_is_not_blamed(tmp_path):
    directory = _open(tmp_path, {"config": {"replay_capacity": 4}, "protocol": {"max_episodes": 1}})
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.close()
    with pytest.raises(errors.UserError, match=r"\(max_episodes was 1, is now 2\)"):
        _open(tmp_path, {"config": {"replay_capacity": 8}, "protocol": {"max_episodes": 2}}, resume=True)


def test_settings_that_are_newer_than_the_folder(tmp_path):
    """They must have the value that was in effect before; then config.json has them too."""
    directory = _open(tmp_path, {"config": {"a": 1}})
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.close()

    def resume(config):
        _open(tmp_path, {"config": config}, resume=True, defaults={"config": {"a": 0, "b": 2}}).close()

    with pytest.raises(errors.UserError, match=r"\(b was 2, is now 3\)"):
        resume({"a": 1, "b": 3})
    with pytest.raises(errors.UserError, match=r"\(a was 1, is now 0\)"):
        resume({"a": 0, "b": 2})
    resume({"a": 1, "b": 2})
    assert _record(tmp_path)["identity"] == {"config": {"a": 1, "b": 2}}
    with pytest.raises(errors.UserError, match=r"\(b was 2, is now 3\)"):
        resume({"a": 1, "b": 3})


def test_a_resumed_run_may_add_to_the_extensible_parts(tmp_path):
    def open_with(models, grid):
        settings = {"experiment": "sweep", "models": models}
        defaults = {"models": {name: {"y": 5} for name in models}}
        return _open(
            tmp_path, settings, resume=True, defaults=defaults, extensible=["models"], notes={"grid": grid}
        )

    directory = open_with({"a": {"x": 1}}, [1])
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    first = _record(tmp_path)
    directory.close()
    open_with({"b": {"x": 2}}, [1, 2]).close()
    assert _record(tmp_path) == {
        **first,
        "identity": {"experiment": "sweep", "models": {"a": {"x": 1}, "b": {"x": 2}}},
        "grid": [1, 2],
    }
    with pytest.raises(errors.UserError, match=r"\(x was 1, is now 3\)"):
        open_with({"a": {"x": 3}}, [1])
    with pytest.raises(errors.UserError, match=r"\(y was 5, is now 6\)"):  # which the record did not have
        open_with({"a": {"x": 1, "y": 6}}, [1])
    open_with({"a": {"x": 1, "y": 5}}, [1]).close()
    assert _record(tmp_path)["identity"]["models"] == {"a": {"x": 1, "y": 5}, "b": {"x": 2}}
    with pytest.raises(errors.UserError, match=r"\(experiment was sweep, is now bench\)"):
        _open(tmp_path, {"experiment": "bench", "agent": "a"}, resume=True)


def test_columns_of_other_versions(tmp_path):
    directory = _open(tmp_path)
    directory.add("results", FIELDS, {"seed": 0, "score": 1})
    directory.write("results", ("seed", "new", "score"), directory.rows("results"))
    assert (tmp_path / "results.csv").read_text() == "seed,new,score\n0,,1\n"
    with pytest.raises(errors.UserError, match=r"columns that this version does not write \(new\)"):
        directory.write("results", FIELDS, directory.rows("results"))
    assert (tmp_path / "results.csv").read_text() == "seed,new,score\n0,,1\n"


def test_a_run_that_left_nothing_does_not_block_the_folder(tmp_path):
    _open(tmp_path)
    _open(tmp_path, {"config": {"a": 2}})
    assert _record(tmp_path)["identity"]["config"] == {"a": 2}


def test_corrupt_files_are_one_clear_line(tmp_path):
    directory = _open(tmp_path)
    (tmp_path / "results.csv").write_text("seed,score\n0\n1,2\n")
    with pytest.raises(errors.UserError, match="results.csv is corrupt: fix or delete it"):
        directory.rows("results")
    (tmp_path / "results.csv").write_bytes(b"seed\n\xff\xfe\n")
    with pytest.raises(errors.UserError, match="cannot read .*results.csv: it is not a text file"):
        directory.rows("results")
    directory.close()
    identity = '{"identity": {"config": {"a": 1}}, "resumed": '
    for text in ("", "{", "3", '{"identity": []}', f'{identity}"x"}}', f"{identity}[3]}}", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(
            errors.UserError, match="config.json is corrupt: restore a copy of it, or choose another"
        ):
            _open(tmp_path, resume=True)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(errors.UserError, match="config.json is not a file: choose another --logdir"):
        _open(tmp_path, resume=True)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UserError, match="cannot write to --logdir"):
        _open(tmp_path / "file" / "folder")
