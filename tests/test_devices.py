"""Several devices: groups of seeds on each, and one learner on all of them. Four devices are made of one CPU."""

import csv
import json
import os
import pathlib
import re
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
GAMES = pathlib.Path(__file__).resolve().parent / "fake_hosts.py"
SCALING = SCRIPTS.parent / "docs" / "scaling.md"
FOUR = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def _run(*command, environment=FOUR):
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment, timeout=3_000
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rows(file):
    times = {"seconds", "train_seconds", "compile_seconds", "interactions_per_second"}
    rows = list(csv.DictReader(file.read_text().splitlines()))
    return sorted(tuple((x, y) for x, y in row.items() if x not in times) for row in rows)


def _check_devices(script, arguments, folder, tables):
    """Runs a script on four devices and on one; returns how many rows each table has."""
    for name, launcher in (("four", "devices"), ("one", "local")):
        _run(
            SCRIPTS / script,
            *arguments,
            f"--launcher={launcher}",
            "--num_workers=4" if name == "four" else "--num_workers=1",
            "--noprogress",
            f"--logdir={folder / name}",
            environment=FOUR if name == "four" else os.environ,
        )
    numbers = []
    for table in tables:
        four, one = _rows(folder / "four" / table), _rows(folder / "one" / table)
        assert four == one
        numbers.append(len(four))
    return numbers


@pytest.mark.parametrize(
    "agent, num_seeds",
    [("ddqn", 4), pytest.param("hyperagent_prioritized", 8, marks=pytest.mark.slow)],
    ids=["two groups", "four groups"],
)
def test_groups_on_four_devices_give_the_rows_of_one_device(agent, num_seeds, tmp_path):
    arguments = [f"--agent={agent}", "--size=5", f"--num_seeds={num_seeds}", "--seeds_per_group=2"]
    arguments += ["--max_episodes=60", "--eval_every=100", "--eval_episodes=2"]
    results, curve = _check_devices("run_deepsea.py", arguments, tmp_path, ["results.csv", "curve.csv"])
    assert results == num_seeds <= curve


@pytest.mark.slow
def test_jax_environments_on_four_devices_give_the_rows_of_one_device(tmp_path):
    arguments = ["--env=explore/chain_20", "--agent=ddqn", "--num_seeds=4", "--seeds_per_group=2"]
    arguments += ["--steps=400", "--eval_every=200", "--eval_episodes=2", "--replay_capacity=400"]
    tables = _check_devices("run_jax.py", arguments, tmp_path, ["results.csv", "curve.csv"])
    assert tables == [4, 8]


@pytest.mark.slow
def test_sweeps_on_four_devices_give_the_rows_of_one_device(tmp_path):
    grid = {"agent": ["ddqn", "hyperagent"], "size": 4, "seed": [0, 1, 2, 3], "seeds_per_group": 2}
    grid |= {"max_episodes": 40, "eval_every": 80, "eval_episodes": 2}
    assert _check_devices("sweep.py", [f"--grid={json.dumps(grid)}"], tmp_path, ["results.csv"]) == [8]


PARENT = """
import sys
import jax
from hyperagent_jax.experiment import deep_sea, driver, launching


class Launcher:
    @staticmethod
    def run_tasks(function, tasks, *arguments, **options):
        print("tasks", jax.default_backend(), [task.seeds for task in tasks])
        return True


launching.load = lambda name, environment: Launcher
driver.main(deep_sea.EXPERIMENT)
"""


@pytest.mark.parametrize(
    "arguments, groups",
    [
        (["--launcher=ray", "--gpus_per_task=0.25"], "[(0, 1, 2)]"),
        (["--launcher=slurm", "--gpus_per_task=1", "--seeds_per_group=2"], "[(0, 1), (2,)]"),
        (["--launcher=ray"], "[(0,), (1,), (2,)]"),
    ],
)
def test_a_parent_of_jobs_uses_no_accelerator(arguments, groups, tmp_path):
    """JAX is told to use a GPU, and there is none: only jobs may look for it."""
    arguments += ["--agent=ddqn", "--size=4", "--num_seeds=3", "--noprogress", f"--logdir={tmp_path / 'run'}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    printed = _run("-c", PARENT, *arguments, environment=environment).splitlines()
    assert f"tasks cpu {groups}" in printed


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


def over_devices(kind, function):
    """Lifts a function of one device to four, by one of jax's ways; everything has an axis of devices."""
    if kind == "vmap":
        return jax.jit(jax.vmap(function, axis_name="devices"))
    if kind == "pmap":
        return jax.pmap(function, axis_name="devices")

    def of_one(*trees):
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], trees)))

    mesh, spec = jax.sharding.Mesh(jax.devices(), ("devices",)), jax.P("devices")
    return jax.jit(jax.shard_map(of_one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def check_updates_of_parts(kind):
    """100 updates with a quarter of the batch on each of four devices are those of the whole batch."""
    import optax

    agent, loss, batch = make_parts()
    whole = learner_lib.make_learner(agent.network, loss, optax.adam(1e-3))
    parts = learner_lib.make_learner(agent.network, loss, optax.adam(1e-3), axis_name="devices")
    split = lambda tree: jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), tree)  # noqa: E731
    update_whole, update_parts = jax.jit(whole.update), over_devices(kind, parts.update)
    one = before = whole.init(jax.random.key(0))
    four = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, *x.shape)), one)
    for i in range(100):
        noise = whole.draw(jax.random.fold_in(jax.random.key(1), i), BATCH)
        one, _ = update_whole(one, batch, noise)
        four, _ = update_parts(four, split(batch), split(noise))
    for start, x, y in zip(*(jax.tree.leaves(state.params) for state in (before, one, four)), strict=True):
        assert len(y.sharding.device_set) == (1 if kind == "vmap" else 4)
        y = np.asarray(y)
        np.testing.assert_array_equal(y, np.broadcast_to(y[:1], y.shape))  # all devices agree
        np.testing.assert_allclose(y[0], x, rtol=1e-5, atol=1e-5)
        assert np.max(np.abs(x - start)) > 1e-2


def check_documented_loop():
    """The code of docs/scaling.md on four devices."""
    (code,), names = re.findall(r"```python\n(.*?)```", SCALING.read_text(encoding="utf-8"), re.DOTALL), {}
    exec(code, names)
    leaves = jax.tree.leaves(names["state"].params)
    assert all(len(leaf.sharding.device_set) == 4 and leaf.is_fully_replicated for leaf in leaves)
    assert int(names["state"].count) == 1 and np.isfinite(names["mean_loss"])


def test_axis_name_gives_the_updates_of_the_whole_batch():
    check_updates_of_parts("vmap")


def test_loops_of_ones_own_on_four_devices():
    path = [str(GAMES.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**FOUR, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    checks = ["check_updates_of_parts('pmap')", "check_updates_of_parts('shard_map')", "check_documented_loop()"]
    _run("-c", "\n".join(["from test_devices import *", *checks]), environment=environment)


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
from hyperagent_jax import sharding
from hyperagent_jax.experiment import programs


def fill(x, rng):
    return rng.integers(0, 256, x.shape).astype(np.uint8) if x.dtype == np.uint8 else x


def distance(tree, other):
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.linalg.norm(x - y) / max(np.linalg.norm(x), 1e-30)) for x, y in pairs)


def check(num_updates, **settings):
    program, results = programs.atari_update(batch_size=8, hidden_sizes=(16,), **settings), []
    for num_devices in (1, 4):
        learner, total, key, batch = jax.jit(program.make_arguments)()
        rng = np.random.default_rng(0)
        batch = batch._replace(transitions=jax.tree.map(lambda x: fill(x, rng), batch.transitions))
        rewards = rng.normal(size=8).astype(np.float32)
        batch = batch._replace(transitions=batch.transitions._replace(r_t=rewards))
        update = sharding.jit_update(program.function, sharding.batch_mesh(jax.devices()[:num_devices], 8))
        before = jax.device_get(learner.params)
        for _ in range(num_updates):
            learner, total, each = update(learner, total, key, batch)
        assert len(each.sharding.device_set) == num_devices and each.shape == (8,)
        results.append(jax.device_get((learner.params, total)))
    print(distance(before, results[0][0]), distance(*results))


check(100, agent="hyperagent", torso="mlp")
check(10, agent="ddqn")
"""


def test_a_batch_spread_over_four_devices():
    """Perceptrons after 100 updates and convolutions after 10: relative distances of parameters, in the norm."""
    mlp, convolutions = (map(float, line.split()) for line in _run("-c", SPREAD).splitlines())
    for (learned, distance), largest in ((mlp, 1e-5), (convolutions, 1e-4)):
        assert distance < largest < 1e-2 < learned


@pytest.mark.slow
def test_run_atari_with_a_batch_spread_over_four_devices(tmp_path):
    """Scripted games: the same games, and as good as the same losses, as on one device."""
    arguments = ["--agent=ddqn", "--hidden_sizes=8", "--batch_size=8", "--min_replay=40", "--replay_capacity=100"]
    arguments += ["--num_envs=4", "--steps=300", "--eval_every=100", "--eval_episodes=3", "--noprogress"]
    arguments += ["--final_eval_episodes=3", "--data_parallel"]
    curves = []
    for name, environment in (("four", FOUR), ("one", os.environ)):
        _run(GAMES, *arguments, f"--logdir={tmp_path / name}", environment=environment)
        assert len((tmp_path / name / "results.csv").read_text().splitlines()) == 2
        curves.append(list(csv.DictReader((tmp_path / name / "curve.csv").open())))
    assert len(curves[0]) == 3
    for four, one in zip(*curves, strict=True):
        assert [four[x] for x in ("interactions", "games")] == [one[x] for x in ("interactions", "games")]
        np.testing.assert_allclose(float(four["loss"]), float(one["loss"]), rtol=1e-3)
    refused = subprocess.run(
        [sys.executable, GAMES, *arguments, "--batch_size=6", f"--logdir={tmp_path / 'no'}"],
        capture_output=True,
        text=True,
        env=FOUR,
    )
    assert refused.returncode == 2 and "batch_size=6 cannot be split evenly over 4 devices" in refused.stderr
