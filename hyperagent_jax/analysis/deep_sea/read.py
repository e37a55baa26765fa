"""Reads DeepSea runs: rows of results.csv, checked, and the config.json next to them."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import npz
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib

NEEDED = ("agent", "size", "seed", "solved", "episodes_to_learn", "interactions")
# All other columns are settings of the agent.
MEASURED = frozenset(
    {
        *NEEDED,
        "final_return",
        "num_params",
        "num_output_params",
        "compile_seconds",
        "train_seconds",
        "interactions_per_second",
        "error",
        "command",
    }
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of a results.csv.

    Attributes:
        agent: name of the agent.
        size: N of the N x N grid.
        seed: the run's seed.
        settings: the settings among the columns of the file that are not empty.
        episodes: episodes to learn; None unless solved.
        limit: episodes after which an unsolved run ended; None unless failed.
        interval: episodes between evaluations, the last of which found it solved; None if not on file.
        num_params: number of parameters; None if not on file.
        num_output_params: number of parameters of the output layer; None if not on file.
        step_seconds: seconds per interaction, including evaluation; None if not on file.
        error: why the run crashed; empty if it did not. A crashed run is neither solved nor failed.
        file: the results.csv.
    """

    agent: str
    size: int
    seed: int
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    episodes: int | None = None
    limit: int | None = None
    interval: float | None = None
    num_params: int | None = None
    num_output_params: int | None = None
    step_seconds: float | None = None
    error: str = ""
    file: str = ""

    @property
    def solved(self) -> bool:
        """Whether it was solved."""
        return self.episodes is not None

    @property
    def failed(self) -> bool:
        """Whether it reached the limit of episodes unsolved."""
        return self.limit is not None

    @property
    def crashed(self) -> bool:
        """Whether it ended in an error."""
        return bool(self.error)

    @property
    def variant(self) -> tuple:
        """Agent and settings, which runs that differ only in size and seed share."""
        return self.agent, tuple(sorted(self.settings.items()))


class Training(NamedTuple):
    """What a run of run_deepsea.py recorded over training.

    Attributes:
        agent: name of the agent.
        size: N of the N x N grid.
        file: the curve.csv.
        curve: its rows.
        solved_return: average return that counts as solved; None if not on file.
        maps: the maps of the first seed that has them, see `read_maps`; or None.
    """

    agent: str
    size: int
    file: str
    curve: Sequence[Mapping[str, str]]
    solved_return: float | None
    maps: Mapping[str, Any] | None


def read(places: Sequence[str]) -> tuple[list[Run], list[sources_lib.Source]]:
    """Reads the runs of several results.csv files, or of folders that contain one."""
    runs: list[Run] = []
    seen: dict[tuple, str] = {}
    paths = sources_lib.results_files(places)
    files = _told_apart([_read_file(path) for path in paths])
    for path, found in zip(paths, files, strict=True):
        for run in found:
            key = (run.variant, run.size, run.seed)
            if key in seen:
                where = f"twice in {path}" if seen[key] == run.file else f"in {seen[key]} and {path}"
                settings = "".join(f", {name} {value}" for name, value in run.settings.items())
                name = sources_lib.one_line(f"{run.agent}{settings}, size {run.size}, seed {run.seed}")
                raise errors.UserError(f"duplicate run {where}: {name}")
            seen[key] = run.file
        runs += found
    return runs, [sources_lib.source(path, len(found)) for path, found in zip(paths, files, strict=True)]


def read_training(runs: Sequence[Run]) -> list[Training]:
    """Reads what was recorded over training next to the files of the runs, where anything was."""
    files: dict[str, list[Run]] = {}
    for run in runs:
        files.setdefault(run.file, []).append(run)
    found = []
    for file, own in files.items():
        folder, first = pathlib.Path(file).parent, own[0]
        curve = results.read_csv(folder / "curve.csv")
        if not curve or any(name not in curve[0] for name in ("seed", "episodes", "eval_return")):
            continue
        solved_return = sources_lib.part(sources_lib.identity(folder), "protocol").get("solved_return")
        if not isinstance(solved_return, int | float):
            solved_return = None
        maps = next(filter(None, (read_maps(folder, run.seed) for run in own)), None)
        found.append(Training(first.agent, first.size, str(folder / "curve.csv"), curve, solved_return, maps))
    return found


def maps_file(folder: str | pathlib.Path, seed: int) -> pathlib.Path:
    """Returns the file of a seed's maps in the folder of a run."""
    return pathlib.Path(folder) / "maps" / f"seed_{seed}.npz"


def read_maps(folder: pathlib.Path, seed: int) -> dict[str, Any] | None:
    """Reads the maps of a seed; None if they are deleted, incomplete or corrupt.

    Returns:
        The arrays `value` and `uncertainty` [size, size], the newest, and `uncertainties` [n, size, size] over
        training, at the numbers of `interactions` [n] and `episodes` [n], which older versions did not record;
        and the `seed`.
    """
    try:
        with np.load(maps_file(folder, seed), allow_pickle=False) as arrays:
            for name in arrays:
                npz.check_size(arrays, name)
            found = {name: arrays[name] for name in arrays}
    except npz.UNREADABLE:
        return None
    size = len(found.get("value", ()))
    shapes: dict[str, tuple[int, ...]] = {"value": (size, size), "uncertainty": (size, size)}
    if "uncertainties" in found:
        n = len(found["uncertainties"])
        shapes |= {"uncertainties": (n, size, size), "interactions": (n,), "episodes": (n,)}
    if not size or any(name not in found or found[name].shape != shape for name, shape in shapes.items()):
        return None
    return {**found, "seed": seed}


def _told_apart(files: Sequence[list[Run]]) -> list[list[Run]]:
    """Adds the settings from config.json in which an agent's files differ to the runs of these files.

    Otherwise runs with different settings would count as additional seeds of the same agent.
    """
    known = [_settings_on_file(found) for found in files]
    told = []
    for found, own in zip(files, known, strict=True):
        differing = {
            agent: {
                name: value
                for name, value in settings.items()
                if any(other.get(agent, {}).get(name, value) != value for other in known)
            }
            for agent, settings in own.items()
        }
        told.append([dataclasses.replace(run, settings={**differing[run.agent], **run.settings}) for run in found])
    return told


def _settings_on_file(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Returns the settings of each agent of a file from its config.json, as text of csv columns."""
    made_with = sources_lib.identity(pathlib.Path(runs[0].file).parent)
    protocol = sources_lib.part(made_with, "protocol")
    configs = made_with.get("configs")
    found = {}
    for agent in dict.fromkeys(run.agent for run in runs):
        own = (
            sources_lib.part(configs, agent)
            if isinstance(configs, dict)
            else sources_lib.part(made_with, "config")
        )
        settings = dict(own)
        # Limited to the length of the run, which follows from the size.
        settings.pop("replay_capacity", None)
        if "stochastic" in protocol:
            settings["stochastic"] = protocol["stochastic"]
        found[agent] = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in settings.items()
        }
    return found


def _read_file(path: pathlib.Path) -> list[Run]:
    rows = sources_lib.read_rows(path, NEEDED)
    if not rows:
        raise errors.UserError(f"{path} has no rows")
    eval_every = sources_lib.part(sources_lib.identity(path.parent), "protocol").get("eval_every")
    if not isinstance(eval_every, int | float):
        eval_every = None
    return sources_lib.parse_rows(path, rows, lambda row: parse(row, str(path), eval_every))


def parse(row: Mapping[str, str], file: str, eval_every: float | None) -> Run:
    """Returns the run of a row; `eval_every` is that of the whole file if all runs share it."""
    if row.get("eval_every"):
        eval_every = _whole(row, "eval_every", at_least=1)
    error = (row.get("error") or "").strip()
    episodes = limit = None
    size = _whole(row, "size", at_least=1)
    if not error:  # a crashed run has no outcome
        if row["solved"] not in ("True", "False"):
            raise ValueError(f"solved must be True or False, got {row['solved']!r}")
        if row["solved"] == "True":
            episodes = _whole(row, "episodes_to_learn")
        else:
            limit = _whole(row, "interactions") // size
    return Run(
        agent=row["agent"],
        size=size,
        seed=_whole(row, "seed"),
        settings={name: value for name, value in row.items() if name not in MEASURED and value != ""},
        episodes=episodes,
        limit=limit,
        interval=eval_every / size if eval_every else None,
        num_params=_whole(row, "num_params") if row.get("num_params") else None,
        num_output_params=_whole(row, "num_output_params") if row.get("num_output_params") else None,
        step_seconds=_step_seconds(row),
        error=error,
        file=file,
    )


def _step_seconds(row: Mapping[str, str]) -> float | None:
    try:
        rate = float(row.get("interactions_per_second") or 0.0)
    except ValueError:
        return None
    return 1.0 / rate if rate > 0.0 else None


def _whole(row: Mapping[str, str], name: str, at_least: int = 0) -> int:
    try:
        value = float(row[name])
        if value != int(value) or value < at_least:
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {row[name]!r}") from error
    return int(value)
