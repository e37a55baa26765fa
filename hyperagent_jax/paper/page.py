"""docs/paper.md: every figure of the paper with ours, what the paper says and what came out."""

from collections.abc import Sequence
import pathlib
from typing import Protocol

from hyperagent_jax.analysis import index
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.experiment import base
from hyperagent_jax.paper import figure

_HEAD = """# The paper, figure by figure

This page is written by `make paper` from the rows in [results/](../results/README.md); no number on it is typed by
hand. DeepSea follows the paper's protocol: a run is solved when the average return of 100 evaluation episodes
reaches 0.99, evaluated every 1,000 interactions, and fails after 10,000 episodes. Light points are seeds, lines
means over the seeds that solved it, and crosses failures.

`python experiments/paper.py list` shows which runs exist. `python experiments/paper.py <name>` redraws a figure
from its rows, and with `--run` it makes the missing runs first, on any launcher.
"""


class Opened(Protocol):
    """A figure and its rows."""

    def state(self) -> figure.State:
        """Returns which runs exist and which are missing."""

    def pictures(self) -> Sequence[figure.Picture]:
        """Returns what there is to draw."""

    def finding(self) -> str:
        """Returns what came out; blank without rows."""

    def plan(self) -> base.Plan | None:
        """Returns the plan of what is missing."""


class Entry(Protocol):
    """A figure of any kind."""

    @property
    def name(self) -> str:
        """Returns the name of its command."""

    @property
    def title(self) -> str:
        """Returns its heading."""

    @property
    def place(self) -> str:
        """Returns where it is in the paper."""

    @property
    def says(self) -> str:
        """Returns what the paper says."""

    def open(self, root: pathlib.Path) -> Opened:
        """Looks for the figure's rows."""


def write(file: pathlib.Path, opened: Sequence[tuple[Entry, Opened]], root: pathlib.Path) -> str:
    """Returns the page; `file` is where it goes, `root` the folder of results."""
    parts = [_HEAD, *(_section(entry, found, file, root) for entry, found in opened)]
    return "\n".join(parts)


def _section(entry: Entry, found: Opened, file: pathlib.Path, root: pathlib.Path) -> str:
    state = found.state()
    lines = [f"## {entry.title}", ""]
    pictures = [picture_file(file, entry.name, picture) for picture in found.pictures()]
    for picture, path in zip(found.pictures(), pictures, strict=True):
        lines += [f"![{picture.title}]({path.relative_to(file.parent).as_posix()})", ""]
    lines += [f"**The paper** ({entry.place}): {entry.says}", ""]
    lines += [f"**Here**: {found.finding() or 'not run.'}", ""]
    lines += [f"`python experiments/paper.py {entry.name}`; rows: {_rows(state, root)}", ""]
    if state.missing:
        lines += [f"Not run yet: {'; '.join(state.missing)} ({state.there} of {state.needed} runs exist).", ""]
    return "\n".join(lines)


def picture_file(page: pathlib.Path, name: str, picture: figure.Picture) -> pathlib.Path:
    """Returns where a picture of the page goes."""
    return page.parent / page.stem / f"{name}{picture.suffix}.png"


def _rows(state: figure.State, root: pathlib.Path) -> str:
    """Returns the folders of the rows and the commits that made them."""
    texts = []
    for folder in state.folders:
        record = sources_lib.source(root / folder / "results.csv", 0).record or {}
        commits = dict.fromkeys(str(one.get("commit", "unknown"))[:7] for one in index.origins(record))
        texts.append(f"[{folder}](../results/{folder}) ({', '.join(commits)})")
    return f"{', '.join(texts)}." if texts else "none."
