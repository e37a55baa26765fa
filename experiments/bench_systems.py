"""What bench.py measures of all systems: one update of each, on the shapes of DeepSea, MinAtar and Atari.

On DeepSea and MinAtar an update is all that the runner does for it: random numbers, a batch from a replay of
random transitions, gradient, optimiser, target and new priorities. On Atari it is the runner's compiled update
of a given batch (see bench_atari.py). An interaction has `updates_per_interaction` of them. Machines are noisy,
so all systems of a shape are measured in turns: `update_ms` is the fastest by the clock, `cpu_ms` the median
processor time, which hardly changes when other programs run too, and `of_ddqn` the median over turns of its
processor time over ddqn's.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import statistics
import time
from typing import Any

from absl import flags
import bench_atari
import jax

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.agents import atari_presets
from hyperagent_jax.agents import minatar_presets
from hyperagent_jax.agents import presets
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import core as core_lib

FLAGS = flags.FLAGS
SHAPES = ("deep_sea", "minatar", "atari")
flags.DEFINE_list("shapes", list(SHAPES), f"Shapes of --benchmark=systems: {', '.join(SHAPES)}.")
flags.DEFINE_list("systems", [], "Systems of --benchmark=systems next to ddqn; all by default.")

# DeepSea 20 and MinAtar's Breakout.
_SPECS = {
    "deep_sea": types.EnvironmentSpec(2, (), 400),
    "minatar": types.EnvironmentSpec(3, (10, 10, 4), dtype="bool"),
}
_TURN_SECONDS = 0.1  # about
_MOST_STEPS = 32  # in one call


class _Updates:
    """A learner with a replay of random transitions, and the times of its updates."""

    def __init__(self, name: str, preset: presets.Preset, spec: types.EnvironmentSpec):
        self.config = preset(min_replay=500, replay_capacity=1_000)
        agent = agents.make_agent(name, self.config, spec)
        self.num_params = agents.count_params(agent)
        core = core_lib.make_core(agent, stores_prior=spec.num_states is None)

        def observation(key: types.PRNGKey) -> types.Array:
            if spec.num_states is not None:
                return jax.random.randint(key, (), 0, spec.num_states)
            return jax.random.bernoulli(key, 0.1, spec.observation_shape)

        @jax.jit
        def fill(key: types.PRNGKey) -> core_lib.SeedState:
            def add(i: types.Array, state: core_lib.SeedState) -> core_lib.SeedState:
                keys = jax.random.split(jax.random.fold_in(key, i), 4)
                reward, ends = jax.random.normal(keys[0]), jax.random.bernoulli(keys[1], 0.1)
                step = environments_base.TimeStep(observation(keys[2]), reward, 1.0 - ends, ends)
                noise = core.draw(keys[3])
                return core.observe(state, core.act_randomly(noise), step, noise)[0]

            return jax.lax.fori_loop(0, 500, add, core.init(key, observation(key), None))

        # Random numbers are drawn for several steps at once, as in the runner.
        steps = min(_MOST_STEPS, core_lib.steps_per_draw(jax.eval_shape(core.draw, jax.random.key(0))))

        def learn(state: core_lib.SeedState) -> core_lib.SeedState:
            keys = jax.random.split(jax.random.fold_in(state.key, state.learner.count), steps)
            noise = jax.vmap(core.draw)(keys)

            def body(i: types.Array, state: core_lib.SeedState) -> core_lib.SeedState:
                return core.learn(state, core_lib.zero_metrics(), jax.tree.map(lambda x: x[i], noise))[0]

            return jax.lax.fori_loop(0, steps, body, state)

        self._state, self._learn = fill(jax.random.key(0)), jax.jit(learn, donate_argnums=0)
        self._updates, self._calls = steps * core.setup.num_updates, 1
        self._run()  # compiles
        self._calls = max(1, round(_TURN_SECONDS / (self._run()[0] * self._updates)))
        self.update_seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def _run(self) -> tuple[float, float]:
        """Seconds of an update by the clock and of the processor."""
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(self._calls):
            self._state = self._learn(self._state)
        jax.block_until_ready(self._state)
        updates = self._calls * self._updates
        return (time.perf_counter() - begin) / updates, (time.process_time() - cpu) / updates

    def time_updates(self) -> None:
        """One more turn."""
        seconds, cpu = self._run()
        self.update_seconds.append(seconds)
        self.cpu_seconds.append(cpu)


def _presets(shape: str) -> dict[str, presets.Preset]:
    """The systems to measure, ddqn first, as they run there."""
    known = {
        "deep_sea": agents.CONFIGS,
        "minatar": minatar_presets.CONFIGS,
        "atari": atari_presets.configs("paper"),
    }[shape]
    return {name: known[name] for name in dict.fromkeys(("ddqn", *(FLAGS.systems or known))) if name in known}


def measure(shape: str) -> Iterator[dict[str, Any]]:
    """A row for each system."""
    systems: dict[str, Any] = {
        name: bench_atari.Measured(name, "paper") if shape == "atari" else _Updates(name, preset, _SPECS[shape])
        for name, preset in _presets(shape).items()
    }
    turns: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(FLAGS.turns):
        for name, one in systems.items():
            before = len(one.cpu_seconds)
            one.time_updates()
            turns[name].append(statistics.median(one.cpu_seconds[before:]))
    for name, one in systems.items():
        config = one.config
        yield {
            "shape": shape,
            "agent": name,
            "batch_size": config.batch_size,
            "updates_per_interaction": config.updates_per_step / config.update_period,
            "num_params": one.num_params,
            "update_ms": 1e3 * min(one.update_seconds),
            "cpu_ms": 1e3 * statistics.median(one.cpu_seconds),
            "of_ddqn": statistics.median(x / y for x, y in zip(turns[name], turns["ddqn"], strict=True)),
        }
        if shape == "atari":
            one.runner.close()


def _require_known() -> None:
    for name, values, known in (("shapes", FLAGS.shapes, SHAPES), ("systems", FLAGS.systems, agents.CONFIGS)):
        if unknown := [value for value in values if value not in known]:
            raise errors.UserError(f"--{name} has no {unknown[0]!r}; choose from {', '.join(known)}")


def tables() -> Iterator[tuple[str, Iterable[dict]]]:
    """The table bench.csv, once for each shape."""
    _require_known()
    for shape in FLAGS.shapes:
        yield "bench", measure(shape)


def identity() -> dict:
    """What a folder of these measurements is identified by."""
    _require_known()
    configs = {
        shape: {name: dataclasses.asdict(preset()) for name, preset in _presets(shape).items()}
        for shape in FLAGS.shapes
    }
    return {"experiment": "bench_systems", "configs": configs}
