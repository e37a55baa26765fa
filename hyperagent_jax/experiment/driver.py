"""The one driver: plans tasks from flags, executes plans, shows progress and writes rows."""

import collections
from collections.abc import Sequence
import dataclasses
import pathlib
import re
import sys
import time
from typing import Any

from absl import flags
import jax
import numpy as np
import tqdm

from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import fingerprint as fingerprint_lib
from hyperagent_jax.experiment import host_memory
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import workers

FLAGS = flags.FLAGS
# A slow disk: what is being saved when a run is stopped must be given the time.
_DISK_BYTES_PER_SECOND = 5e7
# Rows of earlier runs that are shown one by one.
_MOST_SHOWN = 20
# Without a progress bar, a line says this often how far a run has come.
_SAY_SECONDS = 60.0


def define_flags(experiment: base.Experiment) -> None:
    """Defines the flags of an experiment's script."""
    options_class, configs = experiment.options_class, experiment.configs()
    flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(configs)}.")
    if experiment.key_fields[-1] == "seed":
        cli.define_seed_flags()
    else:
        description = "Seed of the agent, and of environments whose seed is left open."
        flags.DEFINE_integer("seed", 0, description, lower_bound=0, upper_bound=types.MAX_SEED)
    place = _logdir(experiment, f"<{experiment.problem}>", "<agent>")
    flags.DEFINE_string("logdir", None, f"Folder of the results; default: {place}.")
    cli.define_run_flags(experiment.checkpoint_seconds)
    config_lib.define_flags({"protocol": experiment.protocol_class})
    if options_class is not None:
        config_lib.define_flags({"options": options_class})
    config_lib.define_flags(configs)
    for module in (cli, config_lib):
        flags.adopt_module_key_flags(module)  # so that --help lists them


def _logdir(experiment: base.Experiment, problem: str, agent: str) -> str:
    return "logs/" + experiment.logdir.format(experiment=experiment.name, problem=problem, agent=agent)


def _from_flags(name: str, cls: type) -> Any:
    return config_lib.from_flags(name, cls, {name: cls}, FLAGS)


def plan_from_flags(experiment: base.Experiment) -> base.Plan:
    """Plans every problem and seed that the flags name."""
    options = _from_flags("options", experiment.options_class) if experiment.options_class else None
    configs = experiment.configs(options)
    if FLAGS.agent not in configs:
        raise errors.UserError(f"unknown agent {FLAGS.agent!r}; choose one of {', '.join(configs)}")
    given = _from_flags("protocol", experiment.protocol_class)
    config = config_lib.from_flags(FLAGS.agent, configs[FLAGS.agent], configs, FLAGS)
    seeds = cli.seeds() if experiment.key_fields[-1] == "seed" else [FLAGS.seed]
    problem = getattr(given, experiment.problem)
    logdir = FLAGS.logdir or re.sub(
        r"[^\w./-]", "_", _logdir(experiment, str(problem).replace("/", "_"), FLAGS.agent)
    )
    tasks = []
    for value in experiment.problems(problem):
        with errors.settings_are_the_users("--"):
            protocol = experiment.resolve(dataclasses.replace(given, **{experiment.problem: value}))
        names = [name for name in experiment.key_fields if name != "seed"]
        columns = tuple((name, str(getattr(protocol, name))) for name in names)
        own = experiment.capped(config, protocol)
        tasks += [
            base.Task(experiment.name, FLAGS.agent, own, protocol, (seed,), options, columns, logdir)
            for seed in seeds
        ]
    shared = fingerprint_lib.make(
        experiment.identity(tasks[0]), config=tasks[0].config, protocol=tasks[0].protocol
    )
    fails = "error" in experiment.result_fields or "status" in experiment.result_fields
    return base.Plan(
        experiment,
        tuple(tasks),
        logdir,
        shared,
        experiment.key_fields,
        experiment.result_fields,
        experiment.curve_fields,
        records_failures=fails and (len(tasks) > 1 or "status" in experiment.result_fields),
    )


class Display:
    """Shows progress and writes rows as they are reported."""

    def __init__(
        self,
        plan: base.Plan,
        directory: run_directory.RunDirectory,
        tasks: Sequence[base.Task],
        reached: dict[tuple[str, ...], int],
    ):
        """Takes the tasks to run, and how far each of their rows had come before."""
        self._plan = plan
        self._directory = directory
        self._tasks = {task.name: task for task in tasks}
        # A resumed task repeats what it reported before; rows that are on file already stay as they are.
        self._results = {plan.key(row) for row in directory.rows("results")}
        curve = directory.rows("curve") if plan.curve_fields else []
        self._curve = {(*plan.key(row), int(row["interactions"])) for row in curve}
        self._lengths = {
            plan.key(task.columns_of(seed)): 1 if plan.is_sweep else plan.experiment.length(task)
            for task in tasks
            for seed in task.seeds
        }
        self._said_at = time.monotonic()
        self._reached = {key: 0 if plan.is_sweep else reached.get(key, 0) for key in self._lengths}
        total = sum(self._lengths.values())
        self._bar = tqdm.tqdm(
            initial=sum(self._reached.values()),
            total=total,
            unit="run" if plan.is_sweep else plan.experiment.unit,
            unit_scale=total >= 10_000,
            disable=not FLAGS.progress,
            mininterval=0.2,
            smoothing=0.05,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def _advance(self, key: tuple[str, ...], reached: int | None, text: str) -> None:
        shown = {"agent", self._plan.experiment.problem, "seed", *self._plan.shown}
        values = zip(self._plan.key_fields, key, strict=True)
        label = " ".join(f"{name} {value}" for name, value in values if value and name in shown)
        self._bar.set_postfix_str(f"{label} {text}".strip(), refresh=False)
        if self._bar.disable and reached is not None and time.monotonic() - self._said_at >= _SAY_SECONDS:
            self._said_at = time.monotonic()
            print(f"{label}: {reached:,} {self._plan.experiment.unit}s {text}".strip(), flush=True)
        if reached is not None and not self._plan.is_sweep:
            self._bar.update(max(0, reached - self._reached[key]))
            self._reached[key] = max(reached, self._reached[key])

    def on_event(self, event: base.Event) -> None:
        """Takes one report of a task."""
        task = self._tasks[event.task]
        key = self._plan.key(task.columns_of(event.seed))
        if event.kind == "note":
            self._bar.write(event.text, file=sys.stdout)
        elif event.kind == "finished":
            if task.checkpoint:
                checkpoint.delete(task.checkpoint)
        elif event.kind == "result":
            self._add_result(task, event.seed, event.row, event.arrays)
        else:
            self._advance(key, event.reached, event.text)
            if event.kind == "curve" and self._plan.curve_fields:
                place = (*key, event.row["interactions"])
                if key not in self._results and place not in self._curve:
                    self._curve.add(place)
                    self._directory.add("curve", self._plan.curve_fields, event.row)

    def on_failure(self, task: base.Task, message: str) -> None:
        """Takes a task that failed: a row that says why, for each of its seeds."""
        for seed in task.seeds:
            self._add_result(task, seed, self._plan.experiment.failure(message), None)

    def _add_result(
        self, task: base.Task, seed: int, row: dict[str, Any], arrays: dict[str, np.ndarray] | None
    ) -> None:
        columns = task.columns_of(seed)
        key = self._plan.key(columns)
        if key in self._results:
            return
        if arrays is not None:
            folder = self._directory.path / "maps"
            with results.writing(folder):
                folder.mkdir(exist_ok=True)
                np.savez_compressed(folder / f"seed_{seed}.npz", **arrays)  # type: ignore[arg-type]
        full = dict.fromkeys(self._plan.result_fields, "")
        identified = {**columns, "agent": task.agent}
        full |= {name: value for name, value in {**row, **identified}.items() if name in full}
        if "command" in full:
            full["command"] = cli.command(self._plan.experiment, task, seed)
        self._directory.add("results", self._plan.result_fields, full)
        self._results.add(key)
        if self._plan.is_sweep:
            self._bar.update()
        elif not self._bar.disable:  # what is left of its budget is not needed
            self._bar.total -= self._lengths[key] - self._reached[key]
            self._bar.refresh()
        self._bar.write(self._plan.experiment.summary(full, self._plan.shown), file=sys.stdout)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()


def run_task(task: base.Task, report: Any, should_stop: Any) -> None:
    """Runs a task in a process that may have just begun."""
    cli.use_compilation_cache()
    base.get(task.experiment).run(task, run_context.RunContext(task, report, should_stop))


def _grouped(
    plan: base.Plan, missing: list[base.Task], checkpoints: pathlib.Path
) -> tuple[list[base.Task], dict[tuple[str, ...], int]]:
    """Puts seeds of a cell together that run as one; a group that has a checkpoint stays as it was.

    Returns:
        The tasks, with their checkpoints, and how far each row had come.
    """
    tasks, reached = [], {}
    cells: dict[Any, list[base.Task]] = {}
    for task in missing:
        cells.setdefault((task.columns, task.cell), []).append(task)
    everyone: dict[Any, set[int]] = {}
    for task in plan.tasks:
        everyone.setdefault((task.columns, task.cell), set()).update(task.seeds)
    saved = {}
    for file in checkpoints.glob("*seeds[_=]*.npz"):
        if (found := _saved(file, plan)) is not None:
            saved[file] = found[1].get("seeds", [])
    for cell, members in cells.items():
        first, rest, every = members[0], {task.seeds[0] for task in members}, everyone[cell]
        groups: list[tuple[int, ...]] = []
        for file, seeds in sorted(saved.items(), key=lambda item: -len(item[1])):
            group = tuple(seeds)
            name = dataclasses.replace(first, seeds=group).name
            if file.stem == name and set(group) <= every and set(group) & rest:
                groups.append(group)
                rest -= set(group)
        width = plan.experiment.group_size(first.options, len(every))
        others = [task.seeds[0] for task in members if task.seeds[0] in rest]
        groups += [tuple(others[i : i + width]) for i in range(0, len(others), width)]
        for group in groups:
            task = dataclasses.replace(first, seeds=group)
            file = checkpoints / f"{task.name}.npz"
            tasks.append(
                dataclasses.replace(task, checkpoint=str(file), checkpoint_seconds=FLAGS.checkpoint_seconds)
            )
            if file.exists() and (found := _saved(file, plan)) is not None:
                reached.update({plan.key(task.columns_of(seed)): found[0].reached for seed in group})
    return tasks, reached


def _saved(file: pathlib.Path, plan: base.Plan) -> tuple[run_context.Progress, dict[str, Any]] | None:
    """What a checkpoint says of its task; None if it cannot be read and the task's own row will say so."""
    try:
        return run_context.load_progress(file)
    except checkpoint.CheckpointError:
        if not plan.records_failures:
            raise
        return None


def _check(plan: base.Plan) -> tuple[base.Needs, dict[Any, str]]:
    """Refuses settings that cannot run, before anything is written.

    Returns:
        What the largest task needs, and the cells of a sweep that cannot run, with the reason.
    """
    needs, refused = [], {}
    counts = collections.Counter((task.columns, task.cell) for task in plan.tasks)
    for cell, task in {task.cell: task for task in plan.tasks}.items():
        try:
            with errors.settings_are_the_users():
                own = plan.experiment.needs(task)
            num_seeds = counts[task.columns, cell]
            together = min(plan.experiment.group_size(task.options, num_seeds), num_seeds)
            needs.append(own._replace(num_bytes=together * own.num_bytes))
        except errors.UserError as error:
            if not plan.is_sweep:
                raise
            refused[cell] = str(error)
        except Exception as error:
            if not plan.is_sweep:
                raise
            refused[cell] = workers.describe(error)  # a bug of one agent must not end a sweep over many
    if not needs:
        raise errors.UserError(f"no combination of the grid can be run: {next(iter(refused.values()))}")
    return max(needs, key=lambda one: one.num_bytes), refused


def _print_header(plan: base.Plan, needs: base.Needs, done: Sequence[dict[str, str]]) -> None:
    header = f"{plan.header}, states of up to {needs.num_bytes / 1e6:.3g} MB each" if plan.header else needs.text
    print(f"{header}; results in {plan.logdir}")
    if plan.remark:
        print(plan.remark)
    for row in done[:_MOST_SHOWN] if not plan.is_sweep else ():
        print(f"{plan.experiment.summary(row, plan.shown)} [already there]")
    if done:
        print(f"{len(done)} of {len(plan.tasks)} runs are already there")


def _print_table(plan: base.Plan, rows: Sequence[dict[str, str]]) -> None:
    """Prints a line per cell of a sweep."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    names = ("agent", plan.experiment.problem, *plan.shown)
    order = {plan.key(task.columns_of(task.seeds[0])): i for i, task in enumerate(plan.tasks)}
    for row in sorted(rows, key=lambda row: order[plan.key(row)]):
        cells.setdefault(tuple(row[name] for name in names), []).append(row)
    table = [
        {
            **dict(zip(names, cell, strict=True)),
            **plan.experiment.cell_summary(members),
            "errors": sum(bool(row["error"]) for row in members),
        }
        for cell, members in cells.items()
    ]
    print()
    list(cli.print_table(list(table[0]), table))
    print()


def execute(plan: base.Plan) -> int:
    """Runs what is missing of a plan, and returns the exit code."""
    experiment = plan.experiment
    needs, refused = _check(plan)
    num_workers = min(cli.num_workers(), len(plan.tasks))
    host_memory.require(
        num_workers * needs.num_bytes,
        f"running {num_workers} at a time" if num_workers > 1 else "the run",
        "lower --replay_capacity, the sizes of the network or --num_workers",
    )
    directory = run_directory.RunDirectory(
        plan.logdir,
        plan.fingerprint,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        extensible=plan.extensible,
        notes=plan.notes,
    )
    keys = {plan.key(task.columns_of(task.seeds[0])): task for task in plan.tasks}
    directory.require_numbers("results", *({"seed", "interactions"} & {*plan.key_fields}))
    directory.filter_rows(
        "results", plan.result_fields, lambda row: plan.key(row) not in keys or experiment.is_done(row, directory)
    )
    done = {plan.key(row): row for row in directory.rows("results")}
    _print_header(plan, needs, [row for key, row in done.items() if key in keys])
    checkpoints = directory.path / "checkpoints"
    missing = []
    for key, task in keys.items():
        if key in done:
            checkpoint.delete(checkpoints / f"{task.name}.npz")  # killed between the row and this
        elif task.cell not in refused:
            missing.append(task)
    tasks, reached = _grouped(plan, missing, checkpoints)
    if plan.curve_fields:
        # What was reported after the last checkpoint will be reported again.
        directory.require_numbers("curve", "seed", "interactions")
        pending = {key for key in keys if key not in done}
        directory.filter_rows(
            "curve",
            plan.curve_fields,
            lambda row: plan.key(row) not in pending or int(row["interactions"]) <= reached.get(plan.key(row), 0),
        )
    for task in tasks:
        at = reached.get(plan.key(task.columns_of(task.seeds[0])))
        if at:
            print(f"{task.name} resumes after {at:,} {experiment.unit}s")
    impossible = [task for key, task in keys.items() if task.cell in refused and key not in done]
    display = Display(plan, directory, [*tasks, *impossible], reached)
    try:
        for task in impossible:
            display.on_failure(task, f"refused: {refused[task.cell]}")
        completed = workers.run_tasks(
            run_task,
            tasks,
            num_workers,
            display.on_event,
            display.on_failure if plan.records_failures else None,
            # An accelerator serves one process at a time, and this one has it already.
            isolate=plan.records_failures and jax.default_backend() == "cpu",
            group=experiment.program,
            seconds_to_save=120 + num_workers * needs.num_bytes / _DISK_BYTES_PER_SECOND,
        )
    finally:
        display.close()
    rows = [row for row in directory.rows("results") if plan.key(row) in keys]
    if rows:
        if plan.is_sweep:
            _print_table(plan, rows)
        print(f"{experiment.conclusion(rows, len(keys))}; {plan.logdir}/results.csv")
        if plan.curve_fields and (picture := _draw(experiment, directory, plan.tasks[0])):
            print(f"picture: {picture}")
    return cli.exit_code(completed)


def _draw(
    experiment: base.Experiment, directory: run_directory.RunDirectory, task: base.Task
) -> pathlib.Path | None:
    try:
        return experiment.draw(directory, task)
    except ImportError:
        cli.say_no_picture()
        return None


def main(experiment: base.Experiment) -> None:
    """The whole script of an experiment."""
    define_flags(experiment)
    cli.run(lambda: execute(plan_from_flags(experiment)))
