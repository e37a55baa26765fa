"""The page of a report on tabular studies."""

from collections.abc import Mapping, Sequence
import types
from typing import Any

from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import pages
from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.sources import listed
from hyperagent_jax.analysis.sources import plural
from hyperagent_jax.analysis.tabular import plots
from hyperagent_jax.analysis.tabular import read

# The page shows this many rows of a table.
_MOST_ROWS = 100


def make(title: str, studies: Sequence[read.Study]) -> pages.Report:
    """Returns the report on studies."""
    return pages.Report(
        title=title,
        lead=f"Of run_tabular.py: {listed(study.name for study in studies)}.",
        facts={study.name: _settings(study.settings) for study in studies},
        notes=[f"The configuration of {study.folder} is unknown." for study in studies if study.source.problem],
        sections=[pages.Section(study.name.capitalize(), _drawings(study), _tables(study)) for study in studies],
        sources=[study.source for study in studies],
        closing="The tables are the csv files in the folders of the studies.",
        tables={},
        unit="row",
    )


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {listed(value) if isinstance(value, list) and value else value}"
        for name, value in settings.items()
    )


def _drawings(study: read.Study) -> list[pages.Drawing]:
    draw = plots.PLOTS.get(study.name)
    if draw is None:
        return []

    def drawn(file: style.File, title: str, data: read.Study, *, narrow: bool = False) -> None:
        del title, narrow  # a study has one picture
        draw(file, data.tables, types.SimpleNamespace(**data.settings))

    return [pages.Drawing(study.name, study.name, "", drawn, study, f"The figure of the study {study.name}.")]


def _tables(study: read.Study) -> list[str]:
    """Returns the tables, each in a part that opens."""
    parts = []
    for name, rows in study.tables.items():
        heads: html.Heads = [list(rows[0])]
        blocks: html.Blocks = [
            (first, [[html.Cell(value) for value in others]])
            for first, *others in (row.values() for row in rows[:_MOST_ROWS])
        ]
        aside = plural(len(rows), "row") + (f", the first {_MOST_ROWS} shown" if len(rows) > _MOST_ROWS else "")
        parts.append(html.details(f"{name}.csv", aside, html.table(name, heads, blocks)))
    return parts
