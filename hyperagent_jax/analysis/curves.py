"""Plots learning curves of any experiment: a thin line per seed, and their mean."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hyperagent_jax.analysis import style


def draw(axis: Any, rows: Sequence[Mapping[str, str]], column: str, colour: str) -> None:
    """Draws all seeds, and the mean over seeds of the evaluations that all of them have.

    Args:
        axis: the axis to draw in.
        rows: rows of curve.csv.
        column: the column to draw against interactions.
        colour: colour of the lines.
    """
    seeds: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        seeds.setdefault(row["seed"], []).append((int(row["interactions"]), float(row[column])))
    is_single = len(seeds) == 1
    for points in seeds.values():
        axis.plot(
            *zip(*points, strict=True),
            color=colour,
            linewidth=1.8 if is_single else 0.8,
            alpha=1.0 if is_single else 0.35,
            marker="o",
            markersize=3.5 if is_single else 2.0,
        )
    if len(seeds) > 1:
        # Match evaluations by number: parallel environments delay them by a few interactions.
        common = min(map(len, seeds.values()))
        means = np.mean([points[:common] for points in seeds.values()], axis=0)
        axis.plot(*means.T, color=colour, linewidth=2.2, label=f"mean of {len(seeds)} seeds")


def returns(file: style.File, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Draws the evaluation returns of one agent in one environment."""
    with style.panels(file, title, 1, width=8.0) as (axis,):
        draw(axis, rows, "eval_return", style.colour(0))
        style.plain_numbers(axis.xaxis)
        axis.set(xlabel="interactions", ylabel="evaluation return")
        axis.set_xlim(left=0)
        if axis.get_legend_handles_labels()[1]:
            axis.legend()


def environments(file: style.File, title: str, lines: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Draws evaluation returns: a panel per environment, a line per label, a thin line per seed.

    Args:
        file: the PNG.
        title: what was run.
        lines: maps labels to rows of curve.csv.
    """
    names = sorted({row["env"] for rows in lines.values() for row in rows})
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    with style.picture(file, title, (max(7.0, 4.6 * columns), 3.7 * rows + 1.0), rows, columns) as (figure, axes):
        for axis in axes.flat[len(names) :]:
            axis.remove()
        for axis, name in zip(axes.flat, names, strict=False):
            for i, own in enumerate(lines.values()):
                draw(axis, [row for row in own if row["env"] == name], "eval_return", style.colour(i))
            style.plain_numbers(axis.xaxis)
            axis.set(title=name, xlabel="interactions", ylabel="evaluation return")
            axis.set_xlim(left=0)
        style.legend_of(figure, style.handles(lines))


def seeds_label(name: str, panels_and_seeds: Iterable[tuple[str, Any]]) -> str:
    """Returns the text of a legend: the name, and over how many seeds a panel's curve is averaged."""
    seeds: dict[str, set[Any]] = {}
    for panel, seed in panels_and_seeds:
        seeds.setdefault(panel, set()).add(seed)
    fewest, most = min(map(len, seeds.values())), max(map(len, seeds.values()))
    if most == 1:
        return name
    return f"{name}, mean of {most} seeds" if fewest == most else f"{name}, mean of {fewest} to {most} seeds"
