"""Gymnasium environments with discrete actions: train, evaluate periodically, report the last evaluation."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checks
from hyperagent_jax import results
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import gymnasium_adapter
from hyperagent_jax.environments import side_by_side
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import loop as loop_lib

# Steps between checks of the clock.
_CHUNK = 200


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a run on a Gymnasium environment is trained and evaluated.

    Attributes:
        env: the environment's name, such as CartPole-v1.
        steps: interactions.
        eval_every: interactions between evaluations.
        eval_episodes: episodes per evaluation, without learning, each with a new index.
        eval_policy: how evaluations choose actions: with a "sample" of the index, as the agent acts; by the "mean"
            over the index; or by the "majority" of 32 sampled indices.
    """

    env: str = "CartPole-v1"
    steps: int = 20_000
    eval_every: int = 2_000
    eval_episodes: int = 10
    eval_policy: str = "sample"

    def __post_init__(self) -> None:
        checks.positive(self, "steps", "eval_every", "eval_episodes")
        policy.check(self.eval_policy, "eval_policy")


@functools.lru_cache(maxsize=8)
def make_program(agent: str, config: Any, env: str) -> loop_lib.Program:
    """Builds the program that runs an agent in an environment."""
    spec = gymnasium_adapter.GymnasiumEnvironment(env, seed=0).spec
    return loop_lib.make_program(agents.make_agent(agent, config, spec))


class Gymnasium(base.Experiment):
    """The Gymnasium experiment."""

    name = "gymnasium"
    protocol_class = Protocol
    problem = "env"
    score = "final_return"
    label = "{agent} on {env} seed {seed}"
    result_fields = (
        "env", "agent", "seed", "final_return", "best_return", "interactions", "episodes", "num_params",
        "train_seconds", "interactions_per_second", "error",
    )  # fmt: skip
    sweeps_curves = True
    curve_fields = ("seed", "interactions", "episodes", "train_return", "eval_return", "eval_std", "loss")

    def length(self, protocol: Protocol) -> int:
        return protocol.steps

    def num_bytes(self, task: base.Task) -> int:
        return loop_lib.num_bytes(make_program(task.agent, task.config, task.protocol.env))

    def header(self, task: base.Task) -> str:
        protocol, agent = task.protocol, make_program(task.agent, task.config, task.protocol.env).agent
        return (
            f"{task.agent} on {protocol.env}: {agents.count_params(agent):,} parameters, "
            f"{self.num_bytes(task) / 1e6:.1f} MB per seed; {protocol.steps:,} interactions, "
            f"{protocol.eval_episodes} evaluation episodes every {protocol.eval_every:,}"
        )

    def run(self, task: base.Task, context: run_context.RunContext) -> None:
        protocol, (seed,), progress = task.protocol, task.seeds, context.progress
        program = make_program(task.agent, task.config, protocol.env)
        play = evaluate.HostEvaluator(program.agent, greedy_in=protocol.eval_policy)
        make_environment = functools.partial(gymnasium_adapter.GymnasiumEnvironment, protocol.env, seed)
        key = jax.random.key(np.uint32(seed))
        loop = loop_lib.Loop(program, make_environment, key)
        if context.is_resumed:
            loop.restore(context.load(loop.like()))
        totals = progress.notes.setdefault("totals", [0.0] * 4)  # of the Metrics since the last evaluation
        # Counts evaluations rather than interactions: the last evaluation may have been interrupted.
        while len(progress.curve) < -(-protocol.steps // protocol.eval_every):
            if context.should_stop():
                context.save(loop.tree())
                return
            due = min((len(progress.curve) + 1) * protocol.eval_every, protocol.steps)
            with context.training():
                metrics = loop.run(min(_CHUNK, due - loop.agent.steps))
            totals[:] = [x + float(y) for x, y in zip(totals, metrics, strict=True)]
            context.advance(loop.agent.steps, f"episode {loop.episodes}")
            context.check_loss(metrics.loss, f"{protocol.env} seed {seed}")
            if loop.agent.steps == due and not context.should_stop():
                # These environments share random numbers with neither training nor other evaluations.
                seeds = np.random.SeedSequence((seed, due)).generate_state(protocol.eval_episodes)
                made = [gymnasium_adapter.GymnasiumEnvironment(protocol.env, int(own)) for own in seeds]
                variables, eval_key = loop.agent.variables(), jax.random.fold_in(key, due)
                with contextlib.closing(side_by_side.SideBySide(made, made[0].spec)) as environments:
                    returns = play(variables, environments, len(made), eval_key, context.should_stop)
                if returns is None:
                    continue
                loss, updates, train_returns, episodes = totals
                row = {
                    "seed": seed,
                    "interactions": due,
                    "episodes": loop.episodes,
                    "train_return": results.ratio(train_returns, episodes),
                    "eval_return": results.number(np.mean(returns)),
                    "eval_std": results.number(np.std(returns)),
                    "loss": results.ratio(loss, updates),
                }
                totals[:] = [0.0] * 4
                context.add_curve(seed, row, f"return {row['eval_return']:,.1f}")
            if context.is_save_due():
                context.save(loop.tree())
        evaluations = [row["eval_return"] for _, row in progress.curve]
        result = {
            "env": protocol.env,
            "final_return": evaluations[-1],
            "best_return": max(evaluations),
            "interactions": loop.agent.steps,
            "episodes": loop.episodes,
            "num_params": agents.count_params(program.agent),
            "train_seconds": round(progress.train_seconds, 2),
            "interactions_per_second": round(loop.agent.steps / progress.train_seconds, 1),
        }
        context.add_result(seed, result)

    def outcome(self, row: dict[str, Any]) -> str:
        return (
            f"return {float(row['final_return']):,.1f} at the end, best evaluation "
            f"{float(row['best_return']):,.1f} ({int(row['interactions']):,} interactions, "
            f"{float(row['interactions_per_second']):,.0f}/s)"
        )

    def draw(self, path: pathlib.Path, directory: run_directory.RunDirectory, task: base.Task) -> None:
        from hyperagent_jax.analysis import curves

        curves.returns(path, f"{task.agent} on {task.protocol.env}", directory.rows("curve"))


EXPERIMENT = Gymnasium()
