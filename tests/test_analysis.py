"""Statistics of solve times against numbers worked out by hand, and the reading of runs."""

import json
import math

import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats

HEADER = "agent,size,seed,loss,index_dim,solved,episodes_to_learn,interactions,num_params,num_output_params,error"


def _run(agent="hyperagent", size=10, seed=0, episodes=None, limit=None, error="", outputs=None, **settings):
    return read.Run(
        agent, size, seed, settings, episodes=episodes, limit=limit, error=error, num_output_params=outputs
    )


def _write(folder, *lines, header=HEADER):
    folder.mkdir(exist_ok=True)
    (folder / "results.csv").write_text("".join(f"{line}\n" for line in (header, *lines)))
    return str(folder)


def test_linear_fit_by_hand():
    # Sxy = 7, Sxx = 5; residuals 0.1, -0.3, 0.3, -0.1 against a total of 10
    fit = stats.linear_fit([1, 2, 3, 4], [2, 3, 5, 6])
    assert (fit.slope, fit.intercept, fit.r_squared) == pytest.approx((1.4, 0.5, 1 - 0.2 / 10))
    np.testing.assert_allclose(fit([0, 10]), [0.5, 14.5])


def test_linear_fit_of_equal_numbers_has_no_r_squared():
    fit = stats.linear_fit([1, 2, 3], [5, 5, 5])
    assert (fit.slope, fit.intercept) == (0.0, 5.0) and math.isnan(fit.r_squared)


def test_proportional_fit_by_hand():
    fit = stats.proportional_fit([1, 2, 3], [2, 5, 5])  # slope 27 / 14
    residual = (2 - 27 / 14) ** 2 + (5 - 54 / 14) ** 2 + (5 - 81 / 14) ** 2
    assert (fit.slope, fit.intercept, fit.r_squared) == pytest.approx((27 / 14, 0, 1 - residual / 6))


def test_n_log_n_is_recognised():
    runs = [read.Run("a", n, 0, episodes=x) for n, x in {2: 6, 4: 24, 8: 72}.items()]
    fits = stats.fit(stats.group(runs)[0])
    assert (fits.n_log_n.slope, fits.n_log_n.r_squared) == pytest.approx((3, 1))


@pytest.mark.parametrize(
    "sizes, episodes, exponent", [((1, 2, 4), (3, 12, 48), 2.0), ((10, 20, 40), (80, 40, 20), -1.0)]
)
def test_power_law_by_hand(sizes, episodes, exponent):
    runs = [read.Run("a", size, 0, episodes=x) for size, x in zip(sizes, episodes, strict=True)]
    (group,) = stats.group(runs)
    fits = stats.fit(group)
    assert (fits.power.slope, fits.power.r_squared) == pytest.approx((exponent, 1.0))
    assert fits.power_of_midpoints is None


def test_midpoints_of_evaluations_undo_the_rounding(tmp_path):
    """Episodes 2 N^2, found at the evaluation half an interval of 1,000 / N episodes later."""
    lines = [f"a,{n},0,True,{2 * n**2 + 500 // n},1" for n in (10, 20, 50)]
    header = "agent,size,seed,solved,episodes_to_learn,interactions"
    (tmp_path / "results.csv").write_text("\n".join([header, *lines]) + "\n")
    (tmp_path / "config.json").write_text('{"identity": {"protocol": {"eval_every": 1000}}}')
    runs, _ = read.read([str(tmp_path)])
    assert [run.interval for run in runs] == [100, 50, 20] and not runs[0].settings
    fits = stats.fit(stats.group(runs)[0])
    assert fits.power_of_midpoints.slope == pytest.approx(2.0) and fits.power.slope < 1.95
    x, middles = np.array([10, 20, 50]) * np.log2([10, 20, 50]), [200, 800, 5000]
    assert fits.n_log_n == stats.proportional_fit(x, middles)


@pytest.mark.parametrize(
    "episodes, limits, text",
    [
        ([300, 100, 200], [], "200"),
        ([100, 125], [], "112.5"),
        ([100, 300], [10_000], "300"),
        ([100], [10_000, 10_000], "> 10,000"),
        ([], [10_000], "> 10,000"),
        ([100, 300, 400], [10_000], "350"),
        ([100, 300], [1_000, 1_000], "> 650"),  # between 300 and more than 1,000
        ([10, 1_000], [1_000], "1,000"),  # solved at the limit is less than failed at the limit
        ([500, 600], [200], "> 500"),  # what failed early might have needed more than any other
    ],
)
def test_median_counts_failures_as_more_than_their_limit(episodes, limits, text):
    assert stats.format_median(stats.median_with_failures(episodes, limits)) == text


def test_summary_by_hand():
    runs = [_run(seed=i, episodes=x) for i, x in enumerate([100, 200, 300])]
    runs += [_run(seed=3, limit=1_000), _run(seed=4, limit=1_000), _run(seed=5, error="out of memory")]
    summary = stats.summarise(runs)
    assert (summary.seeds, summary.solved, summary.failed, summary.crashed) == (6, 3, 2, 1)
    assert summary.mean == 200 and summary.standard_error == pytest.approx(100 / math.sqrt(3))
    assert (summary.smallest, summary.largest, summary.limit) == (100, 300, 1_000)
    assert stats.format_median(summary.median) == "300"


def test_summary_without_outcomes():
    summary = stats.summarise([_run(error="refused")])
    assert (summary.mean, summary.standard_error, summary.smallest, summary.median) == (None,) * 4
    assert stats.summarise([_run(episodes=7)]).standard_error is None


def test_groups_are_labelled_by_the_settings_that_vary_within_their_agent():
    runs = [
        _run(index_dim=dim, loss="exact", network=network, episodes=1)
        for dim in ("16", "4", "128")
        for network in ("linear", "deep")
    ] + [_run("ddqn", episodes=1), _run("bootdqn", loss="sampled", episodes=1)]
    assert [group.label for group in stats.group(runs)] == [
        "hyperagent, index_dim 4, network linear",
        "hyperagent, index_dim 4, network deep",
        "hyperagent, index_dim 16, network linear",
        "hyperagent, index_dim 16, network deep",
        "hyperagent, index_dim 128, network linear",
        "hyperagent, index_dim 128, network deep",
        "ddqn",
        "bootdqn",
    ]


def test_a_blank_setting_is_a_group_of_its_own():
    runs = [_run(episodes=1), _run(seed=1, episodes=1), _run(episodes=1, index_dim="16")]
    groups = stats.group(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("hyperagent", 2),
        ("hyperagent, index_dim 16", 1),
    ]
    assert stats.ablations(runs) == []  # one value and a blank are nothing to compare


def test_other_settings_of_an_agent_are_no_more_seeds_of_it(tmp_path):
    """They are told apart by their config.json; what only one of them has on file is not known to differ."""
    shared = {"replay_capacity": 5, "hidden_sizes": [4, 4]}
    configs = {
        "one": {"config": {**shared, "sigma": 0.5}, "protocol": {"stochastic": False}},
        "two": {"configs": {"a": {"sigma": 2.0, "hidden_sizes": [4, 4], "new": 1}}, "protocol": {}},
        "three": {"config": {"sigma": 0.5, "replay_capacity": 9}, "protocol": {"stochastic": True}},
    }
    for name, made_with in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.csv").write_text(f"{OLD}\na,20,0,True,300,6000\n")
        (tmp_path / name / "config.json").write_text(json.dumps({"identity": made_with}))
    runs, _ = read.read([str(tmp_path / name) for name in configs])
    assert [dict(run.settings) for run in runs] == [
        {"sigma": "0.5", "stochastic": "False"},
        {"sigma": "2.0"},
        {"sigma": "0.5", "stochastic": "True"},
    ]
    assert len(stats.group(runs)) == 3


def test_the_exponents_interval_resamples_seeds_within_sizes():
    x, y = np.log(np.repeat([10, 20, 40], 2)), np.array([1.0, 1, 2, 2, 3, 3])
    assert stats.slope_interval(x, y) == pytest.approx((1 / np.log(2),) * 2)  # seeds do not differ
    assert stats.slope_interval([1, 2, 3], [1, 2, 2]) is None
    # Seeds differ at the ends only: the slope is half the difference of the two means there.
    low, high = stats.slope_interval([1, 1, 2, 2, 3, 3], [0, 2, 5, 5, 8, 10])
    assert (low, high) == (
        3.0,
        5.0,
    )  # 3 if all are (2, 2) and (8, 8), 5 if all are (0, 0) and (10, 10): 1 in 16 each
    runs = [read.Run("a", n, seed, episodes=n * n * (1 + seed)) for n in (10, 20, 40) for seed in range(2)]
    fits = stats.fit(stats.group(runs)[0])
    assert fits.power.slope == pytest.approx(2.0)
    assert fits.exponent_interval[0] < 2.0 < fits.exponent_interval[1]


def test_fits_need_three_sizes_with_a_solved_run():
    runs = [_run(size=n, seed=s, episodes=10 * n + 5) for n in (10, 20) for s in range(2)]
    (group,) = stats.group([*runs, _run(size=30, limit=1_000)])
    fits = stats.fit(group)
    assert (fits.points, fits.failed, fits.sizes, fits.linear, fits.power) == (4, 1, 2, None, None)
    (group,) = stats.group([*runs, _run(size=30, episodes=305)])
    fits = stats.fit(group)
    assert (fits.linear.slope, fits.linear.intercept, fits.linear.r_squared) == pytest.approx((10, 5, 1))
    assert 0.9 < fits.power.slope < 1.0


def test_output_layer_is_compared_with_that_of_hyperagent():
    def ratios(*runs):
        groups = stats.group(runs)
        references = stats.References(groups)
        return [references.ratio(group, summary) for group in groups for summary in group.summaries()]

    plain = _run(episodes=1, outputs=100)
    assert ratios(plain, _run("ddqn", outputs=20), _run("ddqn", size=20, outputs=20)) == [1.0, 0.2, None]
    assert ratios(_run("ddqn", outputs=20)) == [None]
    wide = _run(episodes=1, outputs=400, index_dim="16")
    assert ratios(plain, wide, _run("ddqn", outputs=20)) == [1.0, 4.0, 0.2]
    assert ratios(plain, wide, _run("enndqn", outputs=200, index_dim="16")) == [1.0, 4.0, 0.5]
    assert ratios(wide, _run(outputs=800, index_dim="32"), _run("ddqn", outputs=20)) == [None, None, None]


def test_ablations_keep_everything_else_apart():
    runs = [
        _run(size=n, episodes=1, loss=loss, index_dim=dim)
        for n in (10, 20)
        for loss in ("sampled", "exact")
        for dim in ("32", "4")
    ] + [_run("ddqn", episodes=1), _run("enndqn", episodes=1, index_dim="4")]
    by_loss, by_dim = stats.ablations(runs)
    assert (by_loss.setting, by_loss.values) == ("loss", ("sampled", "exact"))  # words by appearance
    assert (by_dim.setting, by_dim.values) == ("index_dim", ("4", "32"))  # numbers by size
    assert list(by_loss.lines) == ["hyperagent, index_dim 4", "hyperagent, index_dim 32"]
    assert list(by_dim.lines) == ["hyperagent, loss sampled", "hyperagent, loss exact"]
    cells = by_dim.lines["hyperagent, loss exact"]
    assert sorted(cells) == [(10, "32"), (10, "4"), (20, "32"), (20, "4")] and by_dim.sizes == [10, 20]
    assert [run.settings["loss"] for cell in cells.values() for run in cell] == ["exact"] * 4


def test_reading_tells_solved_failed_and_crashed_apart(tmp_path):
    place = _write(
        tmp_path,
        "hyperagent,20,0,exact,16,True,300,6000,100,10,",
        "hyperagent,20,1,exact,16,False,,200000,100,10,",
        'ddqn,20,0,,,False,,,,,"no memory, sorry"',
    )
    (solved, failed, crashed), (source,) = read.read([place])
    assert (solved.solved, solved.episodes, solved.settings) == (True, 300, {"loss": "exact", "index_dim": "16"})
    assert (failed.failed, failed.limit, failed.num_output_params) == (True, 10_000, 10)
    assert (crashed.solved, crashed.failed, crashed.error) == (False, False, "no memory, sorry")
    assert crashed.settings == {} and crashed.num_params is None
    assert source.num_runs == 3 and source.problem.endswith("config.json does not exist")


def test_reading_keeps_the_record(tmp_path):
    place = _write(tmp_path, "hyperagent,20,0,,,True,300,6000,,,")
    (tmp_path / "config.json").write_text(json.dumps({"commit": "abc"}))
    assert read.read([place])[1][0].record == {"commit": "abc"}
    (tmp_path / "config.json").write_text("{")
    assert "is corrupt" in read.read([place])[1][0].problem


OLD = "agent,size,seed,solved,episodes_to_learn,interactions"


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "results.csv does not exist: give a results.csv or a folder that contains one"),
        (b"", "results.csv has no rows"),
        (f"{OLD}\n".encode(), "results.csv has no rows"),
        (b"agent,seed,solved\na,0,True\n", "it has no column size, episodes_to_learn, interactions"),
        (f"{OLD}\na,20,0,maybe,,6000\n".encode(), "row 1: solved must be True or False, got 'maybe'"),
        (f"{OLD}\na,20,0,True,300,6000\na,20,1,True,,6000\n".encode(), "row 2: episodes_to_learn must be a whole"),
        (f"{OLD}\na,0,0,True,300,6000\n".encode(), "size must be a whole number of at least 1, got '0'"),
        (f"{OLD}\na,inf,0,True,300,6000\n".encode(), "size must be a whole number"),
        (f"{OLD}\na,20\na,20,1,True,300,6000\n".encode(), "is corrupt"),
        (b"\x89PNG\r\n\xff\xfe", "cannot read .*: it is not a text file"),
    ],
)
def test_bad_files_are_one_clear_line(content, message, tmp_path):
    if content is not None:
        (tmp_path / "results.csv").write_bytes(content)
    with pytest.raises(errors.UserError, match=message) as raised:
        read.read([str(tmp_path)])
    assert "\n" not in str(raised.value)


def test_the_same_run_in_two_files_is_refused(tmp_path):
    row = "hyperagent,20,0,exact,16,True,300,6000,,,"
    a = _write(tmp_path / "a", row)
    b = _write(tmp_path / "b", row.replace("exact", "sampled"))
    assert len(read.read([a, b])[0]) == 2
    c = _write(
        tmp_path / "c",
        "hyperagent,20,0,16,exact,True,350,7000",
        header="agent,size,seed,index_dim,loss,solved,episodes_to_learn,interactions",
    )
    with pytest.raises(errors.UserError, match="a/results.csv and .*c/results.csv.*size 20, seed 0"):
        read.read([a, b, c])
    with pytest.raises(errors.UserError, match="twice in .*a/results.csv"):
        read.read([a, a])


def test_values_of_a_setting_are_spaced_by_what_suits_them():
    plots = pytest.importorskip("hyperagent_jax.analysis.deep_sea.plots")
    assert plots._positions(["2", "4", "16"]) == [1.0, 2.0, 4.0]
    assert plots._positions(["10", "15", "20"]) == [10.0, 15.0, 20.0]
    assert plots._positions(["0", "0.0001", "1"]) == [0.0, 1.0, 2.0]
    assert plots._positions(["exact", "sampled"]) == [0.0, 1.0]
