"""Draws the paper's DeepSea figures from results.csv files and writes them, with tables, on one HTML page.

Example: python experiments/report.py --results=logs/a/results.csv,logs/b --out=logs/report
"""

import io
import os
import pathlib
import re

import common  # isort: skip  (makes a clone's scripts run that clone)

from absl import flags

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import document
from hyperagent_jax.analysis import page
from hyperagent_jax.analysis import runs as runs_lib
from hyperagent_jax.analysis import solve_times

FLAGS = flags.FLAGS
flags.DEFINE_list("results", [], "Files results.csv, or folders that hold one, of run_deepsea.py or sweep.py.")
flags.DEFINE_string("out", "logs/report", "Folder for report.html, the pictures, summary.csv and fits.csv.")
flags.DEFINE_string("title", "Episodes to learn on DeepSea", "Heading of the page.")


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
    plots = common.drawing_functions("plots")
    runs, sources = runs_lib.read(FLAGS.results)
    groups = solve_times.group(runs)
    out = pathlib.Path(FLAGS.out)
    try:
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
        text = page.build(FLAGS.title, runs, sources, overview, studies, results.provenance())
        # The page comes last and at once: where it is, everything it names is there too.
        unfinished = out / "report.html.unfinished"
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, out / "report.html")
    except OSError as error:
        raise errors.UserError(f"cannot write to --out={FLAGS.out}: {error.strerror}") from error
    solved = sum(run.solved for run in runs)
    print(f"{len(runs)} runs, {solved} solved; {1 + len(studies)} figure(s); {out / 'report.html'}")
    return 0


if __name__ == "__main__":
    common.run(main)
