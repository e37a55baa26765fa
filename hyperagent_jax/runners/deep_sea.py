"""The paper's DeepSea protocol: train, evaluate every so often, stop when the optimum is reached."""

from collections.abc import Callable
import dataclasses
import functools
import math
import pathlib
import time
from typing import Any, NamedTuple

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
from hyperagent_jax.environments import deep_sea
from hyperagent_jax.networks import epistemic
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import evaluate
from hyperagent_jax.runners import loop
from hyperagent_jax.runners import scan

RESULT_FIELDS = (
    "agent",
    "size",
    "seed",
    "solved",
    "episodes_to_learn",
    "interactions",
    "final_return",
    "num_params",
    "num_output_params",
    "compile_seconds",
    "train_seconds",
    "interactions_per_second",
)
CURVE_FIELDS = ("seed", "interactions", "episodes", "train_return", "eval_return", "loss")
RUNNERS = ("scan", "loop")
# The optimal return is a sum of 32-bit numbers.
RETURN_TOLERANCE = 1e-6
# Number of indices that the value and uncertainty maps average over.
_MAP_INDICES = 64


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a DeepSea run is measured.

    Attributes:
        size: N of the N x N grid.
        stochastic: bsuite's stochastic variant: right fails with probability 1/N, rewards are noisy.
        mapping_seed: seed of the action mapping (bsuite: 42), or None for the run's own seed (the paper).
        max_episodes: a run that is not solved by then has failed.
        eval_every: interactions between evaluations.
        eval_episodes: episodes per evaluation; their rewards have no noise.
        solved_return: average evaluation return that counts as solved.
    """

    size: int
    stochastic: bool = False
    mapping_seed: int | None = None
    max_episodes: int = 10_000
    eval_every: int = 1_000
    eval_episodes: int = 100
    solved_return: float = 0.99

    def __post_init__(self):
        for name in ("size", "max_episodes", "eval_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_episodes * self.size >= 2**31:
            raise ValueError(f"max_episodes must be at most {(2**31 - 1) // self.size} at this size")
        if math.isnan(self.solved_return):
            raise ValueError("solved_return must be a number, got nan")
        if self.mapping_seed is not None and not 0 <= self.mapping_seed < 2**32:
            raise ValueError(f"mapping_seed must be between 0 and {2**32 - 1}, got {self.mapping_seed}")


def make_protocol(*, solved_return: float | None = None, **settings) -> Protocol:
    """A protocol that is solved at the optimum, when stochastic at 80% of it, unless told otherwise.

    Args:
        solved_return: as in `Protocol`; None for the default.
        **settings: the other fields of `Protocol`.
    """
    protocol = Protocol(**settings)
    if solved_return is None:
        optimum = deep_sea.optimal_return(protocol.size, deterministic=not protocol.stochastic)
        solved_return = round(0.8 * optimum if protocol.stochastic else optimum, 6)
    return dataclasses.replace(protocol, solved_return=solved_return)


@dataclasses.dataclass(frozen=True)
class Task:
    """Some seeds that run together.

    Attributes:
        agent: name of the agent.
        config: its config.
        protocol: the protocol.
        seeds: seeds of the group, vmapped.
        runner: "scan" runs everything on device, "loop" steps bsuite's own DeepSea from Python.
        checkpoint: file of the group's checkpoint, or None.
        checkpoint_seconds: least time between two checkpoints.
        maps: whether results come with the agent's values of every cell, which take a program of their own.
    """

    agent: str
    config: Any
    protocol: Protocol
    seeds: tuple[int, ...]
    runner: str = "scan"
    checkpoint: str | None = None
    checkpoint_seconds: float = 60.0
    maps: bool = True

    def mapping_seed(self, seed: int) -> int:
        """Seed of the action mapping of a seed's environment."""
        return seed if self.protocol.mapping_seed is None else self.protocol.mapping_seed

    def identity(self) -> dict[str, Any]:
        """What a checkpoint of this task must have been made with."""
        return {
            "agent": self.agent,
            "config": config_lib.as_json(self.config),
            "protocol": dataclasses.asdict(self.protocol),
            "seeds": list(self.seeds),
        }

    def new_settings(self) -> dict[str, Any]:
        """What a checkpoint of an older version may lack of that."""
        return config_lib.introduced(config=self.config, protocol=self.protocol)


def resolve(config: Any, protocol: Protocol) -> Any:
    """The config as it will run: a replay longer than the whole run would be is cut to it."""
    return config_lib.for_run(config, protocol.max_episodes * protocol.size)


def make(task: Task):
    """Makes the environment and the agent of a task."""
    try:
        environment = deep_sea.make_deep_sea(task.protocol.size, deterministic=not task.protocol.stochastic)
        agent = agents.make_agent(task.agent, task.config, environment.spec)
        core_lib.make_core(agent)  # refuses settings that its loop does not have
        return environment, agent
    except ValueError as error:
        raise errors.UserError(str(error)) from error


class Program(NamedTuple):
    """A task, compiled.

    Attributes:
        agent: its agent.
        init: makes the states of all seeds.
        advance: maps (states, steps done, number of steps) to (states, Metrics, evaluation returns [seeds]);
            the states given to it are used up.
    """

    agent: agents.Agent
    init: Callable[[], core_lib.SeedState]
    advance: Callable[..., tuple[core_lib.SeedState, core_lib.Metrics, jax.Array]]


def compile_program(task: Task) -> Program:
    """Compiles a task; `advance` trains for some steps and then evaluates."""
    seeds = np.array(task.seeds, np.uint32)
    mappings = np.stack([deep_sea.action_mapping(task.protocol.size, task.mapping_seed(s)) for s in task.seeds])
    if task.runner == "scan":
        agent, init, advance = compile_scan(task.agent, task.config, task.protocol, len(task.seeds))
        return Program(agent, lambda: init(seeds, mappings), advance)

    _, agent = make(task)
    (seed,) = task.seeds
    make_environment = functools.partial(
        bsuite_adapter.make_deep_sea,
        task.protocol.size,
        deterministic=not task.protocol.stochastic,
        seed=seed,
        mapping_seed=task.mapping_seed(seed),
    )
    cells = deep_sea.initial_state(mappings[0])
    evaluate_all = jax.jit(_make_evaluate_all(task.protocol, agent))
    program = loop.make_program(agent)
    make_loop = functools.partial(loop.Loop, program, make_environment, jax.random.key(seed), bsuite_adapter.cell)
    runner = make_loop()

    def states_of_loop():
        # The environment is what its actions have made of it; a fixed length makes all checkpoints alike.
        actions = np.zeros(task.protocol.max_episodes * task.protocol.size + 1, np.uint8)
        actions[: len(runner.actions)] = runner.actions
        return _batch_of_one(runner.agent.state._replace(environment=actions))

    def advance_loop(states, start, num_steps):
        if runner.agent.steps != start:
            state = jax.tree.map(lambda x: x[0], states)
            runner.restore(state._replace(environment=None), state.environment[: start + 1])
        metrics = runner.run(num_steps)
        states = states_of_loop()
        in_cells = states._replace(environment=_batch_of_one(cells))
        return states, _batch_of_one(metrics), evaluate_all(in_cells, start + num_steps)

    warm_up = make_loop()  # compiles everything, acting at random and learning
    warm_up.run(task.config.min_replay + 2)
    evaluate_all(_batch_of_one(warm_up.agent.state._replace(environment=cells)), 0)
    return Program(agent, states_of_loop, advance_loop)


def _batch_of_one(tree):
    return jax.tree.map(lambda x: x[None], tree)


def _make_evaluate_all(protocol: Protocol, agent: agents.Agent):
    """Makes a function of (states, steps) to the average evaluation return of every seed.

    Noise on the rewards, of which the stochastic variant has a lot, is left out: it has mean zero, and a policy
    worth nothing must not pass for a good one by luck.
    """
    environment = deep_sea.make_deep_sea(protocol.size, deterministic=not protocol.stochastic, noisy_rewards=False)
    evaluator = evaluate.make_evaluator(
        agent, environment, num_episodes=protocol.eval_episodes, max_steps=protocol.size
    )

    def evaluate_seed(state, steps):
        key = types.fold_in_tag(jax.random.fold_in(state.key, steps), "evaluation")
        return jnp.mean(evaluator(agent.learner.variables(state.learner), state.environment, key))

    return jax.vmap(evaluate_seed, (0, None))


def _scan_functions(agent: agents.Agent, environment, protocol: Protocol):
    """The functions init(seeds, mappings) and advance(states, start, num_steps), not yet compiled."""
    runner = scan.make_runner(agent, environment)
    evaluate_all = _make_evaluate_all(protocol, agent)

    def init(seeds, mappings):
        return jax.vmap(lambda s, m: runner.init(jax.random.key(s), deep_sea.initial_state(m)))(seeds, mappings)

    def advance(states, start, num_steps):
        states, metrics = runner.run(states, start, num_steps)
        return states, metrics, evaluate_all(states, start + num_steps)

    return init, advance


def _init_shapes(size: int, num_seeds: int):
    shape = jax.ShapeDtypeStruct
    return shape((num_seeds,), jnp.uint32), shape((num_seeds, size, size), jnp.int32)


@functools.lru_cache(maxsize=4)
def compile_scan(agent_name: str, config: Any, protocol: Protocol, num_seeds: int):
    """Compiles the scan runner; one program serves all groups of as many seeds."""
    environment, agent = make(Task(agent_name, config, protocol, (0,)))
    init, advance = _scan_functions(agent, environment, protocol)
    shapes, counter = _init_shapes(protocol.size, num_seeds), jax.ShapeDtypeStruct((), jnp.int32)
    states = jax.eval_shape(init, *shapes)
    compiled = jax.jit(advance, donate_argnums=0).lower(states, counter, counter).compile()
    return agent, jax.jit(init), compiled


def num_bytes(task: Task) -> dict[str, int]:
    """Memory the task's state will take, before any of it is allocated."""
    environment, agent = make(task)
    init, _ = _scan_functions(agent, environment, task.protocol)
    states = jax.eval_shape(init, *_init_shapes(task.protocol.size, len(task.seeds)))
    return {"replay": core_lib.num_bytes(states.replay), "total": core_lib.num_bytes(states)}


def run_task(task: Task, report: Callable[[Any], None], should_stop: Callable[[], bool]) -> None:
    """Runs a task to its end, from its checkpoint if there is one.

    Reports ("curve", row) after every evaluation, ("result", row, maps) when a seed is done, and ("finished",
    task) at the end, after which the checkpoint is not needed any more. `maps` holds the agent's values and
    their uncertainty for every cell, [size, size], or is None if the task wants none. A checkpoint keeps the rows
    reported so far: a resumed task reports them again (results without maps), in case they never reached a file.
    """
    protocol, size = task.protocol, task.protocol.size
    limit = protocol.max_episodes * size
    begin = time.perf_counter()
    program = compile_program(task)
    agent, states = program.agent, program.init()
    compile_seconds = time.perf_counter() - begin

    facts = {"identity": task.identity(), "interactions": 0, "train_seconds": 0.0, "curve": [], "done": {}}
    if task.checkpoint and pathlib.Path(task.checkpoint).exists():
        facts, states = _restore(task, states)
        for row in facts["curve"]:
            report(("curve", row))
        for row in facts["done"].values():
            report(("result", row, None))
    saved_at = time.monotonic()
    counts = {
        "num_params": agents.count_params(agent),
        "num_output_params": agents.count_output_params(agent),
    }

    while len(facts["done"]) < len(task.seeds):
        if should_stop():
            _save(task, states, facts)
            return
        start = facts["interactions"]
        begin = time.perf_counter()
        states, metrics, returns = program.advance(
            states, np.int32(start), np.int32(min(protocol.eval_every, limit - start))
        )
        metrics, returns, episodes = jax.device_get((metrics, returns, states.episodes))
        facts["train_seconds"] += time.perf_counter() - begin
        facts["interactions"] = interactions = min(start + protocol.eval_every, limit)
        for i, seed in enumerate(task.seeds):
            if str(seed) in facts["done"]:
                continue
            if not np.isfinite(metrics.loss[i]):
                raise errors.UserError(
                    f"seed {seed}: the loss is no longer finite after {interactions:,} interactions; "
                    "lower --learning_rate or check the rewards"
                )
            row = {
                "seed": seed,
                "interactions": interactions,
                "episodes": int(episodes[i]),
                "train_return": results.ratio(metrics.returns[i], metrics.episodes[i]),
                "eval_return": results.number(returns[i]),
                "loss": results.ratio(metrics.loss[i], metrics.updates[i]),
            }
            facts["curve"].append(row)
            report(("curve", row))
            solved = bool(returns[i] >= protocol.solved_return - RETURN_TOLERANCE)
            if solved or interactions >= limit:
                rate = interactions * len(task.seeds) / facts["train_seconds"]
                result = {
                    "agent": task.agent,
                    "size": size,
                    "seed": seed,
                    "solved": solved,
                    "episodes_to_learn": int(episodes[i]) if solved else "",
                    "interactions": interactions,
                    "final_return": row["eval_return"],
                    **counts,
                    "compile_seconds": round(compile_seconds, 2),
                    "train_seconds": round(facts["train_seconds"], 2),
                    "interactions_per_second": round(rate, 1),
                }
                facts["done"][str(seed)] = result
                one = jax.tree.map(lambda x, i=i: x[i], states)
                report(("result", result, value_maps(agent, one, size) if task.maps else None))
        if time.monotonic() - saved_at >= task.checkpoint_seconds:
            _save(task, states, facts)
            saved_at = time.monotonic()
    report(("finished", task))


def _save(task: Task, states: core_lib.SeedState, facts: dict[str, Any]) -> None:
    if task.checkpoint:
        checkpoint.save(task.checkpoint, states, facts)


def _restore(task: Task, states: core_lib.SeedState) -> tuple[dict[str, Any], core_lib.SeedState]:
    facts = checkpoint.load_facts(task.checkpoint, task.identity(), task.new_settings())
    return facts, checkpoint.load(task.checkpoint, states)


def value_maps(agent: agents.Agent, state: core_lib.SeedState, size: int) -> dict[str, np.ndarray]:
    """The greedy value of every cell, its mean and standard deviation over indices; [size, size] each."""
    variables = agent.learner.variables(state.learner)
    indices = agent.network.index.sample(types.fold_in_tag(state.key, "maps"), (_MAP_INDICES,))

    @jax.jit
    def greedy_values(variables, indices, cells):
        def at(cell):
            belief = agent.network.belief(variables, cell)
            q = sampled = jax.vmap(agent.network.value, (None, None, 0))(variables.params, belief, indices)
            if agent.network.is_linear:  # what it acts on may not depend on the index; what it knows does
                sampled = jax.vmap(epistemic.evaluate_coefficients, (None, 0))(belief, indices)
            return jnp.mean(jnp.max(q, axis=-1)), jnp.std(jnp.max(sampled, axis=-1))

        return jax.vmap(at)(cells)

    mean, std = greedy_values(variables, indices, jnp.arange(size * size))
    return {"value": np.asarray(mean).reshape(size, size), "uncertainty": np.asarray(std).reshape(size, size)}
