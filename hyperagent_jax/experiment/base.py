"""Defines experiments, their tasks, the events that tasks report, and the plan that the driver executes."""

import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import hashlib
import importlib
import pathlib
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from hyperagent_jax import agents
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import fingerprint as fingerprint_lib

if TYPE_CHECKING:
    from hyperagent_jax.experiment import run_context
    from hyperagent_jax.experiment import run_directory

# Modules of this package that define an EXPERIMENT, by the name that sweeps and tasks use.
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
    """What one worker process runs from start to finish: one or more seeds of one agent on one problem."""

    experiment: str
    agent: str
    config: Any
    protocol: Any  # names the problem
    seeds: tuple[int, ...]
    options: Any = None
    columns: tuple[tuple[str, str], ...] = ()  # of results.csv that identify it, besides the seed
    folder: str = ""  # the run directory; empty for a task that writes no files
    checkpoint_seconds: float = 60.0
    is_cell: bool = False  # part of a sweep: its files are named after all columns, and it writes no maps
    rank: int = 0  # number of the process, if several run the task together

    @property
    def name(self) -> str:
        """A name that is unique within the plan and valid as a file name."""
        first, last = self.seeds[0], self.seeds[-1]
        seeds = ("seed", f"{first}") if len(self.seeds) == 1 else ("seeds", f"{first}_to_{last}")
        if not self.is_cell:
            return _file_name("_".join([*(value for _, value in self.columns if value), *seeds]))
        agent, problem, *settings = self.columns
        named = [agent, problem, seeds, *sorted(settings)]
        full = "_".join(f"{name}={value}" for name, value in named if value)
        # File names are limited in length and characters; the digest keeps shortened ones distinct.
        return f"{_file_name(full[:120])}_{hashlib.sha256(full.encode()).hexdigest()[:8]}"

    @property
    def checkpoint(self) -> pathlib.Path:
        """The task's checkpoint file; each of several processes has its own."""
        own = f"_process_{self.rank}" if self.rank else ""
        return pathlib.Path(self.folder) / "checkpoints" / f"{self.name}{own}.npz"

    def columns_of(self, seed: int) -> dict[str, str]:
        """Returns the columns that identify a seed's row."""
        return {**dict(self.columns), "seed": str(seed)}

    def identity(self) -> dict[str, Any]:
        """Returns the settings that determine the result of a seed."""
        return {
            "experiment": self.experiment,
            "agent": self.agent,
            "config": dataclasses.asdict(self.config),
            "protocol": dataclasses.asdict(self.protocol),
        }

    def fingerprint(self) -> fingerprint_lib.Fingerprint:
        """Returns the settings that a checkpoint of this task must match."""
        settings = {**self.identity(), "seeds": self.seeds}
        return fingerprint_lib.make(settings, config=self.config, protocol=self.protocol)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", text)


class Event(NamedTuple):
    """Something that a running task reports."""

    kind: str  # "progress", "curve", "result" or "note"
    task: str  # its name
    seed: int
    row: dict[str, Any] = {}  # of curve.csv or results.csv
    reached: int = 0  # interactions or episodes so far
    text: str = ""  # shown to the user


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of an experiment without any."""


def default_group_size(num_seeds: int, num_accelerators: int) -> int:
    """Returns how many seeds run as one group: one on a CPU, an even share per device on accelerators."""
    return -(-num_seeds // num_accelerators) if num_accelerators else 1


class Experiment(abc.ABC):
    """The parts that are specific to an experiment; the driver does the rest.

    Attributes:
        name: name in sweeps and in config.json; `experiments/run_<name>.py` runs it.
        protocol_class: dataclass of how a run is trained and evaluated; its fields are flags and grid keys.
        options_class: dataclass of settings that do not change the result of a seed.
        problem: field of the protocol that names the problem to solve.
        key_fields: columns of results.csv that identify a row.
        result_fields: columns of results.csv.
        curve_fields: columns of curve.csv; if empty, neither curve.csv nor a picture is written.
        sweeps_curves: whether sweeps write curve.csv too; for experiments with few evaluations per run.
        evaluates_together: whether all episodes of an evaluation are in memory simultaneously.
        score: column of results.csv that sweeps average over the runs that have a value.
        scored: heading of the number of those runs in the table of a sweep.
        label: name of a row in summaries; a format string of its columns.
        unit: unit of progress.
        logdir: default folder of results within logs/.
        checkpoint_seconds: default time between checkpoints.
        identity_defaults: what `identity` has that older versions did not record, and what they did.
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
    identity_defaults: Mapping[str, Any] = {}

    def configs(self, options: Any = None) -> dict[str, Any]:
        """Returns the config classes of the supported agents, by name."""
        return agents.CONFIGS

    def require_agent(self, name: str, configs: Mapping[str, Any]) -> None:
        """Raises UserError unless an agent is among those that `configs` returned."""
        if name not in configs:
            why = f"unknown agent {name!r};"
            if name in agents.CONFIGS:
                why = f"{self.name} has no settings for {name} in this preset (see docs/agents.md);"
            raise errors.UserError(f"{why} choose one of {', '.join(configs)}")

    def problems(self, value: Any) -> Sequence[Any]:
        """Returns the problems that a value of the problem's flag stands for."""
        return [value]

    def resolve(self, protocol: Any) -> Any:
        """Returns the protocol with defaults filled in that depend on its other settings."""
        return protocol

    @abc.abstractmethod
    def length(self, protocol: Any) -> int:
        """Returns the largest possible progress of a run, in its unit."""

    def capped(self, config: Any, protocol: Any) -> Any:
        """Returns the config as it will run, with the replay capacity limited to the length of the run."""
        return config_lib.cap_replay(config, self.length(protocol))

    def group_size(self, options: Any, num_seeds: int, num_accelerators: int) -> int:
        """Returns how many seeds of a problem run as one group, on a CPU or on a number of accelerators."""
        return 1

    def program(self, task: Task) -> Any:
        """Returns a key shared by tasks with the same compiled program, which one worker had better run."""
        return task.columns

    def identity(self, task: Task) -> dict[str, Any]:
        """Returns the settings in config.json that all rows of a folder share."""
        return task.identity()

    @abc.abstractmethod
    def num_bytes(self, task: Task) -> int:
        """Returns the memory of a task's state without allocating it; rejects settings that cannot run."""

    def working_bytes(self, task: Task) -> tuple[int, str]:
        """Returns a lower bound on a step's temporary memory, and the settings that it depends on most.

        It holds activations of a batch, indices, random numbers, and evaluations.
        """
        config = task.config
        widest = max(getattr(config, "hidden_sizes", ()), default=1)
        num_indices = getattr(config, "num_indices", 1) if getattr(config, "loss", "") == "sampled" else 1
        index_dim = getattr(config, "index_dim", 1)
        batch_size = getattr(config, "batch_size", 1)
        parts = {
            "--batch_size or --hidden_sizes": batch_size * widest,
            "--batch_size, --num_indices or --index_dim": batch_size * num_indices * index_dim,
            "--updates_per_step or --batch_size": batch_size * getattr(config, "updates_per_step", 1),
            "--num_ois or --index_dim": getattr(config, "num_ois", 1) * index_dim,
        }
        if self.evaluates_together:
            parts["--eval_episodes or --hidden_sizes"] = task.protocol.eval_episodes * widest
        settings, numbers = max(parts.items(), key=lambda part: part[1])
        return 4 * numbers, settings

    @abc.abstractmethod
    def header(self, task: Task) -> str:
        """Describes what is about to run."""

    @abc.abstractmethod
    def run(self, task: Task, context: "run_context.RunContext") -> None:
        """Runs a task to completion, from its checkpoint if there is one."""

    def is_done(self, row: dict[str, str], directory: "run_directory.RunDirectory") -> bool:
        """Returns whether an existing row is complete, so that it need not be run again."""
        return not row.get("error")

    @abc.abstractmethod
    def outcome(self, row: dict[str, Any]) -> str:
        """Describes a row of results.csv that has no error."""

    def summary(self, row: dict[str, Any], shown: Sequence[str] = ()) -> str:
        """Describes any row of results.csv in one line; `shown` names additional columns to show."""
        named = "".join(f" {name}={row[name]}" for name in shown if row[name] != "")
        outcome = f"ERROR {row['error']}" if row.get("error") else self.outcome(row)
        return f"{self.label.format(**row)}{named}: {outcome}"

    def conclusion(self, rows: Sequence[dict[str, str]], num_runs: int) -> str:
        """Describes all rows in one line, leaving out the number of errors."""
        return f"{sum(not row['error'] for row in rows)} of {num_runs} runs finished"

    def cell_summary(self, rows: Sequence[dict[str, str]]) -> dict[str, str]:
        """Returns the columns for one cell in the table that a sweep prints."""
        scores = [float(row[self.score]) for row in rows if row[self.score] != ""]
        average = results.ratio(sum(scores), len(scores))
        return {self.scored: f"{len(scores)} of {len(rows)}", self.score: str(average)}

    def context(
        self, task: Task, report: Callable[[Event], None], should_stop: Callable[[], bool]
    ) -> "run_context.RunContext":
        """Returns the surroundings of a task that is about to run."""
        from hyperagent_jax.experiment import run_context

        return run_context.RunContext(task, report, should_stop)

    def draw(  # noqa: B027  (without curves there is nothing to draw)
        self, path: pathlib.Path, directory: "run_directory.RunDirectory", task: Task
    ) -> None:
        """Plots the rows of curve.csv."""

    def command(self, task: Task, seed: int) -> str:
        """Returns the command that reproduces a seed's row alone: its columns and all non-default settings."""
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
    """All runs of one run directory."""

    experiment: Experiment
    tasks: tuple[Task, ...]  # with one seed each
    logdir: str
    fingerprint: fingerprint_lib.Fingerprint  # settings that all rows share
    key_fields: tuple[str, ...]  # columns of results.csv that identify a row
    shown: tuple[str, ...] = ()  # columns that summaries show besides agent, problem and seed
    notes: dict[str, Any] = {}  # additional entries of config.json
    header: str = ""  # describes the plan; by default the header of the largest task
    remark: str = ""  # a line after the header

    @property
    def is_sweep(self) -> bool:
        """Whether tasks are cells of a sweep: progress counts runs, and settings that cannot run become rows."""
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
        """Columns of curve.csv; empty if none is written."""
        fields = self.experiment.curve_fields
        if not self.is_sweep:
            return fields
        if not self.experiment.sweeps_curves:
            return ()
        return (*self.key_fields, *(name for name in fields if name not in self.key_fields))

    @property
    def records_failures(self) -> bool:
        """Whether a failed run becomes a row; if not, the first failure ends all runs."""
        fields = self.experiment.result_fields
        return self.is_sweep or "status" in fields or ("error" in fields and len(self.tasks) > 1)

    def cells(self) -> list[list[Task]]:
        """Returns the tasks grouped by cell: those of a cell differ only in the seed."""
        cells: dict[Any, list[Task]] = {}
        for task in self.tasks:
            cells.setdefault(task.columns, []).append(task)
        return list(cells.values())

    def key(self, row: dict[str, Any], missing: str | None = None) -> tuple[str, ...]:
        """Returns the key of a row of results.csv; `missing` stands for columns that it lacks."""
        if missing is not None:
            return tuple(str(row.get(name, missing)) for name in self.key_fields)
        return tuple(str(row[name]) for name in self.key_fields)
