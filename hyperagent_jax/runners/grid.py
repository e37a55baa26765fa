"""Grids of DeepSea runs: every combination of agents, sizes, seeds and other settings, checked and in order."""

from collections.abc import Container, Mapping
import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import shlex
from typing import Any

from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.runners import deep_sea
from hyperagent_jax.experiment import workers

# The keys that every grid has, and their values if it does not name them.
_DEFAULTS = {"agent": "hyperagent", "size": 20, "seed": 0}
_PROTOCOL = {field.name: field.type for field in dataclasses.fields(deep_sea.Protocol)}


@dataclasses.dataclass(frozen=True)
class Run:
    """One seed of one cell of a grid.

    Attributes:
        columns: its agent, size, seed and other settings, as results.csv has them; blank where the agent has no
            such setting.
        task: what to run.
    """

    columns: dict[str, str]
    task: deep_sea.Task

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from all other runs of the grid."""
        return tuple(self.columns.values())

    @property
    def cell(self) -> tuple[str, ...]:
        """What it has in common with the other seeds of its cell alone."""
        return tuple(value for name, value in self.columns.items() if name != "seed")

    @property
    def command(self) -> str:
        """What runs it alone, with the same outcome."""
        settings = [f"--{name}={value}" for name, value in self.columns.items() if value != ""]
        return shlex.join(["python", "experiments/run_deepsea.py", *settings, f"--logdir=logs/{self.file_name()}"])

    def file_name(self) -> str:
        """A readable name, unique in the grid and independent of the order of its keys."""
        order = [*_DEFAULTS, *sorted(set(self.columns) - set(_DEFAULTS))]
        full = "_".join(f"{name}={self.columns[name]}" for name in order if self.columns[name])
        # Names of files are limited in length and characters; the digest tells apart what is then alike.
        return re.sub(r"[^\w.,=+-]", "-", full[:120]) + "_" + hashlib.sha256(full.encode()).hexdigest()[:8]

    def with_checkpoint(self, path: str, seconds: float) -> "Run":
        """The run with a checkpoint in that file every so many seconds."""
        task = dataclasses.replace(self.task, checkpoint=path, checkpoint_seconds=seconds)
        return dataclasses.replace(self, task=task)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a grid.

    Attributes:
        settings: the grid's keys besides agent, size and seed, in its order.
        runs: all runs, smaller sizes first and the seeds of a cell one after the other.
        num_combinations: number of combinations of the grid's values.
        lacking: maps agents to those of `settings` that they do not have.
        identity: what a resumed sweep must have in common with this one; its `configs` may gain agents.
    """

    settings: tuple[str, ...]
    runs: tuple[Run, ...]
    num_combinations: int
    lacking: dict[str, list[str]]
    identity: dict[str, Any]

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of results.csv."""
        measured = [name for name in deep_sea.RESULT_FIELDS if name not in _DEFAULTS]
        return (*_DEFAULTS, *self.settings, *measured, "error", "command")

    @property
    def varied(self) -> tuple[str, ...]:
        """Those of `settings` in which runs differ."""
        return tuple(name for name in self.settings if len({run.columns[name] for run in self.runs}) > 1)

    @property
    def new_settings(self) -> dict[str, Any]:
        """What the identity on file of an older version may lack."""
        configs = {run.task.agent: run.task.config for run in self.runs}
        return {
            "configs": config_lib.introduced(**configs),
            **config_lib.introduced(protocol=self.runs[0].task.protocol),
        }

    def key(self, row: dict[str, str]) -> tuple[str, ...]:
        """The key of the run that a row of results.csv is of."""
        return tuple(row[name] for name in (*_DEFAULTS, *self.settings))


def read(text: str) -> dict[str, Any]:
    """Reads a grid: a JSON object, or the path of a file that holds one."""
    source = "--grid"
    if not text.lstrip().startswith("{"):
        source = f"--grid={text}"
        try:
            text = pathlib.Path(text).read_text()
        except (OSError, ValueError) as error:
            raise errors.UserError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from error

    def refuse_constant(name):
        raise ValueError(f"{name} is no number")

    def refuse_twins(pairs):
        names = [name for name, _ in pairs]
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twins[0]!r} stands there twice")
        return dict(pairs)

    try:
        grid = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_twins)
    except ValueError as error:
        raise errors.UserError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(grid, dict):
        raise errors.UserError(f"{source} must be a JSON object that maps names of settings to lists of values")
    return grid


def _values(name: str, annotation: Any, entry: Any) -> list[Any]:
    """The values that an entry of a grid lists, each once; a single value may stand for a list of one."""
    # A list of numbers is one value of a setting that is itself a list.
    is_one = not isinstance(entry, list) or (
        config_lib.is_list(annotation) and entry and not any(isinstance(x, list) for x in entry)
    )
    values = [config_lib.from_json(name, annotation, x) for x in ([entry] if is_one else entry)]
    if not values:
        raise errors.UserError(f"{name} has no values: its list in the grid is empty")
    return list(dict.fromkeys(values))


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def plan(grid: dict[str, Any], config_classes: Mapping[str, Any]) -> Plan:
    """Checks a grid and makes its runs.

    Args:
        grid: maps agent, size, seed, and names of fields of the protocol and of the agents' configs to a value
            or a list of values.
        config_classes: maps the names of all agents to their config dataclasses or presets.
    """
    grid = {**grid, **{name: value for name, value in _DEFAULTS.items() if name not in grid}}
    settings = tuple(name for name in grid if name not in _DEFAULTS)
    names = _values("agent", str, grid["agent"])
    for name in names:
        if name not in config_classes:
            raise errors.UserError(f"unknown agent {name!r}; choose one of {', '.join(config_classes)}")
    kinds = {
        name: {key: setting.type for key, setting in config_lib.settings_of(config_classes[name]).items()}
        for name in names
    }
    every = {**_PROTOCOL, **{key: kind for own in kinds.values() for key, kind in own.items()}}
    if unknown := [key for key in settings if key not in every]:
        raise errors.UserError(
            f"the grid's {unknown[0]!r} is no setting of the protocol or of {', '.join(names)}; there are: "
            f"{', '.join(every)}"
        )
    values = {key: _values(key, {"agent": str, "seed": int, **every}[key], entry) for key, entry in grid.items()}
    for seed in values["seed"]:
        if not 0 <= seed <= types.MAX_SEED:
            raise errors.UserError(f"seed must be between 0 and {types.MAX_SEED}, got {seed}")

    # Seeds go last: they share a compiled program.
    order = [key for key in values if key != "seed"] + ["seed"]
    runs: dict[tuple[str, ...], Run] = {}
    combinations = [dict(zip(order, x, strict=True)) for x in itertools.product(*(values[key] for key in order))]
    for chosen in sorted(combinations, key=lambda chosen: chosen["size"]):
        run = _make_run(chosen, settings, config_classes[chosen["agent"]], kinds[chosen["agent"]])
        runs.setdefault(run.key, run)
    lacking = {
        name: absent
        for name in names
        if (absent := [key for key in settings if key not in kinds[name] and key not in _PROTOCOL])
    }
    identity = {
        "experiment": "sweep",
        "grid_keys": sorted(settings),
        "protocol": {
            # By default solved_return depends on the size.
            field.name: None if field.name == "solved_return" else field.default
            for field in dataclasses.fields(deep_sea.Protocol)
            if field.name not in grid
        },
        "configs": {name: dataclasses.asdict(config_classes[name]()) for name in names},
    }
    return Plan(settings, tuple(runs.values()), len(combinations), lacking, identity)


def _make_run(chosen: dict[str, Any], settings: tuple[str, ...], config_class: Any, own: dict[str, Any]) -> Run:
    """Makes the run of one combination of values; refuses values that are out of range."""
    try:
        protocol = deep_sea.make_protocol(**{key: value for key, value in chosen.items() if key in _PROTOCOL})
        config = config_class(**{key: value for key, value in chosen.items() if key in own})
    except ValueError as error:
        raise errors.UserError(str(error)) from error
    columns = {
        key: _text(chosen[key]) if key in _DEFAULTS or key in _PROTOCOL or key in own else ""
        for key in (*_DEFAULTS, *settings)
    }
    config = deep_sea.resolve(config, protocol)
    return Run(columns, deep_sea.Task(chosen["agent"], config, protocol, (chosen["seed"],), maps=False))


def largest_bytes(runs: tuple[Run, ...], refused: Container[tuple[str, ...]] = ()) -> int:
    """Memory that the state of the largest run will take, before any of it is allocated."""
    accepted = [run for run in runs if run.key not in refused]
    size = max(run.task.protocol.size for run in accepted)  # memory grows with it
    cells = {run.cell: run.task for run in accepted if run.task.protocol.size == size}
    return max(deep_sea.num_bytes(task)["total"] for task in cells.values())


def refusals(runs: tuple[Run, ...]) -> dict[tuple[str, ...], str]:
    """The runs whose combination of settings the agent does not accept, by their keys, and what it says."""
    cells: dict[tuple[str, ...], str] = {}
    for run in runs:
        if run.cell in cells:
            continue
        try:
            deep_sea.make(run.task)
            cells[run.cell] = ""
        except errors.UserError as error:
            cells[run.cell] = str(error)
        except Exception as error:  # a bug of one agent must not end a sweep over many
            cells[run.cell] = workers.describe(error)
    return {run.key: cells[run.cell] for run in runs if cells[run.cell]}
