"""Reads the runs a report is made of: rows of results.csv, checked, and the config.json beside them."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax import results

NEEDED = ("agent", "size", "seed", "solved", "episodes_to_learn", "interactions")
# Any other column is a setting of the agent.
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
# How the names of bsuite's csv files begin.
BSUITE_PREFIX = "bsuite_id_-_"


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of a results.csv.

    Attributes:
        agent: name of the agent.
        size: N of the N x N grid.
        seed: the run's seed.
        settings: the settings that are columns of the file and not blank.
        episodes: episodes to learn; None unless solved.
        limit: episodes after which a run that did not solve it ended; None unless failed.
        interval: episodes between two evaluations; it was solved in the last one. None if not on file.
        num_params: parameters; None if not on file.
        num_output_params: parameters of the output layer; None if not on file.
        error: why the run crashed; blank if it did not. A crash is neither solved nor failed.
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
    error: str = ""
    file: str = ""

    @property
    def solved(self) -> bool:
        return self.episodes is not None

    @property
    def failed(self) -> bool:
        return self.limit is not None

    @property
    def crashed(self) -> bool:
        return bool(self.error)

    @property
    def variant(self) -> tuple:
        """Agent and settings: what runs that differ in size and seed only have in common."""
        return self.agent, tuple(sorted(self.settings.items()))


@dataclasses.dataclass(frozen=True)
class Source:
    """A results.csv and what is known about how it was made.

    Attributes:
        file: the results.csv.
        num_runs: its rows.
        record: the config.json beside it, or None.
        problem: why there is no record; blank if there is one.
    """

    file: str
    num_runs: int
    record: dict[str, Any] | None
    problem: str = ""


def bsuite_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """bsuite's csv files in a folder, or in its folder `csv`."""
    return sorted([*folder.glob(f"{BSUITE_PREFIX}*.csv"), *folder.glob(f"csv/{BSUITE_PREFIX}*.csv")])


def kind(place: str) -> str:
    """What a results.csv or a folder holds: runs of "bsuite", of "atari", or of "deep_sea"."""
    path = pathlib.Path(place)
    if not path.exists():
        raise errors.UserError(f"there is no {path}: give a results.csv or a folder that holds one")
    folder = path if path.is_dir() else path.parent
    experiment = identity(folder).get("experiment")
    if experiment == "bsuite" or (path.is_dir() and bsuite_files(folder)):
        return "bsuite"
    if experiment == "atari" or "game" in _heading(folder / "results.csv" if path.is_dir() else path):
        return "atari"
    return "deep_sea"


def _heading(path: pathlib.Path) -> list[str]:
    """The columns of a csv file; none if it cannot be read."""
    try:
        with open(path) as f:
            return f.readline().strip().split(",")
    except (OSError, UnicodeDecodeError):
        return []


def identity(folder: pathlib.Path) -> dict[str, Any]:
    """What the config.json of a folder says was run; nothing if it says nothing."""
    record = source(folder / "results.csv", 0).record or {}
    found = record.get("identity")
    return found if isinstance(found, dict) else {}


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """The entries of nested dicts, with dots between their names, as JSON."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    entries = {}
    for name, part in value.items():
        entries.update(flat(part, f"{prefix}.{name}" if prefix else str(name)))
    return entries


def differing_settings(paths: Sequence[pathlib.Path]) -> list[str]:
    """For each results.csv, " (name value, ...)" with what tells its configuration from others of the same agent.

    A preset, or the protocol, stands for the settings that it brings along.
    """
    known = [flat(identity(path.parent)) for path in paths]
    texts = []
    for own in known:
        others = [other for other in known if other.get("agent") == own.get("agent")]
        # What only newer versions have is not known to differ.
        names = [name for name in own if len({other[name] for other in others if name in other}) > 1]
        names = [name for name in names if not name.startswith("config.")] or names
        values = ", ".join(f"{name.split('.')[-1]} {json.loads(own[name])}" for name in names)
        texts.append(f" ({values})" if values else "")
    return texts


def read(places: Sequence[str]) -> tuple[list[Run], list[Source]]:
    """The runs of several results.csv files, or of folders that hold one."""
    runs, sources, seen = [], [], {}
    paths = [path / "results.csv" if path.is_dir() else path for path in map(pathlib.Path, places)]
    for path, found in zip(paths, _told_apart([_read_file(path) for path in paths]), strict=True):
        for run in found:
            key = (run.variant, run.size, run.seed)
            if key in seen:
                where = f"twice in {path}" if seen[key] == run.file else f"in {seen[key]} and in {path}"
                settings = "".join(f", {name} {value}" for name, value in run.settings.items())
                raise errors.UserError(
                    f"the same run is {where}: {run.agent}{settings}, size {run.size}, seed {run.seed}"
                )
            seen[key] = run.file
        runs += found
        sources.append(source(path, len(found)))
    return runs, sources


def _told_apart(files: Sequence[list[Run]]) -> list[list[Run]]:
    """The runs of several files, with those settings of their config.json in which an agent's files differ.

    Without them other settings of one agent would pass for more seeds of it.
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
    """The settings of each agent of a file, as its config.json has them, in the words of a column."""
    made_with = identity(pathlib.Path(runs[0].file).parent)
    protocol = made_with.get("protocol")
    protocol = protocol if isinstance(protocol, dict) else {}
    found = {}
    for agent in dict.fromkeys(run.agent for run in runs):
        configs = made_with.get("configs")
        config = configs.get(agent) if isinstance(configs, dict) else made_with.get("config")
        settings = dict(config) if isinstance(config, dict) else {}
        # Cut to the length of the run, which follows from the size.
        settings.pop("replay_capacity", None)
        if "stochastic" in protocol:
            settings["stochastic"] = protocol["stochastic"]
        found[agent] = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in settings.items()
        }
    return found


def _read_file(path: pathlib.Path) -> list[Run]:
    if not path.exists():
        raise errors.UserError(f"there is no {path}: give a results.csv or a folder that holds one")
    rows = results.read_csv(path)
    if not rows:
        raise errors.UserError(f"{path} has no rows")
    if missing := [name for name in NEEDED if name not in rows[0]]:
        raise errors.UserError(f"{path} is no results.csv: it has no column {', '.join(missing)}")
    runs = []
    protocol = identity(path.parent).get("protocol")
    eval_every = protocol.get("eval_every") if isinstance(protocol, dict) else None
    for number, row in enumerate(rows, start=1):
        try:
            runs.append(_parse(row, str(path), eval_every))
        except ValueError as error:
            raise errors.UserError(f"{path}, row {number}: {error}") from error
    return runs


def _parse(row: Mapping[str, str], file: str, eval_every: int | None) -> Run:
    """Makes the run of a row; `eval_every` is that of the whole file, if there is one."""
    if row.get("eval_every"):
        eval_every = _whole(row, "eval_every", at_least=1)
    error = (row.get("error") or "").strip()
    episodes = limit = None
    size = _whole(row, "size", at_least=1)
    if not error:  # a run that crashed has no outcome
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
        error=error,
        file=file,
    )


def _whole(row: Mapping[str, str], name: str, at_least: int = 0) -> int:
    try:
        value = float(row[name])
        if value != int(value) or value < at_least:
            raise ValueError
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be a whole number from {at_least} on, got {row[name]!r}") from error
    return int(value)


def source(path: pathlib.Path, num_runs: int) -> Source:
    """What is known about a results.csv of so many runs.

    A report without its configurations is worth having, so their absence is no error but a note.
    """
    config = path.with_name("config.json")
    try:
        record = json.loads(config.read_text())
        if not isinstance(record, dict):
            raise ValueError
    except FileNotFoundError:
        return Source(str(path), num_runs, None, f"there is no {config}")
    except (OSError, ValueError):
        return Source(str(path), num_runs, None, f"{config} is damaged")
    return Source(str(path), num_runs, record)
