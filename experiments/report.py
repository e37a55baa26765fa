"""Plots runs of any experiment and writes the figures and tables to one HTML page.

Example: python experiments/report.py --results=logs/a/results.csv,logs/b --out=logs/report

Results of run_deepsea.py and sweep.py become the paper's figures of episodes to learn; folders of run_bsuite.py,
one per agent, or of any program with bsuite's csv files, become scores and bsuite's figures; results of
run_atari.py become learning curves and the paper's statistics of human-normalised scores; results of run_jax.py
and run_gymnasium.py, or of sweeps of them, become learning curves and statistics over environments; folders of
run_tabular.py, one per study, become its figure and tables.
"""

import importlib
import pathlib

import common  # isort: skip  # noqa: F401  (makes a clone's scripts run that clone)

from absl import flags

from hyperagent_jax import errors
from hyperagent_jax import files
from hyperagent_jax.analysis import sources
from hyperagent_jax.experiment import cli

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "results",
    [],
    "Comma-separated results.csv files, or folders that contain one, of run_deepsea.py, run_atari.py, run_jax.py, "
    "run_gymnasium.py or sweep.py; or folders of run_bsuite.py, one per agent; or of run_tabular.py, one per "
    "study.",
)
flags.DEFINE_string("out", "logs/report", "Folder for report.html, the pictures and the tables as csv.")
flags.DEFINE_string("title", None, "Heading of the page; default: describes the kind of runs.")


def main() -> int:
    if not FLAGS.results:
        raise errors.UserError("give the results to draw: --results=<results.csv or folder>,...")
    kinds = {place: sources.kind(place) for place in FLAGS.results}
    first, *others = FLAGS.results
    for place in others:
        if kinds[place] != kinds[first]:
            problem = f"{first} contains runs of {kinds[first]} but {place} does not"
            raise errors.UserError(f"{problem}: make a separate report for each kind")
    out = pathlib.Path(FLAGS.out)
    kind = importlib.import_module(f"hyperagent_jax.analysis.{kinds[first]}")
    try:
        text, summary = kind.report(FLAGS.results, out, FLAGS.title)
        with files.replacing(out / "report.html") as f:  # last: if it exists, so do all files it refers to
            f.write(text)
    except OSError as error:
        raise errors.UserError(f"cannot write to --out={FLAGS.out}: {error.strerror}") from error
    except ImportError as error:
        library = (error.name or "matplotlib").partition(".")[0]
        extra = "bsuite" if library in ("pandas", "bsuite") else "sweep"
        raise errors.UserError(
            f"{library}, which draws the figures, is not installed: pip install 'hyperagent_jax[{extra}]'"
        ) from error
    print(f"{summary}; {out / 'report.html'}")
    return 0


if __name__ == "__main__":
    cli.run(main)
