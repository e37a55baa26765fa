"""The page of a report on bsuite runs."""

from collections.abc import Sequence
from typing import Any

from hyperagent_jax.analysis import bsuite_scores
from hyperagent_jax.analysis import document
from hyperagent_jax.analysis import page
from hyperagent_jax.analysis.document import Cell

CAPTIONS = {
    "radar": "Mean score of the experiments with each of bsuite's tags; 1 is the outer circle. Only experiments "
    "that were run count.",
    "scores": "bsuite's score of each experiment: about 0 for random actions, 1 for what bsuite considers solved.",
    "deep_sea": "The first logged episode at which fewer than 90% (stochastic: 80%, from episode 100 on) of all "
    "episodes so far had left the diagonal, which is bsuite's definition of solved. The dashed line is what "
    "random actions need on average.",
    "curves": "Return per episode since the logged episode before, averaged over the ids of an experiment. Ids of "
    "an experiment with rewards of different scale are averaged as they are.",
}
_HEADINGS = {
    "radar": "Scores by tag",
    "scores": "Scores by experiment",
    "deep_sea": "DeepSea: episodes until solved",
    "curves": "Learning curves",
}


def build(
    title: str,
    logs: Sequence[bsuite_scores.Log],
    pictures: dict[str, document.Picture],
    provenance: dict[str, Any],
) -> str:
    """The page.

    Args:
        title: the heading.
        logs: the runs, one per agent.
        pictures: those of `CAPTIONS` that there are.
        provenance: command and commit that made the page.
    """
    scores = {log.label: log.scores for log in logs}
    tables = {"radar": _tag_table(scores), "scores": _score_table(scores), "deep_sea": _solution_table(logs)}
    sections = [document.section("What was run", _about(logs, scores))]
    for name, heading in _HEADINGS.items():
        if name in pictures:
            figure = document.figure(pictures[name], CAPTIONS[name])
            sections.append(document.section(heading, figure, tables.get(name, "")))
    sources = [log.source for log in logs]
    sections.append(
        document.section(
            "Where the runs come from",
            *(page.source_details(source, "id") for source in sources),
            page.differences(sources),
        )
    )
    episodes = ", the episodes until DeepSea was solved in deep_sea.csv" if "deep_sea" in pictures else ""
    footer = page.footer(provenance, f"The scores are also in scores.csv{episodes}.")
    ids = sum(log.frame.bsuite_id.nunique() for log in logs)
    lead = f"{page.plural(ids, 'run')} of {page.plural(len(logs), 'agent')} on bsuite."
    return document.whole(title, document.paragraph(lead, "lead"), sections, footer)


def _about(logs: Sequence[bsuite_scores.Log], scores: dict[str, list[bsuite_scores.Score]]) -> str:
    facts = {
        log.label: f"{page.plural(log.frame.bsuite_id.nunique(), 'id')} of "
        f"{page.plural(log.frame.bsuite_env.nunique(), 'experiment')}, {_steps(log):,} steps"
        for log in logs
    }
    notes = []
    for log in logs:
        partial = [score.experiment for score in scores[log.label] if not score.is_finished]
        if partial:
            notes.append(
                f"{log.label}: fewer episodes than bsuite's were run of {', '.join(partial)}; these scores are "
                "not comparable."
            )
        some = [x for x in scores[log.label] if x.num_ids < x.all_ids]
        if some:
            parts = ", ".join(f"{x.experiment} {x.num_ids} of {x.all_ids}" for x in some)
            notes.append(f"{log.label}: not all ids were run, the scores are of those that were: {parts}.")
        notes += [f"{log.label}: {name} {reason}." for name, reason in log.not_run.items()]
        if log.source.problem:
            notes.append(f"How the runs of {log.label} were made is not known: {log.source.problem}.")
    return document.facts(facts) + "".join(document.paragraph(note, "note") for note in notes)


def _steps(log: bsuite_scores.Log) -> int:
    return int(log.frame.groupby("bsuite_id").steps.max().sum())


def _tag_table(scores: dict[str, list[bsuite_scores.Score]]) -> str:
    tags = {label: bsuite_scores.by_tag(own) for label, own in scores.items()}
    names = [name for name in bsuite_scores.TAGS if any(name in own for own in tags.values())]
    heads = [[Cell("Agent", ""), *(Cell(name.replace("_", " ")) for name in names)]]
    blocks = [(label, [[document.number(own.get(name), ".2f") for name in names]]) for label, own in tags.items()]
    return document.table("Mean scores by tag", heads, blocks)


def _score_table(scores: dict[str, list[bsuite_scores.Score]]) -> str:
    found = {label: {score.experiment: score for score in own} for label, own in scores.items()}
    heads = [[Cell("Experiment", ""), Cell("Tags", ""), *(Cell(label) for label in scores)]]
    blocks = []
    for name in bsuite_scores.EXPERIMENTS:
        if any(name in own for own in found.values()):
            row = [Cell(", ".join(bsuite_scores.tags(name)).replace("_", " "), "text")]
            for own in found.values():
                if name not in own:
                    row.append(document.number(None))
                    continue
                score = own[name]
                note = "" if score.num_ids == score.all_ids else f" ({score.num_ids} of {score.all_ids} ids)"
                text = document.number(score.score, ".2f").text
                row.append(Cell(text + note, "number" if score.is_finished else "number warn"))
            blocks.append((name, [row]))
    return document.table("Scores", heads, blocks)


def _solution_table(logs: Sequence[bsuite_scores.Log]) -> str:
    fields, rows = bsuite_scores.solution_table(logs)
    heads = [[Cell("Agent", ""), *(Cell(name.replace("_", " ")) for name in fields[1:])]]
    blocks = []
    for log in logs:
        lines = [
            [
                Cell(row["experiment"], ""),
                document.number(row["size"]),
                Cell("yes" if row["solved"] else "no"),
                document.number(row["episode"]),
                Cell("yes" if row["beats_dithering"] else "no"),
            ]
            for row in rows
            if row["agent"] == log.label
        ]
        if lines:
            blocks.append((log.label, lines))
    return document.table("Episodes until solved", heads, blocks)
