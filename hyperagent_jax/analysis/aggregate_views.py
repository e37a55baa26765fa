"""Shows aggregated scores as bars with intervals and as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import style


def bars(
    file: style.File,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    problems: str,
    normalised: str,
    narrow: bool = False,
) -> None:
    """Draws one panel per statistic, with one bar and interval per method.

    Args:
        file: the PNG.
        title: what was run.
        rows: "method", the number of `problems`, "seeds", and the fields of `aggregates.row`.
        problems: the column with the number of problems; labels use the same word.
        normalised: name of the scores.
        narrow: whether the picture is for the width of a phone.
    """
    count = len(aggregates.STATISTICS)
    height = 1.2 + 0.42 * len(rows)
    shape, size = ((count, 1), (4.3, count * height)) if narrow else ((1, count), (12.0, height))
    with style.picture(file, title, size, *shape, small_title=narrow, dpi=style.PANEL_DPI, sharey=True) as (
        _,
        grid,
    ):
        axes = list(grid.flat)
        labels = [
            f"{row['method']}\n({row[problems]} {problems}, {row['seeds']} seeds)"
            if row["seeds"] != 1
            else f"{row['method']} ({row[problems]} {problems})"
            for row in rows
        ]
        for axis, name in zip(axes, aggregates.STATISTICS, strict=True):
            for i, row in enumerate(rows):
                axis.barh(i, row[name], color=style.colour(i), alpha=0.75, height=0.65)
                if row[f"{name}_low"] != "":
                    axis.plot([row[f"{name}_low"], row[f"{name}_high"]], [i, i], color="0.15", linewidth=2)
                end = max(row[name], row[f"{name}_high"] or row[name], 0)
                style.note(axis, f"{row[name]:.2f}", (end, i), (4, 0), va="center", fontsize=9)
            axis.set_yticks(range(len(rows)), labels, fontsize=8 if narrow else 10)
            axis.margins(x=0.18)
            axis.set(title=name, xlabel=normalised)
            axis.grid(False, axis="y")
        axes[0].invert_yaxis()


def interval(row: Mapping[str, Any], name: str, pattern: str = ".2f") -> html.Cell:
    """Returns a cell with a value and its interval, if there is one."""
    value, low, high = (
        "" if row[x] == "" else html.number(row[x], pattern).text for x in (name, f"{name}_low", f"{name}_high")
    )
    return html.Cell(f"{value} ({low} to {high})" if low else value)


def table(caption: str, rows: Sequence[Mapping[str, Any]], problems: str) -> str:
    """Returns the table of the rows of `bars`."""
    blocks: html.Blocks = [
        (row["method"], [[row[problems], row["seeds"], *(interval(row, name) for name in aggregates.STATISTICS)]])
        for row in rows
    ]
    return html.table(caption, [["Method", problems.capitalize(), "Seeds", *aggregates.STATISTICS]], blocks)
