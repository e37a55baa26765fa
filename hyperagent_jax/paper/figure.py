"""A figure of the paper: the runs it needs, and those of them that are in the folders of results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis import style
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import sweep

Problem = int | str


class Line(NamedTuple):
    """A line of a figure: an agent with settings.

    Attributes:
        label: what the picture calls it.
        settings: keys of a grid; all lines of a figure set the same ones.
        agent: name of the agent.
    """

    label: str
    settings: Mapping[str, Any] = {}
    agent: str = "hyperagent"


class Picture(NamedTuple):
    """A picture of a figure.

    Attributes:
        suffix: what its file's name has after that of the figure.
        title: its heading.
        draw: writes a PNG; called as `draw(file, title)`.
    """

    suffix: str
    title: str
    draw: Callable[[style.File, str], None]


class State(NamedTuple):
    """What of a figure is in the results.

    Attributes:
        there: number of runs that exist.
        needed: runs that the figure needs.
        missing: what is not run, a phrase for each part.
        folders: where the rows are, relative to the results.
    """

    there: int
    needed: int
    missing: Sequence[str]
    folders: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure whose rows are runs of an experiment.

    Attributes:
        name: name of the command, and of its folder in results/paper.
        title: heading.
        place: where it is in the paper.
        says: what the paper says, in one sentence.
        lines: agents and settings.
        pictures: returns what is drawn of the rows.
        finding: returns what came out, in a few sentences, from the rows; blank if there are none.
        problems: sizes or games.
        seeds: seeds of missing runs; a cell with as many rows, of whatever seeds, is complete.
        experiment: the experiment's name.
        sources: other folders of results whose rows serve if their settings are the same. A cell that the first
            ones fill takes no rows of the others.
        runs_in: the folder in results/paper of missing runs, if figures share one.
    """

    name: str
    title: str
    place: str
    says: str
    lines: Sequence[Line]
    pictures: Callable[["Found"], Sequence[Picture]]
    finding: Callable[["Found"], str]
    problems: Sequence[Problem] = (20, 30, 40, 50)
    seeds: Sequence[int] = (20, 21, 22, 23, 24)
    experiment: str = "deepsea"
    sources: Sequence[str] = ()
    runs_in: str = ""

    def __post_init__(self) -> None:
        if len({tuple(sorted(line.settings)) for line in self.lines}) != 1:
            raise ValueError(f"all lines of {self.name} must set the same keys: a folder has one set of columns")

    @property
    def folder(self) -> str:
        """Where missing runs go, relative to the results."""
        return f"paper/{self.runs_in or self.name}"

    def open(self, root: pathlib.Path) -> "Found":
        """Looks for the figure's rows in the folders of results."""
        return Found(self, root)

    def grid(self, line: Line, problems: Sequence[Problem], seeds: Sequence[int]) -> dict[str, Any]:
        """Returns the grid of a line."""
        problem = base.get(self.experiment).problem
        return {"agent": line.agent, **line.settings, problem: list(problems), "seed": list(seeds)}


class Row(NamedTuple):
    """A row of a results.csv, the folder it is in, and the protocol it was made with."""

    columns: Mapping[str, str]
    folder: str
    protocol: Any


class Found:
    """The rows of a figure.

    Attributes:
        figure: the figure.
        cells: finished rows by line and problem; a cell without any is empty.
    """

    def __init__(self, figure: Figure, root: pathlib.Path):
        """Looks for the rows in the figure's folder and in its sources, within `root`."""
        self.figure = figure
        self.root = root
        self.cells: dict[tuple[str, Problem], list[Row]] = {}
        self._obstacle = ""
        experiment = base.get(figure.experiment)
        for line in figure.lines:
            try:
                plan = sweep.plan(experiment, [figure.grid(line, figure.problems, figure.seeds[:1])], str(root))
            except errors.UserError as error:  # an optional package is not installed
                self._obstacle = str(error)
                break
            for task in plan.tasks:
                rows = _rows(plan, task, root, (*figure.sources, figure.folder), len(figure.seeds))
                self.cells[line.label, getattr(task.protocol, experiment.problem)] = rows
        self.problems: list[Problem] = list(dict.fromkeys(problem for _, problem in self.cells))

    def pictures(self) -> Sequence[Picture]:
        """Returns what there is to draw."""
        return self.figure.pictures(self)

    def finding(self) -> str:
        """Returns what came out; blank without rows."""
        return self.figure.finding(self)

    def missing(self) -> Iterator[tuple[Line, Problem, list[int]]]:
        """Yields the cells that lack rows, and the seeds to run."""
        for problem in self.problems:
            for line in self.figure.lines:
                rows = self.cells[line.label, problem]
                there = {int(row.columns["seed"]) for row in rows}
                lacking = max(0, len(self.figure.seeds) - len(rows))
                if seeds := [seed for seed in self.figure.seeds if seed not in there][:lacking]:
                    yield line, problem, seeds

    def state(self) -> State:
        """Returns which runs exist and which are missing."""
        needed = len(self.figure.seeds)
        if self._obstacle:
            return State(0, needed * len(self.figure.lines) * len(self.figure.problems), [self._obstacle], [])
        labels: dict[Problem, list[str]] = {}
        for line, problem, seeds in self.missing():
            part = "" if len(seeds) == needed else f" ({len(seeds)} of {needed} seeds)"
            labels.setdefault(problem, []).append(f"{line.label}{part}")
        every = [line.label for line in self.figure.lines]
        problems: dict[str, list[Problem]] = {}
        for problem, own in labels.items():
            problems.setdefault("all lines" if own == every else "; ".join(own), []).append(problem)
        name = base.get(self.figure.experiment).problem
        missing = [
            f"{name} {', '.join(map(str, own))}: {text}" if len(own) < 10 else f"{len(own)} {name}s: {text}"
            for text, own in problems.items()
        ]
        rows = [row for cell in self.cells.values() for row in cell]
        return State(
            sum(min(needed, len(cell)) for cell in self.cells.values()),
            needed * len(self.cells),
            missing,
            list(dict.fromkeys(row.folder for row in rows)),
        )

    def plan(self) -> base.Plan | None:
        """Returns the plan of the figure's own folder, including missing runs; None if none is missing."""
        if self._obstacle:
            raise errors.UserError(self._obstacle)
        figure = self.figure
        wanted: dict[tuple[str, Problem], list[int]] = {}
        for line, problem, seeds in self.missing():
            wanted[line.label, problem] = list(seeds)
        if not wanted:
            return None
        for (label, problem), rows in self.cells.items():
            own = [int(row.columns["seed"]) for row in rows if row.folder == figure.folder]
            if own:
                wanted[label, problem] = sorted({*own, *wanted.get((label, problem), ())})
        grids = []
        for line in figure.lines:
            by_seeds: dict[tuple[int, ...], list[Problem]] = {}
            for problem in self.problems:
                if seeds := wanted.get((line.label, problem), []):
                    by_seeds.setdefault(tuple(seeds), []).append(problem)
            grids += [figure.grid(line, problems, seeds) for seeds, problems in by_seeds.items()]
        return sweep.plan(base.get(figure.experiment), grids, str(self.root / figure.folder))


@functools.lru_cache(maxsize=256)
def _read(folder: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Returns the configuration and the rows of a folder; none if it is not there."""
    return sources_lib.identity(folder), results.read_csv(folder / "results.csv")


def _rows(plan: base.Plan, task: base.Task, root: pathlib.Path, folders: Sequence[str], enough: int) -> list[Row]:
    """Returns finished rows with the agent, problem and settings of a task, each seed once, from the first folders
    that have enough of them."""
    columns = {name: value for name, value in task.columns if value != ""}
    wanted = {**_settings(plan.fingerprint.settings, task.agent), **columns}
    found: dict[str, Row] = {}
    for folder in folders:
        if len(found) >= enough:
            break
        identity, rows = _read(root / folder)
        settings = _settings(plan.fingerprint.completed(identity), task.agent)
        for row in rows:
            own = {**settings, **row}
            if not row.get("error") and all(own.get(name) == value for name, value in wanted.items()):
                found.setdefault(row["seed"], Row(row, folder, task.protocol))
    return list(found.values())


def _settings(identity: Mapping[str, Any], agent: str) -> dict[str, str]:
    """Returns the settings of protocol and agent in a config.json, as columns have them."""
    own = {**sources_lib.part(identity, "protocol"), **sources_lib.part(identity.get("configs"), agent)}
    return {
        name: config_lib.as_text(tuple(value) if isinstance(value, list) else value) for name, value in own.items()
    }
