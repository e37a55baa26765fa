"""Atari benchmark of bench.py: one update of every agent, the whole loop around it, and its memory.

Machines are noisy, so agents are measured in turns. `cpu_ms` is the median processor time of an update, which
other programs hardly affect, and `of_ddqn` its ratio to ddqn's in the same turns. `update_ms` and `loop_ms` are
the fastest wall-clock times; `loop_efficiency` is the median time of an update alone over that of the whole loop
per update (acting, games, replay and update). `times_authors` is the speedup of the fastest update over the
authors' PyTorch update, as measured on the same number of cores of such a machine; it is not run here.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import os
import time

from absl import flags
import jax
import numpy as np

from hyperagent_jax import host_memory
from hyperagent_jax.agents import atari_presets as presets
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.experiment import atari
from hyperagent_jax.experiment import base

FLAGS = flags.FLAGS
flags.DEFINE_string("game", "Breakout", "The game of --benchmark=atari.")
flags.DEFINE_integer("num_envs", 4, "Environments of --benchmark=atari.", lower_bound=1)
flags.DEFINE_list(
    "atari_agents",
    ["hyperagent", "hyperagent_ois", "ddqn"],
    "Agents of --benchmark=atari, each with every preset that has it.",
)
flags.DEFINE_integer(
    "turns", 5, "Turns of --benchmark=atari and systems, each with some updates of every agent.", lower_bound=1
)
flags.DEFINE_integer(
    "replay_capacity",
    500_000,
    "Transitions in the replay whose memory --benchmark=atari measures; 0 to skip this.",
    lower_bound=0,
)

# Milliseconds of the authors' update by number of threads, measured before this library was written.
_AUTHORS_MS = {1: 210.0, 2: 128.0}
_UPDATES_PER_TURN = 8


def _make_task(agent: str, preset: str, **settings) -> base.Task:
    config = presets.configs(preset)[agent](**settings)
    protocol = atari.Protocol(game=FLAGS.game, num_envs=FLAGS.num_envs)
    return base.Task("atari", agent, config, protocol, (0,), atari.Options(preset=preset))


def _configs(preset: str) -> dict:
    """The agents to measure that a preset has."""
    return {name: kind for name, kind in presets.configs(preset).items() if name in FLAGS.atari_agents}


class Measured:
    """A runner that has begun to learn, and times of its parts."""

    def __init__(self, agent: str, preset: str):
        task = _make_task(agent, preset, min_replay=64, replay_capacity=2_000)
        self.config, self.runner = task.config, atari.make_runner(task)
        self.runner.begin()
        while self.runner.updates < 16:
            self.runner.advance()
        self.num_params = sum(x.size for x in jax.tree.leaves(self.runner.learner.params))
        self.batch, _ = self.runner.replay.sample(self.runner.replay.draw(0, 0, task.config.batch_size))
        self.update_seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.loop_seconds: list[float] = []

    def time_updates(self) -> None:
        """Some updates of the same batch, each of them waited for."""
        runner = self.runner
        jax.block_until_ready(runner.learner)
        for _ in range(_UPDATES_PER_TURN):
            begin, cpu = time.perf_counter(), time.process_time()
            # The runner's own program, whose state advances: an update must not be cheaper here than there.
            runner.learner, runner._loss, _ = runner._update(runner.learner, runner._loss, runner._key, self.batch)
            jax.block_until_ready(runner.learner)
            self.update_seconds.append(time.perf_counter() - begin)
            self.cpu_seconds.append(time.process_time() - cpu)

    def time_loop(self) -> None:
        """Rounds of the loop with about as many updates; seconds per update."""
        runner = self.runner
        jax.block_until_ready(runner.learner)
        before, begin = runner.updates, time.perf_counter()
        while runner.updates < before + _UPDATES_PER_TURN:
            runner.advance()
        jax.block_until_ready(runner.learner)
        self.loop_seconds.append((time.perf_counter() - begin) / (runner.updates - before))


def measure(preset: str) -> Iterator[dict]:
    """A row for each agent."""
    threads = int(os.environ["NPROC"])
    measured = {agent: Measured(agent, preset) for agent in _configs(preset)}
    for _ in range(FLAGS.turns):
        for one in measured.values():
            one.time_updates()
            one.time_loop()
    plain = np.median(measured["ddqn"].cpu_seconds) if "ddqn" in measured else None
    for agent, one in measured.items():
        update, loop, cpu = (np.median(x) for x in (one.update_seconds, one.loop_seconds, one.cpu_seconds))
        fastest, authors = 1e3 * min(one.update_seconds), _AUTHORS_MS.get(threads)
        one.runner.close()
        yield {
            "agent": agent,
            "preset": preset,
            "threads": threads,
            "num_params": one.num_params,
            "update_ms": fastest,
            "cpu_ms": 1e3 * cpu,
            "of_ddqn": cpu / plain if plain else "",
            "times_authors": authors / fastest if authors else "",
            "loop_ms": 1e3 * min(one.loop_seconds),
            "loop_efficiency": update / loop,
        }


def measure_memory() -> dict:
    """Memory of a run whose replay is full, against what was predicted."""
    task = _make_task("hyperagent", "paper", replay_capacity=FLAGS.replay_capacity)
    predicted = atari.EXPERIMENT.num_bytes(task)
    host_memory.require(predicted, "the replay", "lower --replay_capacity")
    runner = atari.make_runner(task)
    runner.begin()
    runner.advance()
    replay = runner.replay
    settings = replay.settings
    num_envs = settings.num_envs
    none, nothing = np.zeros(num_envs, bool), np.zeros(num_envs, np.float32)
    step = environments_base.VectorStep(
        np.arange(num_envs), runner._step.observations, none, nothing, nothing, none, none, none
    )
    priors = np.zeros((num_envs, *settings.prior_shape), np.float32)
    perturbations = np.zeros((num_envs, settings.perturbation_dim), np.float32)
    for _ in range(settings.num_rows):
        replay.add(step, np.zeros(num_envs, np.int32), priors, perturbations)
    resident = host_memory.resident_bytes()
    runner.close()
    return {
        "capacity": settings.capacity,
        "predicted_mb": predicted / 1e6,
        "resident_mb": resident / 1e6,
        "of_predicted": resident / predicted,
    }


def tables() -> Iterator[tuple[str, Iterable[dict]]]:
    """The tables memory.csv and bench.csv, the latter once for each preset."""
    if FLAGS.replay_capacity:  # first, while the process holds nothing else
        yield "memory", [measure_memory()]
    for preset in presets.PRESETS:
        if _configs(preset):
            yield "bench", measure(preset)


def identity() -> dict:
    """What a folder of these measurements is identified by."""
    configs = {
        preset: {name: dataclasses.asdict(kind()) for name, kind in _configs(preset).items()}
        for preset in presets.PRESETS
        if _configs(preset)
    }
    return {"experiment": "bench_atari", "game": FLAGS.game, "num_envs": FLAGS.num_envs, "configs": configs}
