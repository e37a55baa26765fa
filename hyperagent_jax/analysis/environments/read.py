"""Reads runs of run_jax.py, run_gymnasium.py and sweeps of them: rows of results.csv and curve.csv, checked."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib

NEEDED = ("env", "agent", "seed", "final_return", "best_return", "interactions")
# The environment's name, in folders with a single environment, does not distinguish agents.
_PROBLEM = "protocol.env"


@dataclasses.dataclass(frozen=True)
class Run:
    """A row of a results.csv; `agent` includes the settings that differ if an agent has several configurations."""

    env: str
    agent: str
    seed: int
    final_return: float
    best_return: float
    interactions: int
    random_return: float | None = None


@dataclasses.dataclass(frozen=True)
class Point:
    """A row of a curve.csv."""

    env: str
    agent: str
    seed: int
    interactions: int
    eval_return: float


@dataclasses.dataclass(frozen=True)
class Results:
    """The contents of several results.csv files.

    Attributes:
        runs: the finished runs.
        notes: a line with the reason for every run that is missing from `runs`.
        points: rows of the curve.csv next to them.
        sources: the files.
    """

    runs: list[Run]
    notes: list[str]
    points: list[Point]
    sources: list[sources_lib.Source]

    @property
    def agents(self) -> list[str]:
        """Returns the agents, in the order of the files."""
        return list(dict.fromkeys(run.agent for run in self.runs))

    @property
    def names(self) -> list[str]:
        """Returns the environments, in the order of the files."""
        return list(dict.fromkeys(run.env for run in self.runs))


def read(places: Sequence[str]) -> Results:
    """Reads several results.csv files, or folders that contain one."""
    runs: dict[tuple[str, str, int], Run] = {}
    notes: list[str] = []
    points: list[Point] = []
    sources = []
    paths = sources_lib.results_files(places)
    for path, differing in zip(paths, sources_lib.differing_settings(paths, (_PROBLEM,)), strict=True):
        rows = sources_lib.read_rows(path, NEEDED, "results.csv of run_jax.py or run_gymnasium.py")
        label = _labels(path, rows, differing)
        parsed = sources_lib.parse_rows(path, rows, functools.partial(_parse, label))
        finished = sources_lib.file_runs(parsed, "env", runs, notes)
        if rows:
            points += _curve(path.with_name("curve.csv"), rows[0], label)
        sources.append(sources_lib.source(path, finished))
    if not runs:
        raise errors.UserError("no finished runs in " + ", ".join(map(str, places)))
    return Results(list(runs.values()), notes, points, sources)


def _labels(
    path: pathlib.Path, rows: Sequence[Mapping[str, str]], differing: str
) -> Callable[[Mapping[str, str]], str]:
    """Returns a function that names the agent of a row, in a sweep with what differs within an environment.

    What differs between environments only, as the number of steps may, belongs to them and not to the agent.
    """
    identity = sources_lib.identity(path.parent)
    if identity.get("experiment") != "sweep":
        return lambda row: row["agent"] + differing
    settings = [name for name in identity.get("grid_keys", []) if rows and name in rows[0]]
    values: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        for name in settings:
            values.setdefault((row["agent"], name, row["env"]), set()).add(row[name])
    varied = {(agent, name) for (agent, name, _), found in values.items() if len(found) > 1}

    def label(row: Mapping[str, str]) -> str:
        shown = ", ".join(f"{name} {row[name]}" for name in settings if (row["agent"], name) in varied)
        return f"{row['agent']} ({shown})" if shown else row["agent"]

    return label


def _parse(label: Callable[[Mapping[str, str]], str], row: Mapping[str, str]) -> Run | str:
    """Returns the run of a row, or a note explaining why it has no return."""
    agent = label(row)
    if row.get("error"):
        return f"Not finished: {agent} on {row['env']}, seed {row['seed']}: {row['error']}."
    return Run(
        row["env"],
        agent,
        int(row["seed"]),
        float(row["final_return"]),
        float(row["best_return"]),
        int(row["interactions"]),
        float(row["random_return"]) if row.get("random_return") else None,
    )


def _curve(path: pathlib.Path, first: Mapping[str, str], label: Callable[[Mapping[str, str]], str]) -> list[Point]:
    """Reads and checks a curve.csv; returns no points if the file does not exist.

    Columns that all runs of the folder share, because it has one agent or environment, are taken from `first`, a
    row of its results.csv.
    """
    shared = {name: first[name] for name in ("agent", "env")}
    points = []
    try:
        for row in results.read_csv(path):
            row = {**shared, **row}
            numbers = int(row["seed"]), int(row["interactions"]), float(row["eval_return"])
            points.append(Point(row["env"], label(row), *numbers))
    except (KeyError, ValueError) as error:
        raise errors.UserError(f"{path} is corrupt: fix or delete it") from error
    return points
