"""Reads Atari runs: rows of results.csv and curve.csv, checked."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.atari import published

NEEDED = ("game", "agent", "seed", "score", "interactions")


@dataclasses.dataclass(frozen=True)
class Run:
    """A row of a results.csv of run_atari.py."""

    game: str
    agent: str
    seed: int
    score: float
    interactions: int
    num_params: int | None = None


@dataclasses.dataclass(frozen=True)
class Results:
    """The contents of several results.csv files of run_atari.py.

    Attributes:
        runs: the finished runs; `agent` includes the settings that differ if an agent has several configurations.
        notes: a line with the reason for every run that is missing from `runs`.
        curves: rows of the curve.csv next to them, by agent; agents without any are absent.
        sources: the files.
    """

    runs: list[Run]
    notes: list[str]
    curves: dict[str, list[dict[str, str]]]
    sources: list[sources_lib.Source]

    @property
    def agents(self) -> list[str]:
        """Returns the agents, in the order of the files."""
        return list(dict.fromkeys(run.agent for run in self.runs))

    @property
    def names(self) -> list[str]:
        """Returns the games."""
        return sorted({run.game for run in self.runs})


def read(places: Sequence[str]) -> Results:
    """Reads several results.csv files, or folders that contain one."""
    runs: dict[tuple[str, str, int], Run] = {}
    notes: list[str] = []
    curves: dict[str, list[dict[str, str]]] = {}
    sources = []
    paths = sources_lib.results_files(places)
    for path, differing in zip(paths, sources_lib.differing_settings(paths), strict=True):
        rows = sources_lib.read_rows(path, NEEDED, "results.csv of run_atari.py")
        parsed = sources_lib.parse_rows(path, rows, functools.partial(_parse, differing))
        finished = sources_lib.file_runs(parsed, "game", runs, notes)
        points = _curve(path.with_name("curve.csv")) if rows else []
        for agent in dict.fromkeys(row["agent"] + differing for row in rows):
            if points:
                curves.setdefault(agent, []).extend(points)
        sources.append(sources_lib.source(path, finished))
    if not runs:
        raise errors.UserError("no finished runs in " + ", ".join(map(str, places)))
    return Results(list(runs.values()), notes, curves, sources)


def _parse(differing: str, row: Mapping[str, str]) -> Run | str:
    """Returns the run of a row, with `differing` appended to its agent, or a note why it has no score."""
    name = f"{row['agent']} on {row['game']}, seed {row['seed']}"
    if row.get("error"):
        return f"Not finished: {name}: {row['error']}."
    if row["game"] not in published.games():
        return f"Only the curve is shown: {name}: there is no human score for this game."
    params = int(row["num_params"]) if row.get("num_params") else None
    numbers = int(row["seed"]), float(row["score"]), int(row["interactions"]), params
    return Run(row["game"], row["agent"] + differing, *numbers)


def _curve(path: pathlib.Path) -> list[dict[str, str]]:
    """Reads and checks a curve.csv; returns no rows if the file does not exist."""
    rows = results.read_csv(path)
    try:
        for row in rows:
            row["game"], int(row["seed"]), int(row["interactions"]), float(row["eval_score"])
    except (KeyError, ValueError) as error:
        raise errors.UserError(f"{path} is corrupt: fix or delete it") from error
    return rows
