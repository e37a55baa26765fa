"""The driver of all experiments: plans tasks from flags, executes plans, shows progress and writes rows."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
import re
import sys
from typing import Any

from absl import flags
import jax

from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import host_memory
from hyperagent_jax import types
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import display as display_lib
from hyperagent_jax.experiment import distributed
from hyperagent_jax.experiment import fingerprint as fingerprint_lib
from hyperagent_jax.experiment import launching
from hyperagent_jax.experiment import lock
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import tables as tables_lib
from hyperagent_jax.experiment import tensorboard
from hyperagent_jax.experiment import workers

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # those defined here belong to the script, whose --help lists them
# The speed of a slow disk: runs that are stopped need enough time to save their state.
_DISK_BYTES_PER_SECOND = 5e7
# Completed rows that are printed one by one when a run is resumed.
_MOST_SHOWN = 20
# Cells of a sweep that are checked before anything runs; the tasks of the others check themselves.
_MOST_CHECKED = 200
_SMALLER = "--replay_capacity or the sizes of the network or the problem"
# Memory of a process besides the state of its runs: libraries and compiled programs.
_PROCESS_BYTES = 300_000_000


def define_flags(experiment: base.Experiment) -> None:
    """Defines the flags of an experiment's script."""
    configs = experiment.configs()
    flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(configs)}.")
    description = "First seed of the agent, and of the environment unless that has a seed of its own."
    flags.DEFINE_integer("seed", 0, description, lower_bound=0, upper_bound=types.MAX_SEED)
    if "seed" in experiment.key_fields:
        description = "Number of seeds to run: seed, seed + 1, ..."
        flags.DEFINE_integer("num_seeds", 1, description, lower_bound=1, upper_bound=1_000_000)
    place = _logdir(experiment, f"<{experiment.problem}>", "<agent>")
    flags.DEFINE_string("logdir", None, f"Folder of the results; default: {place}.")
    cli.define_run_flags(experiment.checkpoint_seconds)
    for group in ({"protocol": experiment.protocol_class}, {"options": experiment.options_class}, configs):
        config_lib.define_flags(group)
    for module in (cli, config_lib):
        flags.adopt_module_key_flags(module)


def _logdir(experiment: base.Experiment, problem: str, agent: str) -> str:
    return "logs/" + experiment.logdir.format(experiment=experiment.name, problem=problem, agent=agent)


def _seeds(experiment: base.Experiment) -> range:
    last = FLAGS.seed + (FLAGS.num_seeds if "seed" in experiment.key_fields else 1) - 1
    if last > types.MAX_SEED:
        raise errors.UserError(f"--seed and --num_seeds give seeds up to {last}; the largest is {types.MAX_SEED}")
    return range(FLAGS.seed, last + 1)


def plan_from_flags(experiment: base.Experiment) -> base.Plan:
    """Plans a run for every problem and seed given by the flags."""
    options = config_lib.from_flags("options", {"options": experiment.options_class}, FLAGS)
    configs = experiment.configs(options)
    experiment.require_agent(FLAGS.agent, configs)
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
    shared.defaults.update(experiment.identity_defaults)
    return base.Plan(experiment, tuple(tasks), logdir, shared, experiment.key_fields)


def _state_bytes(task: base.Task, together: int, is_local: bool = True) -> int:
    """Returns the memory of the states of so many runs; if local, rejects settings that need too much memory."""
    state, working, settings = _num_bytes(task)
    if is_local:
        host_memory.require(together * (state + working), "the run", f"lower {settings}")
    return together * state


@functools.lru_cache(maxsize=64)
def _num_bytes(task: base.Task) -> tuple[int, int, str]:
    """Returns the memory of a run's state and of its steps, and the settings that they depend on most."""
    experiment = base.get(task.experiment)
    try:
        with errors.settings_are_the_users():
            state = experiment.num_bytes(task)
    except MemoryError as error:  # the points of a discrete index, a constant of numpy
        what = launching.describe(error)
        raise errors.UserError(f"not enough memory ({what}): lower --index_dim, {_SMALLER}") from error
    working, settings = experiment.working_bytes(task)
    return state, working, settings if 2 * working > state else _SMALLER


def run_task(task: base.Task, report: Callable[[base.Event], None], should_stop: Callable[[], bool]) -> bool:
    """Runs a task in a possibly new process, on any host; returns whether it is done."""
    cli.use_compilation_cache()
    experiment = base.get(task.experiment)
    _state_bytes(dataclasses.replace(task, seeds=(0,)), len(task.seeds))
    with lock.shared(task.folder):
        context = experiment.context(task, report, should_stop)
        try:
            experiment.run(task, context)
        except errors.UserError:
            raise
        except Exception as error:
            if host_memory.is_shortage(error):
                raise errors.UserError(
                    f"not enough memory ({launching.describe(error)}): lower --batch_size, {_SMALLER}"
                ) from error
            if not context.is_resumed or context.has_trained:
                raise
            raise checkpoint.CheckpointError(
                f"checkpoint {task.checkpoint} does not match the run ({launching.describe(error)}): move it away "
                "to restart the run"
            ) from error
        return context.finish()


def _grouped(plan: base.Plan, missing: Sequence[base.Task]) -> tuple[list[base.Task], dict[tables_lib.Key, int]]:
    """Forms the groups of seeds of every cell; groups with a checkpoint stay as they were.

    Returns:
        The tasks, and the progress that each row already has.
    """
    tasks: list[base.Task] = []
    reached: dict[tables_lib.Key, int] = {}
    saved: dict[str, tuple[run_context.Progress, dict[str, Any]]] = {}
    folder = pathlib.Path(plan.logdir) / "checkpoints"
    names = {file.name.partition(".npz")[0] for file in folder.glob("*.npz*")}
    for name in names:
        if found := _saved(folder / f"{name}.npz"):
            saved[name] = found
    groups_on_file = {
        name: tuple(seeds)
        for name, (_, settings) in saved.items()
        if isinstance(seeds := settings.get("seeds"), list) and len(seeds) > 1
    }
    remaining: dict[Any, set[int]] = {}
    for task in missing:
        remaining.setdefault(task.columns, set()).add(task.seeds[0])
    for cell in plan.cells():
        every, wanted = [task.seeds[0] for task in cell], remaining.get(cell[0].columns, set())
        rest = [seed for seed in every if seed in wanted]
        if names:
            for task in cell:
                if task.seeds[0] not in wanted and task.name in names:
                    checkpoint.delete(task.checkpoint)  # left over by a task killed after writing its row
        groups = []
        for name, group in sorted(groups_on_file.items(), key=lambda item: -len(item[1])):
            if not {*group} <= {*every} or dataclasses.replace(cell[0], seeds=group).name != name:
                continue
            if {*group} & {*rest}:
                groups.append(group)
                rest = [seed for seed in rest if seed not in group]
            elif not {*group} & wanted:
                checkpoint.delete(folder / f"{name}.npz")
        width = plan.experiment.group_size(cell[0].options, len(every), cli.num_accelerators())
        groups += [tuple(rest[i : i + width]) for i in range(0, len(rest), width)]
        for group in groups:
            task = dataclasses.replace(cell[0], seeds=group, checkpoint_seconds=FLAGS.checkpoint_seconds)
            tasks.append(task)
            if names and task.name in saved:
                progress, _ = saved[task.name]
                reached.update({plan.key(task.columns_of(seed)): progress.reached for seed in group})
    return tasks, reached


def _saved(file: pathlib.Path) -> tuple[run_context.Progress, dict[str, Any]] | None:
    """Returns the progress and settings in a checkpoint; None if unreadable, which its task will report."""
    for one in checkpoint.generations(file):
        try:
            return run_context.load_progress(one)
        except checkpoint.CheckpointError:
            continue
    return None


def _check(plan: base.Plan, is_local: bool = True) -> tuple[int, base.Task, dict[Any, str]]:
    """Rejects settings that cannot run before anything is written; if local, also those that need too much memory.

    Returns:
        The memory of the largest group of seeds, a task of it, and why cells of a sweep cannot run, by columns.
    """
    needs, refused = [], {}
    for cell in plan.cells()[:_MOST_CHECKED]:
        task = cell[0]
        width = plan.experiment.group_size(task.options, len(cell), cli.num_accelerators())
        together = min(width, len(cell))
        try:
            num_bytes = _state_bytes(task, together, is_local)
        except Exception as error:
            if not plan.is_sweep:
                raise
            # A bug in one agent must not end a sweep over many.
            is_known = isinstance(error, errors.UserError)
            refused[task.columns] = str(error) if is_known else launching.describe(error)
            continue
        needs.append((num_bytes, task))
    if not needs:
        raise errors.UserError(f"no combination of the grid can be run: {next(iter(refused.values()))}")
    return *max(needs, key=lambda one: one[0]), refused


def _print_table(plan: base.Plan, rows: dict[tuple[str, ...], dict[str, str]]) -> None:
    """Prints one line per cell of a sweep; `rows` maps keys to rows."""
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


def _launch(
    plan: base.Plan, tasks: Sequence[base.Task], num_workers: int, num_bytes: int, display: display_lib.Display
) -> bool:
    """Runs tasks with the launcher that the flags select; returns whether all of them ran."""
    if (group := distributed.current()) is not None:
        function = distributed.leading(group, plan.tasks, run_task)
        completed = workers.run_tasks(function, tasks, 1, display.on_event)
        return completed and not group.is_told_to_stop  # by a signal to another process
    launcher = cli.launcher()
    environment: Mapping[str, str] = {}
    if launcher == "devices":
        own: dict[str, Any] = {}
    elif launcher == "local":
        # An accelerator serves one process at a time, and this process already holds it.
        own = {"isolate": plan.records_failures and jax.default_backend() == "cpu"}
    else:
        settings = cli.cluster_settings(plan.logdir)
        own, environment = {"settings": settings}, settings.environment
        # Other hosts may start in a different working directory.
        tasks = [dataclasses.replace(task, folder=settings.folder) for task in tasks]
    return launching.load(cli.LAUNCHERS[launcher], environment).run_tasks(
        run_task,
        tasks,
        num_workers,
        display.on_event,
        display.on_failure if plan.records_failures else None,
        group=plan.experiment.program,
        seconds_to_save=120 + num_workers * num_bytes / _DISK_BYTES_PER_SECOND,
        retries=FLAGS.retries,
        on_lost=display.on_lost,
        **own,
    )


def execute(plan: base.Plan) -> int:
    """Runs the missing runs of a plan and returns the exit code."""
    experiment = plan.experiment
    if math.isnan(FLAGS.checkpoint_seconds):
        raise errors.UserError("--checkpoint_seconds must be a number, got nan")
    cli.leave_accelerators_to_jobs()
    cli.require_backend()
    num_bytes, largest, refused = _check(plan, FLAGS.launcher == "local")
    num_workers = 1 if distributed.current() else min(cli.num_workers(), len(plan.tasks))
    if cli.launcher() in ("local", "devices"):  # elsewhere each task checks the memory of its host
        host_memory.require(
            num_workers * num_bytes + (num_workers - 1) * _PROCESS_BYTES,
            f"running {num_workers} at a time" if num_workers > 1 else "the run",
            "lower --replay_capacity, the sizes of the network or --num_workers",
        )
    else:  # a missing library and bad settings are told before anything is written
        launching.load(cli.LAUNCHERS[FLAGS.launcher], cli.cluster_settings(plan.logdir).environment)
    scalars = tensorboard.Writer(plan.logdir) if FLAGS.tensorboard else None
    directory = run_directory.RunDirectory(
        plan.logdir,
        plan.fingerprint,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        extensible=("configs",) if plan.is_sweep else (),
        notes=plan.notes,
    )
    tables = tables_lib.Tables(plan, directory)
    keys, done = tables.tasks, tables.done
    states = f", states of up to {num_bytes / 1e6:.3g} MB each"
    print(f"{plan.header + states if plan.header else experiment.header(largest)}; results in {plan.logdir}")
    if plan.remark:
        print(plan.remark)
    already = [key for key in done if key in keys]
    for key in already[:_MOST_SHOWN] if not plan.is_sweep else ():
        print(f"{experiment.summary(done[key])} [done earlier]")
    if already:
        print(f"{len(already)} of {len(plan.tasks)} runs are already done")
    pending = [task for key, task in keys.items() if key not in done]
    impossible = [task for task in pending if task.columns in refused]
    tasks, reached = _grouped(plan, [task for task in pending if task.columns not in refused])
    tables.begin(reached)
    if lost := tables.without_curve():
        print(
            f"curve.csv lacks evaluations of {len(lost)} finished run(s), such as {', '.join(lost[0])}: it was "
            "changed since, and --resume does not repeat them"
        )
    for task in tasks:
        if reached and (at := reached.get(plan.key(task.columns_of(task.seeds[0])))):
            print(f"{task.name} resumes at {at:,} {experiment.unit}s")
    display = display_lib.Display(plan, tables, [*tasks, *impossible], reached, FLAGS.progress, scalars)
    try:
        for task in impossible:
            display.on_failure(task, f"refused: {refused[task.columns]}")
        completed = _launch(plan, tasks, num_workers, num_bytes, display)
    finally:
        display.close()
        rows = tables.finish()
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
    print("stopped; to continue, repeat the command with --resume", file=sys.stderr)
    return 130


def _execute_together(experiment: base.Experiment, options: distributed.Options) -> int:
    """Runs the plan of the flags as one of several processes; process 0 has the files."""
    for name, given in (("launcher", FLAGS.launcher != "local"), ("num_workers", FLAGS.num_workers)):
        if given:
            raise errors.UserError(
                f"--distributed and --{name}={FLAGS[name].value} are mutually exclusive: give one of them"
            )
    with distributed.joined(options) as group:
        plan = plan_from_flags(experiment)
        tasks = [dataclasses.replace(task, checkpoint_seconds=FLAGS.checkpoint_seconds) for task in plan.tasks]
        group.require_same(repr([dataclasses.replace(task, options=None) for task in tasks]))
        if group.rank:
            distributed.follow(group, tasks, run_task)
        group.exit_code = execute(plan)
        return group.exit_code


def main(experiment: base.Experiment) -> None:
    """Runs the script of an experiment."""
    define_flags(experiment)

    def run() -> int:
        options = config_lib.from_flags("options", {"options": experiment.options_class}, FLAGS)
        if isinstance(options, distributed.Options) and options.distributed:
            return _execute_together(experiment, options)
        return execute(plan_from_flags(experiment))

    cli.run(run)
