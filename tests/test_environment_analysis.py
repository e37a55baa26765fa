"""Reports on runs in environments: statistics by hand, files of runs and of sweeps, and the page."""

import csv
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis import curves
from hyperagent_jax.analysis import sources
from hyperagent_jax.analysis.environments import read
from hyperagent_jax.analysis.environments import stats

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "report.py"


def write(folder, rows, identity, curve=()):
    """Writes the files of a run."""
    folder.mkdir()
    for name, table in (("results", rows), ("curve", curve)):
        if table:
            with open(folder / f"{name}.csv", "w", newline="") as f:
                writer = csv.DictWriter(f, list(dict.fromkeys(key for row in table for key in row)), restval="")
                writer.writeheader()
                writer.writerows(table)
    (folder / "config.json").write_text(json.dumps({"identity": identity}))


def row(env, agent, seed, final, best=None, random=0.0, **others):
    return {
        "env": env, "agent": agent, "seed": seed, "final_return": final, "interactions": 1_000,
        "best_return": final if best is None else best, "random_return": random, "error": "", **others,
    }  # fmt: skip


@pytest.fixture
def folders(tmp_path):
    """Two agents in two environments with two seeds each, of run_jax.py: one folder per agent."""
    returns = {
        "good": {"x/a": (10.0, 20.0), "x/b": (-1.0, -1.0)},
        "bad": {"x/a": (0.0, 10.0), "x/b": (-4.0, -2.0)},
    }
    for agent, own in returns.items():
        rows = [
            row(env, agent, seed, final, best=final + 1, random=5.0 * seed if env == "x/a" else -5.0)
            for env, finals in own.items()
            for seed, final in enumerate(finals)
        ]
        rows.append({"env": "x/a", "agent": agent, "seed": 7, "error": "out of luck"})
        curve = [
            {"env": env, "seed": seed, "interactions": 100 * k + seed, "eval_return": final * k / 2}
            for env, finals in own.items()
            for seed, final in enumerate(finals)
            for k in (1, 2)
        ]
        write(tmp_path / agent, rows, {"experiment": "jax", "agent": agent, "config": {"sigma": 1}}, curve)
    return [str(tmp_path / agent) for agent in returns]


def test_normalisation_and_aggregates_by_hand(folders):
    found = read.read(folders)
    assert found.agents == ["good", "bad"] and found.names == stats.compared(found) == ["x/a", "x/b"]
    assert found.notes == [f"Not finished: {agent} on x/a, seed 7: out of luck." for agent in found.agents]
    # Random actions have 2.5 in x/a and -5 in x/b; the best means are 15 and -1.
    assert stats.scale(found, "x/a") == stats.Scale(2.5, 15.0, True)
    assert stats.scale(found, "x/b") == stats.Scale(-5.0, -1.0, True)
    np.testing.assert_allclose(stats.matrix(found, "good", found.names), [[0.6, 1.4], [1.0, 1.0]])
    np.testing.assert_allclose(stats.matrix(found, "bad", found.names), [[-0.2, 0.6], [0.25, 0.75]])
    _, (good, bad) = stats.summary_rows(found)
    assert (good["method"], good["environments"], good["seeds"]) == ("good", 2, 2)
    # Middle halves: 1.0, 1.0 and 0.25, 0.6; medians of the means 1.0, 1.0 and 0.2, 0.5.
    assert (good["IQM"], good["Median"], good["Mean"]) == (1.0, 1.0, 1.0)
    assert (bad["IQM"], bad["Median"], bad["Mean"]) == (0.425, 0.35, 0.35)
    assert bad["Mean_low"] < bad["Mean"] < bad["Mean_high"]
    # x/a: 0.6 beats -0.2 and equals 0.6, 1.4 beats both: 3.5 of 4; x/b: all of 4.
    _, (chance,) = stats.improvement_rows(found)
    assert (chance["method"], chance["over"], chance["probability"]) == ("good", "bad", 0.9375)
    assert chance["probability_low"] < 0.9375 <= chance["probability_high"] == 1.0
    _, rows = stats.score_rows(found)
    assert [
        (entry["env"], entry["method"], entry["final"], entry["best"], entry["normalised"]) for entry in rows
    ] == [
        ("x/a", "good", 15.0, 16.0, 1.0),
        ("x/a", "bad", 5.0, 6.0, 0.2),
        ("x/b", "good", -1.0, 0.0, 1.0),
        ("x/b", "bad", -3.0, -2.0, 0.5),
    ]


def test_probability_of_improvement():
    one, other = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), np.array([[2.0], [0.0]])
    assert aggregates.probability_of_improvement(one, other) == pytest.approx((1.5 / 3 + 0.5) / 2)
    assert aggregates.probability_of_improvement(other, one) == pytest.approx(1 - (1.5 / 3 + 0.5) / 2)
    assert aggregates.probability_of_improvement(one + 10, other) == 1.0
    constant = aggregates.stratified_bootstrap(
        one + 10, other, statistic=aggregates.probability_of_improvement, repetitions=20
    )
    assert (constant.value, constant.low, constant.high) == (1.0, 1.0, 1.0)


def test_bands_of_the_mean():
    low, high = aggregates.mean_band(np.array([[1.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose([low, high], [[1.0, 0.0], [1.0, 1.0]])
    values = np.random.default_rng(0).normal(size=(50, 1))
    low, high = aggregates.mean_band(values)
    spread = values.std() / np.sqrt(50)
    np.testing.assert_allclose(
        [low[0], high[0]], values.mean() + np.array([-1.96, 1.96]) * spread, atol=0.2 * spread
    )


def test_without_random_actions_the_worst_agent_is_zero(folders, tmp_path):
    rows = [row("CartPole-v1", "ddqn", seed, 100.0 + seed, random="") for seed in (0, 1)]
    rows = [{name: value for name, value in own.items() if name != "random_return"} for own in rows]
    gymnasium = {"experiment": "gymnasium", "agent": "ddqn", "protocol": {"env": "CartPole-v1"}}
    curve = [{"seed": 0, "interactions": 10, "eval_return": 3.0}]
    write(tmp_path / "cartpole", rows, gymnasium, curve)
    other = {**gymnasium, "protocol": {"env": "Acrobot-v1"}}
    write(tmp_path / "acrobot", [{**rows[0], "env": "Acrobot-v1"}], other)
    found = read.read([str(tmp_path / "cartpole"), str(tmp_path / "acrobot")])
    assert found.agents == ["ddqn"] and found.names == ["CartPole-v1", "Acrobot-v1"]  # the name is no setting
    assert found.points == [read.Point("CartPole-v1", "ddqn", 0, 10, 3.0)]
    assert stats.scale(found, "CartPole-v1") == stats.Scale(100.5, 100.5, False)
    assert stats.compared(found) == [] and stats.summary_rows(found)[1] == stats.improvement_rows(found)[1] == []
    assert [entry["normalised"] for entry in stats.score_rows(found)[1]] == ["", ""]
    both = read.read([*folders, str(tmp_path / "cartpole")])
    assert stats.compared(both) == []  # no environment has all three agents


def test_sweeps_name_the_settings_that_differ(tmp_path):
    cells = [("hyperagent", "1", 0.5), ("hyperagent", "2", 0.75), ("ddqn", "", 0.25)]
    rows = [row("x/a", agent, 0, final, scale=scale, steps=9) for agent, scale, final in cells]
    curve = [
        {
            "agent": agent,
            "env": "x/a",
            "seed": 0,
            "scale": scale,
            "steps": 9,
            "interactions": 5,
            "eval_return": final,
        }
        for agent, scale, final in cells
    ]
    write(tmp_path / "sweep", rows, {"experiment": "sweep", "of": "jax", "grid_keys": ["scale", "steps"]}, curve)
    assert sources.kind(str(tmp_path / "sweep")) == "environments"
    found = read.read([str(tmp_path / "sweep")])
    assert found.agents == ["hyperagent (scale 1)", "hyperagent (scale 2)", "ddqn"]
    assert [point.agent for point in found.points] == found.agents
    _, summary = stats.summary_rows(found)
    assert [entry["IQM"] for entry in summary] == [0.6667, 1.0, 0.3333] and summary[0]["IQM_low"] == ""
    _, chances = stats.improvement_rows(found)
    assert [chance["probability"] for chance in chances] == [0.0, 1.0, 1.0]
    with pytest.raises(errors.UserError, match="duplicate run: hyperagent .scale 1. on x/a, seed 0"):
        read.read([str(tmp_path / "sweep")] * 2)
    (tmp_path / "sweep" / "curve.csv").write_text("seed,interactions\n0,1\n")
    with pytest.raises(errors.UserError, match="curve.csv is corrupt: fix or delete it"):
        read.read([str(tmp_path / "sweep")])


def test_settings_of_environments_do_not_name_agents(tmp_path):
    cells = [("x/a", 9, "1"), ("x/a", 9, "2"), ("x/b", 20, "1"), ("x/b", 20, "2")]
    rows = [row(env, "hyperagent", 0, 0.5, scale=scale, steps=steps) for env, steps, scale in cells]
    write(tmp_path / "sweep", rows, {"experiment": "sweep", "of": "jax", "grid_keys": ["scale", "steps"]})
    found = read.read([str(tmp_path / "sweep")])
    assert found.agents == ["hyperagent (scale 1)", "hyperagent (scale 2)"] and found.names == ["x/a", "x/b"]


def test_the_report_as_a_user_makes_it(folders, tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--results={','.join(folders)}", f"--out={out}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "good: IQM 1.00, Median 1.00, Mean 1.00",
        "bad: IQM 0.42, Median 0.35, Mean 0.35",
        f"8 runs in 2 environment(s); 3 figures; {out / 'report.html'}",
    ]
    assert {path.name for path in out.glob("*.png")} == {"aggregates.png", "curves.png", "improvement.png"}
    for path in out.glob("*.png"):
        assert path.stat().st_size > 10_000
    page = (out / "report.html").read_text()
    for text in (
        "8 runs of 2 agents in 2 environments.",
        "0 is the mean return of random actions (measured in these runs), 1 is the mean return of the best agent",
        "Not finished: bad on x/a, seed 7: out of luck.",
    ):
        assert text in page
    assert page.count("<figure>") == 3 and "<script" not in page
    with open(out / "improvement.csv") as f:
        assert [entry["probability"] for entry in csv.DictReader(f)] == ["0.9375"]
    with open(out / "scores.csv") as f:
        assert len(list(csv.DictReader(f))) == 4


def test_a_legend_says_over_how_many_seeds_curves_are_averaged():
    label = curves.seeds_label
    assert label("ddqn", [("a", 0), ("a", 0), ("b", 1)]) == "ddqn"
    assert label("ddqn", [("a", 0), ("a", 1), ("b", 0), ("b", 1)]) == "ddqn, mean of 2 seeds"
    assert label("ddqn", [("a", 0), ("a", 1), ("b", 1)]) == "ddqn, mean of 1 to 2 seeds"
