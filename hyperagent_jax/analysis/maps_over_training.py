"""How the uncertainty of every cell of a grid shrinks over training: a strip of maps with one scale of colours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.colors
import matplotlib.ticker
import numpy as np

from hyperagent_jax.analysis import style

# Maps in a row; a phone has half of them.
MOST = 6
# The smallest value with a colour of its own, as a share of the largest.
_RANGE = 1e-3


class Frame(NamedTuple):
    """The standard deviation of every cell, [rows, columns], after a number of episodes."""

    episodes: int
    uncertainty: np.ndarray


def can_draw(maps: Mapping[str, Any]) -> bool:
    """Returns whether maps over training were recorded, of an agent that is ever uncertain."""
    return "uncertainties" in maps and len(maps["uncertainties"]) > 1 and bool(np.max(maps["uncertainties"]) > 0)


def chosen(frames: Sequence[Frame], most: int = MOST) -> list[Frame]:
    """Returns the first frame, the last, and others evenly between them."""
    places = np.linspace(0, len(frames) - 1, min(most, len(frames)))
    return [frames[round(place)] for place in places]


def strip(axes: Sequence[Any], frames: Sequence[Frame], label: str = "", top: float | None = None) -> None:
    """Draws frames into panels side by side and removes the panels that are left.

    Args:
        axes: the panels.
        frames: maps over training; if there are more than panels, some are left out.
        label: what the maps belong to, in front of the first.
        top: the largest value of the scale; by default that of the frames.
    """
    shown = chosen(frames, len(axes))
    top = max(float(np.max(frame.uncertainty)) for frame in frames) if top is None else top
    scale = matplotlib.colors.LogNorm(_RANGE * top, top, clip=True)
    for axis, frame in zip(axes, shown, strict=False):
        image = axis.imshow(frame.uncertainty, cmap="magma", norm=scale, interpolation="nearest")
        axis.grid(visible=False)
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"{frame.episodes:,} episodes", fontsize=10)
    for axis in axes[len(shown) :]:
        axis.remove()
    axes[0].set_ylabel(label or "standard deviation", fontsize=10)
    bar = axes[0].figure.colorbar(image, ax=list(axes[: len(shown)]), shrink=0.9, pad=0.01)
    style.plain_numbers(bar.ax.yaxis)
    bar.ax.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def draw(file: style.File, title: str, lines: Mapping[str, Sequence[Frame]], *, narrow: bool = False) -> None:
    """Draws a strip per line, with one scale for all.

    Args:
        file: the PNG.
        title: what is shown.
        lines: frames by label.
        narrow: whether the picture is for the width of a phone.
    """
    columns = min(MOST // 2 if narrow else MOST, max(map(len, lines.values())))
    size = (4.3, 0.8 + 1.5 * len(lines)) if narrow else (12.5, 0.7 + 2.2 * len(lines))
    top = max(float(np.max(frame.uncertainty)) for frames in lines.values() for frame in frames)
    with style.picture(file, title, size, len(lines), columns, small_title=narrow) as (_, axes):
        for row, (label, frames) in zip(axes, lines.items(), strict=True):
            strip(row, frames, label, top)
