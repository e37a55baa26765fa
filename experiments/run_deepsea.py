"""Runs an agent on DeepSea by the paper's protocol.

Example: python experiments/run_deepsea.py --size=20 --num_seeds=10
"""

import dataclasses
import pathlib
import sys
import zipfile

import common  # isort: skip  (sets the environment that jax reads)

from absl import flags
import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.runners import deep_sea
from hyperagent_jax.runners import workers

FLAGS = flags.FLAGS
flags.DEFINE_integer("size", 20, "N of the N x N grid.")
flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(agents.CONFIGS)}.")
common.define_seed_flags()
flags.DEFINE_bool("stochastic", False, "bsuite's stochastic DeepSea: right fails with probability 1/N.")
flags.DEFINE_integer(
    "mapping_seed",
    None,
    "Seed of the action mapping; default: the run's seed. bsuite: 42.",
    lower_bound=0,
    upper_bound=2**32 - 1,
)
flags.DEFINE_integer("max_episodes", 10_000, "Episodes after which an unsolved run has failed.")
flags.DEFINE_integer("eval_every", 1_000, "Interactions between evaluations.")
flags.DEFINE_integer("eval_episodes", 100, "Episodes per evaluation.")
flags.DEFINE_float(
    "solved_return",
    None,
    "Average evaluation return that counts as solved; default: the "
    "optimum, 0.99 (stochastic: 80% of the optimum).",
)
flags.DEFINE_string("logdir", None, "Folder of the results; default: logs/deepsea_<size>_<agent>.")
flags.DEFINE_enum(
    "runner",
    "scan",
    deep_sea.RUNNERS,
    "scan: everything on device. loop: bsuite's own Python "
    "DeepSea, step by step, for checking one against the other.",
)
flags.DEFINE_integer(
    "seeds_per_group", None, "Seeds vmapped together; default: 1 on CPU, all on accelerators.", lower_bound=1
)
common.define_run_flags()
config_lib.define_flags(agents.CONFIGS)
flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(config_lib)


def _protocol() -> deep_sea.Protocol:
    try:
        return deep_sea.make_protocol(
            size=FLAGS.size,
            stochastic=FLAGS.stochastic,
            mapping_seed=FLAGS.mapping_seed,
            max_episodes=FLAGS.max_episodes,
            eval_every=FLAGS.eval_every,
            eval_episodes=FLAGS.eval_episodes,
            solved_return=FLAGS.solved_return,
        )
    except ValueError as error:
        raise errors.UserError(f"--{error}") from error


class _Display:
    """Shows progress and writes rows as they are reported."""

    def __init__(self, directory: results.RunDirectory, reached: dict[int, int], limit: int):
        """Takes the interactions each seed has behind it and the most it may have."""
        self._directory = directory
        self._limit = limit
        self._interactions = dict(reached)
        # A resumed task repeats what it reported before; rows that are on file already stay as they are.
        self._results = {int(row["seed"]) for row in directory.rows("results")}
        self._curve = {(int(row["seed"]), int(row["interactions"])) for row in directory.rows("curve")}
        self._bar = common.progress_bar(len(reached) * limit, "step", sum(reached.values()))

    def __call__(self, event) -> None:
        kind = event[0]
        if kind == "curve":
            row = event[1]
            if row["seed"] in self._results or (row["seed"], row["interactions"]) in self._curve:
                return
            self._curve.add((row["seed"], row["interactions"]))
            self._directory.add("curve", deep_sea.CURVE_FIELDS, row)
            if row["interactions"] <= self._interactions[row["seed"]]:
                return  # was reported, but never written
            self._bar.update(row["interactions"] - self._interactions[row["seed"]])
            self._interactions[row["seed"]] = row["interactions"]
            self._bar.set_postfix_str(
                f"seed {row['seed']} episode {row['episodes']} return {row['eval_return']:.3f}"
            )
        elif kind == "result":
            _, row, maps = event
            if row["seed"] in self._results:
                return
            self._results.add(row["seed"])
            if maps is not None:
                folder = self._directory.path / "maps"
                folder.mkdir(exist_ok=True)
                np.savez_compressed(folder / f"seed_{row['seed']}.npz", **maps)
            self._directory.add("results", deep_sea.RESULT_FIELDS, row)
            if not self._bar.disable:  # a run that is solved early leaves the rest of its budget unused
                self._bar.total -= self._limit - row["interactions"]
                self._bar.refresh()
            self._bar.write(common.summary(row), file=sys.stdout)
        elif kind == "finished":
            if event[1].checkpoint:
                checkpoint.delete(event[1].checkpoint)

    def close(self) -> None:
        self._bar.close()


def _groups(seeds: list[int], finished: set[int], folder: pathlib.Path) -> list[tuple[int, ...]]:
    """Puts unfinished seeds together that run as one; a group with a checkpoint in the folder goes on as it is."""
    groups, rest = [], set(seeds) - finished
    identities = [checkpoint.load_facts(file).get("identity", {}) for file in sorted(folder.glob("seed*.npz"))]
    begun = [tuple(identity.get("seeds", ())) for identity in identities]
    for group in sorted(begun, key=len, reverse=True):
        unfinished = set(group) - finished
        if unfinished and unfinished <= rest and set(group) <= set(seeds):
            groups.append(group)
            rest -= unfinished
    on_cpu = jax.default_backend() == "cpu"
    width = FLAGS.seeds_per_group or (1 if on_cpu or FLAGS.runner == "loop" else len(seeds))
    others = sorted(rest)
    return groups + [tuple(others[i : i + width]) for i in range(0, len(others), width)]


def _draw(directory: results.RunDirectory, protocol: deep_sea.Protocol) -> pathlib.Path | None:
    try:
        from hyperagent_jax.analysis.deep_sea import plots
    except ImportError:
        common.say_no_picture()
        return None
    rows = directory.rows("results")
    maps = None
    if rows:
        seed = min(int(row["seed"]) for row in rows)
        file = directory.path / "maps" / f"seed_{seed}.npz"
        try:
            with np.load(file) as arrays:
                maps = {**arrays, "seed": seed}
        except (OSError, ValueError, zipfile.BadZipFile):
            pass  # results are reported without maps when they were resumed; or the file was cut short
    path = directory.path / "deepsea.png"
    kind = "Stochastic DeepSea" if protocol.stochastic else "DeepSea"
    plots.single_run(
        path,
        f"{FLAGS.agent} on {kind} {protocol.size} x {protocol.size}",
        directory.rows("curve"),
        maps,
        protocol.solved_return,
    )
    return path


def main() -> int:
    if FLAGS.agent not in agents.CONFIGS:
        raise errors.UserError(f"unknown agent {FLAGS.agent!r}; choose one of {', '.join(agents.CONFIGS)}")
    protocol = _protocol()
    config = config_lib.from_flags(FLAGS.agent, agents.CONFIGS[FLAGS.agent], agents.CONFIGS, FLAGS)
    config = deep_sea.resolve(config, protocol)
    seeds = common.seeds()
    if FLAGS.runner == "loop" and (FLAGS.seeds_per_group or 1) > 1:
        raise errors.UserError("--runner=loop steps one seed at a time: use --seeds_per_group=1")
    task = deep_sea.Task(FLAGS.agent, config, protocol, tuple(seeds[:1]), FLAGS.runner)
    _, agent = deep_sea.make(task)  # refuses a bad config before anything is written

    logdir = FLAGS.logdir or f"logs/deepsea_{FLAGS.size}_{FLAGS.agent}"
    identity = {
        "experiment": "deepsea",
        "agent": FLAGS.agent,
        "config": dataclasses.asdict(config),
        "protocol": dataclasses.asdict(protocol),
        "runner": FLAGS.runner,
    }
    directory = results.RunDirectory(
        logdir, identity, resume=FLAGS.resume, overwrite=FLAGS.overwrite, new=task.new_settings()
    )
    directory.require_numbers("results", "seed")
    directory.require_numbers("curve", "seed", "interactions")
    finished = {int(row["seed"]) for row in directory.rows("results")}
    directory.keep("results", deep_sea.RESULT_FIELDS, lambda row: True)

    groups = _groups(seeds, finished, directory.path / "checkpoints")
    largest = max(groups, key=len, default=task.seeds)
    memory = deep_sea.num_bytes(dataclasses.replace(task, seeds=largest))
    print(
        f"{FLAGS.agent} on DeepSea {protocol.size}: {agents.count_params(agent):,} parameters, "
        f"{memory['total'] / 1e6:.1f} MB per group of {len(largest)} seed(s), "
        f"of which the replay {memory['replay'] / 1e6:.1f} MB; solved at {protocol.solved_return:g} over "
        f"{protocol.eval_episodes} episodes, evaluated every {protocol.eval_every:,} interactions, "
        f"at most {protocol.max_episodes:,} episodes; results in {logdir}"
    )
    tasks, reached = [], {seed: 0 for seed in seeds}
    for group in groups:
        name = f"seed_{group[0]}" if len(group) == 1 else f"seeds_{group[0]}_to_{group[-1]}"
        file = directory.path / "checkpoints" / f"{name}.npz"
        tasks.append(
            dataclasses.replace(
                task, seeds=group, checkpoint=str(file), checkpoint_seconds=FLAGS.checkpoint_seconds
            )
        )
        if file.exists():
            reached.update({seed: checkpoint.load_facts(file)["interactions"] for seed in group})
    # What was reported after the last checkpoint will be reported again.
    directory.keep(
        "curve",
        deep_sea.CURVE_FIELDS,
        lambda row: (
            int(row["seed"]) in finished or int(row["interactions"]) <= reached.get(int(row["seed"]), sys.maxsize)
        ),
    )
    for row in directory.rows("results"):
        if int(row["seed"]) in seeds:
            print(f"{common.summary(row)} [already there]")

    display = _Display(
        directory, {seed: reached[seed] for t in tasks for seed in t.seeds}, protocol.max_episodes * protocol.size
    )
    try:
        completed = workers.run_tasks(common.run_task, tasks, common.num_workers(), display)
    finally:
        display.close()

    rows = [row for row in directory.rows("results") if int(row["seed"]) in seeds]
    solved = [int(row["episodes_to_learn"]) for row in rows if row["solved"] == "True"]
    if rows:
        average = f", mean episodes to learn {np.mean(solved):.1f}" if solved else ""
        print(f"{len(solved)} of {len(rows)} seeds solved{average}; {logdir}/results.csv")
        if path := _draw(directory, protocol):
            print(f"picture: {path}")
    return common.exit_code(completed)


if __name__ == "__main__":
    common.run(main)
