"""bsuite's protocol: an id's number of episodes in its environment, logged by bsuite itself."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import config as config_lib
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.environments import bsuite_adapter
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import loop as loop_lib

RESULT_FIELDS = (
    "bsuite_id",
    "agent",
    "seed",
    "status",
    "reason",
    "episodes",
    "steps",
    "total_return",
    "num_params",
    "train_seconds",
    "steps_per_second",
    "command",
)
# Steps between two looks at the clock.
_CHUNK = 200
# Least time between two reports of progress.
_REPORT_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Task:
    """One bsuite id.

    Attributes:
        bsuite_id: the id.
        agent: name of the agent.
        config: its config.
        seed: seed of the agent, and of the environment where bsuite leaves it open.
        csv_folder: where bsuite's logging writes.
        max_episodes: fewer episodes than bsuite's, for a quick look; None for all.
        checkpoint: file of the checkpoint, or None.
        checkpoint_seconds: least time between two checkpoints.
    """

    bsuite_id: str
    agent: str
    config: Any
    seed: int
    csv_folder: str
    max_episodes: int | None = None
    checkpoint: str | None = None
    checkpoint_seconds: float = 60.0

    @property
    def num_episodes(self) -> int:
        """Episodes to run."""
        full = bsuite_adapter.num_episodes(self.bsuite_id)
        return full if self.max_episodes is None else min(full, self.max_episodes)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint of this task must have been made with."""
        return {
            "bsuite_id": self.bsuite_id,
            "agent": self.agent,
            "config": config_lib.as_json(self.config),
            "seed": self.seed,
        }

    def new_settings(self) -> dict[str, Any]:
        """What a checkpoint of an older version may lack of that."""
        return config_lib.introduced(config=self.config)


@functools.lru_cache(maxsize=8)
def _make_program(name: str, config: Any, spec: types.EnvironmentSpec) -> loop_lib.Program:
    try:
        return loop_lib.make_program(agents.make_agent(name, config, spec))
    except ValueError as error:
        raise errors.UserError(str(error)) from error


def make_program(task: Task) -> loop_lib.Program:
    """What to run in a task's environment; ids with the same specification share it.

    The replay is no longer than the longest possible run.
    """
    problem = bsuite_adapter.problem(task.bsuite_id)
    config = config_lib.for_run(task.config, problem.num_episodes * problem.longest_episode)
    return _make_program(task.agent, config, problem.spec)


def num_bytes(task: Task) -> int:
    """Memory the task's state will take, before any of it is allocated; 0 if its data is not here."""
    try:
        program, spec = make_program(task), bsuite_adapter.problem(task.bsuite_id).spec
    except bsuite_adapter.MissingDataError:
        return 0
    observation = jnp.zeros(spec.observation_shape, jnp.float32 if spec.num_states is None else jnp.int32)
    return core_lib.num_bytes(jax.eval_shape(program.init, jax.random.key(0), observation))


def run_task(task: Task, report: Callable[[Any], None], should_stop: Callable[[], bool]) -> None:
    """Runs a task to its end, from its checkpoint if there is one.

    Reports ("progress", task, episodes) now and then and ("result", task, row) at the end, after which the
    checkpoint is not needed any more. A resumed task repeats its actions, so bsuite's log has the rows of an
    unbroken run.
    """
    try:
        problem = bsuite_adapter.problem(task.bsuite_id)
    except bsuite_adapter.MissingDataError as error:
        report(("result", task, {"status": results.SKIPPED, "reason": str(error)}))
        return
    program = make_program(task)
    loop = loop_lib.Loop(
        program,
        functools.partial(bsuite_adapter.make, task.bsuite_id, task.seed, task.csv_folder),
        jax.random.key(np.uint32(task.seed)),
        problem.observe,
    )
    facts = {"identity": task.identity(), "train_seconds": 0.0, "timed_steps": 0, "total_return": 0.0}
    if task.checkpoint and pathlib.Path(task.checkpoint).exists():
        facts = _restore(task, loop)
    saved_at = reported_at = time.monotonic()
    target, has_learned = task.num_episodes, False
    while loop.episodes < target:
        if should_stop():
            _save(task, loop, facts)
            return
        begin, steps = time.perf_counter(), loop.agent.steps
        metrics = loop.run(_CHUNK, target)
        if has_learned:  # what comes before has compiled the program
            facts["train_seconds"] += time.perf_counter() - begin
            facts["timed_steps"] += loop.agent.steps - steps
        has_learned |= metrics.updates > 0
        facts["total_return"] += float(metrics.returns)
        if not np.isfinite(metrics.loss):
            raise errors.UserError(
                f"{task.bsuite_id}: the loss is no longer finite after {loop.agent.steps:,} steps; "
                "lower --learning_rate"
            )
        now = time.monotonic()
        if now - reported_at >= _REPORT_SECONDS:
            report(("progress", task, loop.episodes))
            reported_at = now
        if now - saved_at >= task.checkpoint_seconds:
            _save(task, loop, facts)
            saved_at = now
    complete = target == problem.num_episodes
    steps, seconds = facts["timed_steps"], facts["train_seconds"]
    report(
        (
            "result",
            task,
            {
                "status": results.FINISHED if complete else results.PARTIAL,
                "reason": "" if complete else f"{target:,} of {problem.num_episodes:,} episodes",
                "episodes": loop.episodes,
                "steps": loop.agent.steps,
                "total_return": round(facts["total_return"], 4),
                "num_params": agents.count_params(program.agent),
                "train_seconds": round(seconds, 2),
                "steps_per_second": round(steps / seconds, 1) if steps else "",
            },
        )
    )


def _save(task: Task, loop: loop_lib.Loop, facts: dict[str, Any]) -> None:
    if task.checkpoint:
        actions = loop.actions
        tree = {"state": loop.agent.state, "actions": actions}
        checkpoint.save(task.checkpoint, tree, {**facts, "num_actions": len(actions)})


def _restore(task: Task, loop: loop_lib.Loop) -> dict[str, Any]:
    facts = checkpoint.load_facts(task.checkpoint, task.identity(), task.new_settings())
    like = {"state": loop.agent.state, "actions": np.zeros(facts.pop("num_actions"), np.int32)}
    tree = checkpoint.load(task.checkpoint, like)
    loop.restore(tree["state"], tree["actions"])
    return facts
