"""How all pictures look: colours, marks, text, and how they are written."""

from collections.abc import Iterator
import contextlib
import os
from typing import BinaryIO

import matplotlib

matplotlib.use("Agg")
import matplotlib.figure
import matplotlib.pyplot as plt

# Okabe and Ito's colours without the yellow, which is faint on white, and two of Tol's: distinct to colour-blind
# eyes. Markers repeat with another period, so that many more lines differ in one or the other.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "h", "p", "*")
DASHES = (0, (5, 3))
_STYLE = {
    "text.parse_math": False,  # labels are names from files, never mathematics
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "0.5", "axes.labelsize": 11,
    "axes.titlelocation": "left", "axes.grid": True, "axes.axisbelow": True, "grid.color": "0.92",
    "xtick.color": "0.2", "ytick.color": "0.2", "legend.frameon": False, "legend.fontsize": 9.5,
}


@contextlib.contextmanager
def context() -> Iterator[None]:
    """The look of a picture, whatever other libraries have changed."""
    with plt.rc_context():
        matplotlib.rcdefaults()
        plt.rcParams.update(_STYLE)
        yield


def save(figure: matplotlib.figure.Figure, file: str | os.PathLike | BinaryIO, dpi: int = 160) -> None:
    """Writes a picture as PNG and forgets it."""
    # The version of matplotlib in the file would make a page of the same runs another one.
    figure.savefig(file, dpi=dpi, format="png", metadata={"Software": None})
    plt.close(figure)
