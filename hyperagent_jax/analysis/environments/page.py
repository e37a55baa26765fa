"""The page of a report on runs in environments."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from hyperagent_jax.analysis import aggregate_views
from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import pages
from hyperagent_jax.analysis.environments import plots
from hyperagent_jax.analysis.environments import read
from hyperagent_jax.analysis.environments import stats
from hyperagent_jax.analysis.sources import listed
from hyperagent_jax.analysis.sources import plural
from hyperagent_jax.analysis.sources import run_length

_CURVES = (
    "Mean return of each evaluation's episodes, averaged over seeds; bands are 95% bootstrap intervals of the "
    "mean over seeds. Dotted lines show random actions where their return is known."
)
_NORMALISED = (
    "Final returns, normalised per environment: 0 is the mean return of random actions ({low}), 1 is the mean "
    "return of the best agent on this page, so the numbers are meaningful only within this page. Lines are 95% "
    "bootstrap intervals over seeds within environments; a single seed has none."
)
_IMPROVEMENT = (
    "The probability that a run of the first agent has a higher final return than one of the second, in a "
    "randomly chosen environment; equal returns count half. Lines are 95% intervals of the same bootstrap."
)
_BARS = functools.partial(aggregate_views.bars, problems="environments", normalised="normalised return")
_Table = tuple[Sequence[str], Sequence[dict[str, Any]]]


def make(title: str, found: read.Results, summary: _Table) -> pages.Report:
    """Returns the report on all runs; `summary` is that of `stats.summary_rows`."""
    scores, improvement = stats.score_rows(found), stats.improvement_rows(found)
    worst = [env for env in stats.compared(found) if not stats.scale(found, env).is_random]
    low = f"or of the worst agent, in {listed(worst)}" if worst else "measured in these runs"

    def drawing(name: str, title: str, caption: str, draw: Any, data: Any) -> list[pages.Drawing]:
        return [pages.Drawing(name, title, caption, draw, data, f"{title}.")] if data else []

    return pages.Report(
        title=title,
        lead=f"{plural(len(found.runs), 'run')} of {plural(len(found.agents), 'agent')} in "
        f"{plural(len(found.names), 'environment')}.",
        facts={agent: _fact([run for run in found.runs if run.agent == agent]) for agent in found.agents},
        notes=_notes(found),
        sections=[
            pages.Section(
                "Evaluations",
                drawing("curves", "Evaluations", _CURVES, plots.curves, found if found.points else None),
                [_score_table(scores[1])],
            ),
            pages.Section(
                "Over all environments",
                drawing("aggregates", "Normalised returns", _NORMALISED.format(low=low), _BARS, summary[1]),
                [aggregate_views.table("Normalised returns", summary[1], "environments")] if summary[1] else [],
            ),
            pages.Section(
                "Probability of improvement",
                drawing(
                    "improvement", "Probability of improvement", _IMPROVEMENT, plots.improvements, improvement[1]
                ),
            ),
        ],
        sources=found.sources,
        closing="The tables are also available as scores.csv, summary.csv and improvement.csv.",
        tables={"scores.csv": scores, "summary.csv": summary, "improvement.csv": improvement},
    )


def _fact(runs: Sequence[read.Run]) -> str:
    """Describes the runs of one agent."""
    length = run_length([run.interactions for run in runs])
    names, seeds = len({run.env for run in runs}), len({run.seed for run in runs})
    return f"{plural(names, 'environment')}, {plural(seeds, 'seed')}, {length} interactions per run"


def _notes(found: read.Results) -> list[str]:
    notes, names = list(found.notes), stats.compared(found)
    for env in found.names:
        if env in names:
            continue
        if lacking := [agent for agent in found.agents if not len(stats.returns_of(found, env, agent))]:
            notes.append(f"{env} is excluded from aggregates: {listed(lacking)} did not run there.")
        else:
            notes.append(f"{env} is excluded from aggregates: no agent is better than random actions there.")
    for agent in found.agents:
        seeds = {len(stats.returns_of(found, env, agent)) for env in names}
        if len(seeds) > 1:
            fewest = plural(min(seeds), "seed")
            notes.append(f"{agent}: aggregates use {fewest} per environment, as many as every environment has.")
    return notes + [f"The configuration of some runs is unknown: {x.problem}." for x in found.sources if x.problem]


def _score_table(rows: Sequence[Mapping[str, Any]]) -> str:
    blocks: dict[str, list[html.Row]] = {}
    for row in rows:
        cells: html.Row = [html.Cell(row["method"], ""), row["seeds"]]
        cells += [aggregate_views.interval(row, name, ",.4g") for name in ("final", "best")]
        cells += [html.number(None if row[name] == "" else row[name], ",.4g") for name in ("random", "normalised")]
        blocks.setdefault(row["env"], []).append(cells)
    heads: html.Heads = [
        ["Environment", html.Cell("Agent", ""), "Seeds", "Final return", "Best evaluation", "Random", "Normalised"]
    ]
    return html.table(
        "Mean returns over seeds with 95% bootstrap intervals; the best evaluation is selected in hindsight",
        heads,
        list(blocks.items()),
    )
