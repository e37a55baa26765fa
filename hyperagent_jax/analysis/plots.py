"""Pictures of runs; the only file that imports matplotlib."""

from collections.abc import Sequence
import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np


def deep_sea_run(
    path: str | os.PathLike,
    title: str,
    curve: Sequence[dict[str, str]],
    maps: dict[str, np.ndarray] | None,
    solved_return: float,
) -> None:
    """Draws a DeepSea run: learning curves of all seeds and, of one seed, value and uncertainty per cell.

    Args:
        path: the PNG.
        title: what was run.
        curve: rows of curve.csv.
        maps: `value` and `uncertainty`, [size, size], of the seed named in the panel's title; or None.
        solved_return: drawn as a line.
    """
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    figure.suptitle(title, fontsize="x-large", fontweight="bold")
    seeds = sorted({int(row["seed"]) for row in curve})
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.9, max(len(seeds), 1)))
    for seed, colour in zip(seeds, colours, strict=True):
        rows = [row for row in curve if int(row["seed"]) == seed]
        episodes = [int(row["episodes"]) for row in rows]
        label = f"seed {seed}" if len(seeds) <= 10 else None
        axes[0].plot(episodes, [float(row["eval_return"]) for row in rows], color=colour, label=label, marker=".")
    axes[0].axhline(solved_return, color="grey", linestyle="--", linewidth=1)
    axes[0].annotate(
        f"solved: {solved_return:g}", (0.01, solved_return), xycoords=("axes fraction", "data"),
        xytext=(0, -4), textcoords="offset points", va="top", color="grey",
    )
    axes[0].set(xlabel="episodes", ylabel="evaluation return", title="Learning curves")
    if len(seeds) <= 10 and seeds:
        axes[0].legend(fontsize="small", loc="best")
    for axis, name in zip(axes[1:], ("value", "uncertainty"), strict=True):
        if maps is None:
            axis.set_axis_off()
            continue
        size = maps[name].shape[0]
        reachable = np.tri(size, dtype=bool)
        values = np.ma.masked_where(~reachable, maps[name])
        image = axis.imshow(values, cmap="viridis" if name == "value" else "magma", interpolation="nearest")
        figure.colorbar(image, ax=axis, shrink=0.85)
        label = {"value": "Greedy value, mean over indices", "uncertainty": "Its standard deviation"}[name]
        for direction in (axis.xaxis, axis.yaxis):
            direction.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axis.set(title=f"{label} (seed {int(maps['seed'])})", xlabel="column", ylabel="row")
    figure.savefig(path, dpi=110)
    plt.close(figure)
