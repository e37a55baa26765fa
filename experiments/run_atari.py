"""Runs an agent on Atari games by the paper's protocol.

Examples: python experiments/run_atari.py --game=Pong --steps=100000
          python experiments/run_atari.py --game=all26 --num_seeds=5 --agent=ddqn --logdir=logs/ddqn
"""

import dataclasses
import pathlib
import sys

import common  # isort: skip  (sets the environment that jax reads)

from absl import flags
import jax

from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import memory
from hyperagent_jax import results
from hyperagent_jax.agents import atari as presets
from hyperagent_jax.environments import atari as games
from hyperagent_jax.environments import video
from hyperagent_jax.runners import atari
from hyperagent_jax.runners import workers

FLAGS = flags.FLAGS
# A slow disk; what is being saved when a run is stopped must be given the time.
_DISK_BYTES_PER_SECOND = 5e7
_CONFIGS = {preset: presets.configs(preset) for preset in presets.PRESETS}
_PROTOCOL = {"protocol": atari.Protocol}
flags.DEFINE_string("game", "Pong", f"The game, several with commas, or {' or '.join(games.GAME_SETS)}.")
flags.DEFINE_string("agent", "hyperagent", f"The agent: {', '.join(_CONFIGS['paper'])}.")
flags.DEFINE_enum(
    "preset",
    "paper",
    presets.PRESETS,
    "Settings of the paper, or of its released code, which has "
    f"{presets.differences('paper', 'released')} instead.",
)
common.define_seed_flags()
flags.DEFINE_string("logdir", None, "Folder of the results; default: logs/atari_<game>_<agent>.")
flags.DEFINE_bool("record_video", False, "Write a GIF of a game that the best parameters play.")
common.define_run_flags()
FLAGS.set_default("checkpoint_seconds", 600.0)  # checkpoints hold the replay, up to gigabytes
config_lib.define_flags(_PROTOCOL)
config_lib.define_flags(_CONFIGS["paper"])
flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(config_lib)


def _run_task(task: atari.Task, report, should_stop) -> None:
    common.use_compilation_cache()
    atari.run_task(task, lambda event: report((task, event)), should_stop)


def _summary(row: dict) -> str:
    """One line about a row of results.csv."""
    label = f"{row['agent']} on {row['game']} seed {row['seed']}"
    if row["error"]:
        return f"{label}: ERROR {row['error']}"
    return (
        f"{label}: score {float(row['score']):,.1f} over {row['episodes']} games of the parameters after "
        f"{int(row['best_interactions']):,} of {int(row['interactions']):,} interactions "
        f"({float(row['interactions_per_second']):,.1f}/s)"
    )


class _Display:
    """Shows progress and writes rows as they are reported."""

    def __init__(self, directory: results.RunDirectory, reached: dict[tuple[str, int], int], steps: int):
        """Takes the interactions each run has behind it and those it will have."""
        self._directory = directory
        self._interactions = dict(reached)
        # A resumed task repeats what it reported before; rows that are on file already stay as they are.
        rows = directory.rows("curve")
        self._curve = {(row["game"], int(row["seed"]), int(row["interactions"])) for row in rows}
        self._bar = common.progress_bar(len(reached) * steps, "step", sum(reached.values()))

    def _advance(self, row, text):
        key = (row["game"], row["seed"])
        self._bar.set_postfix_str(f"{row['game']} seed {row['seed']} {text}", refresh=False)
        self._bar.update(max(0, row["interactions"] - self._interactions[key]))
        self._interactions[key] = max(self._interactions[key], row["interactions"])

    def on_event(self, event) -> None:
        task, (kind, content) = event
        if kind == "progress":
            score = "" if content["score"] is None else f"score {content['score']:,.1f} in training, "
            self._advance(content, f"{score}{content['rate']:.1f}/s")
        elif kind == "curve":
            self._advance(content, f"score {content['eval_score']:,.1f} evaluated")
            key = (content["game"], content["seed"], content["interactions"])
            if key in self._curve:
                return
            self._curve.add(key)
            self._directory.add("curve", atari.CURVE_FIELDS, content)
            if not FLAGS.progress:
                print(
                    f"{content['game']} seed {content['seed']}: {content['interactions']:,} interactions, "
                    f"score {content['eval_score']:,.1f}",
                    flush=True,
                )
        elif kind == "result":
            self._add_result(content)
        elif kind == "finished":
            checkpoint.delete(task.checkpoint)  # the best parameters stay
        elif kind == "problem":
            self._bar.write(content, file=sys.stdout)

    def on_failure(self, task: atari.Task, message: str) -> None:
        row = dict.fromkeys(atari.RESULT_FIELDS, "")
        self._add_result({**row, "game": task.game, "agent": task.agent, "seed": task.seed, "error": message})

    def _add_result(self, row):
        self._directory.add("results", atari.RESULT_FIELDS, row)
        self._bar.write(_summary(row), file=sys.stdout)

    def close(self) -> None:
        self._bar.close()


def _chosen_games() -> list[str]:
    names: list[str] = []
    for name in FLAGS.game.split(","):
        names += games.GAME_SETS.get(name, (name,))
    for name in dict.fromkeys(names):
        games.check_game(name)
    return list(dict.fromkeys(names))


def _largest(tasks: list[atari.Task]) -> atari.Task:
    """The task that needs most memory: that of a game with the most actions, of which 18 are all there are."""
    largest = tasks[0]
    for task in tasks:
        if games.num_actions(largest.game) == games.MAX_ACTIONS:
            break
        largest = max(largest, task, key=lambda one: games.num_actions(one.game))
    return largest


def _require_memory(task: atari.Task, num_processes: int) -> dict[str, int]:
    needed = atari.num_bytes(task)
    what = f"running {num_processes} at a time" if num_processes > 1 else "the run"
    memory.require(
        num_processes * (needed["total"] + atari.PROGRAM_BYTES),
        what,
        f"lower --replay_capacity (now {task.config.replay_capacity:,}) or --num_workers (now {num_processes})",
    )
    return needed


def _finished(logdir: pathlib.Path) -> set[tuple[str, int]]:
    """Games and seeds that have a row without an error; none in a folder of another experiment."""
    rows = results.read_csv(logdir / "results.csv")
    return {(row["game"], row["seed"]) for row in rows if "game" in row and not row.get("error")}


def _draw(directory: results.RunDirectory) -> pathlib.Path | None:
    rows = directory.rows("curve")
    if not rows:
        return None
    try:
        from hyperagent_jax.analysis.atari import plots
    except ImportError:
        common.say_no_picture()
        return None
    path = directory.path / "atari.png"
    plots.curves(path, f"{FLAGS.agent}, preset {FLAGS.preset}", {FLAGS.agent: rows})
    return path


def main() -> int:
    if FLAGS.agent not in _CONFIGS["paper"]:
        known = ", ".join(_CONFIGS["paper"])
        raise errors.UserError(f"unknown agent {FLAGS.agent!r}; for Atari there are {known}")
    protocol = config_lib.from_flags("protocol", atari.Protocol, _PROTOCOL, FLAGS)
    configs = _CONFIGS[FLAGS.preset]
    config = config_lib.from_flags(FLAGS.agent, configs[FLAGS.agent], configs, FLAGS)
    config = atari.resolve(FLAGS.agent, config, protocol)
    names = _chosen_games()
    seeds = common.seeds()
    tasks = [atari.Task(game, FLAGS.agent, config, protocol, seed, "") for game in names for seed in seeds]
    logdir = FLAGS.logdir or f"logs/atari_{FLAGS.game.replace(',', '_')}_{FLAGS.agent}"
    finished = _finished(pathlib.Path(logdir)) if FLAGS.resume else set()
    missing = [task for task in tasks if (task.game, str(task.seed)) not in finished]
    num_processes = min(common.num_workers(), max(1, len(missing)))
    # Refuses a bad config, or one that needs too much, before anything is written.
    needed = _require_memory(_largest(missing or tasks), num_processes)
    if FLAGS.record_video:
        video.require_pillow()

    identity = {
        "experiment": "atari",
        "agent": FLAGS.agent,
        "preset": FLAGS.preset,
        "config": dataclasses.asdict(config),
        "protocol": dataclasses.asdict(protocol),
    }
    directory = results.RunDirectory(
        logdir, identity, resume=FLAGS.resume, overwrite=FLAGS.overwrite, new=tasks[0].new_settings()
    )
    directory.require_numbers("results", "seed")
    directory.require_numbers("curve", "seed", "interactions")
    directory.keep("results", atari.RESULT_FIELDS, lambda row: not row["error"])  # those with an error run again

    print(
        f"{FLAGS.agent} (preset {FLAGS.preset}) on {len(names)} game(s), {len(seeds)} seed(s): "
        f"{needed['replay'] / 1e9:.2f} GB of replay each, {num_processes} at a time; {protocol.steps:,} "
        f"interactions in {protocol.num_envs} environment(s) each, {protocol.eval_episodes} games every "
        f"{protocol.eval_every:,}, at the end {protocol.final_eval_episodes} games of the best; unclipped scores, "
        f"no sticky actions, at most {protocol.max_frames:,} frames; results in {logdir}"
    )
    waiting, reached = [], {}
    for task in tasks:
        key = (task.game, task.seed)
        stem = f"{task.game}_seed_{task.seed}"
        file = directory.path / "checkpoints" / f"{stem}.npz"
        if task not in missing:
            checkpoint.delete(file)  # killed between the row and this
            if FLAGS.record_video and not (directory.path / f"{stem}.gif").exists():
                print(
                    f"no recording of {task.game} seed {task.seed}: that is made at the end of a run, "
                    "and this one was finished before"
                )
            continue
        waiting.append(
            dataclasses.replace(
                task,
                checkpoint=str(file),
                checkpoint_seconds=FLAGS.checkpoint_seconds,
                video=str(directory.path / f"{stem}.gif") if FLAGS.record_video else None,
            )
        )
        reached[key] = checkpoint.load_facts(file)["runner"]["interactions"] if file.exists() else 0
        if reached[key]:
            how = "with new games" if protocol.asynchronous else "its games are first played again up to there"
            print(f"{task.game} seed {task.seed} goes on after {reached[key]:,} interactions; {how}")
    # What was reported after the last checkpoint will be reported again.
    directory.keep(
        "curve",
        atari.CURVE_FIELDS,
        lambda row: int(row["interactions"]) <= reached.get((row["game"], int(row["seed"])), sys.maxsize),
    )
    for row in directory.rows("results"):
        if row["game"] in names and int(row["seed"]) in seeds:
            print(f"{_summary(row)} [already there]")

    display = _Display(directory, reached, protocol.steps)
    several = len(tasks) > 1
    try:
        completed = workers.run_tasks(
            _run_task,
            waiting,
            num_processes,
            display.on_event,
            display.on_failure if several else None,
            # An accelerator serves one process at a time, and this one has it already.
            isolate=several and jax.default_backend() == "cpu",
            group=lambda task: task.game,
            seconds_to_save=120 + num_processes * needed["total"] / _DISK_BYTES_PER_SECOND,
        )
    finally:
        display.close()
    rows = [row for row in directory.rows("results") if row["game"] in names and int(row["seed"]) in seeds]
    failed = sum(bool(row["error"]) for row in rows)
    print(
        f"{len(rows) - failed} of {len(tasks)} runs finished{f', {failed} with an error' if failed else ''}; "
        f"{logdir}/results.csv"
    )
    if path := _draw(directory):
        print(f"picture: {path}")
    return common.exit_code(completed)


if __name__ == "__main__":
    common.run(main)
