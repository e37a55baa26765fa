"""Draws the figures of DeepSea, bsuite or Atari runs and writes them, with tables, on one HTML page.

Example: python experiments/report.py --results=logs/a/results.csv,logs/b --out=logs/report

Results of run_deepsea.py and sweep.py become the paper's figures of episodes to learn; folders of run_bsuite.py,
one per agent, or of anybody's bsuite csv files, become scores and bsuite's figures; results of run_atari.py become
learning curves and the paper's statistics of human-normalised scores.
"""

import io
import math
import os
import pathlib
import re
import statistics

import common  # isort: skip  (makes a clone's scripts run that clone)

from absl import flags

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import document
from hyperagent_jax.analysis import page
from hyperagent_jax.analysis import runs as runs_lib
from hyperagent_jax.analysis import solve_times

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "results",
    [],
    "Files results.csv, or folders that hold one, of run_deepsea.py or sweep.py, or "
    "of run_atari.py; or folders of run_bsuite.py, one per agent.",
)
flags.DEFINE_string("out", "logs/report", "Folder for report.html, the pictures and the tables as csv.")
flags.DEFINE_string("title", None, "Heading of the page; default: what was run.")


def _picture(path: pathlib.Path, alt: str, draw) -> document.Picture:
    """Draws for screens, to a file, and for phones."""
    versions = []
    for narrow in (False, True):
        buffer = io.BytesIO()
        draw(buffer, narrow=narrow)
        versions.append(buffer.getvalue())
    path.write_bytes(versions[0])
    return document.Picture(path.name, alt, *versions)


def main() -> int:
    if not FLAGS.results:
        raise errors.UserError("give the results to draw: --results=<results.csv or folder>,...")
    kinds = {place: runs_lib.kind(place) for place in FLAGS.results}
    first, *others = FLAGS.results
    for place in others:
        if kinds[place] != kinds[first]:
            problem = f"{first} holds runs of {kinds[first]} and {place} does not"
            raise errors.UserError(f"{problem}: make a report of each kind")
    out = pathlib.Path(FLAGS.out)
    try:
        text, summary = {"deep_sea": _deep_sea, "bsuite": _bsuite, "atari": _atari}[kinds[first]](out)
        # The page comes last and at once: where it is, everything it names is there too.
        unfinished = out / "report.html.unfinished"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, out / "report.html")
    except OSError as error:
        raise errors.UserError(f"cannot write to --out={FLAGS.out}: {error.strerror}") from error
    print(f"{summary}; {out / 'report.html'}")
    return 0


def _deep_sea(out: pathlib.Path) -> tuple[str, str]:
    """Draws runs of run_deepsea.py and sweep.py; returns the page and a line about it."""
    plots = common.drawing_functions("plots")
    runs, sources = runs_lib.read(FLAGS.results)
    groups = solve_times.group(runs)
    out.mkdir(parents=True, exist_ok=True)
    overview = _picture(
        out / "episodes_to_learn.png",
        "Episodes to learn against the size of DeepSea; the numbers are in the tables below.",
        lambda file, narrow: plots.episodes_to_learn(file, "Episodes to learn", groups, narrow=narrow),
    )
    studies = []
    for study in solve_times.ablations(runs):
        picture = _picture(
            out / re.sub(r"[^\w.-]", "_", f"ablation_{study.setting}.png"),
            f"Episodes to learn against {study.setting}; the numbers are in the table below.",
            lambda file, narrow, study=study: plots.ablation(
                file, f"Episodes to learn by {study.setting}", study, narrow=narrow
            ),
        )
        studies.append((study, picture))
    results.write_csv(out / "summary.csv", *solve_times.summary_rows(groups))
    results.write_csv(out / "fits.csv", *solve_times.fit_rows(groups))
    title = FLAGS.title or "Episodes to learn on DeepSea"
    text = page.build(title, runs, sources, overview, studies, results.provenance())
    solved = sum(run.solved for run in runs)
    return text, f"{len(runs)} runs, {solved} solved; {1 + len(studies)} figure(s)"


def _bsuite(out: pathlib.Path) -> tuple[str, str]:
    """Scores and draws runs of run_bsuite.py; returns the page and a line about it."""
    plots = common.drawing_functions("bsuite_plots")
    from hyperagent_jax.analysis import bsuite_page
    from hyperagent_jax.analysis import bsuite_scores

    places = map(pathlib.Path, FLAGS.results)
    logs = bsuite_scores.read([place if place.is_dir() else place.parent for place in places])
    scores = {log.label: log.scores for log in logs}
    solutions = {name: {log.label: log.solutions[name] for log in logs} for name in logs[0].solutions}
    drawings = {
        "radar": (plots.radar, {label: bsuite_scores.by_tag(own) for label, own in scores.items()}),
        "scores": (plots.bars, scores),
        "curves": (plots.curves, {log.label: bsuite_scores.curves(log.frame) for log in logs}),
    }
    out.mkdir(parents=True, exist_ok=True)
    if any(own for each in solutions.values() for own in each.values()):
        drawings["deep_sea"] = plots.solve_times, solutions
        results.write_csv(out / "deep_sea.csv", *bsuite_scores.solution_table(logs))
    titles = {
        "radar": "bsuite scores by tag",
        "scores": "bsuite scores",
        "curves": "Learning curves",
        "deep_sea": "Episodes until DeepSea is solved",
    }
    pictures = {
        name: _picture(
            out / f"bsuite_{name}.png",
            f"{titles[name]}{'' if name == 'curves' else '; the numbers are in the table below'}.",
            lambda file, narrow, name=name, draw=draw, data=data: draw(file, titles[name], data, narrow=narrow),
        )
        for name, (draw, data) in drawings.items()
    }
    results.write_csv(out / "scores.csv", *bsuite_scores.table(logs))
    text = bsuite_page.build(FLAGS.title or "bsuite", logs, pictures, results.provenance())
    for label, own in scores.items():
        defined = sum(not math.isnan(score.score) for score in own)
        print(f"{label}: mean score {bsuite_scores.mean(own):.3f} over {defined} experiment(s)")
    ids = sum(log.frame.bsuite_id.nunique() for log in logs)
    return text, f"{ids} bsuite ids of {len(logs)} agent(s); {len(pictures)} figures"


def _atari(out: pathlib.Path) -> tuple[str, str]:
    """Draws runs of run_atari.py; returns the page and a line about it."""
    plots = common.drawing_functions("atari_plots")
    from hyperagent_jax.analysis import atari
    from hyperagent_jax.analysis import atari_page

    found = atari.read(FLAGS.results)
    fields, rows = atari.summary_rows(found.runs)
    scores = {agent: atari.score_matrix(found.runs, agent)[1] for agent in found.agents}
    for method, name in atari.METHODS.items():
        if len(matrix := atari.published_matrix(method, found.names)):
            scores[name] = matrix
    drawings = {
        "aggregates": (plots.aggregates, "Human-normalised scores", rows),
        "profiles": (plots.profiles, "Performance profiles", scores),
    }
    if found.curves:
        drawings["curves"] = plots.curves, "Evaluations", found.curves
    if params := [run.num_params for run in found.runs if run.agent.startswith("hyperagent") and run.num_params]:
        methods = atari.efficiencies(int(statistics.median(params)))
        drawings["data_and_parameters"] = (
            plots.data_against_parameters,
            "Data and parameters for human-level scores",
            methods,
        )
    for agent in found.agents:
        for other, values in atari.improvements(found, agent).items():
            stem = re.sub(r"\W+", "_", f"{agent}_over_{other}".lower()).strip("_")
            drawings[stem] = plots.improvements, f"{agent} compared with {other}", values
    out.mkdir(parents=True, exist_ok=True)
    pictures = {
        name: _picture(
            out / f"{name}.png",
            f"{title}.",
            lambda file, narrow, draw=draw, title=title, data=data: draw(file, title, data, narrow=narrow),
        )
        for name, (draw, title, data) in drawings.items()
    }
    results.write_csv(out / "summary.csv", fields, rows)
    results.write_csv(out / "scores.csv", *atari.score_rows(found))
    text = atari_page.build(FLAGS.title or "Atari", found, rows, pictures, results.provenance())
    for row in rows:
        print(f"{row['method']}: " + ", ".join(f"{name} {row[name]:.2f}" for name in atari.STATISTICS))
    return text, f"{len(found.runs)} runs on {len(found.names)} game(s); {len(pictures)} figures"


if __name__ == "__main__":
    common.run(main)
