"""The paper's Atari protocol: train, evaluate periodically, keep the best parameters, evaluate them at the end."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import checks
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import sharding
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets as presets
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import atari
from hyperagent_jax.environments import video
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import distributed
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.runners import core
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import shared
from hyperagent_jax.runners import vector

# Environments that run in parallel in an evaluation.
_EVALUATED_TOGETHER = 10
# A recording shows at most this many steps of an episode, which is two minutes.
_RECORDED_STEPS = 1_800
# Memory of a process besides its replay and learner: libraries, emulators and compiled programs.
_PROGRAM_BYTES = 800_000_000
_TRAINING, _EVALUATION, _FINAL, RECORDING = range(4)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a run on an Atari game is trained and evaluated.

    Attributes:
        game: the game, several separated by commas, or all26 or all55.
        steps: interactions; each is four frames.
        num_envs: environments that run in parallel during training.
        asynchronous: whether to continue learning once half of the environments have answered, instead of all;
            such a run depends on timing and cannot be resumed exactly.
        eval_every: interactions between evaluations.
        eval_episodes: episodes per evaluation, played to the end and scored without clipping.
        final_eval_episodes: episodes of the final evaluation, with the best parameters.
        eval_epsilon: probability of a random action in evaluations, so that no game waits for an action forever.
        eval_fire: whether evaluations continue after a lost life as training does: with no-ops, and with FIRE
            where the game waits for it. Agents trained this way never learn to press it.
        max_frames: episodes are truncated after this many frames.
        eval_policy: how evaluations choose actions: with a "sample" of the index, as the agent acts; by the "mean"
            over the index; or by the "majority" of 32 sampled indices.
    """

    game: str = "Pong"
    steps: int = 2_000_000
    num_envs: int = 4
    asynchronous: bool = False
    eval_every: int = 20_000
    eval_episodes: int = 10
    final_eval_episodes: int = 200
    eval_epsilon: float = 0.001
    eval_fire: bool = True
    max_frames: int = atari.MAX_FRAMES
    eval_policy: str = "sample"

    def __post_init__(self) -> None:
        checks.positive(self, "steps", "num_envs", "eval_every", "eval_episodes", "final_eval_episodes")
        policy.check(self.eval_policy, "eval_policy")
        checks.counts(self, "max_frames")
        if self.max_frames < atari.FRAME_SKIP:
            raise ValueError(f"max_frames must be at least {atari.FRAME_SKIP}, got {self.max_frames}")
        if not 0 <= self.eval_epsilon <= 1:
            raise ValueError(f"eval_epsilon must be between 0 and 1, got {self.eval_epsilon}")
        if self.asynchronous and self.num_envs < 2:
            raise ValueError("asynchronous needs num_envs of at least 2")


@dataclasses.dataclass(frozen=True)
class Options(distributed.Options):
    """Which settings and devices to use, and which outputs to write.

    Attributes:
        preset: settings of the "paper", of its "released" code (whose learning rate and regularisation differ),
            or, for other systems, of their "authors".
        record_video: whether to write a GIF of one episode with the best parameters.
        data_parallel: whether to split every batch over all local devices; for batches of 256 and more.
    """

    preset: str = "paper"
    record_video: bool = False
    data_parallel: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data_parallel and self.distributed:
            raise ValueError("distributed uses all devices of all processes: leave out data_parallel")
        if self.preset not in presets.PRESETS:
            raise ValueError(f"preset must be one of {', '.join(presets.PRESETS)}, got {self.preset!r}")


def best_file(task: base.Task) -> pathlib.Path:
    """Returns the file of the best parameters, which is kept after the run has finished."""
    return task.checkpoint.with_name(f"{task.name}_best.npz")


def make_agent(task: base.Task) -> agents.Agent:
    """Builds the agent of a task."""
    height, width = atari.STACK_SHAPE[1:]
    spec = types.EnvironmentSpec(atari.num_actions(task.protocol.game), (height, width, atari.STACK_SHAPE[0]))
    return agents.make_agent(task.agent, task.config, spec)


def num_bytes(task: base.Task) -> dict[str, int]:
    """Returns the memory of replay and learner without allocating it; rejects an impossible replay."""
    agent, num_envs = make_agent(task), task.protocol.num_envs
    if task.options.distributed:
        size = _num_processes(task)
        agent, num_envs = shared.part_of(agent, size), num_envs // size
    settings = vector.replay_settings(agent, num_envs, atari.STACK_SHAPE)
    settings.check()
    learner = jax.eval_shape(agent.learner.init, jax.random.key(0))
    return {"replay": settings.num_bytes(), "learner": core.num_bytes(learner)}


def _num_processes(task: base.Task) -> int:
    """The number of processes that run the task together; refuses what they cannot share."""
    group = distributed.current()
    if group is None:
        raise ValueError("distributed is for run_atari.py itself, not for sweeps")
    if task.protocol.asynchronous:
        raise ValueError("distributed processes play in lock-step: leave out asynchronous")
    for name, value, count in (
        ("num_envs", task.protocol.num_envs, group.size),
        ("batch_size", task.config.batch_size, group.mesh.size),
    ):
        if value % count:
            what = "processes" if name == "num_envs" else "devices of all processes"
            raise ValueError(f"{name}={value} cannot be shared by {count} {what}: use a multiple of it")
    return group.size


def _environment(
    task: base.Task, purpose: int, number: int, num_envs: int, part: tuple[int, ...] = (), **settings: Any
) -> atari.Atari:
    return atari.Atari(
        task.protocol.game,
        num_envs,
        (task.seeds[0], purpose, number, *part),
        fires_after_life=task.protocol.eval_fire,
        max_frames=task.protocol.max_frames,
        **settings,
    )


def make_runner(task: base.Task, restarts: int = 0) -> vector.VectorRunner:
    """Builds environments, agent and replay; `restarts` counts restarts of asynchronous environments."""
    protocol = task.protocol
    agent = make_agent(task)
    batch_size = -(-protocol.num_envs // 2) if protocol.asynchronous else None
    environment = _environment(
        task, _TRAINING, restarts, protocol.num_envs, is_training=True, batch_size=batch_size
    )
    mesh = None
    if task.options and task.options.data_parallel:
        mesh = sharding.batch_mesh(jax.local_devices(), task.config.batch_size)
    return vector.VectorRunner(agent, environment, task.seeds[0], mesh)


def make_shared_runner(task: base.Task, group: distributed.Group, ballot: shared.Ballot) -> shared.SharedRunner:
    """Makes the share of environments and replay of one of several processes, and the agent of all."""
    num_envs = task.protocol.num_envs // group.size
    environment = _environment(task, _TRAINING, 0, num_envs, (group.rank,), is_training=True)
    return shared.SharedRunner(make_agent(task), environment, task.seeds[0], group, ballot)


class Run:
    """One run in progress."""

    part: tuple[int, ...] = ()  # numbers that tell this process's games from those of others

    def __init__(self, task: base.Task, runner: vector.VectorRunner, context: run_context.RunContext):
        self.task, self.runner, self.context = task, runner, context
        self.label = f"{task.protocol.game} seed {task.seeds[0]}"
        self.notes = context.progress.notes  # "best": score and interactions of the best evaluation so far
        self.evaluate = evaluate.HostEvaluator(
            runner.agent, task.protocol.eval_epsilon, vector.frames_last, task.protocol.eval_policy
        )

    def resume(self) -> bool:
        """Restores the run; returns False if the user asked to stop meanwhile."""
        is_repeated = not self.task.protocol.asynchronous
        how = "replaying its recorded actions up to the checkpoint" if is_repeated else "resumes with new episodes"
        self.context.note(f"{self.label}: {how}")
        if not self.runner.restore(self.notes["runner"], self.context.load, self.context.wants_to_stop):
            return False
        file = best_file(self.task)
        if file.exists():  # possibly newer than the checkpoint; it is kept all the same
            saved = checkpoint.load_facts(file)
            if self.task.fingerprint().difference(saved["fingerprint"]):
                raise checkpoint.CheckpointError(f"checkpoint {file} was made with a different configuration")
            self.notes["best"] = saved["best"]
        return True

    def train(self) -> bool:
        """Trains and evaluates to the end; returns False if the user asked to stop."""
        runner, context, protocol = self.runner, self.context, self.task.protocol
        curve = context.progress.curve
        # Counts evaluations rather than interactions: the last evaluation may have been interrupted.
        while len(curve) < -(-protocol.steps // protocol.eval_every):
            target = min((len(curve) + 1) * protocol.eval_every, protocol.steps)
            while runner.interactions < target and not context.should_stop():
                with context.training():
                    runner.advance()
                scores = runner.recent_scores[-10:]
                context.advance(runner.interactions, f"score {np.mean(scores):,.1f} in training" if scores else "")
                if context.is_save_due():
                    self.save()
            with context.training():
                jax.block_until_ready(runner.learner)
            if context.is_save_due(0.5):
                self.save()  # an evaluation may take long
            if context.should_stop() or not self.evaluate_and_report():
                self.save()
                return False
        self.save()
        return True

    def play(
        self, variables: types.Variables, purpose: int, num_episodes: int, **options: Any
    ) -> list[float] | None:
        """Returns the scores of complete episodes, or None if the user asked to stop."""
        now, num_envs = self.runner.interactions, min(num_episodes, _EVALUATED_TOGETHER)
        key = types.fold_in_tag(jax.random.key(self.task.seeds[0]), "evaluation")
        for number in (purpose, now, *self.part):
            key = jax.random.fold_in(key, number)
        options.setdefault("should_stop", self.context.wants_to_stop)
        games = _environment(self.task, purpose, now, num_envs, self.part, is_training=False)
        with contextlib.closing(games) as environment:
            return self.evaluate(variables, environment, num_episodes, key, **options)

    def keep_best(self, params: types.Params) -> None:
        """Writes the best parameters so far."""
        facts = {"best": self.notes["best"], "fingerprint": self.task.fingerprint().settings}
        checkpoint.save(best_file(self.task), params, facts)

    def evaluate_and_report(self) -> bool:
        """Evaluates, keeps the best parameters and reports; returns False if the user asked to stop."""
        runner, task, context = self.runner, self.task, self.context
        self.check_loss()
        variables = runner.variables
        scores = self.play(variables, _EVALUATION, task.protocol.eval_episodes)
        if scores is None:
            return False
        totals = runner.take_totals()
        score = float(np.mean(scores))
        if "best" not in self.notes or score > self.notes["best"]["score"]:
            self.notes["best"] = {"score": score, "interactions": runner.interactions}
            self.keep_best(variables.params)
        row = {
            "game": task.protocol.game,
            "seed": task.seeds[0],
            "interactions": runner.interactions,
            "games": runner.count_games(),
            "train_score": results.ratio(sum(totals.scores), len(totals.scores)),
            "eval_score": results.number(score),
            "loss": results.ratio(totals.loss, totals.updates),
            "seconds": round(context.progress.train_seconds, 1),
        }
        context.add_curve(task.seeds[0], row, f"score {row['eval_score']:,.1f} evaluated")
        return True

    def check_loss(self) -> None:
        """Raises an error if training has diverged."""
        self.context.progress.reached = self.runner.interactions
        self.context.check_loss(0.0 if self.runner.loss_is_finite else np.nan, self.label)

    def save(self) -> None:
        """Writes a checkpoint, unless the run has diverged: the last good one is then kept."""
        self.check_loss()
        self.notes["runner"] = self.runner.facts()
        self.context.save(self.runner.tree())

    def finish(self) -> None:
        """Evaluates the best parameters and reports the result, unless the user asks to stop."""
        task, runner, context = self.task, self.runner, self.context
        variables = runner.variables
        variables = variables._replace(params=checkpoint.load(best_file(task), variables.params))
        scores = self.play(variables, _FINAL, task.protocol.final_eval_episodes)
        if scores is None:
            return
        best, seconds = self.notes["best"], context.progress.train_seconds
        result = {
            "score": results.number(np.mean(scores)),
            "score_std": results.number(np.std(scores)),
            "episodes": len(scores),
            "best_interactions": best["interactions"],
            "best_eval_score": results.number(best["score"]),
            "interactions": runner.interactions,
            "games": runner.count_games(),
            "num_params": agents.count_params(runner.agent),
            "train_seconds": round(seconds, 1),
            "interactions_per_second": round(runner.interactions / seconds, 1),
        }
        context.add_result(task.seeds[0], result)
        if task.options.record_video:
            try:
                self.record(variables)
            except errors.UserError as error:
                context.note(f"could not record {self.label}: {error}")

    def record(self, variables: types.Variables) -> None:
        """Writes one episode in colour to a GIF."""
        task = self.task
        screen = atari.Screen(
            task.protocol.game,
            (task.seeds[0], RECORDING, self.runner.interactions),
            fires_after_life=task.protocol.eval_fire,
            max_frames=task.protocol.max_frames,
        )
        pictures = [screen.picture]

        def on_step(actions: np.ndarray) -> None:
            screen.step(int(actions[0]))
            pictures.append(screen.picture)

        with contextlib.closing(screen):
            self.play(
                variables, RECORDING, 1, should_stop=lambda: len(pictures) > _RECORDED_STEPS, on_step=on_step
            )
        video.write_gif(str(pathlib.Path(task.folder) / f"{task.name}.gif"), pictures)


class Atari(base.Experiment):
    """The Atari experiment."""

    name = "atari"
    protocol_class = Protocol
    options_class = Options
    problem = "game"
    score = "score"
    label = "{agent} on {game} seed {seed}"
    key_fields = ("game", "seed")
    result_fields = (
        "game", "agent", "seed", "score", "score_std", "episodes", "best_interactions", "best_eval_score",
        "interactions", "games", "num_params", "train_seconds", "interactions_per_second", "error",
    )  # fmt: skip
    curve_fields = ("game", "seed", "interactions", "games", "train_score", "eval_score", "loss", "seconds")
    checkpoint_seconds = 600.0  # checkpoints hold the replay, up to gigabytes
    identity_defaults = {"num_processes": 1}

    def configs(self, options: Options | None = None) -> dict[str, Any]:
        return presets.configs(options.preset if options else "paper")

    def problems(self, value: str) -> Sequence[str]:
        games = dict.fromkeys(game for name in value.split(",") for game in atari.GAME_SETS.get(name, (name,)))
        for game in games:
            atari.check_game(game)
        return list(games)

    def length(self, protocol: Protocol) -> int:
        return protocol.steps

    def capped(self, config: Any, protocol: Protocol) -> Any:
        return config_lib.cap_replay(config, max(protocol.steps, protocol.num_envs))

    def identity(self, task: base.Task) -> dict[str, Any]:
        identity = super().identity(task)
        del identity["protocol"]["game"]  # a folder may hold any number of games
        group = distributed.current()
        return {**identity, "preset": task.options.preset, "num_processes": group.size if group else 1}

    def num_bytes(self, task: base.Task) -> int:
        if task.options.record_video:
            video.require_pillow()
        return sum(num_bytes(task).values()) + _PROGRAM_BYTES

    def header(self, task: base.Task) -> str:
        protocol = task.protocol
        return (
            f"{task.agent} (preset {task.options.preset}): {num_bytes(task)['replay'] / 1e9:.2f} GB of replay "
            f"per run; {protocol.steps:,} interactions in {protocol.num_envs} environment(s), "
            f"{protocol.eval_episodes} evaluation episodes every {protocol.eval_every:,}, finally "
            f"{protocol.final_eval_episodes} with the best parameters; unclipped scores, no "
            f"sticky actions, at most {protocol.max_frames:,} frames"
        )

    def context(
        self, task: base.Task, report: Callable[[base.Event], None], should_stop: Callable[[], bool]
    ) -> run_context.RunContext:
        if (group := distributed.current()) is None:
            return super().context(task, report, should_stop)
        from hyperagent_jax.experiment import shared_atari

        return shared_atari.Context(task, report, should_stop, group)

    def run(self, task: base.Task, context: run_context.RunContext) -> None:
        if (group := distributed.current()) is not None:
            from hyperagent_jax.experiment import shared_atari

            assert isinstance(context, shared_atari.Context)  # `context` made it
            shared_atari.run(task, group, context)
            return
        notes = context.progress.notes
        notes["restarts"] = notes.get("restarts", 0) + (context.is_resumed and task.protocol.asynchronous)
        with contextlib.closing(make_runner(task, notes["restarts"])) as runner:
            run = Run(task, runner, context)
            if not context.is_resumed:
                runner.begin()
            elif not run.resume():
                return
            if run.train():
                run.finish()

    def outcome(self, row: dict[str, Any]) -> str:
        return (
            f"score {float(row['score']):,.1f} over {row['episodes']} episodes with the parameters after "
            f"{int(row['best_interactions']):,} of {int(row['interactions']):,} interactions "
            f"({float(row['interactions_per_second']):,.1f}/s)"
        )

    def draw(self, path: pathlib.Path, directory: run_directory.RunDirectory, task: base.Task) -> None:
        from hyperagent_jax.analysis.atari import plots

        plots.curves(path, f"{task.agent}, preset {task.options.preset}", {task.agent: directory.rows("curve")})


EXPERIMENT = Atari()
