"""How all pictures look: colours, marks, text, and how they are written."""

from collections.abc import Iterator, Sequence
import contextlib
import os
from typing import Any, BinaryIO

import matplotlib

matplotlib.use("Agg")
import matplotlib.axis
import matplotlib.figure
import matplotlib.pyplot as plt
import matplotlib.ticker

from hyperagent_jax import errors

# Okabe and Ito's colours without the yellow, which is faint on white, and two of Tol's: distinct to colour-blind
# eyes. Markers repeat with another period, so that many more lines differ in one or the other.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "h", "p", "*")
DASHES = (0, (5, 3))
_STYLE = {
    "text.parse_math": False,  # labels are names from files, never mathematics
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.5",
    "axes.labelsize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.92",
    "xtick.color": "0.2",
    "ytick.color": "0.2",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


@contextlib.contextmanager
def context() -> Iterator[None]:
    """The look of a picture, whatever other libraries have changed."""
    with plt.rc_context():
        matplotlib.rcdefaults()
        plt.rcParams.update(_STYLE)
        yield


@contextlib.contextmanager
def panels(
    file: str | os.PathLike | BinaryIO, title: str, columns: int, height: float = 4.6, width: float = 11.0
) -> Iterator[list]:
    """Axes of panels side by side, to draw in; the PNG is written at the end.

    Args:
        file: the PNG.
        title: what is shown.
        columns: number of panels.
        height: inches.
        width: inches.
    """
    with context():
        figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained", squeeze=False)
        title_of(figure, title)
        yield list(axes.flat)
        for axis in axes.flat:
            for direction in (axis.xaxis, axis.yaxis):
                if direction.get_scale() == "log":
                    plain_numbers(direction)
                    direction.set_minor_formatter(matplotlib.ticker.NullFormatter())
        save(figure, file)


def title_of(figure: matplotlib.figure.Figure, text: str, *, narrow: bool = False) -> None:
    """Writes the title of a whole picture, which may be for the width of a phone."""
    figure.suptitle(text, x=0.01, ha="left", fontsize="large" if narrow else "x-large", fontweight="bold")


def legend_of(figure: matplotlib.figure.Figure, handles: Sequence[Any], *, narrow: bool = False) -> None:
    """Puts a legend below all panels."""
    columns = 1 if narrow else max(1, min(len(handles), 5))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=9)


def plain_numbers(direction: matplotlib.axis.Axis) -> None:
    """Writes numbers with commas: the powers of ten that are the default would need mathematics in labels."""
    direction.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))


def line_style(i: int) -> dict[str, str]:
    """Colour and marker of the i-th line."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def save(figure: matplotlib.figure.Figure, file: str | os.PathLike | BinaryIO, dpi: int = 160) -> None:
    """Writes a picture as PNG and forgets it."""
    try:
        # The version of matplotlib in the file would make a page of the same runs another one.
        figure.savefig(file, dpi=dpi, format="png", metadata={"Software": None})
    except OSError as error:
        raise errors.UserError(f"cannot write {file}: {error.strerror}") from error
    finally:
        plt.close(figure)
