"""Tests of the statistics of Atari scores, with the paper's tables and with fixed numbers."""

import csv
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

from hyperagent_jax.analysis import aggregate_views
from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis import curves
from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.atari import comparisons
from hyperagent_jax.analysis.atari import plots
from hyperagent_jax.analysis.atari import published
from hyperagent_jax.analysis.atari import read
from hyperagent_jax.analysis.atari import stats
from hyperagent_jax.environments import atari as environment
from hyperagent_jax.environments import video

# Sums of the columns of both printed tables.
HUMAN, SCORES = (319_191.7, 282_542.3), (301_356.8, 920_508.5)
MATRIX = np.array([[0.1, 0.9, 2.0, 0.4], [1.5, 0.2, 0.3, 7.0], [-0.5, 0.0, 0.8, 1.1]])


def test_tables_of_the_paper():
    games = published.games()
    assert len(games) == 55 and sum(game.is_in_26 for game in games.values()) == 26
    assert tuple(sorted(games)) == environment.GAMES_55
    assert tuple(sorted(name for name, game in games.items() if game.is_in_26)) == environment.GAMES_26
    pong, zaxxon = games["Pong"], games["Zaxxon"]
    assert (pong.random, pong.human) == (-20.7, 14.6)
    assert pong.published == {"ddqn_zoo": -15.4, "der": 20.6, "rainbow": 5.1, "hyperdqn": 20.5, "hyperagent": 20.5}
    assert zaxxon.published == {"ddqn_zoo": 2.1, "rainbow": 7344.1, "hyperdqn": 3093.3, "hyperagent": 7688.1}
    first = [game for game in games.values() if game.is_in_26]
    other = [game for game in games.values() if not game.is_in_26]
    for members, human, hyperagent in ((first, HUMAN[0], SCORES[0]), (other, HUMAN[1], SCORES[1])):
        assert sum(game.human for game in members) == pytest.approx(human, abs=0.05)
        assert sum(game.published["hyperagent"] for game in members) == pytest.approx(hyperagent, abs=0.05)
    assert pong.normalize(14.6) == 1.0 and pong.normalize(-20.7) == 0.0


def test_normalised_tables_are_near_the_papers_aggregates():
    """The paper has a median of 1.07 and a mean of 1.97, and so has its own table; its IQM over games and seeds
    is 1.22, that of the table's averages over seeds is higher."""
    scores = published.published_matrix("hyperagent", environment.GAMES_26)
    assert scores.shape == (26, 1)
    assert aggregates.median(scores) == pytest.approx(1.07, abs=0.1)
    assert aggregates.mean(scores) == pytest.approx(1.97, abs=0.1)
    assert aggregates.iqm(scores) == pytest.approx(1.4516, abs=1e-4)
    assert published.published_matrix("der", ["Zaxxon"]).shape == (0, 1)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 100, 520])
def test_iqm_is_the_trimmed_mean(size):
    scores = np.random.default_rng(size).normal(size=size) ** 3
    assert aggregates.iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25), rel=1e-12)


def test_statistics_by_hand():
    # In order: -0.5 0 0.1 | 0.2 0.3 0.4 0.8 0.9 1.1 | 1.5 2 7
    assert aggregates.iqm(MATRIX) == pytest.approx(3.7 / 6)
    assert aggregates.mean(MATRIX) == pytest.approx(13.8 / 12)
    assert aggregates.median(MATRIX) == pytest.approx(0.85)  # of 0.85, 2.25 and 0.35
    np.testing.assert_allclose(
        aggregates.profile(MATRIX, np.array([-1.0, 0.3, 1.0, 7.0])), [1.0, 7 / 12, 4 / 12, 0.0]
    )


def test_bootstrap_draws_within_games():
    # Games that do not vary leave nothing to draw, however far apart they are.
    constant = np.array([[1.0] * 5, [50.0] * 5])
    interval = aggregates.stratified_bootstrap(constant, statistic=aggregates.mean, repetitions=50)
    assert (interval.value, interval.low, interval.high) == (25.5, 25.5, 25.5)
    # The mean of 2 x 40 normals has the standard deviation sqrt(39 / 40) / sqrt(80) given the sample.
    scores = np.random.default_rng(0).normal(size=(2, 40))
    interval = aggregates.stratified_bootstrap(scores, statistic=aggregates.mean)
    spread = np.sqrt(np.mean(np.var(scores, axis=1)) / 80)
    assert interval.value == pytest.approx(scores.mean())
    assert interval.low == pytest.approx(scores.mean() - 1.96 * spread, abs=0.2 * spread)
    assert interval.high == pytest.approx(scores.mean() + 1.96 * spread, abs=0.2 * spread)
    assert interval == aggregates.stratified_bootstrap(scores, statistic=aggregates.mean)


def test_relative_improvement():
    game = published.Game("X", True, 10.0, 110.0, {})
    assert stats.relative_improvement(60.0, 40.0, game) == pytest.approx(20 / 100)
    assert stats.relative_improvement(60.0, 210.0, game) == pytest.approx(-150 / 200)


def test_efficiencies():
    methods = {method.method: method for method in published.efficiencies(888_736)}
    assert methods["HyperAgent"].params == 888_736 and methods["BBF"].params == 20 * 888_736
    # 8 8 4 32 + 32, 4 4 32 64 + 64, 3 3 64 64 + 64, 3136 512 + 512, 512 6 + 6
    assert methods["DDQN (DQN Zoo)"].params == 8_224 + 32_832 + 36_928 + 1_606_144 + 3_078
    assert methods["DDQN (DQN Zoo)"].interactions * 0.15 == methods["HyperAgent"].interactions
    assert not methods["Ensemble+"].reaches_human
    assert methods["BBF (by its code)"].params == comparisons.BBF_PARAMS


def test_what_the_papers_table_does_not_carry():
    assert "Rainbow column (1.468) is not below that of its HyperAgent column (1.452)" in (
        comparisons.table_caveats()
    )
    assert "in 26 of the 26 games it equals the score at 7.8M frames in HyperDQN's file (IQM 0.472)" in (
        comparisons.table_caveats()
    )
    assert "have an IQM of 0.626." in comparisons.table_caveats()
    assert comparisons.bbf_caveat().startswith("According to its code, BBF has 43 times as many parameters")
    quoted = {row["method"]: (row["games"], row["median"], row["mean"]) for row in comparisons.quoted()}
    assert quoted["EfficientZero"] == pytest.approx((26, 1.090, 1.943), abs=1e-3)
    assert quoted["BBF, replay ratio 2"] == pytest.approx((26, 0.754, 2.175), abs=1e-3)


def test_published_scores_have_sources():
    assert len(comparisons.rows()) == 590
    assert all("@" in row.source and row.runs >= 3 for row in comparisons.rows())
    hard = comparisons.hard_games()
    assert all(tuple(scores) == comparisons.HARD_GAMES for scores in hard.values()) and len(hard) == 6
    assert hard["LangevinAdam"]["Hero"] == 6015.6 and hard["SANE"]["Qbert"] == 100.5
    games = published.games()["Pong"]
    expected = stats.relative_improvement(games.published["hyperagent"], games.published["der"], games)
    assert comparisons.paper_improvements()["DER"]["Pong"] == expected


def write_results(path, rows):
    fields = ("game", "agent", "seed", "score", "interactions", "num_params", "error")
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, fields, restval="")
        writer.writeheader()
        writer.writerows(rows)


def test_runs_and_summary(tmp_path):
    rows = [
        {"game": "Pong", "agent": "hyperagent", "seed": seed, "score": score, "interactions": 100, "num_params": 7}
        for seed, score in ((0, 14.6), (1, -20.7), (2, 14.6))
    ]
    rows += [{**row, "game": "Boxing", "score": score} for row, score in zip(rows, (12.1, 24.1), strict=False)]
    rows.append({**rows[0], "seed": 9, "score": "", "error": "broken"})
    write_results(tmp_path / "results.csv", rows)
    runs = read.read([str(tmp_path)]).runs
    assert len(runs) == 5
    names, scores = stats.score_matrix(runs, "hyperagent")
    assert names == ["Boxing", "Pong"]
    np.testing.assert_allclose(scores, [[1.0, 2.0], [1.0, 0.0]])  # two seeds, as Boxing has
    fields, table = stats.summary_rows(runs)
    assert table[0]["method"] == "hyperagent" and (table[0]["games"], table[0]["seeds"]) == (2, 2)
    assert (table[0]["IQM"], table[0]["Median"], table[0]["Mean"]) == (1.0, 1.0, 1.0)
    assert {row["method"] for row in table[1:]} == set(published.METHODS.values()) and set(table[0]) == set(fields)
    with pytest.raises(Exception, match="duplicate run: hyperagent on Pong, seed 0"):
        read.read([str(tmp_path), str(tmp_path)])
    with pytest.raises(Exception, match="absent does not exist"):
        read.read([str(tmp_path / "absent")])


def test_configurations_of_one_agent_stay_apart(tmp_path):
    row = {"game": "Pong", "agent": "hyperagent", "seed": 0, "score": 1.0, "interactions": 100}
    for preset, rate in (("paper", 1e-3), ("released", 1e-4)):
        folder = tmp_path / preset
        folder.mkdir()
        games = ("Pong", "MontezumaRevenge", "Krull")
        write_results(folder / "results.csv", [{**row, "game": game} for game in games])
        config = {"agent": "hyperagent", "preset": preset, "config": {"learning_rate": rate}}
        (folder / "config.json").write_text(json.dumps({"identity": {"experiment": "atari", **config}}))
        (folder / "curve.csv").write_text(f"game,seed,interactions,eval_score\nPong,0,100,{rate}\n")
    found = read.read([str(tmp_path / "paper"), str(tmp_path / "released")])
    assert found.agents == list(found.curves) == ["hyperagent (preset paper)", "hyperagent (preset released)"]
    assert len(found.runs) == 4 and found.names == ["Krull", "Pong"]
    assert [note.split(":")[0] for note in found.notes] == ["Only the curve is shown"] * 2
    assert read.read([str(tmp_path / "paper")]).agents == ["hyperagent"]


def test_mean_curve_goes_by_the_number_of_the_evaluation():
    """Games side by side make evaluations late by up to three interactions."""
    rows = [
        {"seed": "0", "interactions": "20003", "eval_score": "1"},
        {"seed": "0", "interactions": "40000", "eval_score": "3"},
        {"seed": "1", "interactions": "20001", "eval_score": "2"},
    ]
    figure, axis = style.plt.subplots()
    curves.draw(axis, rows, "eval_score", "red")
    np.testing.assert_allclose(axis.lines[-1].get_xydata(), [[20_002, 1.5]])
    assert len(axis.lines) == 3
    style.plt.close(figure)


def test_pictures(tmp_path):
    curve = [
        {"game": game, "seed": str(seed), "interactions": str(1_000 * k), "eval_score": str(k + seed)}
        for game in ("Pong", "Breakout")
        for seed in range(2)
        for k in range(1, 6)
    ]
    rows = [
        {"game": name, "agent": "hyperagent", "seed": seed, "score": game.human, "interactions": 1}
        for name, game in published.games().items()
        for seed in range(2)
    ]
    write_results(tmp_path / "results.csv", rows)
    runs = read.read([str(tmp_path)]).runs
    plots.curves(tmp_path / "curves.png", "t", {"hyperagent": curve, "ddqn": curve[:5]})
    aggregate_views.bars(
        tmp_path / "aggregates.png", "t", stats.summary_rows(runs)[1], problems="games", normalised="score"
    )
    plots.profiles(tmp_path / "profiles.png", "t", {"hyperagent": stats.score_matrix(runs, "hyperagent")[1]})
    plots.improvements(tmp_path / "improvements.png", "t", {"Pong": 0.5, "Boxing": -20.0})
    plots.data_against_parameters(tmp_path / "data.png", "t", published.efficiencies(888_736))
    plots.curves(tmp_path / "narrow.png", "t", {"hyperagent": curve}, narrow=True)
    for name in ("curves", "aggregates", "profiles", "improvements", "data", "narrow"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_gif(tmp_path):
    from PIL import Image

    pictures = [np.full((210, 160, 3), shade, np.uint8) for shade in (0, 100, 200)]
    video.write_gif(tmp_path / "game.gif", pictures)
    with Image.open(tmp_path / "game.gif") as image:
        assert image.size == (320, 420) and image.n_frames == 3
        image.seek(2)
        assert np.abs(np.asarray(image.convert("RGB")).astype(int) - 200).max() < 3


def test_report_as_a_user_makes_it(tmp_path):
    script = pathlib.Path(__file__).parent.parent / "experiments" / "report.py"

    def report(*arguments):
        return subprocess.run(
            [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120, check=False
        )

    for agent, share in (("hyperagent", 1.0), ("ddqn", 0.5)):
        (tmp_path / agent).mkdir()
        write_results(
            tmp_path / agent / "results.csv",
            [
                {
                    "game": game.name,
                    "agent": agent,
                    "seed": seed,
                    "interactions": 9,
                    "num_params": 888_736,
                    "score": game.random + share * (game.human - game.random),
                }
                for game in (published.games()["Pong"], published.games()["Krull"])
                for seed in range(2)
            ]
            + [{"game": "Pong", "agent": agent, "seed": 7, "interactions": 9, "error": "out of luck"}],
        )
        curve = [f"{name},{seed},{k},{k}" for name in ("Pong", "Krull") for seed in range(2) for k in (1, 2)]
        text = "\n".join(["game,seed,interactions,eval_score", *curve])
        (tmp_path / agent / "curve.csv").write_text(text + "\n")
    out = tmp_path / "out"
    done = report(f"--results={tmp_path / 'hyperagent'},{tmp_path / 'ddqn' / 'results.csv'}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        "hyperagent: IQM 1.00, Median 1.00, Mean 1.00",
        "ddqn: IQM 0.50, Median 0.50, Mean 0.50",
    ]
    page = (out / "report.html").read_text()
    assert "4 runs of 2 agents" not in page and "8 runs of 2 agents on 2 Atari games." in page
    assert "Not finished: ddqn on Pong, seed 7: out of luck." in page
    assert '<th scope="row" rowspan="1">hyperagent</th><td class="number">2</td><td class="number">2</td>' in page
    assert page.count("<figure>") == len(list(out.glob("*.png"))) and "<script" not in page
    with open(out / "scores.csv") as f:
        pong = {row["game"]: row for row in csv.DictReader(f)}["Pong"]
    assert (float(pong["hyperagent"]), float(pong["ddqn"])) == pytest.approx((14.6, -3.05))
    assert float(pong["Rainbow"]) == 5.1 and float(pong["human"]) == 14.6
    pictures = {path.name for path in out.glob("*.png")}
    assert {"aggregates.png", "profiles.png", "curves.png", "data_and_parameters.png"} < pictures
    assert {"hard_games.png", "paper_over_rainbow.png"} < pictures
    assert {"hyperagent_over_ddqn.png", "ddqn_over_hyperagent.png", "ddqn_over_rainbow.png"} < pictures
    with open(out / "summary.csv") as f:
        assert [row["method"] for row in csv.DictReader(f)][:2] == ["hyperagent", "ddqn"]
    missing = str(tmp_path / "no")
    for places, message in (("", "give the results to draw"), (missing, f"{missing} does not exist")):
        done = report(f"--results={places}")
        assert done.returncode == 2 and done.stderr.startswith(f"error: {message}")
        assert len(done.stderr.strip().splitlines()) == 1
