"""The paper's Atari protocol: train, evaluate every so often, keep the best, and play it many times in the end."""

from collections.abc import Callable
import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.environments import atari
from hyperagent_jax.environments import video
from hyperagent_jax.runners import core
from hyperagent_jax.runners import vector

RESULT_FIELDS = (
    "game",
    "agent",
    "seed",
    "score",
    "score_std",
    "episodes",
    "best_interactions",
    "best_eval_score",
    "interactions",
    "games",
    "num_params",
    "train_seconds",
    "interactions_per_second",
    "error",
)
CURVE_FIELDS = ("game", "seed", "interactions", "games", "train_score", "eval_score", "loss", "seconds")
# Games played side by side in an evaluation.
_EVALUATED_TOGETHER = 10
_SECONDS_BETWEEN_REPORTS = 2.0
# A recording shows at most this many steps of a game, two minutes of it.
_RECORDED_STEPS = 1_800
# Memory of a process without replay and learner: libraries, emulators and compiled programs.
PROGRAM_BYTES = 800_000_000
_TRAINING, _EVALUATION, _FINAL, _RECORDING = range(4)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a run on an Atari game is made and measured.

    Attributes:
        steps: interactions; each is four frames.
        num_envs: games played side by side in training.
        asynchronous: whether learning goes on as soon as half of the games have answered, instead of all; such a
            run depends on what is faster and cannot be resumed exactly.
        eval_every: interactions between evaluations.
        eval_episodes: games per evaluation, with their own scores, to the end.
        final_eval_episodes: games that the best parameters play in the end.
        eval_epsilon: chance of a random action in evaluations, lest a game wait for one for ever.
        eval_fire: whether games of evaluations go on after a lost life as in training, with no-ops, and with FIRE
            where the game waits for it. Agents that are trained so never learn to press it.
        max_frames: a game is cut after this many frames.
    """

    steps: int = 2_000_000
    num_envs: int = 4
    asynchronous: bool = False
    eval_every: int = 20_000
    eval_episodes: int = 10
    final_eval_episodes: int = 200
    eval_epsilon: float = 0.001
    eval_fire: bool = True
    max_frames: int = atari.MAX_FRAMES

    def __post_init__(self):
        for name in ("steps", "num_envs", "eval_every", "eval_episodes", "final_eval_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_frames < atari.FRAME_SKIP:
            raise ValueError(f"max_frames must be at least {atari.FRAME_SKIP}, got {self.max_frames}")
        if not 0 <= self.eval_epsilon <= 1:
            raise ValueError(f"eval_epsilon must be between 0 and 1, got {self.eval_epsilon}")
        if self.asynchronous and self.num_envs < 2:
            raise ValueError("asynchronous needs num_envs of at least 2")


@dataclasses.dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        game: the game.
        agent: name of the agent.
        config: its config.
        protocol: the protocol.
        seed: the run's seed.
        checkpoint: file of the run's checkpoint; the best parameters are kept beside it.
        checkpoint_seconds: least time between two checkpoints.
        video: file for a recording of the best parameters, or None.
    """

    game: str
    agent: str
    config: Any
    protocol: Protocol
    seed: int
    checkpoint: str
    checkpoint_seconds: float = 600.0
    video: str | None = None

    @property
    def best(self) -> pathlib.Path:
        """File of the best parameters."""
        path = pathlib.Path(self.checkpoint)
        return path.with_name(f"{path.stem}_best.npz")

    def identity(self) -> dict[str, Any]:
        """What a checkpoint of this task must have been made with."""
        return {
            "game": self.game,
            "agent": self.agent,
            "config": config_lib.as_json(self.config),
            "protocol": dataclasses.asdict(self.protocol),
            "seed": self.seed,
        }

    def new_settings(self) -> dict[str, Any]:
        """What a checkpoint of an older version may lack of that."""
        return config_lib.introduced(config=self.config, protocol=self.protocol)


def resolve(agent: str, config: Any, protocol: Protocol) -> Any:
    """An agent's config as it will run: a replay longer than the whole run would be is cut to it.

    Its class is the agent's own, which other processes can import, whatever the preset it came from.
    """
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return config_lib.for_run(agents.CONFIGS[agent](**settings), max(protocol.steps, protocol.num_envs))


def make_agent(task: Task) -> agents.Agent:
    """Makes the agent of a task."""
    height, width = atari.STACK_SHAPE[1:]
    spec = types.EnvironmentSpec(atari.num_actions(task.game), (height, width, atari.STACK_SHAPE[0]))
    try:
        return agents.make_agent(task.agent, task.config, spec)
    except ValueError as error:
        raise errors.UserError(str(error)) from error


def num_bytes(task: Task) -> dict[str, int]:
    """Memory the run will take beside that of the program itself, before any of it is allocated.

    Refuses a replay that cannot be.
    """
    agent = make_agent(task)
    settings = vector.replay_settings(agent, task.protocol.num_envs, atari.STACK_SHAPE)
    try:
        settings.check()
    except ValueError as error:
        raise errors.UserError(str(error)) from error
    replay = settings.num_bytes()
    learner = jax.eval_shape(agent.learner.init, jax.random.key(0))
    state = core.num_bytes(learner)
    return {"replay": replay, "learner": state, "total": replay + state}


def _environment(task: Task, purpose: int, number: int, num_envs: int, **settings) -> atari.Atari:
    return atari.Atari(
        task.game,
        num_envs,
        (task.seed, purpose, number),
        fires_after_life=task.protocol.eval_fire,
        max_frames=task.protocol.max_frames,
        **settings,
    )


def make_runner(task: Task, restarts: int = 0) -> vector.VectorRunner:
    """Makes environments, agent and replay; `restarts` counts how often asynchronous games began anew."""
    protocol = task.protocol
    agent = make_agent(task)
    batch_size = -(-protocol.num_envs // 2) if protocol.asynchronous else None
    environment = _environment(
        task, _TRAINING, restarts, protocol.num_envs, is_training=True, batch_size=batch_size
    )
    return vector.VectorRunner(agent, environment, task.seed)


def run_task(task: Task, report: Callable[[Any], None], should_stop: Callable[[], bool]) -> None:
    """Runs a task to its end, from its checkpoint if there is one.

    Reports ("progress", facts) every few seconds, ("curve", row) after every evaluation, at the end ("result",
    row), ("problem", line) if there is no recording, and ("finished", task). A checkpoint keeps the rows reported
    so far; a resumed task reports them again.
    """
    facts = None
    if pathlib.Path(task.checkpoint).exists():
        facts = checkpoint.load_facts(task.checkpoint, task.identity(), task.new_settings())
        facts["restarts"] += task.protocol.asynchronous
    runner = make_runner(task, facts["restarts"] if facts else 0)
    try:
        _Run(task, runner, report, should_stop).go(facts)
    finally:
        runner.close()


class _Run:
    """A run in progress."""

    def __init__(self, task: Task, runner: vector.VectorRunner, report, should_stop):
        self.task, self.runner, self.report, self.should_stop = task, runner, report, should_stop
        self.facts: dict[str, Any] = {
            "identity": task.identity(),
            "train_seconds": 0.0,
            "curve": [],
            "best": None,
            "restarts": 0,
            "runner": {},
        }
        self.evaluate = vector.make_evaluator(runner.agent, task.protocol.eval_epsilon)
        self.saved_at = self.reported_at = time.monotonic()
        self.reported = 0  # interactions then

    def resume(self, facts: dict[str, Any]) -> bool:
        """Goes to where the checkpoint with these facts was made; False when the user asked to stop."""
        task, self.facts = self.task, facts
        if not self.runner.restore(
            facts["runner"], lambda like: checkpoint.load(task.checkpoint, like), self.should_stop
        ):
            return False
        if task.best.exists():  # perhaps of an evaluation after the checkpoint; then it is what is kept
            best = checkpoint.load_facts(task.best, task.identity(), task.new_settings())
            facts["best"] = {name: best[name] for name in ("score", "interactions")}
        for row in facts["curve"]:
            self.report(("curve", row))
        self.saved_at = self.reported_at = time.monotonic()
        self.reported = self.runner.interactions
        return True

    def go(self, facts: dict[str, Any] | None) -> None:
        """Runs from the beginning, or from where the checkpoint with these facts was made."""
        runner, protocol = self.runner, self.task.protocol
        if facts is None:
            runner.begin()
        elif not self.resume(facts):
            return
        # By evaluations, not interactions: the last one may have been interrupted.
        while len(self.facts["curve"]) < -(-protocol.steps // protocol.eval_every):
            begin = time.perf_counter()
            target = min(self.next_evaluation(), protocol.steps)
            while runner.interactions < target and not self.should_stop():
                runner.advance()
                if time.monotonic() - self.reported_at >= _SECONDS_BETWEEN_REPORTS:
                    self.report_progress()
                if time.monotonic() - self.saved_at >= self.task.checkpoint_seconds:
                    self.facts["train_seconds"] += time.perf_counter() - begin
                    self.save()
                    begin = time.perf_counter()
            jax.block_until_ready(runner.learner)
            self.facts["train_seconds"] += time.perf_counter() - begin
            if time.monotonic() - self.saved_at >= self.task.checkpoint_seconds / 2:
                self.save()  # evaluations may take long
            if self.should_stop() or not self.evaluate_and_report():
                self.save()
                return
        self.save()
        self.finish()

    def next_evaluation(self) -> int:
        """Interactions at which the next evaluation is due."""
        return (len(self.facts["curve"]) + 1) * self.task.protocol.eval_every

    def report_progress(self) -> None:
        now, scores = time.monotonic(), self.runner.recent_scores
        rate = (self.runner.interactions - self.reported) / (now - self.reported_at)
        self.reported_at, self.reported = now, self.runner.interactions
        self.report(
            (
                "progress",
                {
                    "game": self.task.game,
                    "seed": self.task.seed,
                    "interactions": self.runner.interactions,
                    "rate": rate,
                    "score": float(np.mean(scores[-10:])) if scores else None,
                },
            )
        )

    def key(self, purpose: int) -> types.PRNGKey:
        key = types.fold_in_tag(jax.random.key(self.task.seed), "evaluation")
        return jax.random.fold_in(jax.random.fold_in(key, purpose), self.runner.interactions)

    def play(self, variables, purpose: int, num_episodes: int) -> list[float] | None:
        """Scores of whole games; None when the user asked to stop."""
        environment = _environment(
            self.task, purpose, self.runner.interactions, min(num_episodes, _EVALUATED_TOGETHER), is_training=False
        )
        try:
            return self.evaluate(variables, environment, num_episodes, self.key(purpose), self.should_stop)
        finally:
            environment.close()

    def evaluate_and_report(self) -> bool:
        """Evaluates, keeps the best parameters and reports; False when the user asked to stop."""
        runner, task = self.runner, self.task
        self.check_loss()
        variables = runner.agent.learner.variables(runner.learner)
        scores = self.play(variables, _EVALUATION, task.protocol.eval_episodes)
        if scores is None:
            return False
        totals = runner.take_totals()
        score = float(np.mean(scores))
        if self.facts["best"] is None or score > self.facts["best"]["score"]:
            self.facts["best"] = {"score": score, "interactions": runner.interactions}
            checkpoint.save(task.best, variables.params, {**self.facts["best"], "identity": task.identity()})
        row = {
            "game": task.game,
            "seed": task.seed,
            "interactions": runner.interactions,
            "games": runner.games,
            "train_score": results.ratio(sum(totals.scores), len(totals.scores)),
            "eval_score": results.number(score),
            "loss": results.ratio(totals.loss, totals.updates),
            "seconds": round(self.facts["train_seconds"], 1),
        }
        self.facts["curve"].append(row)
        self.report(("curve", row))
        self.reported_at, self.reported = time.monotonic(), runner.interactions
        return True

    def check_loss(self) -> None:
        """Ends the run when it has diverged."""
        if not self.runner.loss_is_finite:
            raise errors.UserError(
                f"{self.task.game} seed {self.task.seed}: the loss is no longer finite after "
                f"{self.runner.interactions:,} interactions; lower --learning_rate"
            )

    def save(self) -> None:
        """Writes a checkpoint, unless that of a run that has diverged would replace a better one."""
        self.check_loss()
        self.facts["runner"] = self.runner.facts()
        checkpoint.save(self.task.checkpoint, self.runner.tree(), self.facts)
        self.saved_at = time.monotonic()

    def best_variables(self) -> types.Variables:
        variables = self.runner.agent.learner.variables(self.runner.learner)
        return variables._replace(params=checkpoint.load(self.task.best, variables.params))

    def finish(self) -> None:
        """Plays the best parameters and reports the result, unless the user asks to stop."""
        task, runner = self.task, self.runner
        variables = self.best_variables()
        scores = self.play(variables, _FINAL, task.protocol.final_eval_episodes)
        if scores is None:
            return
        seconds = self.facts["train_seconds"]
        self.report(
            (
                "result",
                {
                    "game": task.game,
                    "agent": task.agent,
                    "seed": task.seed,
                    "score": results.number(np.mean(scores)),
                    "score_std": results.number(np.std(scores)),
                    "episodes": len(scores),
                    "best_interactions": self.facts["best"]["interactions"],
                    "best_eval_score": results.number(self.facts["best"]["score"]),
                    "interactions": runner.interactions,
                    "games": runner.games,
                    "num_params": agents.count_params(runner.agent),
                    "train_seconds": round(seconds, 1),
                    "interactions_per_second": round(runner.interactions / seconds, 1),
                    "error": "",
                },
            )
        )
        if task.video:
            try:
                self.record(variables)
            except errors.UserError as error:
                self.report(("problem", f"no recording of {task.game} seed {task.seed}: {error}"))
        self.report(("finished", task))

    def record(self, variables: types.Variables) -> None:
        """Writes one game in colour to a GIF."""
        task, number = self.task, self.runner.interactions
        seed = (task.seed, _RECORDING, number)
        environment = _environment(task, _RECORDING, number, 1, is_training=False)
        screen = atari.Screen(
            task.game, seed, fires_after_life=task.protocol.eval_fire, max_frames=task.protocol.max_frames
        )
        pictures = [screen.picture]

        def on_step(actions):
            screen.step(int(actions[0]))
            pictures.append(screen.picture)

        try:
            self.evaluate(
                variables, environment, 1, self.key(_RECORDING), lambda: len(pictures) > _RECORDED_STEPS, on_step
            )
        finally:
            environment.close()
            screen.close()
        video.write_gif(task.video, pictures)
