"""Runs an agent on bsuite: one id, an experiment, TESTING or the whole SWEEP, one process per core.

Example: python experiments/run_bsuite.py --bsuite_id=TESTING --agent=hyperagent --logdir=logs/bsuite_hyperagent

bsuite's own logging writes one csv file per id to <logdir>/csv, where bsuite.logging.csv_load and everybody's
tools find them. results.csv has one row per id, written when it is finished; one that cannot be run here or fails
is a row too. --resume goes on with unfinished ids and runs those that failed or were skipped again. report.py
scores and draws one or more such folders.
"""

import collections
import dataclasses
import pathlib
import shlex
import sys

import common  # isort: skip  (sets the environment that jax reads)

from absl import flags
import jax

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.analysis.bsuite import logs
from hyperagent_jax.environments import bsuite_adapter
from hyperagent_jax.runners import bsuite
from hyperagent_jax.runners import workers

# Rows with this status need not be run again.
_DONE = (results.FINISHED, results.PARTIAL)

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "bsuite_id",
    "deep_sea/0",
    "An id such as deep_sea/0, an experiment such as deep_sea, "
    "TESTING (the first id of every experiment but those with added noise or scale), SWEEP (all), "
    "or a comma-separated list of these.",
)
flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(agents.CONFIGS)}.")
flags.DEFINE_integer(
    "seed",
    0,
    "Seed of the agent, and of environments whose seed bsuite leaves open.",
    lower_bound=0,
    upper_bound=types.MAX_SEED,
)
flags.DEFINE_integer(
    "max_episodes",
    None,
    "Fewer episodes than bsuite's, for a quick look; results are marked as partial.",
    lower_bound=1,
)
flags.DEFINE_string("logdir", None, "Folder of the results; default: logs/bsuite_<agent>.")
common.define_run_flags()
config_lib.define_flags(agents.CONFIGS)
flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(config_lib)


def _run(task: bsuite.Task, report, should_stop) -> None:
    common.use_compilation_cache()
    bsuite.run_task(task, report, should_stop)


def _summary(row: dict) -> str:
    """One line about a row of results.csv."""
    name = f"{row['bsuite_id']} {row['agent']}"
    if row["status"] in (results.SKIPPED, results.FAILED):
        return f"{name}: {row['status'].upper()}, {row['reason']}"
    note = f" ({row['status']}: {row['reason']})" if row["reason"] else ""
    rate = f", {float(row['steps_per_second']):,.0f} steps/s" if row["steps_per_second"] else ""
    average = float(row["total_return"]) / int(row["episodes"])
    return f"{name}: {int(row['episodes']):,} episodes, mean return {average:.4g}{rate}{note}"


class _Display:
    """Shows progress over all ids and writes a row per id."""

    def __init__(self, directory: results.RunDirectory, tasks: list[bsuite.Task], settings: list[str]):
        self._directory = directory
        self._settings = settings
        self._episodes = {task.bsuite_id: 0 for task in tasks}
        self._bar = common.progress_bar(sum(task.num_episodes for task in tasks), "episode")

    def _advance(self, task, episodes):
        self._bar.update(episodes - self._episodes[task.bsuite_id])
        self._episodes[task.bsuite_id] = episodes

    def on_event(self, event) -> None:
        kind, task, content = event
        if kind == "progress":
            self._advance(task, content)
            self._bar.set_postfix_str(f"{task.bsuite_id} episode {content:,}")
        else:
            self._add(task, content)

    def on_failure(self, task: bsuite.Task, message: str) -> None:
        self._add(task, {"status": results.FAILED, "reason": message})

    def _add(self, task, row):
        command = [
            "python",
            "experiments/run_bsuite.py",
            f"--bsuite_id={task.bsuite_id}",
            f"--agent={task.agent}",
            f"--seed={task.seed}",
            *self._settings,
            f"--logdir=logs/{task.agent}_{task.bsuite_id.replace('/', '_')}",
        ]
        row = {
            **row,
            "bsuite_id": task.bsuite_id,
            "agent": task.agent,
            "seed": task.seed,
            "command": shlex.join(command),
        }
        self._directory.add("results", bsuite.RESULT_FIELDS, row)
        if row["status"] in _DONE:  # one that failed may go on from there
            checkpoint.delete(task.checkpoint)
        self._advance(task, task.num_episodes)
        filled = {name: row.get(name, "") for name in bsuite.RESULT_FIELDS}
        self._bar.write(_summary(filled), file=sys.stdout)

    def close(self) -> None:
        self._bar.close()


def _is_done(row: dict, csv_folder: pathlib.Path) -> bool:
    """Whether an id need not be run again; its log must be there, and whole."""
    if row["status"] not in _DONE:
        return False
    file = bsuite_adapter.csv_file(row["bsuite_id"], csv_folder)
    if not file.exists():
        print(f"the log of {row['bsuite_id']} is gone: it is run again")
        return False
    if logs.last_episode(file, row["bsuite_id"]) != bsuite_adapter.last_logged(int(row["episodes"])):
        raise errors.UserError(f"{file} is cut short: delete it and run {row['bsuite_id']} again")
    return True


def main() -> int:
    if FLAGS.agent not in agents.CONFIGS:
        raise errors.UserError(f"unknown agent {FLAGS.agent!r}; choose one of {', '.join(agents.CONFIGS)}")
    ids = bsuite_adapter.ids(FLAGS.bsuite_id)
    config = config_lib.from_flags(FLAGS.agent, agents.CONFIGS[FLAGS.agent], agents.CONFIGS, FLAGS)
    logdir = FLAGS.logdir or f"logs/bsuite_{FLAGS.agent}"
    csv_folder = pathlib.Path(logdir) / "csv"
    tasks = [
        bsuite.Task(
            bsuite_id,
            FLAGS.agent,
            config,
            FLAGS.seed,
            str(csv_folder),
            FLAGS.max_episodes,
            str(pathlib.Path(logdir) / "checkpoints" / f"{bsuite_id.replace('/', '-')}.npz"),
            FLAGS.checkpoint_seconds,
        )
        for bsuite_id in ids
    ]
    memory = max(map(bsuite.num_bytes, tasks))  # refuses a bad config before anything is written
    identity = {
        "experiment": "bsuite",
        "agent": FLAGS.agent,
        "config": dataclasses.asdict(config),
        "seed": FLAGS.seed,
        "max_episodes": FLAGS.max_episodes,
    }
    directory = results.RunDirectory(
        logdir, identity, resume=FLAGS.resume, overwrite=FLAGS.overwrite, new=tasks[0].new_settings()
    )
    directory.keep(
        "results",
        bsuite.RESULT_FIELDS,
        lambda row: _is_done(row, csv_folder) if row["bsuite_id"] in ids else True,
    )
    finished = {row["bsuite_id"] for row in directory.rows("results")} & set(ids)
    missing = []
    for task in tasks:
        if task.bsuite_id in finished:
            checkpoint.delete(task.checkpoint)  # killed between the row and this
        else:
            missing.append(task)
    print(f"{FLAGS.agent} on {len(ids)} bsuite id(s), states of up to {memory / 1e6:.3g} MB; results in {logdir}")
    if len(missing) < len(tasks):
        print(f"{len(tasks) - len(missing)} of {len(tasks)} ids are already there")

    changed = [
        f"--{name}={','.join(value) if isinstance(value, list) else value}"
        for name in [*dataclasses.asdict(config), "max_episodes"]
        if (value := FLAGS[name].value) is not None
    ]
    display = _Display(directory, missing, changed)
    try:
        completed = workers.run_tasks(
            _run,
            missing,
            common.num_workers(),
            display.on_event,
            display.on_failure,
            isolate=jax.default_backend() == "cpu",
            group=lambda task: task.bsuite_id.partition("/")[0],  # mostly one compiled program
        )
    finally:
        display.close()

    rows = [row for row in directory.rows("results") if row["bsuite_id"] in ids]
    counts = collections.Counter(row["status"] for row in rows)
    if counts:
        print(", ".join(f"{count} {status}" for status, count in counts.items()) + f"; {logdir}/results.csv")
    return common.exit_code(completed)


if __name__ == "__main__":
    common.run(main)
