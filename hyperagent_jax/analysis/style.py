"""The common style of all pictures: colours, markers, text, and file format."""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import os
from typing import Any, BinaryIO

import matplotlib

matplotlib.use("Agg")
import matplotlib.axis
import matplotlib.figure
import matplotlib.lines
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np

from hyperagent_jax import errors

File = str | os.PathLike | BinaryIO
# Okabe and Ito's colours without yellow, which is faint on white, and two of Tol's: distinct for colour-blind
# readers. Markers repeat with a different period, so that many more lines differ in colour or marker.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "h", "p", "*")
DASHES = (0, (5, 3))
PANEL_DPI = 110  # for pictures with many panels, whose files are large
_STYLE: dict[str, Any] = {
    "text.parse_math": False,  # labels contain names from files, never formulas
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
    """Sets the style of a picture, regardless of what other libraries have changed."""
    with plt.rc_context():
        matplotlib.rcdefaults()
        plt.rcParams.update(_STYLE)  # type: ignore[arg-type]
        yield


@contextlib.contextmanager
def picture(
    file: File,
    title: str,
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    small_title: bool = False,
    dpi: int = 160,
    **options: Any,
) -> Iterator[tuple[matplotlib.figure.Figure, np.ndarray]]:
    """Yields a figure and its axes [rows, columns] to draw in, and writes the PNG at the end.

    Args:
        file: the PNG.
        title: what is shown.
        size: width and height in inches.
        rows: panels below one another.
        columns: panels side by side.
        small_title: whether the title is long or the picture narrow.
        dpi: dots per inch.
        **options: options of `plt.subplots`.
    """
    with context():
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
        figure.suptitle(
            title, x=0.01, ha="left", fontsize="large" if small_title else "x-large", fontweight="bold"
        )
        yield figure, axes
        save(figure, file, dpi)


@contextlib.contextmanager
def panels(file: File, title: str, columns: int, height: float = 4.6, width: float = 11.0) -> Iterator[list[Any]]:
    """Yields the axes of panels side by side to draw in, and writes the PNG at the end."""
    with picture(file, title, (width, height), columns=columns) as (_, axes):
        yield list(axes.flat)
        for axis in axes.flat:
            for direction in (axis.xaxis, axis.yaxis):
                if direction.get_scale() == "log":
                    plain_numbers(direction)
                    direction.set_minor_formatter(matplotlib.ticker.NullFormatter())


def legend_of(figure: matplotlib.figure.Figure, handles: Sequence[Any], *, narrow: bool = False) -> None:
    """Puts a legend below all panels."""
    columns = 1 if narrow else max(1, min(len(handles), 5))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=9)


def note(axis: Any, text: str, place: tuple[Any, Any], shift: tuple[float, float], **options: Any) -> None:
    """Writes a text at a distance of `shift` points from a place."""
    axis.annotate(text, place, xytext=shift, textcoords="offset points", **options)


def plain_numbers(direction: matplotlib.axis.Axis) -> None:
    """Formats numbers with commas: the default, powers of ten, would need formulas in labels."""
    direction.set_major_formatter(matplotlib.ticker.FuncFormatter(_plain))


def _plain(value: float, place: int | None) -> str:
    del place
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def colour(i: int) -> str:
    """Returns the colour of the i-th line."""
    return COLOURS[i % len(COLOURS)]


def line_style(i: int) -> dict[str, Any]:
    """Returns colour and marker of the i-th line."""
    return {"color": colour(i), "marker": MARKERS[i % len(MARKERS)]}


def handles(labels: Iterable[str]) -> list[matplotlib.lines.Line2D]:
    """Returns the lines of a legend."""
    return [matplotlib.lines.Line2D([], [], **line_style(i), label=label) for i, label in enumerate(labels)]


def save(figure: matplotlib.figure.Figure, file: File, dpi: int = 160) -> None:
    """Writes a picture as PNG and closes it."""
    try:
        # Omit the version of matplotlib, so that the same runs give the same file.
        figure.savefig(file, dpi=dpi, format="png", metadata={"Software": None})
    except OSError as error:
        raise errors.UserError(f"cannot write {file}: {error.strerror}") from error
    finally:
        plt.close(figure)
