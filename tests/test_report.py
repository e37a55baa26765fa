"""The report as a user makes it: page, pictures, tables, and errors as one line."""

import csv
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "report.py"
FIELDS = (
    "agent",
    "size",
    "seed",
    "index_dim",
    "solved",
    "episodes_to_learn",
    "interactions",
    "num_params",
    "num_output_params",
    "interactions_per_second",
    "error",
)
EVIL = "<script>alert('$x$')</script> \"quoted\" & more"
VOID = {"meta", "img", "source", "wbr"}


def _report(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def _write(folder, rows, record):
    folder.mkdir()
    with open(folder / "results.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, FIELDS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    if record is not None:
        (folder / "config.json").write_text(json.dumps(record))


def _row(agent, size, seed, episodes, **others):
    """A run that needed so many episodes, or failed after 1,000 if that is None."""
    return {
        "agent": agent,
        "size": size,
        "seed": seed,
        "solved": episodes is not None,
        "episodes_to_learn": episodes,
        "interactions": (episodes or 1_000) * size,
        "num_params": 500,
        "num_output_params": 50,
        "interactions_per_second": 1_000 * (seed + 1),
        **others,
    }


class _Page(html.parser.HTMLParser):
    """Text, tags and what they refer to; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.references, self._open = [], [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "srcset", "href", "data", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Folder of a report on two files: growth of two agents, one of them with a crash, and an ablation."""
    folder = tmp_path_factory.mktemp("report")
    # hyperagent: 10 N + 50 + (-10, 0, 10); ddqn does not learn the larger size
    growth = [_row("hyperagent", n, s, 10 * n + 40 + 10 * s) for n in (10, 20, 30) for s in range(3)]
    growth += [_row("ddqn", 10, s, 500, num_output_params=10) for s in range(2)]
    growth += [_row("ddqn", 20, s, None, num_output_params=10) for s in range(2)]
    growth.append({"agent": "ddqn", "size": 20, "seed": 2, "solved": False, "error": EVIL})
    protocol = {
        "max_episodes": 1_000,
        "eval_every": 500,
        "eval_episodes": 30,
        "solved_return": 0.99,
        "stochastic": False,
    }
    record = {
        "identity": {"protocol": protocol, "config": {"sigma": 0.5, "name": EVIL}},
        "command": f"run.py {EVIL}",
        "commit": "0123456789abcdef+changes",
        "versions": {"jax": "1.2.3"},
        "machine": {"cores": 2},
    }
    _write(folder / "growth", growth, record)
    study = [
        _row("enndqn", 20, s, None if (dim, s) == (4, 0) else 100 * dim + s, index_dim=dim)
        for dim in (1, 4, 16)
        for s in range(2)
    ]
    _write(folder / "study", study, None)
    done = _report(
        f"--results={folder / 'growth'},{folder / 'study' / 'results.csv'}",
        f"--out={folder / 'out'}",
        f"--title=Title {EVIL}",
    )
    assert done.returncode == 0, done.stderr
    assert "20 runs, 16 solved; 2 figure(s)" in done.stdout
    return folder


@pytest.fixture(scope="module")
def text(report):
    return (report / "out" / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown(text):
    return " ".join(" ".join(_Page(text).text).split())


def test_the_page_loads_nothing(text):
    page = _Page(text)
    assert len(page.references) == 4  # two pictures, each for screens and for phones
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?://", text)


def test_text_from_files_is_escaped(text, shown):
    assert "<script" not in text
    assert shown.count("<script>alert('$x$')</script> \"quoted\" & more") >= 4  # title and heading, crash, command


def test_the_page_says_what_was_run_and_how(shown):
    assert "20 runs of 3 agents on DeepSea: 16 solved, 3 failed and 1 crashed." in shown
    assert "Every 500 interactions 30 evaluation episodes; solved when their average return is 0.99." in shown
    assert "Runs fail after 1,000 episodes." in shown
    assert re.search(r"configuration of \S+study/results.csv is unknown: \S+config.json does not exist", shown)
    for part in ("0123456789abcdef+changes", "jax 1.2.3", '"sigma": 0.5', "Mean over solved", "> 1,000"):
        assert part in shown


def test_tables_are_written_as_csv(report):
    def rows(name):
        with open(report / "out" / name) as f:
            return {(row["agent"], row.get("size"), row["index_dim"]): row for row in csv.DictReader(f)}

    summary = rows("summary.csv")
    row = summary["hyperagent", "20", ""]
    assert (row["seeds"], row["solved"], row["mean_over_solved"]) == ("3", "3", "250.0")
    assert (row["standard_error_over_solved"], row["median_over_all"]) == ("5.77", "250")
    assert (row["min_over_solved"], row["max_over_solved"]) == ("240", "260")
    assert row["step_microseconds"] == "500.0"  # the median of 1,000, 500 and 333
    row = summary["ddqn", "20", ""]
    assert (row["seeds"], row["solved"], row["failed"], row["crashed"]) == ("3", "0", "2", "1")
    assert (row["mean_over_solved"], row["median_over_all"], row["limit"]) == ("", "> 1000", "1000")
    assert row["output_params_over_hyperagent"] == "0.2"
    assert summary["enndqn", "20", "4"]["median_over_all"] == "> 700.5"

    fits = rows("fits.csv")
    row = fits["hyperagent", None, ""]
    # residuals of 10 at six of nine points: 600 of 600 + 6 * 100^2
    assert (row["slope"], row["intercept"], row["points"]) == ("10.0", "50.0", "9")
    assert float(row["r_squared"]) == pytest.approx(1 - 600 / 60_600, abs=1e-4)
    assert 0.5 < float(row["power_law_exponent"]) < 1.0
    assert fits["ddqn", None, ""]["slope"] == ""


def test_pictures_have_a_sensible_size(report):
    assert sorted(path.name for path in (report / "out").glob("*.png")) == [
        "ablation_index_dim.png",
        "episodes_to_learn.png",
    ]
    for path in (report / "out").glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 20_000
        width, height = (int.from_bytes(data[i : i + 4]) for i in (16, 20))
        assert 1_200 <= width <= 2_400 and 600 <= height <= 1_600


def test_curves_and_maps_over_training(tmp_path):
    run = tmp_path / "run"
    _write(run, [_row("hyperagent", 4, seed, 400) for seed in (0, 1)], {"identity": {"protocol": {}}})
    with open(run / "curve.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerows(
            [["seed", "interactions", "episodes", "eval_return"], [0, 400, 100, 0.0], [1, 400, 100, 0.9]]
        )
    (run / "maps").mkdir()  # those of seed 0 were deleted
    np.savez(
        run / "maps" / "seed_1.npz",
        value=np.ones((4, 4)),
        uncertainty=np.full((4, 4), 0.1),
        uncertainties=np.geomspace(1.0, 0.1, 8)[:, None, None] * np.ones((4, 4)),
        interactions=400 * np.arange(8),
        episodes=100 * np.arange(8),
    )
    done = _report(f"--results={run}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "2 runs, 2 solved; 3 figure(s)" in done.stdout
    for name in ("learning_curves", "uncertainty"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
    shown = " ".join(_Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8")).text)
    assert "Over training" in shown and "greedy value of every cell, seed 1" in shown


def test_bad_input_is_one_clear_line(tmp_path):
    out = tmp_path / "out"
    done = _report(f"--results={tmp_path / 'nowhere'}", f"--out={out}")
    assert done.returncode == 2 and not out.exists()
    assert (
        done.stderr.startswith(f"error: {tmp_path / 'nowhere'} does not exist")
        and len(done.stderr.splitlines()) == 1
    )


def test_without_matplotlib_is_one_clear_line(report, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError\n")
    done = _report(f"--results={report / 'growth'}", f"--out={tmp_path / 'out'}", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert (
        done.stderr.startswith("error: matplotlib, which draws the figures, is not installed")
        and len(done.stderr.splitlines()) == 1
    )
