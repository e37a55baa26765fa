"""The paper's DeepSea protocol: train, evaluate periodically, stop when the optimum is reached."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import functools
import math
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import checks
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import types
from hyperagent_jax.agents import policy
from hyperagent_jax.environments import bsuite_adapter
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import run_directory
from hyperagent_jax.experiment import value_maps
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import loop
from hyperagent_jax.runners import scan

RUNNERS = ("scan", "loop")
# The optimal return is a sum of float32 numbers.
RETURN_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a DeepSea run is trained and evaluated.

    Attributes:
        size: N of the N x N grid.
        stochastic: bsuite's stochastic variant: moving right fails with probability 1/N, and rewards are noisy.
        mapping_seed: seed of the action mapping (bsuite: 42), or None for the run's own seed (the paper).
        max_episodes: episodes after which an unsolved run fails.
        eval_every: interactions between evaluations.
        eval_episodes: episodes per evaluation; their rewards are noiseless.
        solved_return: average evaluation return that counts as solved; None for the optimum, 0.99, or 80% of the
            optimum when stochastic.
        eval_policy: how evaluations choose actions: with a "sample" of the index, as the agent acts; by the "mean"
            over the index; or by the "majority" of 32 sampled indices.
    """

    size: int = 20
    stochastic: bool = False
    mapping_seed: int | None = None
    max_episodes: int = 10_000
    eval_every: int = 1_000
    eval_episodes: int = 100
    solved_return: float | None = None
    eval_policy: str = "sample"

    def __post_init__(self) -> None:
        checks.positive(self, "size", "max_episodes", "eval_every", "eval_episodes")
        policy.check(self.eval_policy, "eval_policy")
        if self.max_episodes * self.size >= 2**31:
            raise ValueError(f"max_episodes must be at most {(2**31 - 1) // self.size} at this size")
        if self.solved_return is not None and math.isnan(self.solved_return):
            raise ValueError("solved_return must be a number, got nan")
        if self.mapping_seed is not None and not 0 <= self.mapping_seed < 2**32:
            raise ValueError(f"mapping_seed must be between 0 and {2**32 - 1}, got {self.mapping_seed}")

    def mapping_seed_of(self, seed: int) -> int:
        """Returns the seed of the action mapping for a run's seed."""
        return seed if self.mapping_seed is None else self.mapping_seed


@dataclasses.dataclass(frozen=True)
class Options:
    """How a run is computed.

    Attributes:
        runner: "scan" runs everything on device; "loop" steps bsuite's own Python DeepSea, to check the scan
            runner against it.
        seeds_per_group: seeds vmapped together; None for 1 on CPU and an even share per device on accelerators.
    """

    runner: str = "scan"
    seeds_per_group: int | None = None

    def __post_init__(self) -> None:
        if self.runner not in RUNNERS:
            raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, got {self.runner!r}")
        checks.positive(self, "seeds_per_group")
        if self.runner == "loop" and (self.seeds_per_group or 1) > 1:
            raise ValueError("runner=loop steps one seed at a time: set seeds_per_group=1")


class ScanProgram:
    """A group of seeds, vmapped, that trains and evaluates on device."""

    def __init__(self, task: base.Task):
        protocol = task.protocol
        seeds = np.array(task.seeds, np.uint32)
        mappings = [deep_sea.action_mapping(protocol.size, protocol.mapping_seed_of(seed)) for seed in task.seeds]
        self.agent, init, self._advance = compile_scan(
            task.agent, task.config, protocol, len(task.seeds), jax.config.values["jax_default_device"]
        )
        self.states = init(seeds, np.stack(mappings))

    def advance(self, start: int, num_steps: int) -> tuple[core_lib.Metrics, jax.Array, jax.Array]:
        """Trains for some steps, then evaluates; returns (Metrics, average returns, episodes), [seeds] each."""
        self.states, metrics, returns = self._advance(self.states, np.int32(start), np.int32(num_steps))
        return metrics, returns, self.states.episodes

    def tree(self) -> Any:
        """All there is to save."""
        return self.states

    def restore(self, load: Callable[[Any], Any]) -> None:
        """Restores what `tree` gave."""
        self.states = load(self.states)

    def state(self, i: int) -> core_lib.SeedState:
        """The state of one seed."""
        return jax.tree.map(lambda x: x[i], self.states)


class LoopProgram:
    """One seed on bsuite's own Python DeepSea, stepped from Python; same interface as `ScanProgram`."""

    def __init__(self, task: base.Task):
        protocol, (seed,) = task.protocol, task.seeds
        self.agent, *_ = make(task.agent, task.config, protocol)
        make_environment = functools.partial(
            bsuite_adapter.make_deep_sea,
            protocol.size,
            deterministic=not protocol.stochastic,
            seed=seed,
            mapping_seed=protocol.mapping_seed_of(seed),
        )
        mapping = deep_sea.action_mapping(protocol.size, protocol.mapping_seed_of(seed))
        self._cells = deep_sea.initial_state(mapping)
        self._evaluate = jax.jit(_make_evaluate_all(protocol, self.agent))
        program = loop.make_program(self.agent)
        make_loop = functools.partial(
            loop.Loop, program, make_environment, jax.random.key(seed), bsuite_adapter.cell
        )
        warm_up = make_loop()  # compiles everything: random acting and learning
        warm_up.run(task.config.min_replay + 2)
        self._evaluate(self._with_cells(warm_up), 0)
        self.loop = make_loop()

    def _with_cells(self, run: loop.Loop) -> core_lib.SeedState:
        state = run.agent.state._replace(environment=self._cells)
        return jax.tree.map(lambda x: jnp.asarray(x)[None], state)

    def advance(self, start: int, num_steps: int) -> tuple[core_lib.Metrics, jax.Array, np.ndarray]:
        """See `ScanProgram.advance`."""
        metrics = jax.tree.map(lambda x: x[None], self.loop.run(num_steps))
        returns = self._evaluate(self._with_cells(self.loop), start + num_steps)
        return metrics, returns, np.array([self.loop.episodes])

    def tree(self) -> Any:
        """All there is to save."""
        return self.loop.tree()

    def restore(self, load: Callable[[Any], Any]) -> None:
        """Restores what `tree` gave."""
        self.loop.restore(load(self.loop.like()))

    def state(self, i: int) -> core_lib.SeedState:
        """The state of the only seed."""
        return self.loop.agent.state


def make_program(task: base.Task) -> ScanProgram | LoopProgram:
    """Compiles the program of a task."""
    return LoopProgram(task) if task.options and task.options.runner == "loop" else ScanProgram(task)


def _make_evaluate_all(protocol: Protocol, agent: agents.Agent) -> Callable[[Any, Any], jax.Array]:
    """Builds a function that maps (states, steps) to the average evaluation return of every seed.

    Evaluations leave out the reward noise of the stochastic variant: it is large and has mean zero, so a worthless
    policy could look good by luck.
    """
    environment = deep_sea.make_deep_sea(protocol.size, deterministic=not protocol.stochastic, noisy_rewards=False)
    evaluator = evaluate.make_evaluator(
        agent,
        environment,
        num_episodes=protocol.eval_episodes,
        max_steps=protocol.size,
        greedy_in=protocol.eval_policy,
    )

    def evaluate_seed(state: core_lib.SeedState, steps: jax.Array) -> jax.Array:
        key = types.fold_in_tag(jax.random.fold_in(state.key, steps), "evaluation")
        return jnp.mean(evaluator(agent.learner.variables(state.learner), state.environment, key))

    return jax.vmap(evaluate_seed, (0, None))


@functools.lru_cache(maxsize=32)
def make(agent: str, config: Any, protocol: Protocol) -> tuple[agents.Agent, Callable, Callable]:
    """Builds an agent; rejects settings that the runner does not support.

    Returns:
        The agent, and the uncompiled functions init(seeds, mappings) and advance(states, start, num_steps).
    """
    environment = deep_sea.make_deep_sea(protocol.size, deterministic=not protocol.stochastic)
    made = agents.make_agent(agent, config, environment.spec)
    runner = scan.make_runner(made, environment)
    evaluate_all = _make_evaluate_all(protocol, made)

    def init(seeds: jax.Array, mappings: jax.Array) -> core_lib.SeedState:
        return jax.vmap(lambda s, m: runner.init(jax.random.key(s), deep_sea.initial_state(m)))(seeds, mappings)

    def advance(states: core_lib.SeedState, start: jax.Array, num_steps: jax.Array) -> tuple:
        states, metrics = runner.run(states, start, num_steps)
        return states, metrics, evaluate_all(states, start + num_steps)

    return made, init, advance


def state_shapes(agent: str, config: Any, protocol: Protocol, num_seeds: int) -> core_lib.SeedState:
    """Returns the shapes of the states of `num_seeds` seeds."""
    _, init, _ = make(agent, config, protocol)
    seeds = jax.ShapeDtypeStruct((num_seeds,), jnp.uint32)
    return jax.eval_shape(init, seeds, jax.ShapeDtypeStruct((num_seeds, protocol.size, protocol.size), jnp.int32))


@functools.lru_cache(maxsize=16)
def compile_scan(
    agent: str, config: Any, protocol: Protocol, num_seeds: int, device: Any = None
) -> tuple[agents.Agent, Any, Any]:
    """Compiles the scan runner; one program serves all groups with the same number of seeds on a device."""
    made, init, advance = make(agent, config, protocol)
    states, counter = state_shapes(agent, config, protocol, num_seeds), jax.ShapeDtypeStruct((), jnp.int32)
    with jax.default_device(device):
        compiled = jax.jit(advance, donate_argnums=0).lower(states, counter, counter).compile()
    return made, jax.jit(init), compiled


class DeepSea(base.Experiment):
    """The DeepSea experiment."""

    name = "deepsea"
    protocol_class = Protocol
    options_class = Options
    problem = "size"
    evaluates_together = True
    score, scored = "episodes_to_learn", "solved"
    label = "{agent} size {size} seed {seed}"
    result_fields = (
        "agent", "size", "seed", "solved", "episodes_to_learn", "interactions", "final_return", "num_params",
        "num_output_params", "compile_seconds", "train_seconds", "interactions_per_second",
    )  # fmt: skip
    curve_fields = ("seed", "interactions", "episodes", "train_return", "eval_return", "loss")

    def resolve(self, protocol: Protocol) -> Protocol:
        """Returns the protocol with `solved_return` filled in."""
        if protocol.solved_return is not None:
            return protocol
        optimum = deep_sea.optimal_return(protocol.size, deterministic=not protocol.stochastic)
        solved_return = round(0.8 * optimum if protocol.stochastic else optimum, 6)
        return dataclasses.replace(protocol, solved_return=solved_return)

    def configs(self, options: Any = None) -> dict[str, Any]:
        configs = super().configs(options)
        # Returns are in [-0.01, 1]; atoms in +-10 would be 0.4 apart, the cost of 800 steps at size 20.
        distributional = {name: configs[name].with_overrides(v_max=1.0) for name in ("rainbow", "der", "bbf")}
        return {**configs, **distributional}

    def length(self, protocol: Protocol) -> int:
        return protocol.max_episodes * protocol.size

    def group_size(self, options: Options, num_seeds: int, num_accelerators: int) -> int:
        default = 1 if options.runner == "loop" else base.default_group_size(num_seeds, num_accelerators)
        return options.seeds_per_group or default

    def identity(self, task: base.Task) -> dict[str, Any]:
        return {**super().identity(task), "runner": task.options.runner}

    def num_bytes(self, task: base.Task) -> int:
        return core_lib.num_bytes(state_shapes(task.agent, task.config, task.protocol, len(task.seeds)))

    def header(self, task: base.Task) -> str:
        protocol = task.protocol
        agent, *_ = make(task.agent, task.config, protocol)
        replay = core_lib.num_bytes(state_shapes(task.agent, task.config, protocol, 1).replay)
        hint = "; this is the paper's agent, --agent=hyperagent_optimistic is the recommended one"
        return (
            f"{task.agent} on DeepSea {protocol.size}: {agents.count_params(agent):,} parameters, "
            f"{self.num_bytes(task) / 1e6:.1f} MB per seed, of which the replay {replay / 1e6:.1f} MB; "
            f"solved at {protocol.solved_return:g} over {protocol.eval_episodes} episodes, evaluated every "
            f"{protocol.eval_every:,} interactions, at most {protocol.max_episodes:,} episodes"
            f"{hint if task.agent == 'hyperagent' else ''}"
        )

    def run(self, task: base.Task, context: run_context.RunContext) -> None:
        protocol, limit = task.protocol, self.length(task.protocol)
        begin = time.perf_counter()
        program = make_program(task)
        compile_seconds = time.perf_counter() - begin
        if context.is_resumed:
            program.restore(context.load)
        progress, recorder = context.progress, None
        if task.folder and not task.is_cell:
            recorder = value_maps.Recorder(
                task.folder, program.agent, protocol.size, protocol.eval_every, progress.reached
            )
            if not context.is_resumed and isinstance(program, ScanProgram):  # the other has no state yet
                for i, seed in enumerate(task.seeds):
                    recorder.add(seed, program.state(i), 0, 0)
        while not all(map(context.is_done, task.seeds)):
            if context.should_stop():
                context.save(program.tree())
                return
            start = progress.reached
            with context.training():
                measured = program.advance(start, min(protocol.eval_every, limit - start))
                metrics, returns, episodes = jax.device_get(measured)
            progress.reached = interactions = min(start + protocol.eval_every, limit)
            for i, seed in enumerate(task.seeds):
                if context.is_done(seed):
                    continue
                context.check_loss(metrics.loss[i], f"seed {seed}")
                row = {
                    "seed": seed,
                    "interactions": interactions,
                    "episodes": int(episodes[i]),
                    "train_return": results.ratio(metrics.returns[i], metrics.episodes[i]),
                    "eval_return": results.number(returns[i]),
                    "loss": results.ratio(metrics.loss[i], metrics.updates[i]),
                }
                context.add_curve(seed, row, f"episode {row['episodes']} return {row['eval_return']:.3f}")
                solved = bool(returns[i] >= protocol.solved_return - RETURN_TOLERANCE)
                if solved or interactions >= limit:
                    result = {
                        "size": protocol.size,
                        "solved": solved,
                        "episodes_to_learn": row["episodes"] if solved else "",
                        "interactions": interactions,
                        "final_return": row["eval_return"],
                        "num_params": agents.count_params(program.agent),
                        "num_output_params": agents.count_output_params(program.agent),
                        "compile_seconds": round(compile_seconds, 2),
                        "train_seconds": round(progress.train_seconds, 2),
                        "interactions_per_second": round(
                            interactions * len(task.seeds) / progress.train_seconds, 1
                        ),
                    }
                    if recorder:
                        recorder.add(seed, program.state(i), interactions, row["episodes"])
                    context.add_result(seed, result)
                elif recorder and recorder.is_due(interactions):
                    with contextlib.suppress(errors.UserError):  # the next one will be written with this one
                        recorder.add(seed, program.state(i), interactions, row["episodes"])
            if context.is_save_due():
                context.save(program.tree())

    def outcome(self, row: dict[str, Any]) -> str:
        if str(row["solved"]) == "True":
            end = f"solved in {int(row['episodes_to_learn'])} episodes"
        else:
            end = f"NOT solved, return {row['final_return']}"
        return (
            f"{end} ({int(row['interactions']):,} interactions, "
            f"{row['train_seconds']} s, {float(row['interactions_per_second']):,.0f}/s, "
            f"compile {row['compile_seconds']} s)"
        )

    def conclusion(self, rows: Sequence[dict[str, str]], num_runs: int) -> str:
        solved = [int(row["episodes_to_learn"]) for row in rows if row["solved"] == "True"]
        is_one_cell = len({row["seed"] for row in rows}) == len(rows)
        average = f", mean episodes to learn {np.mean(solved):.1f}" if solved and is_one_cell else ""
        return f"{len(solved)} of {len(rows)} runs solved{average}"

    def draw(self, path: pathlib.Path, directory: run_directory.RunDirectory, task: base.Task) -> None:
        from hyperagent_jax.analysis.deep_sea import plots
        from hyperagent_jax.analysis.deep_sea import read

        protocol, seed = task.protocol, min(int(row["seed"]) for row in directory.rows("results"))
        curve, maps = directory.rows("curve"), read.read_maps(pathlib.Path(task.folder), seed)
        training = read.Training(task.agent, protocol.size, "curve.csv", curve, protocol.solved_return, maps)
        kind = "Stochastic DeepSea" if protocol.stochastic else "DeepSea"
        plots.single_run(path, f"{task.agent} on {kind} {protocol.size} x {protocol.size}", training)


EXPERIMENT = DeepSea()
