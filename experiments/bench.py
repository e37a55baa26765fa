"""Measures agents in the scan runner on DeepSea, and what the machine itself could do in the same run.

Machines differ and are noisy, so compare ratios: `of_limit` is the time of only the update's matrix products plus
the time memory needs for the optimiser's bytes, divided by the time of a whole step (acting, environment, replay,
random numbers, update). `recompile_seconds` is the compilation time of a second start, with the compilation cache.
The limit is defined only for HyperAgent. --benchmark=atari and --benchmark=minatar measure these instead,
--benchmark=systems an update of every system, and --benchmark=accelerators compiles the main programs for devices
that are not present (see bench_atari.py, bench_minatar.py, bench_systems.py and bench_accelerators.py).
"""

from collections.abc import Iterable, Iterator
import dataclasses
import itertools
import os
import tempfile
import time

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from absl import flags
import bench_accelerators
import bench_atari
import bench_limits
import bench_minatar
import bench_systems
import jax
import jax.numpy as jnp

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax import timing
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import fingerprint
from hyperagent_jax.experiment import run_directory

FLAGS = flags.FLAGS
for module in (bench_accelerators, bench_atari, bench_minatar, bench_systems):
    flags.adopt_module_key_flags(module)  # so that --help lists them
_OTHERS = {
    "atari": bench_atari,
    "minatar": bench_minatar,
    "systems": bench_systems,
    "accelerators": bench_accelerators,
}
flags.DEFINE_enum("benchmark", "deepsea", ["deepsea", *_OTHERS], "What to measure.")
flags.DEFINE_list("sizes", ["20", "60", "120"], "Sizes of DeepSea.")
flags.DEFINE_list("seeds", ["1", "10"], "Numbers of seeds vmapped together.")
flags.DEFINE_list("agents", ["hyperagent"], f"Agents: {', '.join(agents.CONFIGS)}.")
flags.DEFINE_list("losses", ["exact", "sampled"], "Losses of hyperagent; other agents run with their own.")
flags.DEFINE_integer("steps", 2_000, "Interactions per measurement, summed over seeds.", lower_bound=1)
flags.DEFINE_integer("repeats", 5, "Measurements of each; the fastest counts.", lower_bound=1)
flags.DEFINE_string("logdir", None, "Folder for bench.csv and config.json; default: only print.")
flags.DEFINE_bool("overwrite", False, "Delete the existing results in --logdir first.")


def matmul_seconds(config, num_seeds: int) -> float:
    """Times only the matrix products of one update: three forward passes and one backward pass."""
    batch, width, out = config.batch_size, config.hidden_sizes[-1], 2 * (config.index_dim + 1)
    x = jnp.ones((num_seeds, batch, width))
    hidden, head = jnp.ones((num_seeds, width, width)), jnp.ones((num_seeds, width, out))
    repetitions = 500

    @jax.jit
    def products(x, hidden, head):
        def body(_, carry):
            x, hidden, head = carry
            features = x @ hidden
            outputs = features @ head
            for shift in (1e-6, 2e-6):  # o_t by the online and by the target network
                outputs += ((x + shift) @ hidden) @ head
            transpose = jnp.matrix_transpose
            grad_features = outputs @ transpose(head)
            grad_head, grad_hidden = transpose(features) @ outputs, transpose(x) @ grad_features
            grad_x = grad_features @ transpose(hidden)
            return x + 1e-9 * grad_x, hidden + 1e-9 * grad_hidden, head + 1e-9 * grad_head

        return jax.lax.fori_loop(0, repetitions, body, (x, hidden, head))

    return timing.fastest(lambda: products(x, hidden, head), FLAGS.repeats) / repetitions


def step_seconds(task: base.Task) -> float:
    """Times one step of all seeds of a task."""
    program, position = deep_sea.make_program(task), task.config.min_replay
    program.advance(0, position)
    steps = max(1, FLAGS.steps // len(task.seeds))

    def run():
        nonlocal position
        metrics, *_ = program.advance(position, steps)
        position += steps
        return metrics

    return timing.fastest(run, FLAGS.repeats) / steps


def make_task(agent="hyperagent", size=20, num_seeds=1, runner="scan", **settings) -> base.Task:
    """Makes a task with the paper's protocol."""
    # One evaluation episode, so that a dispatch is almost entirely training.
    protocol = deep_sea.Protocol(size=size, eval_episodes=1)
    config, options = agents.CONFIGS[agent](**settings), deep_sea.Options(runner=runner)
    return base.Task("deepsea", agent, config, protocol, tuple(range(num_seeds)), options)


def measure(agent: str, size: int, num_seeds: int, loss: str) -> dict:
    """Measures one row of the table."""
    task = make_task(agent, size, num_seeds, **({"loss": loss} if loss else {}))
    compile_seconds = []
    for _ in range(2):
        jax.clear_caches()
        deep_sea.compile_scan.cache_clear()
        deep_sea.make.cache_clear()
        begin = time.perf_counter()
        made, *_ = deep_sea.compile_scan(task.agent, task.config, task.protocol, num_seeds, None)
        compile_seconds.append(time.perf_counter() - begin)
    step = step_seconds(task)
    matmul_us = optimizer_us = of_limit = ""
    if agent == "hyperagent":
        floats = agents.count_params(made)
        if size * size >= 1024:  # lazy Adam, which touches the rows of a batch instead of all
            floats -= max(0, size * size - task.config.batch_size) * task.config.hidden_sizes[0]
        matmul, moved = (
            matmul_seconds(task.config, num_seeds),
            bench_limits.stream_seconds(num_seeds * floats, FLAGS.repeats),
        )
        matmul_us, optimizer_us, of_limit = matmul * 1e6, moved * 1e6, (matmul + moved) / step
    return {
        "agent": agent,
        "size": size,
        "seeds": num_seeds,
        "loss": loss,
        "interactions_per_second": round(num_seeds / step),
        "step_us": step * 1e6,
        "matmul_us": matmul_us,
        "optimizer_us": optimizer_us,
        "of_limit": of_limit,
        "compile_seconds": compile_seconds[0],
        "recompile_seconds": compile_seconds[1],
    }


def _check(name: str, allowed: Iterable[str]) -> None:
    for value in getattr(FLAGS, name):
        if value not in allowed:
            raise errors.UserError(f"--{name} has no {value!r}; choose from {', '.join(allowed)}")


def _numbers(name: str) -> list[int]:
    values = getattr(FLAGS, name)
    if not all(value.isdecimal() and int(value) > 0 for value in values):
        raise errors.UserError(f"--{name} must be whole numbers of at least 1, got {','.join(values)}")
    return [int(value) for value in values]


def rows(sizes: list[int], numbers_of_seeds: list[int]) -> Iterator[dict]:
    """Yields a row for each size, agent, loss and number of seeds."""
    kinds = [(name, loss) for name in FLAGS.agents for loss in (FLAGS.losses if name == "hyperagent" else [""])]
    for size, (name, loss), num_seeds in itertools.product(sizes, kinds, numbers_of_seeds):
        yield measure(name, size, num_seeds, loss)


def print_ratios() -> None:
    """Measures the cost of a large replay, and of bsuite's Python DeepSea in the dm_env loop."""
    large, small = (step_seconds(make_task(replay_capacity=n)) for n in (1_000_000, 10_000))
    print(f"replay of 1,000,000 against 10,000 transitions: {large / small:.2f} times the time per step")
    loop, scan = (step_seconds(make_task(runner=runner)) for runner in ("loop", "scan"))
    print(
        f"dm_env loop, bsuite's Python DeepSea 20: {1 / loop:,.0f} interactions per second, {loop / scan:.1f} "
        "times the time per step of the scan"
    )


def main() -> int:
    _check("agents", agents.CONFIGS)
    _check("losses", ("exact", "sampled"))
    sizes, numbers_of_seeds = _numbers("sizes"), _numbers("seeds")
    other = _OTHERS.get(FLAGS.benchmark)
    # Before --overwrite deletes anything: what is asked for may be impossible.
    tables = other.tables() if other else [("bench", rows(sizes, numbers_of_seeds))]
    directory = None
    if FLAGS.logdir:
        configs = {name: dataclasses.asdict(agents.CONFIGS[name]()) for name in FLAGS.agents}
        identity = other.identity() if other else {"experiment": "bench", "configs": configs}
        directory = run_directory.RunDirectory(
            FLAGS.logdir, fingerprint.make(identity), resume=None, overwrite=FLAGS.overwrite
        )
    machine = results.provenance()["machine"]
    threads = os.environ["NPROC"]
    # An empty compilation cache, so that the first compilation is a first one.
    cache = tempfile.TemporaryDirectory()
    jax.config.update("jax_compilation_cache_dir", cache.name)
    cli.use_compilation_cache()
    print(f"{machine['processor']}, {threads} thread(s) of {machine['cores']} cores, jax {jax.__version__}\n")
    for name, table in tables:
        rounded = ({x: round(y, 2) if isinstance(y, float) else y for x, y in row.items()} for row in table)
        for row in cli.print_table(rounded):
            if directory:
                directory.add(name, list(row), row)
        print()
    if not other:
        print_ratios()
    return 0


if __name__ == "__main__":
    cli.run(main)
