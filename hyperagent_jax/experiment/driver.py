"""The one driver: plans tasks from flags, executes plans, shows progress and writes rows."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import re
import sys
import time
from typing import Any

from absl import flags
import jax
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
    configs = experiment.configs()
    flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(configs)}.")
    description = "First seed of the agent, and of environments whose seed is left open."
    flags.DEFINE_integer("seed", 0, description, lower_bound=0, upper_bound=types.MAX_SEED)
    if "seed" in experiment.key_fields:
        description = "Number of seeds: seed, seed + 1, ..."
        flags.DEFINE_integer("num_seeds", 1, description, lower_bound=1, upper_bound=1_000_000)
    place = _logdir(experiment, f"<{experiment.problem}>", "<agent>")
    flags.DEFINE_string("logdir", None, f"Folder of the results; default: {place}.")
    cli.define_run_flags(experiment.checkpoint_seconds)
    for group in ({"protocol": experiment.protocol_class}, {"options": experiment.options_class}, configs):
        config_lib.define_flags(group)
    for module in (cli, config_lib):
        flags.adopt_module_key_flags(module)  # so that --help lists them


def _logdir(experiment: base.Experiment, problem: str, agent: str) -> str:
    return "logs/" + experiment.logdir.format(experiment=experiment.name, problem=problem, agent=agent)


def _seeds(experiment: base.Experiment) -> range:
    last = FLAGS.seed + (FLAGS.num_seeds if "seed" in experiment.key_fields else 1) - 1
    if last > types.MAX_SEED:
        raise errors.UserError(f"--seed and --num_seeds go up to {last}; {types.MAX_SEED} is the largest")
    return range(FLAGS.seed, last + 1)


def plan_from_flags(experiment: base.Experiment) -> base.Plan:
    """Plans every problem and seed that the flags name."""
    options = config_lib.from_flags("options", {"options": experiment.options_class}, FLAGS)
    configs = experiment.configs(options)
    if FLAGS.agent not in configs:
        raise errors.UserError(f"unknown agent {FLAGS.agent!r}; choose one of {', '.join(configs)}")
    given = config_lib.from_flags("protocol", {"protocol": experiment.protocol_class}, FLAGS)
    config = config_lib.from_flags(FLAGS.agent, configs, FLAGS)
    problem = getattr(given, experiment.problem)
    default = _logdir(experiment, str(problem).replace("/", "_"), FLAGS.agent)
    logdir = FLAGS.logdir or re.sub(r"[^\w./-]", "_", default)
    tasks = []
    for value in experiment.problems(problem):
        with errors.settings_are_the_users("--"):
            protocol = experiment.resolve(dataclasses.replace(given, **{experiment.problem: value}))
        columns = tuple((name, str(getattr(protocol, name))) for name in experiment.key_fields if name != "seed")
        own = experiment.capped(config, protocol)
        tasks += [
            base.Task(experiment.name, FLAGS.agent, own, protocol, (seed,), options, columns, logdir)
            for seed in _seeds(experiment)
        ]
    identity = experiment.identity(tasks[0])
    shared = fingerprint_lib.make(identity, config=tasks[0].config, protocol=tasks[0].protocol)
    return base.Plan(experiment, tuple(tasks), logdir, shared, experiment.key_fields)


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
        self._curve = {(*plan.key(row), int(row["interactions"])) for row in directory.rows("curve")}
        self._lengths = {
            plan.key(task.columns_of(seed)): 1 if plan.is_sweep else plan.experiment.length(task.protocol)
            for task in tasks
            for seed in task.seeds
        }
        self._reached = {key: 0 if plan.is_sweep else reached.get(key, 0) for key in self._lengths}
        self._said_at = time.monotonic()
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
        self.close = self._bar.close

    def on_event(self, event: base.Event) -> None:
        """Takes one report of a task."""
        task = self._tasks[event.task]
        if event.kind == "note":
            self._bar.write(event.text, file=sys.stdout)
        elif event.kind == "finished":
            checkpoint.delete(task.checkpoint)
        elif event.kind == "result":
            self._add_result(task, event.seed, event.row)
        else:
            columns = task.columns_of(event.seed)
            key = self._plan.key(columns)
            self._advance(key, event.reached, event.text)
            is_new = key not in self._results and (*key, event.reached) not in self._curve
            if event.kind == "curve" and self._plan.curve_fields and is_new:
                self._curve.add((*key, event.reached))
                self._directory.add("curve", self._plan.curve_fields, {**event.row, **columns})

    def _advance(self, key: tuple[str, ...], reached: int, text: str) -> None:
        plan = self._plan
        shown = {"agent", plan.experiment.problem, "seed", *plan.shown}
        values = zip(plan.key_fields, key, strict=True)
        label = " ".join(f"{name} {value}" for name, value in values if value and name in shown)
        self._bar.set_postfix_str(f"{label} {text}".strip(), refresh=False)
        if self._bar.disable and time.monotonic() - self._said_at >= _SAY_SECONDS:
            self._said_at = time.monotonic()
            print(f"{label}: {reached:,} {plan.experiment.unit}s {text}".strip(), flush=True)
        if not plan.is_sweep:
            self._bar.update(max(0, reached - self._reached[key]))
            self._reached[key] = max(reached, self._reached[key])

    def on_failure(self, task: base.Task, message: str) -> None:
        """Takes a task that failed: a row that says why, for each of its seeds."""
        failure = {"solved": False, "status": results.FAILED, "reason": message, "error": message}
        for seed in task.seeds:
            self._add_result(task, seed, failure)

    def _add_result(self, task: base.Task, seed: int, row: dict[str, Any]) -> None:
        """Writes a row; what has no column in results.csv is left out."""
        columns = task.columns_of(seed)
        key = self._plan.key(columns)
        if key in self._results:
            return
        experiment = self._plan.experiment
        command = experiment.command(task, seed) if "command" in self._plan.result_fields else ""
        known = {**row, **columns, "agent": task.agent, "command": command}
        full = {name: known.get(name, "") for name in self._plan.result_fields}
        self._directory.add("results", self._plan.result_fields, full)
        self._results.add(key)
        if self._plan.is_sweep:
            self._bar.update()
        elif not self._bar.disable:  # what is left of its budget is not needed
            self._bar.total -= self._lengths[key] - self._reached[key]
            self._bar.refresh()
        self._bar.write(experiment.summary(full, self._plan.shown), file=sys.stdout)


def run_task(task: base.Task, report: Callable[[base.Event], None], should_stop: Callable[[], bool]) -> None:
    """Runs a task in a process that may have just begun."""
    cli.use_compilation_cache()
    base.get(task.experiment).run(task, run_context.RunContext(task, report, should_stop))


def _grouped(plan: base.Plan, missing: Sequence[base.Task]) -> tuple[list[base.Task], dict[tuple[str, ...], int]]:
    """Puts seeds of a cell together that run as one; a group that has a checkpoint stays as it was.

    Returns:
        The tasks, and how far each row had come.
    """
    tasks, reached, saved = [], {}, {}
    remaining = {(task.columns, task.seeds) for task in missing}
    for file in (pathlib.Path(plan.logdir) / "checkpoints").glob("*seeds[_=]*.npz"):
        if (found := _saved(file, plan)) and (seeds := found[1].get("seeds")):
            saved[file.stem] = tuple(seeds)
    for cell in plan.cells():
        every = [task.seeds[0] for task in cell]
        rest = [task.seeds[0] for task in cell if (task.columns, task.seeds) in remaining]
        groups = []
        for name, group in sorted(saved.items(), key=lambda item: -len(item[1])):
            is_ours = dataclasses.replace(cell[0], seeds=group).name == name and {*group} <= {*every}
            if is_ours and {*group} & {*rest}:
                groups.append(group)
                rest = [seed for seed in rest if seed not in group]
        width = plan.experiment.group_size(cell[0].options, len(every))
        groups += [tuple(rest[i : i + width]) for i in range(0, len(rest), width)]
        for group in groups:
            task = dataclasses.replace(cell[0], seeds=group, checkpoint_seconds=FLAGS.checkpoint_seconds)
            tasks.append(task)
            if task.checkpoint.exists() and (found := _saved(task.checkpoint, plan)):
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


def _check(plan: base.Plan) -> tuple[int, base.Task, dict[Any, str]]:
    """Refuses settings that cannot run, before anything is written.

    Returns:
        The memory of the largest group of seeds, one of them, and why cells of a sweep cannot run, by columns.
    """
    needs, refused = [], {}
    for cell in plan.cells():
        task = cell[0]
        try:
            with errors.settings_are_the_users():
                num_bytes = plan.experiment.num_bytes(task)
        except Exception as error:
            if not plan.is_sweep:
                raise
            # A bug of one agent must not end a sweep over many.
            is_known = isinstance(error, errors.UserError)
            refused[task.columns] = str(error) if is_known else workers.describe(error)
            continue
        together = min(plan.experiment.group_size(task.options, len(cell)), len(cell))
        needs.append((together * num_bytes, task))
    if not needs:
        raise errors.UserError(f"no combination of the grid can be run: {next(iter(refused.values()))}")
    return *max(needs, key=lambda one: one[0]), refused


def _print_table(plan: base.Plan, rows: dict[tuple[str, ...], dict[str, str]]) -> None:
    """Prints a line per cell of a sweep; `rows` are by their keys."""
    names = ("agent", plan.experiment.problem, *plan.shown)
    table = []
    for cell in plan.cells():
        keys = [plan.key(task.columns_of(task.seeds[0])) for task in cell]
        if own := [rows[key] for key in keys if key in rows]:
            summary = plan.experiment.cell_summary(own)
            table.append(
                {**{x: own[0][x] for x in names}, **summary, "errors": sum(bool(r["error"]) for r in own)}
            )
    print()
    list(cli.print_table(table))
    print()


def execute(plan: base.Plan) -> int:
    """Runs what is missing of a plan, and returns the exit code."""
    experiment = plan.experiment
    num_bytes, largest, refused = _check(plan)
    num_workers = min(cli.num_workers(), len(plan.tasks))
    host_memory.require(
        num_workers * num_bytes,
        f"running {num_workers} at a time" if num_workers > 1 else "the run",
        "lower --replay_capacity, the sizes of the network or --num_workers",
    )
    directory = run_directory.RunDirectory(
        plan.logdir,
        plan.fingerprint,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        extensible=("configs",) if plan.is_sweep else (),
        notes=plan.notes,
    )
    keys = {plan.key(task.columns_of(task.seeds[0])): task for task in plan.tasks}
    directory.require_numbers("results", "seed")
    directory.filter_rows(
        "results", plan.result_fields, lambda row: plan.key(row) not in keys or experiment.is_done(row, directory)
    )
    done = {plan.key(row): row for row in directory.rows("results")}
    states = f", states of up to {num_bytes / 1e6:.3g} MB each"
    print(f"{plan.header + states if plan.header else experiment.header(largest)}; results in {plan.logdir}")
    if plan.remark:
        print(plan.remark)
    already = [key for key in done if key in keys]
    for key in already:
        checkpoint.delete(keys[key].checkpoint)  # killed between the row and this
    for key in already[:_MOST_SHOWN] if not plan.is_sweep else ():
        print(f"{experiment.summary(done[key])} [already there]")
    if already:
        print(f"{len(already)} of {len(plan.tasks)} runs are already there")
    pending = {key: task for key, task in keys.items() if key not in done}
    impossible = [task for task in pending.values() if task.columns in refused]
    tasks, reached = _grouped(plan, [task for task in pending.values() if task.columns not in refused])
    if plan.curve_fields:
        # What was reported after the last checkpoint will be reported again.
        directory.require_numbers("curve", "seed", "interactions")
        directory.filter_rows(
            "curve",
            plan.curve_fields,
            lambda row: plan.key(row) not in pending or int(row["interactions"]) <= reached.get(plan.key(row), 0),
        )
    for task in tasks:
        if at := reached.get(plan.key(task.columns_of(task.seeds[0]))):
            print(f"{task.name} resumes after {at:,} {experiment.unit}s")
    display = Display(plan, directory, [*tasks, *impossible], reached)
    try:
        for task in impossible:
            display.on_failure(task, f"refused: {refused[task.columns]}")
        completed = workers.run_tasks(
            run_task,
            tasks,
            num_workers,
            display.on_event,
            display.on_failure if plan.records_failures else None,
            # An accelerator serves one process at a time, and this one has it already.
            isolate=plan.records_failures and jax.default_backend() == "cpu",
            group=experiment.program,
            seconds_to_save=120 + num_workers * num_bytes / _DISK_BYTES_PER_SECOND,
        )
    finally:
        display.close()
    rows = {key: row for row in directory.rows("results") if (key := plan.key(row)) in keys}
    if rows:
        if plan.is_sweep:
            _print_table(plan, rows)
        failed = sum(bool(row.get("error")) for row in rows.values())
        failures = f", {failed} with an error" if failed else ""
        print(f"{experiment.conclusion(list(rows.values()), len(keys))}{failures}; {plan.logdir}/results.csv")
    if rows and plan.curve_fields and not plan.is_sweep:
        picture = directory.path / f"{experiment.name}.png"
        try:
            experiment.draw(picture, directory, plan.tasks[0])
            print(f"picture: {picture}")
        except ImportError:
            cli.say_no_picture()
    if completed:
        return 0
    print("stopped; the same command with --resume continues from here", file=sys.stderr)
    return 130


def main(experiment: base.Experiment) -> None:
    """The whole script of an experiment."""
    define_flags(experiment)
    cli.run(lambda: execute(plan_from_flags(experiment)))
