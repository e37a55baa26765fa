"""Pictures of Atari runs."""

from collections.abc import Mapping, Sequence
import math
import os

import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import atari
from hyperagent_jax.analysis import style


def _thousands(value, _=None):
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def curves(
    path: str | os.PathLike, title: str, lines: Mapping[str, Sequence[Mapping[str, str]]], *, smooth: int = 1
) -> None:
    """Draws evaluation scores against interactions: a panel per game, a line per label, thin ones per seed.

    Args:
        path: the PNG.
        title: what was run.
        lines: maps labels to rows of curve.csv.
        smooth: number of evaluations that a point of the mean line averages over.
    """
    names = sorted({row["game"] for rows in lines.values() for row in rows})
    columns = min(len(names), 6 if len(names) > 12 else 3)
    height = math.ceil(len(names) / columns)
    known = atari.games()
    size = 3.0 if len(names) > 12 else 4.6
    with style.context():
        figure, axes = plt.subplots(
            height, columns, squeeze=False, layout="constrained",
            figsize=(max(7.0, size * columns), 0.8 * size * height + 1.0),
        )
        for axis in axes.flat[len(names):]:
            axis.remove()
        for axis, name in zip(axes.flat, names, strict=False):
            for (label, rows), colour in zip(lines.items(), style.COLOURS * len(lines), strict=False):
                own = [row for row in rows if row["game"] == name]
                _draw_curve(axis, own, label, colour, smooth)
            if name in known:
                axis.axhline(known[name].random, color="0.6", linestyle=":", linewidth=1.2)
                axis.annotate(
                    "random", (1.0, known[name].random), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                    textcoords="offset points", ha="right", color="0.45", fontsize=9,
                )
            axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_thousands))
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
            style.plain_numbers(axis.yaxis)
            axis.set(title=name, xlabel="interactions", ylabel="evaluation score")
            axis.set_xlim(left=0)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=max(1, len(handles)), fontsize=10)
        figure.suptitle(title, x=0.01, ha="left", fontsize="x-large", fontweight="bold")
        style.save(figure, path, dpi=110)


def _draw_curve(axis, rows, label, colour, smooth) -> None:
    seeds = sorted({int(row["seed"]) for row in rows})
    points: dict[int, list[float]] = {}
    for seed in seeds:
        own = [row for row in rows if int(row["seed"]) == seed]
        x = [int(row["interactions"]) for row in own]
        y = [float(row["eval_score"]) for row in own]
        for k, score in enumerate(y):
            points.setdefault(k, []).append(score)
        is_single = len(seeds) == 1 and smooth == 1
        axis.plot(
            x, y, color=colour, linewidth=1.8 if is_single else 0.8, alpha=1.0 if is_single else 0.35,
            marker="o", markersize=3.5 if is_single else 2.0, label=label if is_single else None,
        )
    if not rows or (len(seeds) == 1 and smooth == 1):
        return
    means = [np.mean(points[k]) for k in sorted(points)]
    kept = [np.mean(means[max(0, k - smooth + 1) : k + 1]) for k in range(len(means))]
    x = sorted({int(row["interactions"]) for row in rows if int(row["seed"]) == seeds[0]})
    length = min(len(x), len(kept))
    note = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else f", mean of {smooth} evaluations"
    axis.plot(x[:length], kept[:length], color=colour, linewidth=2.2, label=label + note)


def aggregates(path: str | os.PathLike, title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Draws the table of `atari.summary_rows`: one panel per statistic, one bar per method with its interval."""
    with style.context():
        figure, axes = plt.subplots(
            1, len(atari.STATISTICS), figsize=(12.0, 1.2 + 0.42 * len(rows)), layout="constrained", sharey=True,
        )
        labels = [f"{row['method']} ({row['games']} games, {row['seeds']} seeds)" if row["seeds"] != 1
                  else f"{row['method']} ({row['games']} games)" for row in rows]
        for axis, name in zip(axes, atari.STATISTICS, strict=True):
            for i, row in enumerate(rows):
                colour = style.COLOURS[i % len(style.COLOURS)]
                axis.barh(i, row[name], color=colour, alpha=0.75, height=0.65)
                if row[f"{name}_low"] != "":
                    axis.plot([row[f"{name}_low"], row[f"{name}_high"]], [i, i], color="0.15", linewidth=2)
                end = max(row[name], row[f"{name}_high"] or row[name], 0)
                axis.annotate(f"{row[name]:.2f}", (end, i), xytext=(4, 0), textcoords="offset points", va="center",
                              fontsize=9)
            axis.set_yticks(range(len(rows)), labels)
            axis.margins(x=0.18)
            axis.set(title=name, xlabel="human-normalised score")
            axis.grid(False, axis="y")
        axes[0].invert_yaxis()
        figure.suptitle(title, x=0.01, ha="left", fontsize="x-large", fontweight="bold")
        style.save(figure, path, dpi=110)


def profiles(path: str | os.PathLike, title: str, scores: Mapping[str, np.ndarray]) -> None:
    """Draws the share of games and seeds above every score; `scores` maps labels to [games, seeds]."""
    largest = max(float(np.max(matrix)) for matrix in scores.values())
    thresholds = np.linspace(0.0, min(max(1.2, 1.05 * largest), 8.0), 400)
    with style.context():
        figure, axis = plt.subplots(figsize=(8.0, 4.8), layout="constrained")
        for (label, matrix), colour in zip(scores.items(), style.COLOURS * len(scores), strict=False):
            axis.plot(thresholds, atari.profile(matrix, thresholds), color=colour, linewidth=1.8, label=label)
        axis.axvline(1.0, color="0.6", linestyle=":", linewidth=1.2)
        axis.annotate("human", (1.0, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4),
                      textcoords="offset points", va="top", color="0.45", fontsize=9)
        axis.set(xlabel="human-normalised score", ylabel="share of runs with a higher score", ylim=(0, 1.02))
        axis.legend(loc="upper right", fontsize=9)
        figure.suptitle(title, x=0.01, ha="left", fontsize="x-large", fontweight="bold")
        style.save(figure, path, dpi=110)


def improvements(path: str | os.PathLike, title: str, values: Mapping[str, float]) -> None:
    """Draws a bar per game, in order; `values` maps games to relative improvements."""
    ordered = sorted(values.items(), key=lambda item: item[1])
    with style.context():
        figure, axis = plt.subplots(figsize=(8.5, 1.4 + 0.27 * len(ordered)), layout="constrained")
        numbers = [100 * value for _, value in ordered]
        better, worse = style.COLOURS[:2]
        axis.barh(range(len(ordered)), numbers, color=[better if x >= 0 else worse for x in numbers])
        for i, number in enumerate(numbers):
            side, shift = ("left", 4) if number >= 0 else ("right", -4)
            axis.annotate(f"{number:+,.0f}%", (number, i), xytext=(shift, 0), textcoords="offset points",
                          va="center", ha=side, fontsize=8)
        axis.set_yticks(range(len(ordered)), [name for name, _ in ordered])
        axis.axvline(0, color="0.3", linewidth=1)
        axis.margins(x=0.15, y=0.01)
        # A few games gain a hundred times as much as others.
        axis.set_xscale("symlog", linthresh=10)
        axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:,.0f}%"))
        axis.grid(False, axis="y")
        axis.set(xlabel="relative improvement (from 10% on, logarithmic)")
        figure.suptitle(title, x=0.01, ha="left", fontsize="large", fontweight="bold")
        style.save(figure, path, dpi=110)


def data_against_parameters(path: str | os.PathLike, title: str, methods: Sequence[atari.Efficiency]) -> None:
    """Draws the interactions that methods need for an IQM of 1 against their parameters, and the sources."""
    with style.context():
        figure, axis = plt.subplots(figsize=(9.0, 6.2), layout="constrained")
        for number, method in enumerate(methods, start=1):
            colour = style.COLOURS[(number - 1) % len(style.COLOURS)]
            marker = "*" if number == 1 else "o" if method.reaches_human else "x"
            size = 260 if number == 1 else 90
            axis.scatter(method.params, method.interactions, s=size, marker=marker, color=colour, zorder=3)
            text = f"{method.method} [{number}]" + ("" if method.reaches_human else "\n(below IQM 1)")
            place, side = ((0, -22), "center") if number == 1 else ((11, 5), "left")
            axis.annotate(text, (method.params, method.interactions), xytext=place, textcoords="offset points",
                          ha=side, fontsize=10)
        axis.set(xscale="log", yscale="log", xlabel="parameters", ylabel="interactions to an IQM of 1")
        axis.set_xlim(5e5, 6e7)
        axis.set_ylim(5e4, 3e7)
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_formatter(matplotlib.ticker.FuncFormatter(_thousands))
        sources = "\n".join(f"[{number}] {method.source}" for number, method in enumerate(methods, start=1))
        figure.supxlabel(sources, x=0.01, ha="left", fontsize=8, color="0.3")
        figure.suptitle(title, x=0.01, ha="left", fontsize="x-large", fontweight="bold")
        style.save(figure, path, dpi=110)
