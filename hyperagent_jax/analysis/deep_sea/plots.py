"""Plots of DeepSea runs."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import math
import os
from typing import Any

import matplotlib.figure
import matplotlib.lines
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import maps_over_training
from hyperagent_jax.analysis import style
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats

# With more lines than this a panel is unreadable.
_MAX_LINES = 12
# Over a smaller range, a logarithmic axis only obscures linear growth.
_LOG_RANGE = 20.0
# A line of a picture: its label and, at each x, the runs that differ only in the seed.
_Line = tuple[str, Sequence[tuple[float, list[read.Run]]]]


def single_run(path: str | os.PathLike, title: str, training: read.Training) -> None:
    """Draws a DeepSea run: learning curves of all seeds, and the maps of one seed, at the end and over training.

    Args:
        path: the PNG.
        title: what was run.
        training: the run.
    """
    maps = training.maps
    if maps is None:
        with style.panels(path, title, 1) as (axis,):
            _curves(axis, training)
        return
    has_strip = maps_over_training.can_draw(maps)
    with style.picture(path, title, (15.0, 7.6 if has_strip else 4.6)) as (figure, axes):
        axes.item().remove()
        heights = (1.7, 1.0) if has_strip else (1.0,)
        upper, *lower = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        curves, *of_maps = upper.subplots(1, 3)
        _curves(curves, training)
        for axis, name in zip(of_maps, ("value", "uncertainty"), strict=True):
            image = axis.imshow(
                _reachable(maps[name]), cmap="viridis" if name == "value" else "magma", interpolation="nearest"
            )
            upper.colorbar(image, ax=axis, shrink=0.85)
            axis.grid(visible=False)
            for direction in (axis.xaxis, axis.yaxis):
                direction.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            label = {"value": "Greedy value, mean over indices", "uncertainty": "Its standard deviation"}[name]
            axis.set(title=f"{label} (seed {maps['seed']})", xlabel="column", ylabel="row")
        for part in lower:
            frames = maps_over_training.chosen(_frames(maps))
            maps_over_training.strip(part.subplots(1, len(frames)), frames)


def learning_curves(file: style.File, title: str, training: read.Training, *, narrow: bool = False) -> None:
    """Draws evaluation returns by episode, a line per seed."""
    with style.picture(file, title, (4.3, 3.6) if narrow else (11.0, 4.4), small_title=narrow) as (_, axes):
        _curves(axes.item(), training)


def uncertainty_over_training(
    file: style.File, title: str, training: read.Training, *, narrow: bool = False
) -> None:
    """Draws how the standard deviation of every cell's greedy value shrinks over the training of one seed."""
    assert training.maps is not None
    maps_over_training.draw(file, title, {"": _frames(training.maps)}, narrow=narrow)


def _reachable(values: np.ndarray) -> np.ndarray:
    """Masks the cells that no episode reaches."""
    return np.ma.masked_where(~np.tri(values.shape[-1], dtype=bool), values)


def _frames(maps: Mapping[str, Any]) -> list[maps_over_training.Frame]:
    pairs = zip(maps["episodes"], maps["uncertainties"], strict=True)
    return [maps_over_training.Frame(int(episodes), _reachable(std)) for episodes, std in pairs]


def _curves(axis: Any, training: read.Training) -> None:
    """Draws evaluation returns by episode, a line per seed."""
    seeds = sorted({int(row["seed"]) for row in training.curve})
    for i, seed in enumerate(seeds):
        rows = [row for row in training.curve if int(row["seed"]) == seed]
        axis.plot(
            [int(row["episodes"]) for row in rows],
            [float(row["eval_return"]) for row in rows],
            **style.line_style(i),
            markersize=4,
            label=f"seed {seed}",
        )
    if (solved := training.solved_return) is not None:
        axis.axhline(solved, color="0.4", linestyle=style.DASHES, linewidth=1)
        style.note(
            axis,
            f"solved: {solved:g}",
            (0.01, solved),
            (0, 3),
            xycoords=("axes fraction", "data"),
            va="bottom",
            color="0.4",
        )
    axis.set(xlabel="episodes", ylabel="evaluation return", title="Learning curves")
    if 0 < len(seeds) <= _MAX_LINES:
        axis.legend()


def episodes_to_learn(
    file: style.File, title: str, groups: Sequence[stats.Group], *, narrow: bool = False
) -> None:
    """Draws episodes to learn against the size, a line per group, and their linear fits.

    Args:
        file: the PNG.
        title: what is shown.
        groups: the runs; if there are many groups, every agent with several of them gets its own panel.
        narrow: whether the picture is for the width of a phone, with the legend below.
    """
    panels: dict[str, list[stats.Group]] = {"": list(groups)}
    if len(groups) > _MAX_LINES:
        count = collections.Counter(group.agent for group in groups)
        panels = {}
        for group in sorted(groups, key=lambda group: count[group.agent] == 1):
            panels.setdefault(group.agent if count[group.agent] > 1 else "other agents", []).append(group)
    sizes = sorted({size for group in groups for size in group.sizes})
    any_fits = False
    width, height = (4.3, 4.2) if narrow else (11.0, 5.2 if len(panels) == 1 else 4.2)
    below = 0.8 + 0.5 * len(groups) if narrow else 0.0
    picture_size = width, height * len(panels) + 0.8 + below
    with style.picture(file, title, picture_size, len(panels), small_title=narrow, sharex=True, sharey=True) as (
        figure,
        axes,
    ):
        for axis, (name, members) in zip(axes.flat, panels.items(), strict=True):
            lines = [
                (group.label.removeprefix(f"{name}, "), [(size, group.at(size)) for size in group.sizes])
                for group in members
            ]
            handles, shifts = _draw_lines(axis, lines, sizes, width)
            for group, handle, shift in zip(members, handles, shifts, strict=True):
                label = _wrap(str(handle.get_label()), 44 if narrow else 30)
                fits = stats.fit(group)
                if (linear := fits.linear) is not None:
                    any_fits = True
                    x = np.linspace(group.sizes[0], group.sizes[-1], 200)
                    # A line with a negative intercept would plunge on a logarithmic axis.
                    least = min(run.episodes for run in group.runs if run.episodes is not None)
                    y = np.where(linear(x) >= 0.8 * least, linear(x), np.nan)
                    axis.plot(
                        x + shift, y, color=handle.get_color(), linestyle=style.DASHES, linewidth=1.1, alpha=0.8
                    )
                    on_one_line = narrow and len(label) < 20
                    label += f"{': ' if on_one_line else chr(10)}{_equation(linear)}"
                    laws = {"exponent": fits.power, "of midpoints": fits.power_of_midpoints}
                    exponents = ", ".join(f"{name} {law.slope:.2f}" for name, law in laws.items() if law)
                    if exponents and fits.exponent_interval:
                        low, high = fits.exponent_interval
                        exponents += f"\n(95%: {low:.2f} to {high:.2f})"
                    label += f"\n{exponents}".replace("-", "\N{MINUS SIGN}") if exponents else ""
                handle.set_label(label)
            axis.set_xticks(sizes)
            axis.tick_params(labelbottom=True)
            axis.set(title=name, xlabel="size N", ylabel="episodes to learn")
            axis.legend(
                handles=handles,
                loc="upper left",
                bbox_to_anchor=(-0.2, -0.14) if narrow else (1.01, 1.0),
                labelspacing=0.5 if narrow else 0.8,
            )
        runs = [run for group in groups for run in group.runs]
        _finish(figure, axes.flat, runs, narrow, fits=any_fits)


def ablation(file: style.File, title: str, study: stats.Ablation, *, narrow: bool = False) -> None:
    """Draws episodes to learn against one setting: a line per size, or a panel per size and a line per label.

    Args:
        file: the PNG.
        title: what is shown.
        study: the runs.
        narrow: whether the picture is for the width of a phone, with panels and legend below one another.
    """
    x = dict(zip(study.values, _positions(study.values), strict=True))

    def line(label: str, size: int) -> list[tuple[float, list[read.Run]]]:
        cells = study.lines[label]
        return [(x[value], cells[size, value]) for value in study.values if (size, value) in cells]

    panels = {f"size {size}": [(label, line(label, size)) for label in study.lines] for size in study.sizes}
    if len(study.lines) == 1:
        (label,) = study.lines
        panels = {label: [(f"size {size}", line(label, size)) for size in study.sizes]}
    columns = 1 if narrow else len(panels) if len(panels) <= 3 else 2
    rows = math.ceil(len(panels) / columns)
    num_lines = len(next(iter(panels.values())))
    width, height = (4.3, 3.3) if narrow else (11.0, 4.6 if rows == 1 else 3.8)
    below = 0.8 + 0.25 * num_lines if narrow else 0.0
    picture_size = width, height * rows + 0.8 + below
    with style.picture(file, title, picture_size, rows, columns, small_title=narrow, sharex=True, sharey=True) as (
        figure,
        axes,
    ):
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        used = axes.flat[: len(panels)]
        for axis, (name, lines) in zip(used, panels.items(), strict=True):
            handles, _ = _draw_lines(axis, lines, list(x.values()), width / columns)
            axis.set_xticks(list(x.values()), list(x))
            axis.tick_params(labelbottom=True)
            axis.set(title=name, xlabel=study.setting)
        for axis in axes[:, 0]:
            axis.set_ylabel("episodes to learn")
        for handle in handles:
            handle.set_label(_wrap(str(handle.get_label()), 44 if narrow else 30))
        if not narrow:
            axes[0, -1].legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), labelspacing=0.8)
        runs = [run for cells in study.lines.values() for cell in cells.values() for run in cell]
        _finish(figure, used, runs, narrow, legend=handles if narrow else ())


def _positions(values: Sequence[str]) -> list[float]:
    """Returns the positions of a setting's values, which are in order: logarithmic, linear, or evenly spaced."""
    even = [float(i) for i in range(len(values))]
    numbers = stats.as_numbers(values)
    if numbers is None:
        return even
    if numbers[0] > 0.0 and numbers[-1] / numbers[0] >= 4.0:
        numbers = [math.log2(number) for number in numbers]
    gaps = np.diff(numbers)
    # Closer together, they would overlap.
    return numbers if gaps.min() > 0.08 * gaps.sum() else even


def _draw_lines(
    axis: Any, lines: Sequence[_Line], places: Sequence[float], width: float
) -> tuple[list[matplotlib.lines.Line2D], np.ndarray]:
    """Draws seeds, means and failures of all lines side by side.

    Args:
        axis: the panel.
        lines: the lines to draw.
        places: all x, in order.
        width: width of the panel with its legend in inches.

    Returns:
        A legend handle and the horizontal shift of each line.
    """
    gap = float(min(np.diff(places), default=1.0))
    points = 0.7 * 72 * width / (places[-1] - places[0] + 1.2 * gap)  # per unit of x, roughly
    step = min(0.75 * gap / len(lines), 26 / points)
    room = step * points  # for the label above a cross
    shifts = step * (np.arange(len(lines)) - (len(lines) - 1) / 2)
    axis.set_xlim(places[0] - 0.6 * gap, places[-1] + 0.6 * gap)
    if len(lines) > 1:  # marks the points of the same x
        axis.grid(False, axis="x")
        half_width = min(shifts[-1] + step, 0.46 * gap)
        for x in places:
            axis.axvspan(x - half_width, x + half_width, color="0.96", linewidth=0, zorder=0)
    handles = []
    for i, ((label, cells), shift) in enumerate(zip(lines, shifts, strict=True)):
        colour, marker = style.line_style(i).values()
        means = []
        for place, runs in cells:
            x = place + shift
            summary = stats.summarise(runs)
            solved = [run.episodes for run in runs if run.episodes is not None]
            limits = [run.limit for run in runs if run.limit is not None]
            axis.scatter([x] * len(solved), solved, s=14, color=colour, alpha=0.3, linewidths=0, zorder=2)
            axis.scatter([x] * len(limits), limits, s=34, color=colour, marker="x", linewidths=1.6, zorder=4)
            if limits:
                style.note(
                    axis,
                    f"{summary.solved}/{summary.solved + summary.failed}",
                    (x, max(limits)),
                    (0, 6),
                    ha="center",
                    va="bottom",
                    color=colour,
                    fontsize=8 if room > 10 else 7,
                    rotation=90 if room < 25 and len(lines) > 1 else 0,
                )
            if solved:
                means.append((x, summary.mean, "white" if limits else colour))
        if means:
            xs, ys, faces = zip(*means, strict=True)
            axis.plot(xs, ys, color=colour, linewidth=1.6, zorder=3)
            axis.scatter(xs, ys, s=46, marker=marker, color=faces, edgecolors=colour, linewidths=1.5, zorder=5)
        handles.append(matplotlib.lines.Line2D([], [], color=colour, marker=marker, markersize=7, label=label))
    return handles, shifts


def _wrap(label: str, width: int) -> str:
    """Wraps a label between its settings."""
    lines = [""]
    for part in label.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return ",\n".join(lines)


def _equation(linear: stats.LinearFit) -> str:
    sign = "+" if linear.intercept >= 0.0 else "-"
    quality = "" if math.isnan(linear.r_squared) else f", R\N{SUPERSCRIPT TWO} {linear.r_squared:.2f}"
    text = f"{linear.slope:.1f} N {sign} {abs(linear.intercept):,.0f}{quality}"
    return text.replace("-", "\N{MINUS SIGN}")


def _finish(
    figure: matplotlib.figure.Figure,
    axes: Iterable[Any],
    runs: Sequence[read.Run],
    narrow: bool,
    legend: Sequence[matplotlib.lines.Line2D] = (),
    fits: bool = False,
) -> None:
    """Sets the scale and explains the marks in the legend."""
    limits = [run.limit for run in runs if run.limit is not None]
    values = [*limits, *(run.episodes for run in runs if run.episodes is not None)] or [1]
    for axis in axes:
        if min(values) > 0 and max(values) / min(values) > _LOG_RANGE:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
            axis.set_ylim(0.75 * min(values), (1.9 if limits else 1.25) * max(values))
        else:
            axis.set_ylim(0.0, (1.2 if limits else 1.08) * max(values))
        style.plain_numbers(axis.yaxis)
        for limit in set(limits):
            axis.axhline(limit, color="0.6", linestyle=":", linewidth=1, zorder=1)

    def sign(label: str, **look: Any) -> matplotlib.lines.Line2D:
        return matplotlib.lines.Line2D([], [], **{"color": "0.35", "linestyle": "", "label": label, **look})

    signs = [
        *legend,
        sign("one seed", marker="o", markersize=4, alpha=0.5),
        sign("mean over solved seeds", marker="o", markersize=7, linestyle="-"),
    ]
    if limits:
        signs += [
            sign("the same, some failed", marker="o", markersize=7, markerfacecolor="white", linestyle="-"),
            sign("failed at the limit, k/n solved", marker="x", markersize=6, markeredgewidth=1.6),
        ]
    if fits:
        signs.append(sign("linear fit", linestyle=style.DASHES, linewidth=1.1))
    if crashed := sum(run.crashed for run in runs):
        signs.append(sign(f"({crashed} crashed run{'s' if crashed > 1 else ''} not shown)"))
    figure.legend(
        handles=signs,
        loc="outside lower left",
        ncols=1 if narrow else len(signs),
        fontsize=9,
        labelcolor="0.25",
        handletextpad=0.5,
        columnspacing=1.1,
    )
