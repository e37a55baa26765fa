"""Plots of runs in environments."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import matplotlib.lines
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis import curves as curves_lib
from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.environments import read
from hyperagent_jax.analysis.environments import stats


def curves(file: style.File, title: str, found: read.Results, *, narrow: bool = False) -> None:
    """Draws the mean evaluation return of every agent with its band: a panel per environment.

    Evaluations are matched by number, because parallel environments delay them by a few interactions.
    """
    names = list(dict.fromkeys(point.env for point in found.points))
    agents = [agent for agent in found.agents if any(point.agent == agent for point in found.points)]
    columns = 1 if narrow else min(len(names), 3)
    rows = math.ceil(len(names) / columns)
    size = (4.3, 3.0 * rows + 0.6 + 0.25 * len(agents)) if narrow else (max(7.0, 4.6 * columns), 3.7 * rows + 1.0)
    with style.picture(file, title, size, rows, columns, small_title=narrow, dpi=style.PANEL_DPI) as picture:
        figure, axes = picture
        for axis in axes.flat[len(names) :]:
            axis.remove()
        for axis, name in zip(axes.flat, names, strict=False):
            for i, agent in enumerate(agents):
                own = [point for point in found.points if (point.env, point.agent) == (name, agent)]
                if own:
                    _curve(axis, own, style.colour(i))
            scale = stats.scale(found, name) if name in found.names else None
            if scale is not None and scale.is_random:
                axis.axhline(scale.low, color="0.6", linestyle=":", linewidth=1.2)
            axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
            style.plain_numbers(axis.yaxis)
            axis.set(title=name, xlabel="interactions", ylabel="evaluation return")
            axis.set_xlim(left=0)
        handles = []
        for i, agent in enumerate(agents):
            text = curves_lib.seeds_label(agent, [(p.env, p.seed) for p in found.points if p.agent == agent])
            handles.append(matplotlib.lines.Line2D([], [], color=style.colour(i), linewidth=2, label=text))
        style.legend_of(figure, handles, narrow=narrow)


def _curve(axis: Any, points: Sequence[read.Point], colour: str) -> None:
    seeds: dict[int, list[tuple[int, float]]] = {}
    for point in sorted(points, key=lambda point: point.interactions):
        seeds.setdefault(point.seed, []).append((point.interactions, point.eval_return))
    common = min(map(len, seeds.values()))
    values = np.array([own[:common] for own in seeds.values()])  # [seeds, points, 2]
    interactions, means = values.mean(axis=0).T
    axis.plot(interactions, means, color=colour, linewidth=1.8)
    if len(seeds) > 1:
        low, high = aggregates.mean_band(values[..., 1])
        axis.fill_between(interactions, low, high, color=colour, alpha=0.18, linewidth=0)


def improvements(file: style.File, title: str, rows: Sequence[Mapping[str, Any]], *, narrow: bool = False) -> None:
    """Draws probabilities of improvement with their intervals; `rows` are from `stats.improvement_rows`."""
    size = (4.3 if narrow else 9.0, 1.6 + 0.42 * len(rows))
    with style.picture(file, title, size, small_title=narrow, dpi=style.PANEL_DPI) as (_, axes):
        axis = axes.item()
        for i, row in enumerate(rows):
            if row["probability_low"] != "":
                axis.plot([row["probability_low"], row["probability_high"]], [i, i], color="0.4", linewidth=2)
            axis.plot(row["probability"], i, marker="o", color=style.colour(0))
            style.note(axis, f"{row['probability']:.2f}", (row["probability"], i), (0, 6), ha="center", fontsize=9)
        labels = [f"{row['method']} over\n{row['over']}" for row in rows]
        axis.set_yticks(range(len(rows)), labels, fontsize=8 if narrow else 9)
        axis.axvline(0.5, color="0.6", linestyle=":", linewidth=1.2)
        axis.set(xlim=(-0.02, 1.02), xlabel="probability that a run is better")
        axis.grid(False, axis="y")
        axis.margins(y=0.3)
        axis.invert_yaxis()
