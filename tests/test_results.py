"""Tables as csv files, numbers as rows have them, and where results come from."""

import platform

import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax import results

FIELDS = ("seed", "score")


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "results.csv"
    assert results.read_csv(path) == []
    results.write_csv(path, FIELDS, [{"seed": 0, "score": 0.5}, {"seed": 1}])
    assert path.read_bytes() == b"seed,score\n0,0.5\n1,\n"
    with open(path, "a") as f:
        f.write("3,1.")
    assert results.read_csv(path) == [{"seed": "0", "score": "0.5"}, {"seed": "1", "score": ""}]
    path.write_text("seed,sc")  # killed while writing the header
    assert results.read_csv(path) == []


@pytest.mark.parametrize(
    "content, message",
    [
        (b"seed,score\n0\n1,2\n", "results.csv is corrupt: fix or delete it"),
        (b"seed,score\n0,1,2\n", "results.csv is corrupt: fix or delete it"),
        (b"seed\n\xff\xfe\n", "cannot read .*results.csv: it is not a text file"),
    ],
)
def test_corrupt_files_are_one_clear_line(content, message, tmp_path):
    (tmp_path / "results.csv").write_bytes(content)
    with pytest.raises(errors.UserError, match=message):
        results.read_csv(tmp_path / "results.csv")


def test_a_failed_write_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    results.write_csv(path, FIELDS, [{"seed": 0, "score": 1}])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "fsync", full)
    with pytest.raises(errors.UserError, match="cannot write .*results.csv: No space left on device"):
        results.write_csv(path, FIELDS, [])
    assert path.read_text() == "seed,score\n0,1\n"


def test_numbers_have_six_digits():
    assert results.number(np.float32(0.1)) == 0.1
    assert results.number(1234567.0) == 1234570.0
    assert results.ratio(1.0, 3.0) == 0.333333
    assert results.ratio(1.0, 0) == ""


def test_provenance_names_versions_commit_command_and_machine(monkeypatch):
    monkeypatch.setattr(results.sys, "argv", ["/somewhere/run.py", "--size=4", "--logdir=a b"])
    origin = results.provenance()
    assert origin["command"] == "run.py --size=4 '--logdir=a b'"
    assert origin["versions"]["python"] == platform.python_version() and origin["versions"]["jax"]
    assert len(origin["commit"].removesuffix("+changes")) == 40 or origin["commit"] == "unknown"
    assert origin["machine"]["cores"] >= 1
