"""JAX environments on device: train, and evaluate periodically with frozen parameters and new indices."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import pathlib
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checks
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.agents import minatar_presets
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import registry
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import scan

# Most steps, counting all environments, between checks of the clock.
_CHUNK = 10_000
PRESETS = {"default": lambda: agents.CONFIGS, "minatar": lambda: minatar_presets.CONFIGS}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a run in a JAX environment is trained and evaluated.

    Attributes:
        env: the environment as library/name, several separated by commas, or "list" to list them; or
            module:function for a function of yours that returns an Environment.
        steps: interactions, summed over all copies of the environment.
        num_envs: copies of the environment that step in parallel.
        eval_every: interactions between evaluations.
        eval_episodes: episodes per evaluation, in parallel.
        eval_max_steps: evaluation episodes are truncated after this many steps.
        eval_policy: how evaluations choose actions: with a "sample" of the index, as the agent acts; by the "mean"
            over the index; or by the "majority" of 32 sampled indices.
    """

    env: str = "minatar/breakout"
    steps: int = 1_000_000
    num_envs: int = 1
    eval_every: int = 50_000
    eval_episodes: int = 20
    eval_max_steps: int = 2_500
    eval_policy: str = "sample"

    def __post_init__(self) -> None:
        checks.positive(self, "steps", "num_envs", "eval_every", "eval_episodes")
        checks.counts(self, "eval_max_steps")
        policy.check(self.eval_policy, "eval_policy")
        if self.steps >= 2**31:
            raise ValueError(f"steps must be less than 2**31, got {self.steps}")


@dataclasses.dataclass(frozen=True)
class Options:
    """Which settings to use, and how a run is computed.

    Attributes:
        preset: "default" for each agent's own settings, "minatar" for settings tuned on MinAtar.
        seeds_per_group: seeds vmapped together; None for 1 on CPU and an even share per device on accelerators.
    """

    preset: str = "default"
    seeds_per_group: int | None = None

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        checks.positive(self, "seeds_per_group")


@functools.lru_cache(maxsize=32)
def make(agent: str, config: Any, protocol: Protocol) -> tuple[agents.Agent, scan.Runner, Callable[..., Any]]:
    """Builds the agent, the runner and make_evaluator(epsilon); rejects settings that do not fit together."""
    environment = registry.make(protocol.env)
    made = agents.make_agent(agent, config, environment.spec)
    runner = scan.make_runner(
        made, environment, protocol.num_envs, stores_prior=environment.spec.num_states is None
    )
    make_evaluator = functools.partial(
        evaluate.make_evaluator,
        made,
        environment,
        num_episodes=protocol.eval_episodes,
        max_steps=protocol.eval_max_steps,
        greedy_in=protocol.eval_policy,
    )
    return made, runner, make_evaluator


class _Functions(NamedTuple):
    """The functions that a task runs for all of its seeds.

    Attributes:
        init: maps seeds to states.
        advance: maps (states, start, number of steps) to (states, Metrics).
        evaluate: maps (states, index of the evaluation) to returns [num_seeds, num_episodes].
        evaluate_random: as evaluate, with random actions.
    """

    init: Callable[..., Any]
    advance: Callable[..., Any]
    evaluate: Callable[..., Any]
    evaluate_random: Callable[..., Any]


def _functions(agent: str, config: Any, protocol: Protocol) -> _Functions:
    """Builds the functions of a task, not yet compiled."""
    made, runner, make_evaluator = make(agent, config, protocol)

    def init(seeds: jax.Array) -> core_lib.SeedState:
        return jax.vmap(lambda seed: runner.init(jax.random.key(seed), None))(seeds)

    def evaluate_with(epsilon: float) -> Callable[[core_lib.SeedState, jax.Array], jax.Array]:
        evaluator = make_evaluator(epsilon=epsilon)

        def evaluate_all(states: core_lib.SeedState, number: jax.Array) -> jax.Array:
            def evaluate_seed(state: core_lib.SeedState) -> jax.Array:
                key = types.fold_in_tag(jax.random.fold_in(state.key, number), "evaluation")
                return evaluator(made.learner.variables(state.learner), None, key)

            return jax.vmap(evaluate_seed)(states)

        return evaluate_all

    return _Functions(init, runner.run, evaluate_with(0.0), evaluate_with(1.0))


def _state_shapes(task: base.Task) -> core_lib.SeedState:
    """Returns the shapes of the state of one seed."""
    init = _functions(task.agent, task.config, task.protocol).init
    return jax.eval_shape(init, jax.ShapeDtypeStruct((1,), jnp.uint32))


@functools.lru_cache(maxsize=4)
def _compile(agent: str, config: Any, protocol: Protocol) -> _Functions:
    init, advance, *evaluators = _functions(agent, config, protocol)
    return _Functions(jax.jit(init), jax.jit(advance, donate_argnums=0), *map(jax.jit, evaluators))


class JaxEnv(base.Experiment):
    """The experiment in JAX environments."""

    name = "jax"
    protocol_class = Protocol
    options_class = Options
    problem = "env"
    score = "final_return"
    label = "{agent} on {env} seed {seed}"
    key_fields = ("env", "seed")
    result_fields = (
        "env", "agent", "seed", "final_return", "best_return", "mean_return", "interactions", "episodes",
        "num_params", "compile_seconds", "train_seconds", "interactions_per_second", "random_return", "error",
    )  # fmt: skip
    sweeps_curves = True
    evaluates_together = True
    curve_fields = (
        "env", "seed", "interactions", "episodes", "train_return", "eval_return", "eval_std", "loss", "seconds",
    )  # fmt: skip

    def configs(self, options: Options | None = None) -> dict[str, Any]:
        return PRESETS[options.preset if options else "default"]()

    def problems(self, value: str) -> Sequence[str]:
        if value == "list":
            print(registry.listing())
            raise SystemExit(0)
        return list(dict.fromkeys(value.split(",")))

    def length(self, protocol: Protocol) -> int:
        return protocol.steps

    def group_size(self, options: Options, num_seeds: int, num_accelerators: int) -> int:
        return options.seeds_per_group or base.default_group_size(num_seeds, num_accelerators)

    def identity(self, task: base.Task) -> dict[str, Any]:
        identity = super().identity(task)
        del identity["protocol"]["env"]  # a folder may hold any number of environments
        return {**identity, "preset": task.options.preset}

    def num_bytes(self, task: base.Task) -> int:
        return core_lib.num_bytes(_state_shapes(task))

    def header(self, task: base.Task) -> str:
        made, _, _ = make(task.agent, task.config, task.protocol)
        states, protocol = _state_shapes(task), task.protocol
        replay, total = core_lib.num_bytes(states.replay), core_lib.num_bytes(states)
        return (
            f"{task.agent} (preset {task.options.preset}) on {protocol.env}: {agents.count_params(made):,} "
            f"parameters, {total / 1e6:.1f} MB per seed, of which the replay {replay / 1e6:.1f} MB; "
            f"{protocol.steps:,} interactions in {protocol.num_envs} environment(s), {protocol.eval_episodes} "
            f"evaluation episodes every {protocol.eval_every:,}"
        )

    def run(self, task: base.Task, context: run_context.RunContext) -> None:
        protocol, progress, num_envs = task.protocol, context.progress, task.protocol.num_envs
        made, _, _ = make(task.agent, task.config, protocol)
        cycle = core_lib.make_core(made, num_envs).setup.rounds_per_learning
        begin = time.perf_counter()
        init, advance, evaluate_all, evaluate_random = _compile(task.agent, task.config, protocol)
        states = init(np.array(task.seeds, np.uint32))
        if context.is_resumed:
            states = context.load(states)
        else:
            progress.notes.update(rounds=0, totals=[[0.0] * 4 for _ in task.seeds], compile_seconds=None)
        notes = progress.notes
        unit = num_envs * cycle
        while len(progress.curve) < len(task.seeds) * -(-protocol.steps // protocol.eval_every):
            number = len(progress.curve) // len(task.seeds) + 1
            due = (
                -(-min(number * protocol.eval_every, protocol.steps) // unit) * cycle
            )  # in steps of all environments
            while notes["rounds"] < due and not context.should_stop():
                num_steps = min(-(-_CHUNK // cycle) * cycle, due - notes["rounds"])
                with context.training():
                    states, metrics = advance(states, np.int32(notes["rounds"]), np.int32(num_steps))
                    metrics = jax.device_get(metrics)
                if notes["compile_seconds"] is None:
                    notes["compile_seconds"] = round(time.perf_counter() - begin, 2)
                    notes["warm_interactions"], notes["warm_seconds"] = (
                        num_steps * num_envs,
                        progress.train_seconds,
                    )
                notes["rounds"] += num_steps
                for i, seed in enumerate(task.seeds):
                    notes["totals"][i] = [
                        x + float(y[i]) for x, y in zip(notes["totals"][i], metrics, strict=True)
                    ]
                    context.check_loss(metrics.loss[i], f"{protocol.env} seed {seed}", notes["rounds"] * num_envs)
                context.advance(min(notes["rounds"] * num_envs, protocol.steps))
                if context.is_save_due():
                    context.save(states)
            if context.should_stop():
                context.save(states)
                return
            returns = np.asarray(evaluate_all(states, np.int32(notes["rounds"])))
            for i, seed in enumerate(task.seeds):
                loss, updates, train_returns, episodes = notes["totals"][i]
                row = {
                    "env": protocol.env,
                    "seed": seed,
                    "interactions": notes["rounds"] * num_envs,
                    "episodes": int(states.episodes[i]),
                    "train_return": results.ratio(train_returns, episodes),
                    "eval_return": results.number(returns[i].mean()),
                    "eval_std": results.number(returns[i].std()),
                    "loss": results.ratio(loss, updates),
                    "seconds": round(progress.train_seconds, 1),
                }
                notes["totals"][i] = [0.0] * 4
                context.add_curve(seed, row, f"return {row['eval_return']:,.2f}")
            if context.is_save_due():
                context.save(states)
        random_returns = np.asarray(evaluate_random(states, np.int32(0)))
        timed = progress.train_seconds - notes["warm_seconds"]  # without compilation
        for i, seed in enumerate(task.seeds):
            evaluations = [row["eval_return"] for own, row in progress.curve if own == seed]
            interactions = notes["rounds"] * num_envs
            timed_interactions = (interactions - notes["warm_interactions"]) * len(task.seeds)
            result = {
                "env": protocol.env,
                "final_return": evaluations[-1],
                "best_return": max(evaluations),
                "mean_return": results.number(np.mean(evaluations)),
                "interactions": interactions,
                "episodes": int(states.episodes[i]),
                "num_params": agents.count_params(made),
                "compile_seconds": notes["compile_seconds"],
                "train_seconds": round(progress.train_seconds, 2),
                "interactions_per_second": round(timed_interactions / timed, 1) if timed > 0 else "",
                "random_return": results.number(random_returns[i].mean()),
            }
            context.add_result(seed, result)

    def outcome(self, row: dict[str, Any]) -> str:
        rate = f", {float(row['interactions_per_second']):,.0f}/s" if row["interactions_per_second"] else ""
        return (
            f"return {float(row['final_return']):,.2f} at the end, best evaluation "
            f"{float(row['best_return']):,.2f} ({int(row['interactions']):,} interactions{rate})"
        )

    def draw(self, path: pathlib.Path, directory: run_directory.RunDirectory, task: base.Task) -> None:
        from hyperagent_jax.analysis import curves

        title = f"{task.agent}, preset {task.options.preset}"
        curves.environments(path, title, {task.agent: directory.rows("curve")})


EXPERIMENT = JaxEnv()
