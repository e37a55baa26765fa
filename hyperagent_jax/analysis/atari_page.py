"""The page of a report on Atari runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from hyperagent_jax.analysis import atari
from hyperagent_jax.analysis import document
from hyperagent_jax.analysis import page
from hyperagent_jax.analysis.document import Cell

_CAPTIONS = {
    "curves": "Mean unclipped score of every evaluation's games; with several seeds thin lines are seeds.",
    "aggregates": "Human-normalised scores: random actions have 0, the human of the paper's table has 1. Lines "
    "are 95% intervals of a bootstrap over seeds within games; a single seed has none. Every method is measured "
    "in the games that it has. The paper's methods have the averages over seeds of its tables; the IQM of "
    "averages is not that of runs (of HyperAgent in 26 games 1.45, where the paper reports 1.22 over runs).",
    "profiles": "The share of games and seeds with a higher score; the higher a line, the better.",
    "data_and_parameters": "The paper's comparison of methods that reach an IQM of 1 on 26 games, not a result of "
    "these runs: of these only HyperAgent's number of parameters.",
}
_HEADINGS = {
    "curves": "Evaluations",
    "aggregates": "Aggregates",
    "profiles": "Performance profiles",
    "data_and_parameters": "Data and parameters for human-level scores",
}


def build(
    title: str,
    found: atari.Results,
    summary: Sequence[Mapping[str, Any]],
    pictures: Mapping[str, document.Picture],
    provenance: dict[str, Any],
) -> str:
    """The page.

    Args:
        title: the heading.
        found: the runs.
        summary: rows of `atari.summary_rows`.
        pictures: "curves", "aggregates", "profiles" and "data_and_parameters", as far as there are any; all others
            compare an agent with another method, as their names say.
        provenance: command and commit that made the page.
    """
    tables = {"curves": _score_table(found), "aggregates": _aggregate_table(summary)}
    sections = [document.section("What was run", _about(found))]
    for name, heading in _HEADINGS.items():
        figure = document.figure(pictures[name], _CAPTIONS[name]) if name in pictures else ""
        if parts := [part for part in (figure, tables.get(name)) if part]:
            sections.append(document.section(heading, *parts))
    others = [picture for name, picture in pictures.items() if name not in _HEADINGS]
    if others:
        caption = "(score - baseline) / (max(human, baseline) - random), game by game."
        figures = [document.figure(picture, caption) for picture in others]
        sections.append(document.section("Relative improvement", *figures))
    sections.append(
        document.section(
            "Where the runs come from", *map(page.source_details, found.sources), page.differences(found.sources)
        )
    )
    lead = (
        f"{page.plural(len(found.runs), 'run')} of {page.plural(len(found.agents), 'agent')} on "
        f"{page.plural(len(found.names), 'Atari game')}."
    )
    footer = page.footer(provenance, "The tables are also in scores.csv and summary.csv.")
    return document.whole(title, document.paragraph(lead, "lead"), sections, footer)


def _about(found: atari.Results) -> str:
    facts = {}
    for agent in found.agents:
        own = [run for run in found.runs if run.agent == agent]
        lengths = sorted({run.interactions for run in own})
        # Games side by side may end a run a few interactions late.
        length = f"{lengths[0]:,}" + (f" to {lengths[-1]:,}" if lengths[-1] > 1.01 * lengths[0] else "")
        seeds = page.plural(len({run.seed for run in own}), "seed")
        games = page.plural(len({run.game for run in own}), "game")
        facts[agent] = f"{games}, {seeds}, {length} interactions (four frames each) a run"
    notes = list(found.notes)
    for agent in found.agents:
        seeds = [sum(run.agent == agent and run.game == name for run in found.runs) for name in found.names]
        if len({*seeds} - {0}) > 1:
            fewest = page.plural(min({*seeds} - {0}), "seed")
            notes.append(f"{agent}: aggregates and profiles are of {fewest} per game, as many as all games have.")
    notes += [f"How some runs were made is not known: {x.problem}." for x in found.sources if x.problem]
    return document.facts(facts) + "".join(document.paragraph(note, "note") for note in notes)


def _score_table(found: atari.Results) -> str:
    fields, rows = atari.score_rows(found)
    heads = [[Cell("Game", ""), *(Cell(name) for name in fields[1:])]]
    blocks = [
        (row["game"], [[document.number(None if row[x] == "" else row[x], ",.1f") for x in fields[1:]]])
        for row in rows
    ]
    return document.table("Scores of the best parameters, mean over seeds", heads, blocks)


def _aggregate_table(summary: Sequence[Mapping[str, Any]]) -> str:
    heads = [[Cell("Method", ""), Cell("Games"), Cell("Seeds"), *(Cell(name) for name in atari.STATISTICS)]]
    blocks = []
    for row in summary:
        cells = [document.number(row["games"]), document.number(row["seeds"])]
        for name in atari.STATISTICS:
            text = document.number(row[name], ".2f").text
            if row[f"{name}_low"] != "":
                ends = [document.number(row[f"{name}_{end}"], ".2f").text for end in ("low", "high")]
                text += f" ({' to '.join(ends)})"
            cells.append(Cell(text))
        blocks.append((row["method"], [cells]))
    return document.table("Human-normalised scores", heads, blocks)
