"""Plots of Atari runs."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import matplotlib.lines
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis import curves as curves_lib
from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.atari import comparisons
from hyperagent_jax.analysis.atari import published


def _thousands(value: float, _: Any = None) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def curves(
    file: style.File, title: str, lines: Mapping[str, Sequence[Mapping[str, str]]], *, narrow: bool = False
) -> None:
    """Draws evaluation scores against interactions: a panel per game, a line per label, a thin line per seed.

    Args:
        file: the PNG.
        title: what was run.
        lines: maps labels to rows of curve.csv.
        narrow: whether the picture is for the width of a phone.
    """
    names = sorted({row["game"] for rows in lines.values() for row in rows})
    many = len(names) > 12
    columns = (2 if many else 1) if narrow else min(len(names), 6 if many else 3)
    rows = math.ceil(len(names) / columns)
    known = published.games()
    panel = 3.0 if many else 4.6
    size = max(7.0, panel * columns), 0.8 * panel * rows + 1.0
    if narrow:
        size = 4.3, (1.9 if many else 3.0) * rows + 0.6 + 0.25 * len(lines)
    with style.picture(file, title, size, rows, columns, small_title=narrow, dpi=style.PANEL_DPI) as (
        figure,
        axes,
    ):
        for axis in axes.flat[len(names) :]:
            axis.remove()
        for axis, name in zip(axes.flat, names, strict=False):
            for i, own in enumerate(lines.values()):
                curves_lib.draw(axis, [row for row in own if row["game"] == name], "eval_score", style.colour(i))
            if name in known:
                axis.axhline(known[name].random, color="0.6", linestyle=":", linewidth=1.2)
                style.note(
                    axis,
                    "random",
                    (1.0, known[name].random),
                    (-2, 3),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    color="0.45",
                    fontsize=9,
                )
            axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_thousands))
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3 if narrow and many else 5))
            style.plain_numbers(axis.yaxis)
            axis.set(title=name, xlabel="interactions", ylabel="evaluation score")
            axis.set_xlim(left=0)
        handles = []
        for i, (label, own) in enumerate(lines.items()):
            text = curves_lib.seeds_label(label, [(row["game"], row["seed"]) for row in own])
            handles.append(matplotlib.lines.Line2D([], [], color=style.colour(i), linewidth=2, label=text))
        style.legend_of(figure, handles, narrow=narrow)


def profiles(file: style.File, title: str, scores: Mapping[str, np.ndarray], *, narrow: bool = False) -> None:
    """Draws the fraction of games and seeds above every score; `scores` maps labels to [games, seeds]."""
    largest = max(float(np.max(matrix)) for matrix in scores.values())
    thresholds = np.linspace(0.0, min(max(1.2, 1.05 * largest), 8.0), 400)
    size = (4.3, 3.6 + 0.25 * len(scores)) if narrow else (9.0, 5.2)
    with style.picture(file, title, size, small_title=narrow, dpi=style.PANEL_DPI) as (figure, axes):
        axis, handles = axes.item(), []
        for i, (label, matrix) in enumerate(scores.items()):
            share = aggregates.profile(matrix, thresholds)
            handles += axis.plot(thresholds, share, color=style.colour(i), linewidth=1.8, label=label)
        axis.axvline(1.0, color="0.6", linestyle=":", linewidth=1.2)
        style.note(
            axis,
            "human",
            (1.0, 1.0),
            (4, -4),
            xycoords=("data", "axes fraction"),
            va="top",
            color="0.45",
            fontsize=9,
        )
        axis.set(xlabel="human-normalised score", ylabel="share of runs with a higher score", ylim=(0, 1.02))
        style.legend_of(figure, handles, narrow=narrow)


def improvements(file: style.File, title: str, values: Mapping[str, float], *, narrow: bool = False) -> None:
    """Draws a bar per game, sorted; `values` maps games to relative improvements."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    size = (4.3 if narrow else 8.5, 1.4 + 0.27 * len(ordered))
    with style.picture(file, title, size, small_title=True, dpi=style.PANEL_DPI) as (_, axes):
        axis = axes.item()
        numbers = [100 * value for _, value in ordered]
        better, worse = style.COLOURS[:2]
        axis.barh(range(len(ordered)), numbers, color=[better if x >= 0 else worse for x in numbers])
        for i, number in enumerate(numbers):
            side, shift = ("left", 4) if number >= 0 else ("right", -4)
            style.note(axis, f"{number:+,.0f}%", (number, i), (shift, 0), va="center", ha=side, fontsize=8)
        axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
        axis.axvline(0, color="0.3", linewidth=1)
        axis.margins(x=0.3 if narrow else 0.15, y=0.01)
        # A few games improve a hundred times as much as others.
        axis.set_xscale("symlog", linthresh=10)
        axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}%"))
        axis.tick_params(axis="x", labelsize=7 if narrow else 9)
        axis.grid(False, axis="y")
        axis.set(xlabel="relative improvement (from 10% on, logarithmic)")


def hard_games(
    file: style.File, title: str, scores: Mapping[str, Mapping[str, float]], *, narrow: bool = False
) -> None:
    """Draws a panel per game with a bar per method; `scores` maps methods to scores by game."""
    names = comparisons.HARD_GAMES
    columns = 2 if narrow else 4
    rows = math.ceil(len(names) / columns)
    size = (4.3, 2.3 * rows + 0.25 * len(scores)) if narrow else (11.0, 2.9 * rows + 0.6)
    with style.picture(file, title, size, rows, columns, small_title=narrow, dpi=style.PANEL_DPI) as (
        figure,
        axes,
    ):
        for axis, name in zip(axes.flat, names, strict=True):
            for i, own in enumerate(scores.values()):
                if name in own:
                    axis.bar(i, own[name], color=style.colour(i))
            axis.set_xticks([])
            axis.axhline(0, color="0.3", linewidth=0.8)
            style.plain_numbers(axis.yaxis)
            axis.tick_params(axis="y", labelsize=7 if narrow else 9)
            axis.set_title(name)
        handles = [
            matplotlib.lines.Line2D([], [], color=style.colour(i), linewidth=5, label=label)
            for i, label in enumerate(scores)
        ]
        style.legend_of(figure, handles, narrow=narrow)


def data_against_parameters(
    file: style.File, title: str, methods: Sequence[published.Efficiency], *, narrow: bool = False
) -> None:
    """Draws the interactions that methods need to reach an IQM of 1 against their number of parameters.

    The sources are listed below, except on a phone, where there is no space.
    """
    size = (4.3, 4.6) if narrow else (9.0, 6.2)
    with style.picture(file, title, size, small_title=narrow, dpi=style.PANEL_DPI) as (figure, axes):
        axis = axes.item()
        for number, method in enumerate(methods, start=1):
            colour = style.colour(number - 1)
            marker = "*" if number == 1 else "o" if method.reaches_human else "x"
            area = 260 if number == 1 else 90
            axis.scatter(method.params, method.interactions, s=area, marker=marker, color=colour, zorder=3)
            text = f"{method.method} [{number}]" + ("" if method.reaches_human else "\n(below IQM 1)")
            is_again = any(other.interactions == method.interactions for other in methods[1 : number - 1])
            place, side = ((0, -22), "center") if number == 1 or is_again else ((11, 5), "left")
            point = (method.params, method.interactions)
            style.note(axis, text, point, place, ha=side, fontsize=8 if narrow else 10)
        axis.set(xscale="log", yscale="log", xlabel="parameters", ylabel="interactions to an IQM of 1")
        axis.set_xlim(3e5 if narrow else 5e5, 4e8 if narrow else 1.5e8)
        axis.set_ylim(5e4, 3e7)
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_formatter(matplotlib.ticker.FuncFormatter(_thousands))
        if not narrow:
            sources = "\n".join(f"[{number}] {method.source}" for number, method in enumerate(methods, start=1))
            figure.supxlabel(sources, x=0.01, ha="left", fontsize=8, color="0.3")
