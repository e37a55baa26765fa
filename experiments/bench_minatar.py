"""What bench.py measures of MinAtar: whole steps of agents, and the parts that no implementation can leave out.

Times are per interaction. `step_us` is everything (acting, game, replay, random numbers, a share of an update) by
the clock, the fastest turn. All others are processor times, which other programs hardly affect: `cpu_us` is
everything, the median over turns; `game_us` the bare games with random actions, `products_us` the bare matrix
products of acting and of an update, `optimizer_us` the time memory needs for Adam's bytes. `of_limit` is the sum
of these three over `cpu_us`. Rows with a long `update_period` show what acting costs without updates. What is
compared is measured in turns; ratios are medians over turns.
"""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import statistics
import time
from typing import Any

from absl import flags
import bench_limits
import jax
import jax.numpy as jnp
import numpy as np

from hyperagent_jax import agents
from hyperagent_jax import host_memory
from hyperagent_jax import timing
from hyperagent_jax import types
from hyperagent_jax.agents import minatar_presets
from hyperagent_jax.environments import registry
from hyperagent_jax.runners import core as core_lib
from hyperagent_jax.runners import scan

FLAGS = flags.FLAGS
flags.DEFINE_string("minatar_game", "breakout", "The game of --benchmark=minatar.")
flags.DEFINE_list("minatar_agents", ["hyperagent", "ddqn"], "Agents of --benchmark=minatar.")
flags.DEFINE_integer(
    "minatar_envs", 8, "Parallel games that --benchmark=minatar compares with one.", lower_bound=2
)
flags.DEFINE_list("minatar_capacities", ["10000", "1000000"], "Sizes of the replay that it compares.")

_PRODUCTS = 200  # repetitions in one call


@functools.cache
def _environment():
    return registry.make(f"minatar/{FLAGS.minatar_game}")


class _Measured:
    """A run that has begun to learn, and the times of its turns per interaction."""

    def __init__(self, agent: str, num_envs: int = 1, **settings):
        self.config = minatar_presets.CONFIGS[agent](min_replay=200, **settings)
        self.name, self.num_envs = agent, num_envs
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.agent = agents.make_agent(agent, self.config, _environment().spec)
        runner = scan.make_runner(self.agent, _environment(), num_envs, stores_prior=True)
        init = jax.jit(lambda key: jax.tree.map(lambda x: x[None], runner.init(key, None)))
        self.num_bytes = core_lib.num_bytes(jax.eval_shape(init, jax.random.key(0)))
        what = f"{agent} with a replay of {self.config.replay_capacity:,}"
        print(f"{what} in {num_envs} game(s) takes {self.num_bytes / 1e6:,.0f} MB", flush=True)
        host_memory.require(self.num_bytes, what, "lower --minatar_capacities")
        self._states = init(jax.random.key(0))
        self._run = jax.jit(runner.run, donate_argnums=0)
        self._rounds = 0
        self._advance(1_000)

    def _advance(self, interactions: int) -> int:
        cycle = max(self.config.update_period, self.num_envs)
        rounds = -(-interactions // cycle) * cycle // self.num_envs
        self._states, metrics = self._run(self._states, np.int32(self._rounds), np.int32(rounds))
        jax.block_until_ready(metrics)
        self._rounds += rounds
        return rounds * self.num_envs

    def measure(self) -> None:
        """One more turn."""
        begin, cpu = time.perf_counter(), time.process_time()
        interactions = self._advance(FLAGS.steps)
        self.seconds.append((time.perf_counter() - begin) / interactions)
        self.cpu_seconds.append((time.process_time() - cpu) / interactions)

    def over(self, other: "_Measured") -> float:
        """The median over turns of its processor time over that of another."""
        return statistics.median(x / y for x, y in zip(self.cpu_seconds, other.cpu_seconds, strict=True))


def _seconds(function: Callable[[], Any]) -> float:
    return timing.fastest(function, FLAGS.repeats, clock=time.process_time)


def game_seconds(num_envs: int) -> float:
    """Time per interaction of the bare games with random actions, and resets as the scan has them."""
    environment, steps = _environment(), FLAGS.steps // num_envs + 1

    def one_step(state, key):
        noise = environment.draw(types.fold_in_tag(key, "environment"))
        action = jax.random.randint(key, (), 0, environment.spec.num_actions)
        state, timestep = environment.step(state, action, noise)
        restarted, _ = environment.reset(state, noise)
        return jax.tree.map(lambda x, y: jnp.where(timestep.last, x, y), restarted, state), timestep.reward

    @jax.jit
    def play(key):
        keys = jax.random.split(key, num_envs)
        start, _ = jax.vmap(lambda key: environment.reset(None, environment.draw(key)))(keys)

        def body(t, carry):
            states, total = carry
            keys = jax.random.split(jax.random.fold_in(key, t), num_envs)
            states, rewards = jax.vmap(one_step)(states, keys)
            return states, total + rewards.sum()

        return jax.lax.fori_loop(0, steps, body, (start, jnp.zeros(())))[1]

    return _seconds(lambda: play(jax.random.key(0))) / (steps * num_envs)


def products_seconds(measured: _Measured) -> float:
    """Time per interaction of the bare matrix products: an action's, and its share of an update's."""
    config, spec = measured.config, _environment().spec
    height, width, channels = spec.observation_shape
    places, fan_in = (height - 2) * (width - 2), 9 * channels
    out = spec.num_actions * (getattr(config, "index_dim", 0) + 1)
    (dense,) = config.hidden_sizes
    weights = tuple(jnp.full(shape, 1e-3) for shape in ((fan_in, 16), (16 * places, dense), (dense, out)))
    transpose = jnp.matrix_transpose

    def forward(patches, weights):
        conv, dense, head = weights
        filtered = (patches @ conv).reshape(len(patches), -1)
        features = filtered @ dense
        return filtered, features, features @ head

    def update(patches, weights):
        conv, dense, head = weights
        filtered, features, outputs = forward(patches, weights)
        for shift in (1e-6, 2e-6):  # o_t by the online and by the target network
            outputs += forward(patches + shift, weights)[2]
        grad_features = outputs @ transpose(head)
        grad_filtered = (grad_features @ transpose(dense)).reshape(len(patches), places, 16)
        grad_conv = jnp.einsum("bpi,bpo->io", patches, grad_filtered)
        gradients = grad_conv, transpose(filtered) @ grad_features, transpose(features) @ outputs
        return jax.tree.map(lambda x, gradient: x + 1e-9 * gradient, weights, gradients)

    def act(patches, weights):
        # The next call depends on what this one gives, or it would be computed once.
        outputs = forward(patches, weights)[2]
        return (*weights[:2], weights[2] + 1e-9 * outputs.sum())

    def seconds(function, batch):
        patches = jnp.ones((batch, places, fan_in))

        @jax.jit
        def repeated(patches, weights):
            return jax.lax.fori_loop(0, _PRODUCTS, lambda _, carry: function(patches, carry), weights)

        return _seconds(lambda: repeated(patches, weights)) / _PRODUCTS

    networks = 2 if measured.name.startswith("hyperagent") else 1  # a fixed prior is one more
    acting = networks * seconds(act, measured.num_envs) / measured.num_envs
    return acting + seconds(update, config.batch_size) * config.updates_per_step / config.update_period


def measure() -> Iterator[dict]:
    """A row for each agent, for several games side by side, and for each capacity."""
    first, *_ = FLAGS.minatar_agents
    alone = [_Measured(name) for name in FLAGS.minatar_agents]
    many = _Measured(first, FLAGS.minatar_envs)
    sizes = [_Measured(first, replay_capacity=int(capacity)) for capacity in FLAGS.minatar_capacities]
    rarely = 50 * FLAGS.minatar_envs
    acting = [_Measured(first, num_envs, update_period=rarely) for num_envs in (1, FLAGS.minatar_envs)]
    everything = [*alone, many, *sizes, *acting]
    for _ in range(FLAGS.repeats):
        for one in everything:
            one.measure()
    games = {num_envs: game_seconds(num_envs) for num_envs in (1, FLAGS.minatar_envs)}
    for one in everything:
        step, cpu = min(one.seconds), statistics.median(one.cpu_seconds)
        game, products = games[one.num_envs], products_seconds(one)
        streamed = bench_limits.stream_seconds(agents.count_params(one.agent), FLAGS.repeats, time.process_time)
        optimizer = streamed * one.config.updates_per_step / one.config.update_period
        yield {
            "agent": one.name,
            "game": FLAGS.minatar_game,
            "num_envs": one.num_envs,
            "update_period": one.config.update_period,
            "replay_capacity": one.config.replay_capacity,
            "mb": one.num_bytes / 1e6,
            "interactions_per_second": round(1 / step),
            "step_us": step * 1e6,
            "cpu_us": cpu * 1e6,
            "game_us": game * 1e6,
            "products_us": products * 1e6,
            "optimizer_us": optimizer * 1e6,
            "of_limit": (game + products + optimizer) / cpu,
        }
    print()
    for one in alone:
        for other in alone:
            if one is not other and other.name == "ddqn":
                print(f"{one.name} against {other.name}: {one.over(other):.2f} times the time per interaction")
    one_acts, all_act = acting
    print(
        f"{many.num_envs} parallel games: a step of all takes {many.num_envs * many.over(alone[0]):.2f} times "
        f"as long as a step of one, and {many.num_envs * all_act.over(one_acts):.2f} times without updates"
    )
    small, *larger = sizes
    for one in larger:
        print(
            f"replay of {one.config.replay_capacity:,} against {small.config.replay_capacity:,} transitions: "
            f"{one.over(small):.2f} times the time per interaction"
        )


def tables() -> Iterator[tuple[str, Iterable[dict]]]:
    """The table bench.csv."""
    yield "bench", measure()


def identity() -> dict:
    """What a folder of these measurements is identified by."""
    configs = {name: dataclasses.asdict(minatar_presets.CONFIGS[name]()) for name in FLAGS.minatar_agents}
    return {"experiment": "bench_minatar", "game": FLAGS.minatar_game, "configs": configs}
