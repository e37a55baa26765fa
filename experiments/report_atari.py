"""Draws the paper's Atari figures from results.csv files of run_atari.py, with a table of the aggregates.

Example: python experiments/report_atari.py --results=logs/atari_hyperagent,logs/atari_ddqn --out=logs/atari_report
"""

import pathlib

import common  # isort: skip  (makes a clone's scripts run that clone)

from absl import flags
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import atari

FLAGS = flags.FLAGS
flags.DEFINE_list("results", [], "Files results.csv, or folders that hold one, of run_atari.py; curve.csv beside "
                  "them is drawn too.")
flags.DEFINE_string("out", "logs/atari_report", "Folder for the pictures and summary.csv.")


def _curves(runs: list[atari.Run]) -> dict[str, list[dict[str, str]]]:
    """Rows of the curve.csv beside every results.csv, by agent."""
    lines: dict[str, list[dict[str, str]]] = {}
    for place in FLAGS.results:
        path = pathlib.Path(place)
        folder = path if path.is_dir() else path.parent
        agents = {run.agent for run in atari.read([place])}
        for agent in agents & {run.agent for run in runs}:
            lines.setdefault(agent, []).extend(results.read_csv(folder / "curve.csv"))
    return {agent: rows for agent, rows in lines.items() if rows}


def main() -> int:
    if not FLAGS.results:
        raise errors.UserError("give the results to draw: --results=<results.csv or folder>,...")
    plots = common.drawing_functions("atari_plots")
    runs = atari.read(FLAGS.results)
    agents = list(dict.fromkeys(run.agent for run in runs))
    names = sorted({run.game for run in runs})
    out = pathlib.Path(FLAGS.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        fields, rows = atari.summary_rows(runs)
        results.write_csv(out / "summary.csv", fields, rows)
        title = f"Atari, {len(names)} game{'s' if len(names) > 1 else ''}"
        plots.aggregates(out / "aggregates.png", title, rows)
        published = {name: atari.published_matrix(method, names) for method, name in atari.METHODS.items()}
        scores = {agent: atari.score_matrix(runs, agent)[1] for agent in agents}
        plots.profiles(
            out / "profiles.png", f"{title}: performance profiles",
            {**scores, **{name: matrix for name, matrix in published.items() if len(matrix)}},
        )
        if lines := _curves(runs):
            plots.curves(out / "curves.png", f"{title}: evaluations", lines)
        for agent in agents:
            _draw_improvements(plots, out, runs, agent, agents)
        params = [run.num_params for run in runs if run.agent == "hyperagent" and run.num_params]
        if params:
            plots.data_against_parameters(
                out / "data_and_parameters.png", "Data and parameters for human-level scores",
                atari.efficiencies(int(np.median(params))),
            )
    except OSError as error:
        raise errors.UserError(f"cannot write to --out={FLAGS.out}: {error.strerror}") from error
    shown = [field for field in fields if "_" not in field]
    print("| " + " | ".join(shown) + " |\n" + "|---" * len(shown) + "|")
    for row in rows:
        print("| " + " | ".join(str(row[field]) for field in shown) + " |")
    print(f"{len(runs)} runs on {len(names)} game(s); pictures in {out}")
    return 0


def _draw_improvements(plots, out: pathlib.Path, runs: list[atari.Run], agent: str, agents: list[str]) -> None:
    """Relative improvement of an agent over every other one and over the paper's methods, game by game."""
    known = atari.games()

    def means(name):
        own: dict[str, list[float]] = {}
        for run in runs:
            if run.agent == name:
                own.setdefault(run.game, []).append(run.score)
        return {game: float(np.mean(scores)) for game, scores in own.items()}

    ours = means(agent)
    baselines = {other: means(other) for other in agents if other != agent}
    for method, name in atari.METHODS.items():
        baselines[name] = {game: known[game].published[method] for game in ours if method in known[game].published}
    for name, scores in baselines.items():
        values = {
            game: atari.relative_improvement(ours[game], scores[game], known[game])
            for game in ours if game in scores
        }
        if values:
            stem = "".join(c if c.isalnum() else "_" for c in f"{agent}_over_{name}".lower())
            plots.improvements(out / f"{stem.strip('_')}.png", f"{agent} compared with {name}", values)


if __name__ == "__main__":
    common.run(main)
