"""What an experiment is: tasks, the events they report, and the plan that is executed."""

import abc
from collections.abc import Sequence
import dataclasses
import hashlib
import importlib
import pathlib
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from hyperagent_jax import agents
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import fingerprint as fingerprint_lib

if TYPE_CHECKING:
    from hyperagent_jax.experiment import run_context
    from hyperagent_jax.experiment import run_directory

# Modules of this package that hold an EXPERIMENT, by the name that sweeps and tasks use.
_MODULES = {
    "deepsea": "deep_sea",
    "bsuite": "bsuite",
    "atari": "atari",
    "gymnasium": "gymnasium",
    "jax": "jax_env",
}
NAMES = tuple(_MODULES)


@dataclasses.dataclass(frozen=True)
class Task:
    """What one worker process runs from beginning to end: one or more seeds of one agent on one problem."""

    experiment: str
    agent: str
    config: Any
    protocol: Any  # names the problem
    seeds: tuple[int, ...]
    options: Any = None
    columns: tuple[tuple[str, str], ...] = ()  # of results.csv that tell it from the others, without the seed
    folder: str = ""  # the run directory; blank for a task that writes no files
    checkpoint_seconds: float = 60.0
    is_cell: bool = False  # of a sweep: its files are named after all columns, and it keeps no maps

    @property
    def name(self) -> str:
        """A name that is unique in its plan and fit for a file."""
        first, last = self.seeds[0], self.seeds[-1]
        seeds = ("seed", f"{first}") if len(self.seeds) == 1 else ("seeds", f"{first}_to_{last}")
        if not self.is_cell:
            return _file_name("_".join([*(value for _, value in self.columns if value), *seeds]))
        agent, problem, *settings = self.columns
        named = [agent, problem, seeds, *sorted(settings)]
        full = "_".join(f"{name}={value}" for name, value in named if value)
        # Names of files are limited in length and characters; the digest tells apart what is then alike.
        return f"{_file_name(full[:120])}_{hashlib.sha256(full.encode()).hexdigest()[:8]}"

    @property
    def checkpoint(self) -> pathlib.Path:
        """The file of its checkpoint."""
        return pathlib.Path(self.folder) / "checkpoints" / f"{self.name}.npz"

    def columns_of(self, seed: int) -> dict[str, str]:
        """Returns the columns that identify a seed's row."""
        return {**dict(self.columns), "seed": str(seed)}

    def identity(self) -> dict[str, Any]:
        """Returns the settings that determine what a seed gives."""
        return {
            "experiment": self.experiment,
            "agent": self.agent,
            "config": dataclasses.asdict(self.config),
            "protocol": dataclasses.asdict(self.protocol),
        }

    def fingerprint(self) -> fingerprint_lib.Fingerprint:
        """Returns what a checkpoint of this task must have been made with."""
        settings = {**self.identity(), "seeds": self.seeds}
        return fingerprint_lib.make(settings, config=self.config, protocol=self.protocol)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", text)


class Event(NamedTuple):
    """What a running task reports."""

    kind: str  # "progress", "curve", "result" or "note"
    task: str  # its name
    seed: int
    row: dict[str, Any] = {}  # of curve.csv or results.csv
    reached: int = 0  # interactions or episodes so far
    text: str = ""  # to show


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of an experiment that has none."""


def default_group_size(num_seeds: int) -> int:
    """How many seeds run together: one on a CPU, an even share for each device on accelerators."""
    return 1 if jax.default_backend() == "cpu" else -(-num_seeds // jax.local_device_count())


class Experiment(abc.ABC):
    """What is an experiment's own; the driver does the rest.

    Attributes:
        name: its name in sweeps and in config.json; experiments/run_<name>.py runs it.
        protocol_class: dataclass of how a run is made and measured; its fields are flags and grid keys.
        options_class: dataclass of settings that do not change what a seed gives.
        problem: the field of the protocol that names what is solved.
        key_fields: columns of results.csv that tell its rows apart.
        result_fields: columns of results.csv.
        curve_fields: columns of curve.csv; empty if there is none, and then there is no picture either.
        sweeps_curves: whether sweeps write curve.csv too; for experiments with few evaluations in a run.
        evaluates_together: whether all episodes of an evaluation are in memory at once.
        score: the column of results.csv that sweeps average over the runs that have one.
        scored: what sweeps call those runs.
        label: what summaries call a row; a format of its columns.
        unit: what progress counts.
        logdir: default folder of results within logs/.
        checkpoint_seconds: default time between checkpoints.
    """

    name: str
    protocol_class: type
    options_class: type = NoOptions
    problem: str
    key_fields: tuple[str, ...] = ("seed",)
    result_fields: tuple[str, ...]
    curve_fields: tuple[str, ...] = ()
    sweeps_curves: bool = False
    evaluates_together: bool = False
    score: str
    scored: str = "runs"
    label: str
    unit: str = "step"
    logdir: str = "{experiment}_{problem}_{agent}"
    checkpoint_seconds: float = 60.0

    def configs(self, options: Any = None) -> dict[str, Any]:
        """Returns what makes the configs of the agents it takes, by name."""
        return agents.CONFIGS

    def problems(self, value: Any) -> Sequence[Any]:
        """Returns the problems that a value of the flag `--problem` stands for."""
        return [value]

    def resolve(self, protocol: Any) -> Any:
        """Returns the protocol with the defaults that depend on its other settings."""
        return protocol

    @abc.abstractmethod
    def length(self, protocol: Any) -> int:
        """Returns the units of progress of a run, at most."""

    def capped(self, config: Any, protocol: Any) -> Any:
        """Returns the config as it will run: a replay longer than the whole run is cut to it."""
        return config_lib.cap_replay(config, self.length(protocol))

    def group_size(self, options: Any, num_seeds: int) -> int:
        """Returns how many of a problem's seeds run together."""
        return 1

    def program(self, task: Task) -> Any:
        """Returns what tasks share that one worker had best run, because it has their program compiled."""
        return task.columns

    def identity(self, task: Task) -> dict[str, Any]:
        """Returns the settings in config.json that all rows of a folder share."""
        return task.identity()

    @abc.abstractmethod
    def num_bytes(self, task: Task) -> int:
        """Returns the memory of a task's state, before any is allocated; refuses settings that cannot run."""

    def working_bytes(self, task: Task) -> int:
        """Returns the least memory that a step needs besides: activations of a batch, indices, evaluations."""
        config = task.config
        widest = max(getattr(config, "hidden_sizes", ()), default=1)
        num_indices = getattr(config, "num_indices", 1) if getattr(config, "loss", "") == "sampled" else 1
        index_dim = getattr(config, "index_dim", 1)
        batch = getattr(config, "batch_size", 1) * max(widest, num_indices * index_dim)
        evaluated = task.protocol.eval_episodes * widest if self.evaluates_together else 0
        return 4 * max(batch, evaluated, getattr(config, "num_ois", 1) * index_dim)

    @abc.abstractmethod
    def header(self, task: Task) -> str:
        """Describes what is about to run."""

    @abc.abstractmethod
    def run(self, task: Task, context: "run_context.RunContext") -> None:
        """Runs a task to its end, from its checkpoint if there is one."""

    def is_done(self, row: dict[str, str], directory: "run_directory.RunDirectory") -> bool:
        """Returns whether a row of an earlier run need not be run again."""
        return not row.get("error")

    @abc.abstractmethod
    def outcome(self, row: dict[str, Any]) -> str:
        """Describes a row of results.csv without an error."""

    def summary(self, row: dict[str, Any], shown: Sequence[str] = ()) -> str:
        """Describes any row of results.csv in one line; `shown` names further columns to show."""
        named = "".join(f" {name}={row[name]}" for name in shown if row[name] != "")
        outcome = f"ERROR {row['error']}" if row.get("error") else self.outcome(row)
        return f"{self.label.format(**row)}{named}: {outcome}"

    def conclusion(self, rows: Sequence[dict[str, str]], num_runs: int) -> str:
        """Describes all rows in one line, apart from how many have an error."""
        return f"{sum(not row['error'] for row in rows)} of {num_runs} runs finished"

    def cell_summary(self, rows: Sequence[dict[str, str]]) -> dict[str, str]:
        """Returns the columns of the table that a sweep prints, about the rows of one cell."""
        scores = [float(row[self.score]) for row in rows if row[self.score] != ""]
        average = results.ratio(sum(scores), len(scores))
        return {self.scored: f"{len(scores)} of {len(rows)}", self.score: str(average)}

    def draw(  # noqa: B027  (without curves there is nothing to draw)
        self, path: pathlib.Path, directory: "run_directory.RunDirectory", task: Task
    ) -> None:
        """Draws the rows of curve.csv."""

    def command(self, task: Task, seed: int) -> str:
        """Returns the command that gives a seed's row by itself: its columns and all that is not the default."""
        problem = getattr(task.protocol, self.problem)
        first = {"agent": task.agent, self.problem: str(problem), "seed": str(seed)}
        settings = {**first, **dict(task.columns)}
        for default, ours in (
            (self.capped(self.configs(task.options)[task.agent](), task.protocol), task.config),
            (self.resolve(self.protocol_class(**{self.problem: problem})), task.protocol),
            (self.options_class(), task.options),
        ):
            for field in dataclasses.fields(default):
                value = getattr(ours, field.name)
                if value != getattr(default, field.name):
                    settings.setdefault(field.name, config_lib.as_text(value))
        arguments = [f"--{name}={value}" for name, value in settings.items() if value != ""]
        name = task.name if task.is_cell else "_".join([self.name, *first.values()]).replace("/", "-")
        return shlex.join(["python", f"experiments/run_{self.name}.py", *arguments, f"--logdir=logs/{name}"])


def get(name: str) -> Experiment:
    """Returns the experiment of that name."""
    if name not in _MODULES:
        raise errors.UserError(f"unknown experiment {name!r}; choose one of {', '.join(NAMES)}")
    return importlib.import_module(f"hyperagent_jax.experiment.{_MODULES[name]}").EXPERIMENT


class Plan(NamedTuple):
    """Everything there is to run into one directory."""

    experiment: Experiment
    tasks: tuple[Task, ...]  # with one seed each
    logdir: str
    fingerprint: fingerprint_lib.Fingerprint  # what the rows have in common
    key_fields: tuple[str, ...]  # columns of results.csv that tell rows apart
    shown: tuple[str, ...] = ()  # columns that summaries name besides agent, problem and seed
    notes: dict[str, Any] = {}  # further entries of config.json
    header: str = ""  # what is run; by default what the largest task says of itself
    remark: str = ""  # a line after the header

    @property
    def is_sweep(self) -> bool:
        """Whether tasks are cells of a sweep: progress counts runs, and settings that cannot run are rows."""
        return self.tasks[0].is_cell

    @property
    def result_fields(self) -> tuple[str, ...]:
        """Columns of results.csv."""
        if not self.is_sweep:
            return self.experiment.result_fields
        ends = ("error", "command")
        known = (*self.key_fields, *ends)
        return (*self.key_fields, *(name for name in self.experiment.result_fields if name not in known), *ends)

    @property
    def curve_fields(self) -> tuple[str, ...]:
        """Columns of curve.csv; empty if it is not written."""
        fields = self.experiment.curve_fields
        if not self.is_sweep:
            return fields
        if not self.experiment.sweeps_curves:
            return ()
        return (*self.key_fields, *(name for name in fields if name not in self.key_fields))

    @property
    def records_failures(self) -> bool:
        """Whether a failed run is a row; if not, the first failure ends the others."""
        fields = self.experiment.result_fields
        return self.is_sweep or "status" in fields or ("error" in fields and len(self.tasks) > 1)

    def cells(self) -> list[list[Task]]:
        """Returns the tasks that differ in nothing but the seed, together."""
        cells: dict[Any, list[Task]] = {}
        for task in self.tasks:
            cells.setdefault(task.columns, []).append(task)
        return list(cells.values())

    def key(self, row: dict[str, Any], missing: str | None = None) -> tuple[str, ...]:
        """Returns what tells a row of results.csv from the others; `missing` stands for columns it lacks."""
        if missing is not None:
            return tuple(str(row.get(name, missing)) for name in self.key_fields)
        return tuple(str(row[name]) for name in self.key_fields)
