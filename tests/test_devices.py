"""Several devices: groups of seeds on each, and one learner on all of them. Four devices are made of one CPU."""

import csv
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax import lazy_adam
from hyperagent_jax import learner as learner_lib
from hyperagent_jax import losses
from hyperagent_jax import sharding
from hyperagent_jax import types
from hyperagent_jax.experiment import on_devices

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent / "experiments"
FOUR = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def _run(*command, environment=FOUR):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rows(file):
    times = {"seconds", "train_seconds", "compile_seconds", "interactions_per_second"}
    rows = list(csv.DictReader(file.read_text().splitlines()))
    return sorted(tuple((x, y) for x, y in row.items() if x not in times) for row in rows)


@pytest.mark.parametrize(
    "agent, num_seeds",
    [("ddqn", 4), pytest.param("hyperagent_prioritized", 8, marks=pytest.mark.slow)],
    ids=["two groups", "four groups"],
)
def test_groups_on_four_devices_give_the_rows_of_one_device(agent, num_seeds, tmp_path):
    arguments = [f"--agent={agent}", "--size=5", f"--num_seeds={num_seeds}", "--seeds_per_group=2"]
    arguments += ["--max_episodes=60", "--eval_every=100", "--eval_episodes=2"]
    for name, launcher in (("four", "devices"), ("one", "local")):
        _run(
            SCRIPTS / "run_deepsea.py",
            *arguments,
            f"--launcher={launcher}",
            "--num_workers=4" if name == "four" else "--num_workers=1",
            "--noprogress",
            f"--logdir={tmp_path / name}",
            environment=FOUR if name == "four" else os.environ,
        )
    for table in ("results.csv", "curve.csv"):
        four, one = _rows(tmp_path / "four" / table), _rows(tmp_path / "one" / table)
        assert len(four) >= num_seeds
        assert four == one


def test_tasks_run_on_the_devices_and_failures_are_told(monkeypatch):
    events, failed = [], []

    def work(task, report, should_stop):
        report((task, jax.config.jax_default_device))
        if task == 3:
            raise errors.UserError("three is bad")

    device = jax.local_devices()[0]
    monkeypatch.setattr(jax, "local_devices", lambda: [device, device])
    assert on_devices.run_tasks(work, range(6), 2, events.append, lambda task, text: failed.append((task, text)))
    assert sorted(task for task, _ in events) == list(range(6))
    assert all(used is device for _, used in events)
    assert failed == [(3, "UserError: three is bad")]
    with pytest.raises(errors.UserError, match="three is bad"):
        on_devices.run_tasks(work, range(6), 2, events.append)


# A learner on several devices

NUM_ACTIONS, BATCH = 3, 16


def make_parts():
    spec = types.EnvironmentSpec(NUM_ACTIONS, (4,))
    agent = agents.make_agent("hyperagent", agents.CONFIGS["hyperagent"](batch_size=BATCH, sigma=0.1), spec)
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    transitions = types.Transition(
        normal(BATCH, 4),
        rng.integers(NUM_ACTIONS, size=BATCH).astype(np.int32),
        normal(BATCH),
        np.full(BATCH, 0.9, np.float32),
        normal(BATCH, 4),
        normal(BATCH, agent.perturbation.dim),
    )
    loss = losses.make_td_loss(agent.network, sigma=0.1)
    return agent, loss, types.Batch(transitions)


def test_axis_name_gives_the_updates_of_the_whole_batch():
    import optax

    agent, loss, batch = make_parts()
    whole = learner_lib.make_learner(agent.network, loss, optax.adam(1e-3))
    parts = learner_lib.make_learner(agent.network, loss, optax.adam(1e-3), axis_name="devices")
    state = whole.init(jax.random.key(0))
    split = lambda tree: jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), tree)  # noqa: E731

    @jax.jit
    def train(state):
        def both(i, states):
            noise = whole.draw(jax.random.fold_in(jax.random.key(1), i), BATCH)
            one, _ = whole.update(states[0], batch, noise)
            update = jax.vmap(parts.update, (0, 0, 0), axis_name="devices")
            four, _ = update(states[1], split(batch), split(noise))
            return one, four

        four = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, *x.shape)), state)
        return jax.lax.fori_loop(0, 100, both, (state, four))

    one, four = train(state)
    for x, y in zip(jax.tree.leaves(one.params), jax.tree.leaves(four.params), strict=True):
        np.testing.assert_array_equal(y, np.broadcast_to(y[:1], y.shape))  # all devices agree
        np.testing.assert_allclose(y[0], x, rtol=1e-5, atol=1e-5)


def test_axis_name_draws_other_indices_on_every_device():
    import optax

    agent, loss, batch = make_parts()
    parts = learner_lib.make_learner(agent.network, loss, optax.adam(1e-3), axis_name="devices")
    draw = jax.vmap(lambda _: parts.draw(jax.random.key(0), 4).target_indices, axis_name="devices")
    drawn = np.asarray(draw(jnp.arange(3)))
    assert len({one.tobytes() for one in drawn}) == 3
    for wrong in (lazy_adam.LazyAdam(), optax.adam(1e-3)):
        bad = loss if isinstance(wrong, lazy_adam.LazyAdam) else losses.with_gradient_penalty(loss, 1.0)
        with pytest.raises(ValueError, match="axis_name averages gradients"):
            learner_lib.make_learner(agent.network, bad, wrong, axis_name="devices")


def test_a_batch_that_cannot_be_spread_is_refused():
    with pytest.raises(errors.UserError, match="batch_size=30 cannot be split evenly over 4 devices"):
        sharding.batch_mesh([jax.local_devices()[0]] * 4, 30)


SPREAD = """
import jax, numpy as np
from hyperagent_jax import sharding, types
from hyperagent_jax.experiment import programs
from hyperagent_jax.runners import vector
results = []
for num_devices in (1, 4):
    program = programs.atari_update("ddqn", batch_size=8, hidden_sizes=(16,))
    learner, total, key, batch = jax.jit(program.make_arguments)()
    rng = np.random.default_rng(0)
    t = batch.transitions
    frames = lambda: rng.integers(0, 256, t.o_tm1.shape).astype(np.uint8)
    t = t._replace(o_tm1=frames(), o_t=frames(), r_t=rng.normal(size=8).astype(np.float32))
    update = sharding.jit_update(program.function, sharding.batch_mesh(jax.devices()[:num_devices], 8))
    for _ in range(10):
        learner, total, each = update(learner, total, key, batch._replace(transitions=t))
    assert len(each.sharding.device_set) == num_devices and each.shape == (8,)
    results.append((learner.params, total, each))
for x, y in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(y, x, rtol=1e-4, atol=1e-5 * float(np.abs(x).max()))
print("equal")
"""


def test_a_batch_of_frames_spread_over_four_devices():
    assert _run("-c", SPREAD).strip() == "equal"
