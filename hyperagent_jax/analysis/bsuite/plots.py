"""Plots of bsuite runs, with several agents side by side."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import matplotlib.lines
import matplotlib.patches
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.bsuite import stats


def _colours(labels: Sequence[str]) -> dict[str, str]:
    return {label: style.colour(i) for i, label in enumerate(labels)}


def radar(file: style.File, title: str, tags: Mapping[str, Mapping[str, float]], *, narrow: bool = False) -> None:
    """Draws the mean score per tag, with an outline per agent.

    Args:
        file: the PNG.
        title: what is shown.
        tags: maps agents to the scores of their tags. Tags without a score leave a gap.
        narrow: whether the picture is for the width of a phone.
    """
    names = [tag for tag in stats.TAGS if any(tag in scores for scores in tags.values())]
    angles = 2 * np.pi * np.arange(len(names)) / max(len(names), 1)
    colours = _colours(list(tags))
    size = (4.3, 5.2) if narrow else (8.0, 7.0)
    polar = {"projection": "polar"}
    with style.picture(file, title, size, small_title=narrow, subplot_kw=polar) as (figure, axes):
        axis = axes.item()
        axis.set_theta_zero_location("N")
        axis.set_theta_direction(-1)
        for i, (label, scores) in enumerate(tags.items()):
            values = np.array([scores.get(name, np.nan) for name in names])
            closed = np.append(values, values[:1]), np.append(angles, angles[:1])
            marker = style.MARKERS[i % len(style.MARKERS)]
            axis.plot(closed[1], closed[0], color=colours[label], marker=marker, linewidth=1.8, clip_on=False)
            if len(names) > 2 and not np.isnan(values).any():
                axis.fill(angles, values, color=colours[label], alpha=0.08)
        axis.set_ylim(0.0, 1.0)
        axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["0.25", "0.5", "0.75", "1"], fontsize=8, color="0.4")
        axis.set_rlabel_position(180 / max(len(names), 1))
        axis.set_xticks(angles, [name.replace("_", "\n") for name in names])
        axis.tick_params(axis="x", pad=8 if narrow else 14, labelsize=8.5 if narrow else 11)
        for text, angle in zip(axis.get_xticklabels(), angles, strict=True):
            side = math.sin(angle)
            text.set_horizontalalignment("center" if abs(side) < 0.2 else "left" if side > 0 else "right")
        axis.grid(color="0.85")
        style.legend_of(figure, style.handles(tags), narrow=narrow)


def bars(
    file: style.File, title: str, scores: Mapping[str, Sequence[stats.Score]], *, narrow: bool = False
) -> None:
    """Draws the score of every experiment, with a bar per agent; bars of partial runs are pale.

    Args:
        file: the PNG.
        title: what is shown.
        scores: maps agents to their scores.
        narrow: whether the picture is for the width of a phone.
    """
    have = {score.experiment for own in scores.values() for score in own}
    experiments = [name for name in stats.EXPERIMENTS if name in have]
    colours = _colours(list(scores))
    thickness = 0.8 / len(scores)
    any_partial = False
    height = 0.9 + len(experiments) * max(0.32, 0.16 * len(scores)) + (0.25 * len(scores) if narrow else 0.3)
    with style.picture(file, title, (4.3 if narrow else 9.0, height + 0.6), small_title=narrow) as (figure, axes):
        axis = axes.item()
        for i, (label, own) in enumerate(scores.items()):
            for score in own:
                if math.isnan(score.score):
                    continue
                y = experiments.index(score.experiment) + (i - (len(scores) - 1) / 2) * thickness
                any_partial |= not score.is_finished
                alpha = 1.0 if score.is_finished else 0.35
                axis.barh(y, score.score, 0.92 * thickness, color=colours[label], alpha=alpha)
                axis.text(
                    score.score + 0.01,
                    y,
                    f"{score.score:.2f}",
                    va="center",
                    fontsize=7 if narrow else 8,
                    color="0.25",
                )
        axis.set_yticks(range(len(experiments)), experiments, fontsize=8 if narrow else 10)
        axis.set_ylim(len(experiments) - 0.4, -0.6)
        axis.set_xlim(0.0, 1.1)
        axis.set_xticks(np.linspace(0, 1, 5))
        axis.axvline(1.0, color="0.6", linestyle=":", linewidth=1)
        axis.grid(False, axis="y")
        axis.set_xlabel("bsuite score")
        handles: list[Any] = [matplotlib.patches.Patch(color=colours[label], label=label) for label in scores]
        if any_partial:
            note = "pale: fewer episodes than bsuite's"
            handles.append(matplotlib.patches.Patch(color="0.4", alpha=0.35, label=note))
        style.legend_of(figure, handles, narrow=narrow)


def solve_times(
    file: style.File,
    title: str,
    solutions: Mapping[str, Mapping[str, Sequence[stats.Solution]]],
    *,
    narrow: bool = False,
) -> None:
    """Draws the episode at which each size of DeepSea was solved, next to the 2^N of random actions.

    Args:
        file: the PNG.
        title: what is shown.
        solutions: maps experiments to agents and their solutions.
        narrow: whether the picture is for the width of a phone.
    """
    panels = {name: own for name, own in solutions.items() if any(own.values())}
    labels = list(dict.fromkeys(label for own in panels.values() for label in own))
    colours = _colours(labels)
    columns = 1 if narrow else len(panels)
    rows = math.ceil(len(panels) / columns)
    below = 0.25 * (len(labels) + 2) if narrow else 0.0
    size = (4.3, 3.2 * rows + 0.7 + below) if narrow else (5.5 * columns + 0.5, 5.0)
    with style.picture(file, title, size, rows, columns, small_title=narrow, sharex=True, sharey=True) as (
        figure,
        axes,
    ):
        every = [found for own in panels.values() for each in own.values() for found in each]
        smallest, top = min(found.size for found in every), max(found.episode for found in every)
        bottom = min(2 ** (smallest - 1), *(found.episode for found in every))
        for axis, (name, own) in zip(axes.flat, panels.items(), strict=True):
            x = np.linspace(smallest - 1, max(smallest, math.log2(2 * top)), 50)
            axis.plot(x, 2.0**x, color="0.5", linestyle=style.DASHES, linewidth=1.2)
            for label, each in own.items():
                colour, marker = colours[label], style.MARKERS[labels.index(label) % len(style.MARKERS)]
                solved = [(found.size, found.episode) for found in each if found.is_solved]
                failed = [(found.size, found.episode) for found in each if not found.is_solved]
                if solved:
                    axis.plot(*zip(*solved, strict=True), color=colour, marker=marker, linewidth=1.5, markersize=5)
                if failed:
                    axis.scatter(*zip(*failed, strict=True), color=colour, marker="x", s=30, linewidths=1.5)
            axis.set_yscale("log")
            axis.set_ylim(0.7 * bottom, 2.2 * top)  # the panels share this axis
            axis.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
            style.plain_numbers(axis.yaxis)
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            axis.tick_params(labelbottom=True, labelleft=True)
            axis.set(title=name, xlabel="size N", ylabel="episodes until solved")
        handles = [
            *style.handles(labels),
            matplotlib.lines.Line2D([], [], color="0.5", linestyle=style.DASHES, label="random actions, 2^N"),
        ]
        if not all(found.is_solved for found in every):
            handles.append(
                matplotlib.lines.Line2D([], [], color="0.35", linestyle="", marker="x", label="not solved by then")
            )
        style.legend_of(figure, handles, narrow=narrow)


def curves(
    file: style.File,
    title: str,
    lines: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
    *,
    narrow: bool = False,
) -> None:
    """Draws learning curves: a panel per experiment, a line per agent.

    Args:
        file: the PNG.
        title: what is shown.
        lines: maps agents to experiments and their episodes and returns (`stats.curves`).
        narrow: whether the picture is for the width of a phone.
    """
    experiments = [name for name in stats.EXPERIMENTS if any(name in own for own in lines.values())]
    colours = _colours(list(lines))
    columns = 2 if narrow else min(4, len(experiments))
    rows = math.ceil(len(experiments) / columns)
    below = 0.25 * len(lines) if narrow else 0.2
    size = (4.3, 1.7 * rows + 0.5 + below) if narrow else (11.0, 2.5 * rows + 0.5 + 0.5 + below)
    dpi = 110 if rows > 3 else 160  # files with many panels are large
    with style.picture(file, title, size, rows, columns, small_title=narrow, dpi=dpi) as (figure, axes):
        for axis in axes.flat[len(experiments) :]:
            axis.set_axis_off()
        for axis, name in zip(axes.flat, experiments, strict=False):
            for label, own in lines.items():
                if name in own:
                    axis.plot(*own[name], color=colours[label], linewidth=1.5)
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
            axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(numticks=4 if narrow else 6))
            style.plain_numbers(axis.xaxis)
            axis.set_title(name, fontsize=8.5 if narrow else 10.5)
            axis.tick_params(labelsize=6.5 if narrow else 8)
            axis.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
        for axis in axes.flat[max(0, len(experiments) - columns) : len(experiments)]:  # bottom panels
            axis.set_xlabel("episode", fontsize=8 if narrow else 10)
        figure.supylabel("return per episode", fontsize=9 if narrow else 11)
        handles = [matplotlib.lines.Line2D([], [], color=colours[label], label=label) for label in lines]
        style.legend_of(figure, handles, narrow=narrow)
