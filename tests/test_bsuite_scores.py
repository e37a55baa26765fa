"""bsuite's scores on data made by hand: perfect, random, in between, and equal to bsuite's own where they run."""

import importlib
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from hyperagent_jax import errors
from hyperagent_jax.analysis.bsuite import logs
from hyperagent_jax.analysis.bsuite import read
from hyperagent_jax.analysis.bsuite import stats

sweep = pytest.importorskip("bsuite.sweep")

HEADER = "steps,episode,total_return,episode_len,episode_return,total_regret\n"
SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "report.py"


def _perfect(experiment, e, size):
    """What a perfect agent has logged after e episodes."""
    return {
        "total_regret": 0.0,
        "best_episode": 1000.0,
        "total_bad_episodes": 0.0,
        "total_perfect": float(e),
        "raw_return": -100.0 * e if "mountain_car" in experiment else 1000.0 * e,
        "total_return": {"discounting_chain": 1.1, "cartpole_swingup": 700.0}.get(experiment, 1.0) * e,
    }


def _useless(experiment, e, size):
    """What an agent has logged whose score bsuite puts at 0."""
    regret = {"bandit": 0.5, "catch": 1.6, "mnist": 2.0}.get(experiment.split("_")[0], 1.0)
    return {
        "total_regret": regret * e,
        "best_episode": 0.0,
        "total_bad_episodes": 1.0 * e,
        "total_perfect": 0.5 * e,
        "raw_return": -1100.0 * e if "mountain_car" in experiment else 0.0,
        "total_return": 0.0 * e,
    }


def _half(experiment, e, size):
    perfect, useless = _perfect(experiment, e, size), _useless(experiment, e, size)
    return {name: (perfect[name] + useless[name]) / 2 for name in perfect}


def _frame(experiment, agent, ids=None, last=None):
    rows = []
    for bsuite_id, settings in sweep.SETTINGS.items():
        if bsuite_id.split("/")[0] != experiment or (ids is not None and bsuite_id not in ids):
            continue
        total = last or sweep.EPISODES[bsuite_id]
        for e in sorted({1, 10, min(100, total), total // 2, int(0.95 * total), total}):
            rows.append(
                {
                    "bsuite_id": bsuite_id,
                    "bsuite_env": experiment,
                    "steps": 10 * e,
                    "episode": e,
                    "episode_len": 10,
                    "episode_return": 0.0,
                    **settings,
                    **agent(experiment, e, settings.get("size")),
                }
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("experiment", stats.EXPERIMENTS)
def test_perfect_is_one_and_useless_is_zero(experiment):
    for agent, expected in ((_perfect, 1.0), (_useless, 0.0)):
        (score,) = stats.score(_frame(experiment, agent))
        assert score.experiment == experiment and score.is_finished
        assert score.num_ids == score.all_ids == sum(x.split("/")[0] == experiment for x in sweep.SWEEP)
        assert score.score == pytest.approx(expected, abs=1e-9)


# Half of the regret; a good best episode counts half of cartpole's score, and 500 is not better than 500. Credit
# assignment and memory count ids whose regret is below a threshold: 0.5 of 1 is not, 0.25 * 2 of 0.75 is.
HALF = {
    "bandit": 0.5,
    "bandit_noise": 0.5,
    "catch": 0.5,
    "catch_scale": 0.5,
    "mountain_car": 0.5,
    "cartpole": 0.25,
    "cartpole_scale": 0.25,
    "cartpole_swingup": 0.75,
    "deep_sea": 1.0,
    "deep_sea_stochastic": 1.0,
    "umbrella_length": 0.0,
    "memory_len": 1.0,
    "memory_size": 1.0,
    "discounting_chain": 0.0,
    "mnist": 17 / 36,  # half from a regret of 1 against 1.8, half from an accuracy of 0.5
}


@pytest.mark.parametrize("experiment, expected", HALF.items())
def test_half_way(experiment, expected):
    (score,) = stats.score(_frame(experiment, _half))
    assert score.score == pytest.approx(expected, abs=1e-9)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("experiment", stats.EXPERIMENTS)
def test_scores_are_bsuites(experiment, monkeypatch):
    """With random logs, also of runs that are not finished."""
    rng = np.random.default_rng(0)
    if experiment.startswith("deep_sea"):  # bsuite's function needs one that pandas has lost
        monkeypatch.setattr(pd.Series, "append", lambda a, b: pd.concat([a, b]), raising=False)

    def some(experiment, e, size):
        perfect, useless, weight = _perfect(experiment, e, size), _useless(experiment, e, size), rng.uniform()
        return {name: weight * perfect[name] + (1 - weight) * useless[name] for name in perfect}

    theirs = importlib.import_module(f"bsuite.experiments.{experiment}.analysis")
    # The windy DeepSea has no score before episode 100.
    for last in (None, 600) if experiment == "deep_sea_stochastic" else (None, 600, 60):
        frame = _frame(experiment, some, last=last)
        (score,) = stats.score(frame)
        np.testing.assert_equal(score.score, theirs.score(frame))  # also where it is not a number
        assert score.is_finished == (last is None)
        assert stats.tags(experiment) == theirs.TAGS


def test_deep_sea_by_hand():
    """Ids 0 to 3, sizes 10, 12, 14, 16, of which the third is never solved and the fourth late."""

    def agent(experiment, e, size):
        left_diagonal = {10: 0.5, 12: 0.5 if e >= 100 else 1.0, 14: 0.9, 16: 0.89 if e >= 10_000 else 1.0}[size]
        return {"total_bad_episodes": left_diagonal * e, "total_return": 0.0}

    ids = [f"deep_sea/{i}" for i in range(4)]
    frame = _frame("deep_sea", agent, ids)
    found = stats.solutions(frame, "deep_sea")
    expected = [(10, 1, True), (12, 100, True), (14, 10_000, False), (16, 10_000, True)]
    assert [(x.size, x.episode, x.is_solved) for x in found] == expected
    assert [x.beats_dithering for x in found] == [True, True, False, True]
    (score,) = stats.score(frame)
    assert (score.score, score.num_ids, score.all_ids) == (0.75, 4, 21)
    # 2^10 + 100 episodes are what random actions are forgiven.
    limit = stats.Solution(10, 1124, True)
    assert not limit.beats_dithering and stats.Solution(10, 1123, True).beats_dithering


def test_stochastic_deep_sea_by_hand():
    """By luck few episodes leave the diagonal early on, so the first 100 and 80% to 90% do not count."""

    def agent(experiment, e, size):
        return {"total_bad_episodes": {10: 0.79, 12: 0.85}[size] * e, "total_return": 0.0}

    frame = _frame("deep_sea_stochastic", agent, ["deep_sea_stochastic/0", "deep_sea_stochastic/1"])
    found = stats.solutions(frame, "deep_sea_stochastic")
    assert [(x.size, x.episode, x.is_solved) for x in found] == [(10, 100, True), (12, 10_000, False)]
    assert stats.score(frame)[0].score == 0.5


def test_tags_are_averages():
    frame = pd.concat([_frame("bandit", _perfect), _frame("catch", _half), _frame("memory_len", _perfect)])
    tags = stats.by_tag(stats.score(frame))
    assert tags == {"basic": pytest.approx(0.75), "credit_assignment": pytest.approx(0.5), "memory": 1.0}


def test_curves_are_returns_between_logged_episodes():
    frame = pd.DataFrame(
        {
            "bsuite_id": ["catch/0"] * 3 + ["catch/1"] * 3,
            "bsuite_env": "catch",
            "episode": [1, 3, 10] * 2,
            "total_return": [-1.0, 1.0, 8.0, -1.0, -3.0, 4.0],
        }
    )
    episodes, returns = stats.curves(frame)["catch"]
    np.testing.assert_array_equal(episodes, [1, 3, 10])
    np.testing.assert_allclose(returns, [-1.0, 0.0, 1.0])


def _write(folder, experiment, agent, ids=None):
    """Files as bsuite's logging writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = _frame(experiment, agent, ids)
    for bsuite_id, rows in frame.groupby("bsuite_id"):
        logged = rows.drop(columns=["bsuite_id", "bsuite_env", *sweep.SETTINGS[bsuite_id]])
        logged.to_csv(folder / f"bsuite_id_-_{bsuite_id.replace('/', '-')}.csv", index=False)


def test_folders_of_others_are_read_as_bsuite_reads_them(tmp_path):
    from bsuite.logging import csv_load

    _write(tmp_path / "theirs", "catch", _half, ["catch/0", "catch/7"])
    _write(tmp_path / "theirs", "deep_sea", _perfect)
    (log,) = read.read([str(tmp_path / "theirs")])
    frame, _ = csv_load.load_bsuite(str(tmp_path / "theirs"))
    order = ["bsuite_id", "episode"]
    ours, theirs = (
        x.sort_values(order).reset_index(drop=True)[sorted({*log.frame.columns} & {*frame.columns})]
        for x in (log.frame, frame)
    )
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert log.label == "theirs" and log.source.problem.endswith("config.json does not exist")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "No columns to parse from file"),
        ("steps,episode\n1,2\n", "it has no column total_return, episode_len, episode_return, total_regret"),
        (HEADER, "it has no rows"),
        (HEADER + "1,1,0.5,1,1\n", "a number is missing"),
        (HEADER + "1,x,0.5,1,1,1\n", "Unable to parse string"),
        (HEADER + "2,2,1,1,1,1\n1,1,1,1,1,1\n", "its episodes are not in"),
    ],
)
def test_a_corrupt_file_is_one_line(tmp_path, text, reason):
    file = tmp_path / "bsuite_id_-_catch-0.csv"
    file.write_text(text)
    with pytest.raises(errors.UserError) as error:
        read.read([str(tmp_path)])
    assert str(error.value).startswith(f"{file} is corrupt: {reason}")
    assert str(error.value).endswith("; delete it and run catch/0 again")
    assert "\n" not in str(error.value)
    with pytest.raises(errors.UserError) as of_log:
        logs.last_episode(file, "catch/0")
    assert str(of_log.value) == str(error.value)


def test_last_episode_needs_no_pandas(tmp_path):
    file = tmp_path / "bsuite_id_-_catch-0.csv"
    file.write_text(HEADER + "9,1,-1,9,-1,2\n18,2,0,9,1,2\n90,10,8.5,9,1,2.5\n")
    assert logs.last_episode(file, "catch/0") == 10
    assert logs.read(file, "catch/0")["total_return"] == [-1.0, 0.0, 8.5]
    with pytest.raises(errors.UserError, match=", the log of catch/1, does not exist"):
        logs.last_episode(tmp_path / "bsuite_id_-_catch-1.csv", "catch/1")
    code = (
        "import sys, hyperagent_jax.analysis.bsuite.logs; assert not {'pandas', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SCRIPT.parent.parent)


def test_an_id_that_bsuite_does_not_know_is_one_line(tmp_path):
    (tmp_path / "bsuite_id_-_catch-77.csv").write_text("steps\n")
    with pytest.raises(errors.UserError, match="is not the log of a bsuite id: unknown id catch/77"):
        read.read([str(tmp_path)])


def _report(*options):
    return subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)


def test_report_of_two_agents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for experiment in ("bandit", "deep_sea", "cartpole_swingup"):
        _write(one / "csv", experiment, _perfect)
    _write(two, "bandit", _half)
    _write(two, "deep_sea", _useless)
    done = _report(f"--results={one},{two}", f"--out={tmp_path / 'out'}", "--title=Two <agents>")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.splitlines() == [
        "one: mean score 1.000 over 3 experiment(s)",
        "two: mean score 0.250 over 2 experiment(s)",
        f"102 bsuite ids of 2 agent(s); 4 figures; {tmp_path / 'out' / 'report.html'}",
    ]
    scores = pd.read_csv(tmp_path / "out" / "scores.csv")
    assert list(zip(scores.agent, scores.experiment, scores.score, strict=True)) == [
        ("one", "bandit", 1.0),
        ("one", "deep_sea", 1.0),
        ("one", "cartpole_swingup", 1.0),
        ("two", "bandit", 0.5),
        ("two", "deep_sea", 0.0),
    ]
    solved = pd.read_csv(tmp_path / "out" / "deep_sea.csv")
    solved = solved[solved.agent == "two"]
    assert list(solved.episode) == [10_000] * 21 and not solved.solved.any()
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<h1>Two &lt;agents&gt;</h1>" in text and text.count("data:image/png;base64,") == 8
    for name in ("radar", "scores", "deep_sea", "curves"):
        assert (tmp_path / "out" / f"bsuite_{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert _report(f"--results={one},{one}", f"--out={tmp_path / 'x'}").stderr == (
        f"error: duplicate folder: {one}\n"
    )
    typo = _report(f"--results={one},{tmp_path / 'typo'}", f"--out={tmp_path / 'x'}")
    assert typo.stderr.startswith(f"error: {tmp_path / 'typo'} does not exist: give a results.csv or a folder")
    mixed = _report(f"--results={one},{tmp_path / 'out'}", f"--out={tmp_path / 'mixed'}")
    assert mixed.returncode == 2 and not (tmp_path / "mixed").exists()
    message = f"{one} contains runs of bsuite but {tmp_path / 'out'} does not: make a separate report"
    assert mixed.stderr == f"error: {message} for each kind\n"


def test_solve_times_of_all_panels_are_in_sight(monkeypatch):
    """The second panel has the earliest solution; both share one axis."""
    from hyperagent_jax.analysis.bsuite import plots

    figures = []
    monkeypatch.setattr(plots.style, "save", lambda figure, file, dpi: figures.append(figure))
    solution = stats.Solution
    plots.solve_times(
        "",
        "",
        {
            "deep_sea": {"one": [solution(10, 200, True)], "two": [solution(10, 1000, True)]},
            "deep_sea_stochastic": {"one": [solution(10, 100, True)], "two": [solution(10, 10_000, False)]},
        },
    )
    for axis in figures[0].axes:
        low, high = axis.get_ylim()
        assert low < 100 and high > 10_000
