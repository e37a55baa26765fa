"""The page of a report on Atari runs."""

from collections.abc import Mapping, Sequence
import functools
import re
import statistics
from typing import Any

from hyperagent_jax.analysis import aggregate_views
from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import pages
from hyperagent_jax.analysis.atari import comparisons
from hyperagent_jax.analysis.atari import plots
from hyperagent_jax.analysis.atari import published
from hyperagent_jax.analysis.atari import read
from hyperagent_jax.analysis.atari import stats
from hyperagent_jax.analysis.sources import plural
from hyperagent_jax.analysis.sources import run_length

_CURVES = "Mean unclipped score of each evaluation's episodes. Thin lines are single seeds."
_AGGREGATES = (
    "Human-normalised scores: 0 for random actions, 1 for the human of the paper's table. Lines are 95% bootstrap "
    "intervals over seeds within games; a single seed has none. Every method is aggregated over the games it has "
    "scores for. The scores of the paper's methods are its averages over seeds; the IQM of averages differs from "
    "that of runs (for HyperAgent in 26 games it is 1.45, while the paper reports 1.22 over runs)."
)
BARS = functools.partial(aggregate_views.bars, problems="games", normalised="human-normalised score")
_PROFILES = "The fraction of games and seeds with a higher score; higher lines are better."
_EFFICIENCY = (
    "The paper's comparison of methods that reach an IQM of 1 on 26 games. Only HyperAgent's number of "
    "parameters is taken from these runs."
)
_HARD = (
    "Scores after 8M frames that were published with code, mean over runs, next to these runs where they include "
    "such a game. The evaluations differ, as described below."
)
_PAPER_IMPROVEMENT = "The paper's HyperAgent, computed from its table of 26 games with the same formula."
_IMPROVEMENT = "(score - baseline) / (max(human, baseline) - random) for each game."


def make(title: str, found: read.Results, table: tuple[Sequence[str], Sequence[dict[str, Any]]]) -> pages.Report:
    """Returns the report on all runs; `table` is that of `stats.summary_rows`."""
    _, rows = table
    scores = stats.score_rows(found)

    def drawing(name: str, title: str, caption: str, draw: Any, data: Any) -> list[pages.Drawing]:
        return [pages.Drawing(name, title, caption, draw, data, f"{title}.")] if data else []

    params = [run.num_params for run in found.runs if run.agent.startswith("hyperagent") and run.num_params]
    methods = published.efficiencies(int(statistics.median(params))) if params else []
    hard = {agent: stats.mean_scores(found.runs, agent) for agent in found.agents}
    hard = {agent: scores for agent, scores in hard.items() if scores.keys() & set(comparisons.HARD_GAMES)}
    hard = {**hard, **comparisons.hard_games()}
    efficiency_title = "Data and parameters for human-level scores"
    improvements = {
        re.sub(r"\W+", "_", f"{agent}_over_{other}".lower()).strip("_"): (f"{agent} compared with {other}", values)
        for agent in found.agents
        for other, values in stats.improvements(found, agent).items()
    }
    return pages.Report(
        title=title,
        lead=f"{plural(len(found.runs), 'run')} of {plural(len(found.agents), 'agent')} on "
        f"{plural(len(found.names), 'Atari game')}.",
        facts={agent: _fact([run for run in found.runs if run.agent == agent]) for agent in found.agents},
        notes=_notes(found),
        sections=[
            pages.Section(
                "Evaluations",
                drawing("curves", "Evaluations", _CURVES, plots.curves, found.curves),
                [_score_table(*scores)],
            ),
            pages.Section(
                "Aggregates",
                drawing("aggregates", "Human-normalised scores", _AGGREGATES, BARS, rows),
                [aggregate_views.table("Human-normalised scores", rows, "games")],
            ),
            pages.Section(
                "Performance profiles",
                drawing(
                    "profiles", "Performance profiles", _PROFILES, plots.profiles, stats.score_matrices(found)
                ),
            ),
            pages.Section(
                efficiency_title,
                drawing(
                    "data_and_parameters",
                    efficiency_title,
                    f"{_EFFICIENCY} {comparisons.bbf_caveat()}",
                    plots.data_against_parameters,
                    methods,
                ),
                [_quoted_table()],
            ),
            pages.Section(
                "Eight hard games",
                drawing("hard_games", "Eight hard games after 8M frames", _HARD, plots.hard_games, hard),
                [html.paragraph(". ".join(comparisons.hard_sources()) + ".", "quiet")],
            ),
            pages.Section(
                "Relative improvement",
                [
                    each
                    for name, (heading, values) in improvements.items()
                    for each in drawing(name, heading, _IMPROVEMENT, plots.improvements, values)
                ],
            ),
            pages.Section(
                "Relative improvement in the paper",
                [
                    each
                    for i, (other, values) in enumerate(comparisons.paper_improvements().items())
                    for each in drawing(
                        f"paper_over_{comparisons.BASELINES[i]}",
                        f"HyperAgent (paper) compared with {other}",
                        _PAPER_IMPROVEMENT,
                        plots.improvements,
                        values,
                    )
                ],
                [html.paragraph(comparisons.table_caveats())],
            ),
        ],
        sources=found.sources,
        closing="The tables are also available as scores.csv and summary.csv.",
        tables={"summary.csv": table, "scores.csv": scores},
    )


def _quoted_table() -> str:
    rows = [
        (
            row["method"],
            [
                [
                    row["games"],
                    *(html.number(row[x], ".3f") for x in ("iqm", "median", "mean")),
                    html.Cell(row["source"], "text"),
                ]
            ],
        )
        for row in comparisons.quoted()
    ]
    heads: html.Heads = [["Method", "Games", "IQM over games", "Median", "Mean", html.Cell("Source", "")]]
    return html.table("Quoted, not run here: human-normalised scores after 100,000 interactions", heads, rows)


def _fact(runs: Sequence[read.Run]) -> str:
    """Describes the runs of one agent."""
    length = run_length([run.interactions for run in runs])
    games, seeds = len({run.game for run in runs}), len({run.seed for run in runs})
    return f"{plural(games, 'game')}, {plural(seeds, 'seed')}, {length} interactions (four frames each) per run"


def _notes(found: read.Results) -> list[str]:
    notes = list(found.notes)
    for agent in found.agents:
        seeds = {sum(run.agent == agent and run.game == name for run in found.runs) for name in found.names} - {0}
        if len(seeds) > 1:
            fewest = plural(min(seeds), "seed")
            notes.append(f"{agent}: aggregates and profiles use {fewest} per game, as many as every game has.")
    return notes + [f"The configuration of some runs is unknown: {x.problem}." for x in found.sources if x.problem]


def _score_table(fields: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    blocks = [
        (row["game"], [[html.number(None if row[x] == "" else row[x], ",.1f") for x in fields[1:]]])
        for row in rows
    ]
    return html.table("Scores of the best parameters, mean over seeds", [["Game", *fields[1:]]], blocks)
