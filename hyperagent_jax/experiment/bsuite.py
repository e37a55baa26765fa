"""bsuite's protocol: the number of episodes that an id prescribes, logged by bsuite itself."""

import collections
from collections.abc import Sequence
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checks
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.analysis.bsuite import logs
from hyperagent_jax.environments import bsuite_adapter
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.runners import loop as loop_lib

# Steps between checks of the clock.
_CHUNK = 200
# Rows with these statuses need not be run again.
_DONE = (results.FINISHED, results.PARTIAL)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Which bsuite ids to run, and for how long.

    Attributes:
        bsuite_id: an id such as deep_sea/0, an experiment such as deep_sea, TESTING (the first id of every
            experiment except the noise and scale variants), SWEEP (all), or a comma-separated list of these.
        max_episodes: stop after this many episodes and mark the result as partial; None for bsuite's own number.
    """

    bsuite_id: str = "deep_sea/0"
    max_episodes: int | None = None

    def __post_init__(self) -> None:
        checks.positive(self, "max_episodes")


@functools.lru_cache(maxsize=8)
def _make_program(name: str, config: Any, spec: types.EnvironmentSpec) -> loop_lib.Program:
    return loop_lib.make_program(agents.make_agent(name, config, spec))


def make_program(task: base.Task) -> loop_lib.Program:
    """Builds the program of a task; ids with the same specification share it.

    The replay capacity is limited to the longest possible run.
    """
    problem = bsuite_adapter.problem(task.protocol.bsuite_id)
    config = config_lib.cap_replay(task.config, problem.num_episodes * problem.longest_episode)
    return _make_program(task.agent, config, problem.spec)


class Bsuite(base.Experiment):
    """The bsuite experiment. bsuite's own logging writes one csv file per id to <logdir>/csv."""

    name = "bsuite"
    protocol_class = Protocol
    problem = "bsuite_id"
    score = "total_return"
    label = "{bsuite_id} {agent}"
    key_fields = ("bsuite_id",)
    result_fields = (
        "bsuite_id", "agent", "seed", "status", "reason", "episodes", "steps", "total_return", "num_params",
        "train_seconds", "steps_per_second", "command",
    )  # fmt: skip
    unit = "episode"
    logdir = "bsuite_{agent}"

    def problems(self, value: str) -> Sequence[str]:
        return bsuite_adapter.ids(value)

    def program(self, task: base.Task) -> Any:
        return task.agent, task.protocol.bsuite_id.split("/")[0]

    def identity(self, task: base.Task) -> dict[str, Any]:
        identity = super().identity(task)
        del identity["protocol"]  # it names the id, and a folder may hold any number of ids
        return {**identity, "seed": task.seeds[0], "max_episodes": task.protocol.max_episodes}

    def length(self, protocol: Protocol) -> int:
        full = bsuite_adapter.num_episodes(protocol.bsuite_id)
        return full if protocol.max_episodes is None else min(full, protocol.max_episodes)

    def capped(self, config: Any, protocol: Protocol) -> Any:
        return config  # `make_program` does it, so that ids of one folder share their config

    def num_bytes(self, task: base.Task) -> int:
        """Returns 0 if the data that the task needs is not installed."""
        try:
            return loop_lib.num_bytes(make_program(task))
        except bsuite_adapter.MissingDataError:
            return 0

    def header(self, task: base.Task) -> str:
        return f"{task.agent} on bsuite, states of up to {self.num_bytes(task) / 1e6:.3g} MB"

    def run(self, task: base.Task, context: run_context.RunContext) -> None:
        bsuite_id, (seed,) = task.protocol.bsuite_id, task.seeds
        try:
            problem = bsuite_adapter.problem(bsuite_id)
        except bsuite_adapter.MissingDataError as error:
            context.add_result(seed, {"status": results.SKIPPED, "reason": str(error)})
            return
        program = make_program(task)
        # A resumed task repeats its actions, so bsuite's log equals that of an uninterrupted run.
        csv_folder = pathlib.Path(task.folder) / "csv" / (task.name if task.is_cell else "")
        make_environment = functools.partial(bsuite_adapter.make, bsuite_id, seed, csv_folder)
        loop = loop_lib.Loop(program, make_environment, jax.random.key(np.uint32(seed)), problem.observe)
        notes = context.progress.notes
        if context.is_resumed:
            loop.restore(context.load(loop.like()))
        else:
            notes.update(timed_seconds=0.0, timed_steps=0, total_return=0.0)
        target, has_learned = self.length(task.protocol), False
        while loop.episodes < target:
            if context.should_stop():
                context.save(loop.tree())
                return
            seconds, steps = context.progress.train_seconds, loop.agent.steps
            with context.training():
                metrics = loop.run(_CHUNK, target)
            if has_learned:  # everything before includes compilation
                notes["timed_seconds"] += context.progress.train_seconds - seconds
                notes["timed_steps"] += loop.agent.steps - steps
            has_learned |= bool(metrics.updates > 0)
            notes["total_return"] += float(metrics.returns)
            context.check_loss(metrics.loss, bsuite_id, loop.agent.steps)
            context.advance(loop.episodes)
            if context.is_save_due():
                context.save(loop.tree())
        complete = target == problem.num_episodes
        rate = notes["timed_steps"] / notes["timed_seconds"] if notes["timed_steps"] else 0.0
        row = {
            "status": results.FINISHED if complete else results.PARTIAL,
            "reason": "" if complete else f"{target:,} of {problem.num_episodes:,} episodes",
            "episodes": loop.episodes,
            "steps": loop.agent.steps,
            "total_return": round(notes["total_return"], 4),
            "num_params": agents.count_params(program.agent),
            "train_seconds": round(notes["timed_seconds"], 2),
            "steps_per_second": round(rate, 1) if rate else "",
        }
        context.add_result(seed, row)

    def is_done(self, row: dict[str, str], directory: run_directory.RunDirectory) -> bool:
        """Returns whether an id is complete, which requires its complete log."""
        if row.get("error") or row["status"] not in _DONE:
            return False
        if "error" in row:  # a row of a sweep, which keeps its logs in separate folders
            return True
        file = bsuite_adapter.csv_file(row["bsuite_id"], directory.path / "csv")
        if not file.exists():
            print(f"the log of {row['bsuite_id']} is missing: running it again")
            return False
        if logs.last_episode(file, row["bsuite_id"]) != bsuite_adapter.last_logged(int(row["episodes"])):
            raise errors.UserError(f"{file} is incomplete: delete it and run {row['bsuite_id']} again")
        return True

    def outcome(self, row: dict[str, Any]) -> str:
        if row["status"] not in _DONE:
            return f"{row['status'].upper()}, {row['reason']}"
        note = f" ({row['status']}: {row['reason']})" if row["reason"] else ""
        rate = f", {float(row['steps_per_second']):,.0f} steps/s" if row["steps_per_second"] else ""
        average = float(row["total_return"]) / int(row["episodes"])
        return f"{int(row['episodes']):,} episodes, mean return {average:.4g}{rate}{note}"

    def conclusion(self, rows: Sequence[dict[str, str]], num_runs: int) -> str:
        counts = collections.Counter(row["status"] for row in rows)
        return ", ".join(f"{count} {status}" for status, count in counts.items())


EXPERIMENT = Bsuite()
