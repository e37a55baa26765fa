"""Runs a grid of agents, sizes, seeds and any other settings on DeepSea, one process per core.

Example: python experiments/sweep.py --grid='{"agent": "hyperagent", "size": [10, 20], "seed": [0, 1, 2],
"index_dim": [1, 4, 16]}' --logdir=logs/my_sweep

Keys are agent, size, seed, the settings of the agents and those of the protocol (see run_deepsea.py --help). A
setting that an agent does not have is left blank for it. Each run is one row of results.csv, written as soon as
it is finished; a run that fails is a row too, whose `error` says why. --resume goes on with unfinished runs from
their checkpoints, runs those with an error again, and takes a larger grid: more values of the same keys. There is
no curve.csv, which would be too big; run_deepsea.py gives the curves of a single cell.
"""

import sys

import common  # isort: skip  (sets the environment that jax reads)

from absl import flags
import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.runners import grid as grid_lib
from hyperagent_jax.runners import workers

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "grid",
    None,
    "The grid: a JSON object of names of settings and lists of values (or single "
    "values), or the path of a file that holds one.",
)
flags.DEFINE_string("logdir", "logs/sweep", "Folder of the results.")
common.define_run_flags()
flags.adopt_module_key_flags(common)  # so that --help lists them


def _run(run: grid_lib.Run, report, should_stop) -> None:
    common.run_task(run.task, lambda event: report((run, event)), should_stop)


class _Display:
    """Shows progress over the grid and writes a row per run."""

    def __init__(self, directory: results.RunDirectory, plan: grid_lib.Plan, finished: set[tuple[str, ...]]):
        """Takes the keys of the runs whose rows are on file already."""
        self._directory = directory
        self._plan = plan
        self._varied = plan.varied
        self._finished = set(finished)
        self._bar = common.progress_bar(len(plan.runs), "run", len(finished))

    def on_event(self, event) -> None:
        run, (kind, content, *_) = event
        if kind == "curve":
            where = f"at {content['interactions']:,}, return {content['eval_return']:.3f}"
            self._bar.set_postfix_str(f"{common.label(run.columns, self._varied)} {where}")
        elif kind == "result":
            self._add(run, content)
        elif kind == "finished":
            checkpoint.delete(run.task.checkpoint)

    def on_failure(self, run: grid_lib.Run, message: str) -> None:
        self._add(run, {"solved": False, "error": message})

    def _add(self, run, row):
        if run.key in self._finished:  # its process died after the result
            return
        row = {**row, **run.columns, "command": run.command}
        self._directory.add("results", self._plan.fields, row)
        self._finished.add(run.key)
        self._bar.update()
        self._bar.write(common.summary(row, self._varied), file=sys.stdout)

    def close(self) -> None:
        self._bar.close()


def _print_table(plan: grid_lib.Plan, rows: dict[tuple[str, ...], dict[str, str]]) -> None:
    """Prints a line per cell."""
    cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
    shown = ("agent", "size", *plan.varied)
    for run in plan.runs:
        if run.key in rows:
            cells.setdefault(tuple(run.columns[name] for name in shown), []).append(rows[run.key])
    names = (*shown, "solved", "episodes_to_learn", "errors")
    print("\n| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for cell, members in cells.items():
        solved = [int(row["episodes_to_learn"]) for row in members if row["solved"] == "True"]
        average = f"{np.mean(solved):.1f}" if solved else ""
        failed = sum(bool(row["error"]) for row in members)
        print("| " + " | ".join([*cell, f"{len(solved)} of {len(members)}", average, str(failed)]) + " |")


def _print_plan(plan: grid_lib.Plan, refused: dict[tuple[str, ...], str]) -> None:
    """Prints how much there is to run, and a line about settings that agents do not have."""
    columns, varied = plan.runs[0].columns, plan.varied
    fixed = "".join(f", {name}={columns[name]}" for name in plan.settings if name not in varied and columns[name])
    cells = len({run.cell for run in plan.runs})
    memory = f"states of up to {grid_lib.largest_bytes(plan.runs, refused) / 1e6:.3g} MB each"
    print(f"{len(plan.runs)} run(s) in {cells} cell(s){fixed}, {memory}; results in {FLAGS.logdir}")
    if plan.lacking:
        absent = "; ".join(f"{name} has no {', '.join(settings)}" for name, settings in plan.lacking.items())
        number = f"{plan.num_combinations} combinations are {len(plan.runs)} runs"
        print(f"{absent}: left blank there, and runs that are then the same are run once ({number})")


def main() -> int:
    if FLAGS.grid is None:
        raise errors.UserError("--grid is missing: give a JSON object of settings, or the path of a file with one")
    grid = grid_lib.read(FLAGS.grid)
    plan = grid_lib.plan(grid, agents.CONFIGS)
    refused = grid_lib.refusals(plan.runs)
    if len(refused) == len(plan.runs):
        raise errors.UserError(f"no combination of the grid can be run: {next(iter(refused.values()))}")

    directory = results.RunDirectory(
        FLAGS.logdir,
        plan.identity,
        resume=FLAGS.resume,
        overwrite=FLAGS.overwrite,
        extensible=["configs"],
        new=plan.new_settings,
        notes={"grid": grid},
    )
    keys = {run.key for run in plan.runs}
    # Runs that failed are run again.
    directory.keep("results", plan.fields, lambda row: not row["error"] or plan.key(row) not in keys)
    finished = {plan.key(row) for row in directory.rows("results")} & keys
    _print_plan(plan, refused)
    if finished:
        print(f"{len(finished)} of {len(plan.runs)} runs are already there")

    display = _Display(directory, plan, finished)
    tasks = []
    for run in plan.runs:
        file = directory.path / "checkpoints" / f"{run.file_name()}.npz"
        if run.key in finished:
            checkpoint.delete(file)  # killed between the row and this
        elif run.key in refused:
            display.on_failure(run, f"refused: {refused[run.key]}")
        else:
            tasks.append(run.with_checkpoint(str(file), FLAGS.checkpoint_seconds))
    try:
        completed = workers.run_tasks(
            _run,
            tasks,
            common.num_workers(),
            display.on_event,
            display.on_failure,
            # An accelerator serves one process at a time, and this one has it already.
            isolate=jax.default_backend() == "cpu",
            group=lambda run: run.cell,  # one compiled program
        )
    finally:
        display.close()

    rows = {plan.key(row): row for row in directory.rows("results")}
    _print_table(plan, rows)
    ours = [rows[key] for key in keys & rows.keys()]
    solved, failed = sum(row["solved"] == "True" for row in ours), sum(bool(row["error"]) for row in ours)
    failures = f", {failed} with an error" if failed else ""
    print(f"\n{solved} of {len(ours)} runs solved{failures}; {FLAGS.logdir}/results.csv")
    return common.exit_code(completed)


if __name__ == "__main__":
    common.run(main)
