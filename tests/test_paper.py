"""The figures of the paper: rows found by their settings, sentences computed from them, and what is missing."""

import json
import pathlib

from absl import flags
import pytest

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import sweep
from hyperagent_jax.paper import figure
from hyperagent_jax.paper import findings
from hyperagent_jax.paper import main
from hyperagent_jax.paper import tabular

FIGURE = main.FIGURES["dependent_target"]


def _fill(root, name, grid, episodes):
    """Writes rows of a grid; `episodes` maps row columns to episodes to learn, None for a failure."""
    plan = sweep.plan(base.get("deepsea"), [grid], str(root / name))
    (root / name).mkdir(parents=True)
    record = {"identity": plan.fingerprint.settings, "commit": "0123456789", "grid": grid}
    (root / name / "config.json").write_text(json.dumps(record))
    rows = []
    for task in plan.tasks:
        row = {field: "" for field in plan.result_fields} | task.columns_of(task.seeds[0])
        row = {name: str(value) for name, value in row.items()}
        count, size = episodes(row), int(row["size"])
        outcome = {"solved": count is not None, "episodes_to_learn": "" if count is None else count}
        rows.append({**row, **outcome, "interactions": (10_000 if count is None else count) * size})
    results.write_csv(root / name / "results.csv", plan.result_fields, rows)


GRID = {
    "loss": "sampled",
    "target_index": ["transition", "dependent"],
    "size": [20, 30],
    "seed": [20, 21, 22, 23, 24],
}


def _episodes(row):
    # Means 400 and 300 at size 20; at 30 one dependent seed fails.
    if row["target_index"] == "dependent":
        return None if (row["size"], row["seed"]) == ("30", "24") else 300
    return 400 + 10 * (int(row["seed"]) - 22)


def test_rows_are_found_by_their_settings(tmp_path):
    _fill(tmp_path, "paper/dependent_target", GRID, _episodes)
    found = FIGURE.open(tmp_path)
    assert [len(found.cells["independent", size]) for size in (20, 30, 40, 50)] == [5, 5, 0, 0]
    assert {row.columns["target_index"] for row in found.cells["dependent", 20]} == {"dependent"}
    state = found.state()
    assert (state.there, state.needed) == (20, 40)
    assert state.missing == ["size 40, 50: all lines"]
    assert state.folders == ["paper/dependent_target"]
    # The same settings serve a figure with other keys; a different sampled loss does not.
    assert len(main.FIGURES["large_m"].open(tmp_path).cells["M = 4", 20]) == 5
    assert not main.FIGURES["num_indices"].open(tmp_path).cells["20 indices", 20]


def test_what_is_missing_is_planned_into_the_figures_folder(tmp_path):
    _fill(tmp_path, "paper/dependent_target", {**GRID, "size": 20, "seed": [20, 21]}, _episodes)
    found = FIGURE.open(tmp_path)
    assert "size 20: independent (3 of 5 seeds); dependent (3 of 5 seeds)" in found.state().missing
    plan = found.plan()
    assert len(plan.tasks) == 40 and plan.logdir == str(tmp_path / "paper/dependent_target")
    filed = json.loads((tmp_path / "paper/dependent_target/config.json").read_text())
    assert plan.fingerprint.difference(filed["identity"]) is None
    keys = {plan.key(row) for row in results.read_csv(tmp_path / "paper/dependent_target/results.csv")}
    assert len(keys) == 4 and keys < {plan.key(task.columns_of(task.seeds[0])) for task in plan.tasks}


def test_without_an_optional_package_the_others_are_listed(tmp_path, monkeypatch):
    def refuse(self, value):
        raise errors.UserError("envpool is not installed")

    monkeypatch.setattr(type(base.get("atari")), "problems", refuse)
    found = main.FIGURES["curves"].open(tmp_path)
    assert found.state() == figure.State(0, 10, ["envpool is not installed"], [])
    assert found.finding() == "" and not found.pictures()
    with pytest.raises(errors.UserError, match="envpool"):
        found.plan()


def test_sentences_follow_from_the_rows(tmp_path):
    _fill(tmp_path, "paper/dependent_target", GRID, _episodes)
    # At size 30: 400 and (4 * 300 + 10,000) / 5 = 2,240; their standard errors 7.07 and 1,940.
    assert FIGURE.open(tmp_path).finding() == (
        "Mean episodes of the solved seeds at size 30: 400 for independent (5 of 5), 300 for dependent (4 of 5). "
        "At size 30 dependent takes at least 5.60 times the episodes of independent (0.9 standard errors, which "
        "is not a clear difference)."
    )
    assert main.FIGURES["sigma"].open(tmp_path).finding() == ""


def _group(label, episodes):
    runs = [
        read.Run("hyperagent", size, seed, episodes=count, limit=None if count else 10_000, interval=1000 / size)
        for (size, seed), count in episodes.items()
    ]
    return stats.Group(label, "hyperagent", {}, tuple(runs))


def test_findings_of_given_runs(monkeypatch):
    linear = _group("A", {(size, seed): 10 * size + seed for size in (20, 30, 40) for seed in (-1, 1)})
    failing = _group("B", {(size, seed): None if size == 40 else 100 for size in (20, 30, 40) for seed in (0, 1)})
    monkeypatch.setattr(findings, "groups", lambda _: [linear, failing])
    assert findings.cost(failing.at(40)) == (10_000, 0.0)
    assert findings.largest_size([linear, failing]) == 40
    growth = findings.growth(None)
    assert "the line 10.0 N + 0 has R2 1.00" in growth and "(6 of 6 runs solved" in growth
    assert growth.endswith("A takes the fewest there, counting failures at the limit.")
    assert findings.first_failures(None).endswith("Some seeds fail: B from size 40 on.")
    assert "size 40: 400 for A (2 of 2), none for B (0 of 2)" in findings.alike(None)
    assert findings.alike(None).endswith(
        "A and B differ by 9600.0 standard errors, counting failures at the limit."
    )
    monkeypatch.setattr(findings, "groups", lambda _: [linear, _group("C", {(40, 0): 401, (40, 1): 402})])
    assert "No two lines differ clearly: A and C differ most, by 1.3 standard errors" in findings.alike(None)


def test_lines_of_a_figure_set_the_same_keys():
    with pytest.raises(ValueError, match="same keys"):
        figure.Figure("x", "", "", "", (figure.Line("a", {"sigma": 0.0}), figure.Line("b")), list, str)


def test_propagation_is_counted():
    rows = [
        {"iteration": str(i), "standard_deviation": str(value)}
        for i, values in enumerate(([0, 0], [1, 0.04], [1, 0.5]))
        for value in values
    ]
    text = tabular.propagation({"results": rows})
    assert text.startswith("Of 2 pairs of state and action, 0, 1, 2 have a standard deviation above 5%")


@pytest.fixture
def script(monkeypatch):
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    flags.DEFINE_bool("run", False, "", values)
    flags.DEFINE_string("results", "results", "", values)
    flags.DEFINE_string("out", "docs", "", values)
    monkeypatch.setattr(main, "FLAGS", values)
    return lambda command, *arguments: (values(["paper.py", *arguments]), main.main(command))[1]


def test_list_and_redraw(tmp_path, script, capsys):
    _fill(tmp_path / "rows", "paper/dependent_target", GRID, _episodes)
    places = (f"--results={tmp_path / 'rows'}", f"--out={tmp_path / 'docs'}")
    assert script("list", *places) == 0
    assert "| dependent_target | Dependent and independent targets | 20 of 40 | size 40, 50: all lines |" in (
        capsys.readouterr().out
    )
    assert script("dependent_target", *places) == 0
    page = (tmp_path / "docs/paper.md").read_text()
    assert "![Dependent and independent targets](paper/dependent_target.png)" in page
    assert "[paper/dependent_target](../results/paper/dependent_target) (0123456)" in page
    assert "Not run yet: size 40, 50: all lines (20 of 40 runs exist)." in page
    assert [path.name for path in (tmp_path / "docs/paper").iterdir()] == ["dependent_target.png"]
    with pytest.raises(errors.UserError, match=r"run_tabular.py propagation"):
        script("propagation", "--run", *places)
    with pytest.raises(errors.UserError, match="no folder"):
        script("list", f"--results={tmp_path / 'absent'}")


def test_an_unknown_figure_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paper.py", "figure_7"])
    monkeypatch.setattr(cli.app, "run", lambda main, flags_parser=None: main(["paper.py", "figure_7"]))
    with pytest.raises(SystemExit):
        cli.run(main.main, main.COMMANDS)
    error = capsys.readouterr().err
    assert error.startswith("error: unknown command 'figure_7'; choose one of list, all, episodes")
    assert error.count("\n") == 1


def test_the_page_is_that_of_the_rows():
    root = pathlib.Path(__file__).parent.parent
    text = (root / "docs/paper.md").read_text(encoding="utf-8")
    for name, entry in main.FIGURES.items():
        assert f"`python experiments/paper.py {name}`" in text
        assert f"**Here**: {entry.open(root / 'results').finding() or 'not run.'}\n" in text, "run make paper"
