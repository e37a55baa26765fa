"""The page of a report on bsuite runs."""

from collections.abc import Sequence

from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import pages
from hyperagent_jax.analysis.bsuite import plots
from hyperagent_jax.analysis.bsuite import stats
from hyperagent_jax.analysis.html import Cell
from hyperagent_jax.analysis.sources import plural


def make(title: str, logs: Sequence[stats.Log]) -> pages.Report:
    """Returns the report on several agents, each with a log."""
    scores = {log.label: log.scores for log in logs}
    solutions = {name: {log.label: log.solutions[name] for log in logs} for name in logs[0].solutions}
    has_solutions = any(own for each in solutions.values() for own in each.values())
    in_table = "; the numbers are in the table below."
    radar = pages.Drawing(
        "bsuite_radar",
        "bsuite scores by tag",
        "Mean score of the experiments with each of bsuite's tags; the outer circle is 1. Only experiments that "
        "were run count.",
        plots.radar,
        {label: stats.by_tag(own) for label, own in scores.items()},
        f"bsuite scores by tag{in_table}",
    )
    bars = pages.Drawing(
        "bsuite_scores",
        "bsuite scores",
        "bsuite's score of each experiment: about 0 for random actions, 1 for what bsuite considers solved.",
        plots.bars,
        scores,
        f"bsuite scores{in_table}",
    )
    solve_times = pages.Drawing(
        "bsuite_deep_sea",
        "Episodes until DeepSea is solved",
        "The first logged episode at which fewer than 90% (stochastic: 80%, from episode 100 on) of all episodes "
        "so far had left the diagonal, which is bsuite's definition of solved. The dashed line is what random "
        "actions need on average.",
        plots.solve_times,
        solutions,
        f"Episodes until DeepSea is solved{in_table}",
    )
    curves = pages.Drawing(
        "bsuite_curves",
        "Learning curves",
        "Return per episode since the previous logged episode, averaged over the ids of an experiment, without "
        "rescaling ids whose rewards have different scales.",
        plots.curves,
        {log.label: stats.curves(log.frame) for log in logs},
        "Learning curves.",
    )
    sections = [
        pages.Section("Scores by tag", [radar], [_tag_table(radar.data)]),
        pages.Section("Scores by experiment", [bars], [_score_table(scores)]),
    ]
    tables = {"scores.csv": stats.score_rows(logs)}
    closing = "The scores are also available as scores.csv"
    if has_solutions:
        tables["deep_sea.csv"] = stats.solution_rows(logs)
        sections.append(pages.Section("DeepSea: episodes until solved", [solve_times], [_solution_table(logs)]))
        closing += ", the episodes until DeepSea was solved as deep_sea.csv"
    sections.append(pages.Section("Learning curves", [curves]))
    return pages.Report(
        title=title,
        lead=f"{plural(sum(log.num_ids for log in logs), 'run')} of {plural(len(logs), 'agent')} on bsuite.",
        facts={
            log.label: f"{plural(log.num_ids, 'id')} of {plural(log.frame.bsuite_env.nunique(), 'experiment')}, "
            f"{int(log.frame.groupby('bsuite_id').steps.max().sum()):,} steps"
            for log in logs
        },
        notes=[note for log in logs for note in _notes(log)],
        sections=sections,
        sources=[log.source for log in logs],
        closing=f"{closing}.",
        tables=tables,
        unit="id",
    )


def _notes(log: stats.Log) -> list[str]:
    notes = []
    if partial := [score.experiment for score in log.scores if not score.is_finished]:
        notes.append(
            f"{log.label}: {', '.join(partial)} ran for fewer episodes than bsuite prescribes; these scores are "
            "not comparable."
        )
    if some := [f"{x.experiment} {x.num_ids} of {x.all_ids}" for x in log.scores if x.num_ids < x.all_ids]:
        notes.append(f"{log.label}: only some ids were run, and scores cover only those: {', '.join(some)}.")
    notes += [f"{log.label}: {name} {reason}." for name, reason in log.not_run.items()]
    if log.source.problem:
        notes.append(f"The configuration of {log.label} is unknown: {log.source.problem}.")
    return notes


def _tag_table(tags: dict[str, dict[str, float]]) -> str:
    names = [name for name in stats.TAGS if any(name in own for own in tags.values())]
    blocks = [(label, [[html.number(own.get(name), ".2f") for name in names]]) for label, own in tags.items()]
    return html.table("Mean scores by tag", [["Agent", *(name.replace("_", " ") for name in names)]], blocks)


def _score_table(scores: dict[str, list[stats.Score]]) -> str:
    def cell(score: stats.Score) -> Cell:
        note = "" if score.num_ids == score.all_ids else f" ({score.num_ids} of {score.all_ids} ids)"
        number = html.number(score.score, ".2f", warn=not score.is_finished)
        return Cell(number.text + note, number.kind)

    found = {label: {score.experiment: cell(score) for score in own} for label, own in scores.items()}
    blocks = [
        (
            name,
            [
                [
                    Cell(", ".join(stats.tags(name)).replace("_", " "), "text"),
                    *(own.get(name) for own in found.values()),
                ]
            ],
        )
        for name in stats.EXPERIMENTS
        if any(name in own for own in found.values())
    ]
    return html.table("Scores", [["Experiment", Cell("Tags", ""), *scores]], blocks)


def _solution_table(logs: Sequence[stats.Log]) -> str:
    fields, rows = stats.solution_rows(logs)
    blocks = []
    for log in logs:
        lines: list[html.Row] = [
            [
                Cell(row["experiment"], ""),
                row["size"],
                Cell("yes" if row["solved"] else "no"),
                row["episode"],
                Cell("yes" if row["beats_dithering"] else "no"),
            ]
            for row in rows
            if row["agent"] == log.label
        ]
        if lines:
            blocks.append((log.label, lines))
    heads = [["Agent", *(name.replace("_", " ") for name in fields[1:])]]
    return html.table("Episodes until solved", heads, blocks)
