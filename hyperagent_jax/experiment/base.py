"""What an experiment is: tasks, the events they report, and the plan that is executed."""

import abc
from collections.abc import Sequence
import dataclasses
import hashlib
import importlib
import pathlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
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
    """What one worker process runs from beginning to end: one or more seeds of one agent on one problem.

    Attributes:
        experiment: name of the experiment.
        agent: name of the agent.
        config: its config.
        protocol: the experiment's protocol; names the problem.
        seeds: seeds that run together.
        options: the experiment's options, which do not change what a seed gives.
        columns: columns of results.csv that tell this task from the others of its plan, without the seed.
        folder: the run directory, for files that are neither rows nor checkpoints.
        checkpoint: file of its checkpoint, or None.
        checkpoint_seconds: least time between two checkpoints.
        is_cell: whether it is a cell of a sweep: its files are named after all columns, and no arrays are kept.
    """

    experiment: str
    agent: str
    config: Any
    protocol: Any
    seeds: tuple[int, ...]
    options: Any = None
    columns: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    checkpoint: str | None = None
    checkpoint_seconds: float = 60.0
    is_cell: bool = False

    @property
    def name(self) -> str:
        """A name that is unique in its plan and fit for a file."""
        first, last = self.seeds[0], self.seeds[-1]
        seeds = f"{first}" if len(self.seeds) == 1 else f"{first}_to_{last}"
        plural = "" if len(self.seeds) == 1 else "s"
        if not self.is_cell:
            return _file_name("_".join([*(value for _, value in self.columns if value), f"seed{plural}_{seeds}"]))
        agent, problem, *settings = self.columns
        named = [agent, problem, (f"seed{plural}", seeds), *sorted(settings)]
        full = "_".join(f"{name}={value}" for name, value in named if value)
        # Names of files are limited in length and characters; the digest tells apart what is then alike.
        return f"{_file_name(full[:120])}_{hashlib.sha256(full.encode()).hexdigest()[:8]}"

    @property
    def cell(self) -> Any:
        """What tasks share that run the same compiled program."""
        return (self.agent, self.config, self.protocol)

    def columns_of(self, seed: int) -> dict[str, str]:
        """The columns that identify a seed's row."""
        return {**dict(self.columns), "seed": str(seed)}

    def fingerprint(self) -> fingerprint_lib.Fingerprint:
        """What a checkpoint of this task must have been made with."""
        settings = {
            "experiment": self.experiment,
            "agent": self.agent,
            "config": dataclasses.asdict(self.config),
            "protocol": dataclasses.asdict(self.protocol),
            "seeds": self.seeds,
        }
        return fingerprint_lib.make(settings, config=self.config, protocol=self.protocol)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", text)


class Event(NamedTuple):
    """What a running task reports.

    Attributes:
        kind: "progress", "curve", "result", "note" or "finished".
        task: name of the task.
        seed: the seed it is about.
        row: a row of curve.csv or results.csv.
        arrays: arrays to keep with a result.
        reached: interactions or episodes so far.
        text: what to show.
    """

    kind: str
    task: str
    seed: int
    row: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] | None = None
    reached: int | None = None
    text: str = ""


class Needs(NamedTuple):
    """What a task needs, known before anything is allocated.

    Attributes:
        num_bytes: memory of its state.
        text: the same in words, with what else the header says of the run.
    """

    num_bytes: int
    text: str


class Experiment(abc.ABC):
    """What is an experiment's own; the driver does the rest.

    Attributes:
        name: its name in sweeps and in config.json.
        script: the script that runs it.
        protocol_class: dataclass of how a run is made and measured; its fields are flags and grid keys.
        options_class: dataclass of settings that do not change what a seed gives, or None.
        problem: the field of the protocol that names what is solved.
        key_fields: columns of results.csv that tell its rows apart.
        result_fields: columns of results.csv.
        curve_fields: columns of curve.csv; empty if there is none.
        score: the column of results.csv that sweeps average over seeds.
        unit: what progress counts.
        logdir: default folder of results within logs/.
        checkpoint_seconds: default time between checkpoints.
    """

    name: str
    script: str
    protocol_class: type
    options_class: type | None = None
    problem: str
    key_fields: tuple[str, ...] = ("seed",)
    result_fields: tuple[str, ...]
    curve_fields: tuple[str, ...] = ()
    score: str
    unit: str = "step"
    logdir: str = "{experiment}_{problem}_{agent}"
    checkpoint_seconds: float = 60.0

    def configs(self, options: Any = None) -> dict[str, Any]:
        """The agents it takes, by name, and what makes their configs."""
        del options
        return agents.CONFIGS

    def problems(self, value: Any) -> Sequence[Any]:
        """The problems that a value of the flag `--problem` stands for."""
        return [value]

    def resolve(self, protocol: Any) -> Any:
        """Returns the protocol with the defaults that depend on its other settings."""
        return protocol

    def num_interactions(self, protocol: Any) -> int | None:
        """The most interactions a run can have; a replay longer than that is cut."""
        del protocol
        return None

    def capped(self, config: Any, protocol: Any) -> Any:
        """Returns the config as it will run: a replay longer than the whole run is cut to it."""
        most = self.num_interactions(protocol)
        return config if most is None else config_lib.cap_replay(config, most)

    def group_size(self, options: Any, num_seeds: int) -> int:
        """How many seeds run together."""
        del options, num_seeds
        return 1

    def program(self, task: Task) -> Any:
        """What tasks share that run the same compiled program; one worker runs them one after the other."""
        return task.cell

    def identity(self, task: Task) -> dict[str, Any]:
        """The settings in config.json that all rows of a folder share."""
        return {
            "experiment": self.name,
            "agent": task.agent,
            "config": dataclasses.asdict(task.config),
            "protocol": dataclasses.asdict(task.protocol),
        }

    def changed_settings(self, task: Task) -> dict[str, str]:
        """The settings of a task that differ from their defaults and are not columns, as flags have them."""
        value = {self.problem: getattr(task.protocol, self.problem)}
        protocol = self.resolve(self.protocol_class(**value))
        config = self.capped(self.configs(task.options)[task.agent](), task.protocol)
        pairs = [(config, task.config), (protocol, task.protocol)]
        if self.options_class is not None:
            pairs.append((self.options_class(), task.options))
        known = {*dict(task.columns), *value}
        return {
            field.name: config_lib.as_text(getattr(ours, field.name))
            for default, ours in pairs
            for field in dataclasses.fields(default)
            if field.name not in known and getattr(ours, field.name) != getattr(default, field.name)
        }

    @abc.abstractmethod
    def length(self, task: Task) -> int:
        """Units of progress of each row of a task, at most."""

    @abc.abstractmethod
    def needs(self, task: Task) -> Needs:
        """Refuses settings that cannot run, and says what the task will need."""

    @abc.abstractmethod
    def run(self, task: Task, context: "run_context.RunContext") -> None:
        """Runs a task to its end, from its checkpoint if there is one."""

    def is_done(self, row: dict[str, str], directory: "run_directory.RunDirectory") -> bool:
        """Whether a row of an earlier run need not be run again."""
        del directory
        return not row.get("error")

    def failure(self, message: str) -> dict[str, Any]:
        """The columns of results.csv that say that a run failed."""
        return {"error": message}

    @abc.abstractmethod
    def summary(self, row: dict[str, Any], settings: Sequence[str] = ()) -> str:
        """One line about a row of results.csv; `settings` names further columns to show."""

    def conclusion(self, rows: Sequence[dict[str, str]], num_runs: int) -> str:
        """One line about all rows."""
        failed = sum(bool(row.get("error")) for row in rows)
        failures = f", {failed} with an error" if failed else ""
        return f"{len(rows) - failed} of {num_runs} runs finished{failures}"

    def cell_summary(self, rows: Sequence[dict[str, str]]) -> dict[str, str]:
        """Columns of the table that a sweep prints, about the rows of one cell."""
        scores = [float(row[self.score]) for row in rows if row[self.score] != ""]
        return {"runs": f"{len(scores)} of {len(rows)}", self.score: f"{np.mean(scores):.4g}" if scores else ""}

    def draw(self, directory: "run_directory.RunDirectory", task: Task) -> pathlib.Path | None:
        """Draws what was measured; returns the picture's file."""
        del directory, task
        return None


def get(name: str) -> Experiment:
    """Returns the experiment of that name."""
    if name not in _MODULES:
        raise errors.UserError(f"unknown experiment {name!r}; choose one of {', '.join(NAMES)}")
    return importlib.import_module(f"hyperagent_jax.experiment.{_MODULES[name]}").EXPERIMENT


class Plan(NamedTuple):
    """Everything there is to run into one directory.

    Attributes:
        experiment: the experiment.
        tasks: all tasks, with one seed each.
        logdir: the directory.
        fingerprint: what its rows have in common.
        key_fields: columns that tell rows apart.
        result_fields: columns of results.csv.
        curve_fields: columns of curve.csv; empty if it is not written.
        records_failures: whether a failed run is a row; if not, the first failure ends the others.
        extensible: parts of the fingerprint that may gain entries on resume.
        notes: further entries of config.json.
        is_sweep: whether tasks are cells of a sweep: progress counts runs, and settings that cannot run are rows.
        shown: columns of results.csv that summaries name.
        header: what is run, said first; by default what the largest task says of itself.
        remark: a line after it.
    """

    experiment: Experiment
    tasks: tuple[Task, ...]
    logdir: str
    fingerprint: fingerprint_lib.Fingerprint
    key_fields: tuple[str, ...]
    result_fields: tuple[str, ...]
    curve_fields: tuple[str, ...]
    records_failures: bool
    extensible: tuple[str, ...] = ()
    notes: dict[str, Any] = {}
    is_sweep: bool = False
    shown: tuple[str, ...] = ()
    header: str = ""
    remark: str = ""

    def key(self, row: dict[str, Any]) -> tuple[str, ...]:
        """What tells a row of results.csv from the others."""
        return tuple(str(row[name]) for name in self.key_fields)
