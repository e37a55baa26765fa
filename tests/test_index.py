"""The index of results: it agrees with the folders, and what a sweep's folder says can be resumed."""

import json
import pathlib

import pytest

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import index
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import sweep
from hyperagent_jax.paper import main as paper

ROOT = pathlib.Path(__file__).parent.parent / "results"
HEADS = "| folder | question | rows | commit | machine | page |\n|---|---|---|---|---|---|\n"


def test_the_committed_index_is_up_to_date():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == index.render(ROOT, text, paper.index_entries()), "run python experiments/index.py"


@pytest.mark.parametrize(
    "folder", ["law/paper", "law/prioritized", "law/rmax", "paper_systems", "ablations/large_m"]
)
def test_merged_folders_are_complete(folder):
    place = ROOT / "deep_sea" / folder
    record = json.loads((place / "config.json").read_text())
    grid = record["grid"]
    plan = sweep.plan(base.get("deepsea"), grid if isinstance(grid, list) else [grid], str(place))
    assert plan.fingerprint.difference(record["identity"]) is None
    there = [plan.key(row) for row in results.read_csv(place / "results.csv")]
    assert there == [plan.key(task.columns_of(task.seeds[0])) for task in plan.tasks]


def _folder(root, name, grid, **record):
    (root / name).mkdir(parents=True)
    (root / name / "results.csv").write_text("agent,seed\nhyperagent,0\nhyperagent,1\n")
    command = "sweep.py --grid='{}' --logdir=logs/old --resume --num_workers=2"
    made = {"identity": {}, "command": command, "commit": "0123456789", "grid": grid}
    record = {**made, "machine": {"cores": 2, "processor": "A"}, **record}
    (root / name / "config.json").write_text(json.dumps(record))


def test_rows_commits_and_commands_are_filled_in(tmp_path):
    root = tmp_path / "results"
    later = {"commit": "abcdefabcd", "machine": {"cores": 2, "processor": "A"}}
    _folder(root, "a/b", {"agent": "hyperagent"}, resumed=[later], remark="In two parts.")
    text = index.render(root, f"# Title\n\n{HEADS}| [a/b](a/b) | Why? | [page](page.md) |\n")
    assert "| [a/b](a/b) | Why? | 2 | 0123456, abcdefa | 2 cores of A | [page](page.md) |\n" in text
    assert '# a/b: In two parts.\npython experiments/sweep.py --grid=\'{"agent": "hyperagent"}\'' in text
    assert " --logdir=results/a/b\n" in text and "--resume --num" not in text
    assert index.render(root, text) == text


def test_figures_of_the_paper_have_a_command_of_their_own(tmp_path):
    root = tmp_path / "results"
    _folder(root, "paper/sigma", {"sigma": [0.0, 0.1]}, command="paper.py sigma --run --num_workers=1 --resume")
    text = index.render(root, HEADS, {"paper/sigma": index.Entry("Why?", "page")})
    assert "\n# paper/sigma\npython experiments/paper.py sigma --run\n" in text


def test_an_empty_column_is_not_part_of_the_page(tmp_path):
    _folder(tmp_path, "a", {})
    text = index.render(tmp_path, f"{HEADS}| [a](a) | Why? | 2 | 0123456 | 2 cores | | [page](page.md) |\n")
    assert "| 2 cores of A | [page](page.md) |\n" in text


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "the index lacks a: add a line"),
        ("| [a](a) | Why? | page |\n| [b](b) | Why? | page |\n", "lists b, which has no results.csv or bench.csv"),
        ("| [a](a) | Why? | page |\n| [a](a) | Why? | page |\n", "two lines for a"),
    ],
)
def test_an_index_that_disagrees_is_refused(tmp_path, lines, problem):
    _folder(tmp_path, "a", {})
    with pytest.raises(errors.UserError, match=problem):
        index.render(tmp_path, HEADS + lines)
