"""The theory's experiments: what they measure, and the script as a user runs it."""

import csv
import json
import math
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import scripts

from hyperagent_jax.analysis import sources
from hyperagent_jax.analysis import tabular
from hyperagent_jax.analysis.tabular import plots as tabular_plots
from hyperagent_jax.tabular import base
from hyperagent_jax.tabular.studies import chain
from hyperagent_jax.tabular.studies import deep_sea
from hyperagent_jax.tabular.studies import lemma
from hyperagent_jax.tabular.studies import posterior
from hyperagent_jax.tabular.studies import propagation
from hyperagent_jax.tabular.studies import regret
from hyperagent_jax.tabular.studies import speed
from hyperagent_jax.tabular.studies import uncertainty

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_tabular.py"


def _run(*arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def _is_drawn(path):
    return path.stat().st_size > 10_000


def test_the_deep_agent_on_one_hot_features_converges_to_the_closed_form(tmp_path):
    config = posterior.Config(num_states=4, num_transitions=30, num_updates=4000)
    tables = posterior.run(config)
    values = {"mean": [], "covariance": []}
    for row in tables["results"]:
        values[row["quantity"]].append((row["closed_form"], row["trained"]))
    assert (len(values["mean"]), len(values["covariance"])) == (8, 8 * 9 // 2)
    for name, tolerance in (("mean", 1e-4), ("covariance", 1e-5)):
        exact, trained = np.array(values[name]).T
        assert np.ptp(exact) > 0.05
        np.testing.assert_allclose(trained, exact, rtol=0, atol=tolerance)
    tabular_plots.posterior(tmp_path / "posterior.png", tables, config)
    assert _is_drawn(tmp_path / "posterior.png")


def test_uncertainty_spreads_one_step_per_iteration():
    config = propagation.Config(visits=3.0, beta=1.0, sigma=2.0)
    q = np.asarray(propagation.sample_q(config), np.float64)
    spread = q.std(0)
    reached = spread > 1e-3
    for i in range(7):  # (4, down) can be next after as many steps as there are to state 4
        for state, action in np.ndindex(4, 2):
            after = max(state - 1, 0) if action == 0 else min(state + 1, 3)
            steps = 3 - after
            is_it = (state, action) == (3, 1)
            assert reached[i, state, action] == (i >= 1 if is_it else i >= steps + 2)
    # |m~| = 2 / sqrt(3 + 1) = 1, and the maximum of zero and a standard normal has variance 1/2 - 1/(2 pi).
    error = 4 / math.sqrt(2 * config.num_samples)
    assert abs(spread[1, 3, 1] - 1.0) < error
    assert abs(spread[2, 2, 1] - math.sqrt(0.5 - 0.5 / math.pi)) < error


def test_uncertainty_is_that_of_the_prior_until_cells_are_visited(tmp_path):
    config = uncertainty.Config(num_episodes=40, size=4, agents=("rlsvi", "psrl"), num_samples=2000)
    assert config.recorded == [0, 1, 2, 4, 8, 16, 32, 40]
    tables = uncertainty.run(config)
    spread, visits = {}, {}
    for row in tables["results"]:
        place = row["agent"], row["episodes"], row["row"]
        spread.setdefault(place, []).append(row["standard_deviation"])
        visits.setdefault(place, []).append(row["visits"])
    for (_, episodes, row), counts in visits.items():
        assert sum(counts) == episodes and len(counts) == row + 1
    # Values are the larger of two normals with standard deviation sigma / sqrt(beta) = 1.
    prior = math.sqrt(1.0 - 1.0 / math.pi)
    for row in range(4):
        np.testing.assert_allclose(spread["rlsvi", 0, row], prior, rtol=0, atol=5 * prior / math.sqrt(4000))
    np.testing.assert_allclose(spread["psrl", 0, 3], 0.0, atol=1e-6)  # knows the rewards
    assert np.mean(spread["rlsvi", 40, 3]) < 0.1 * prior
    tabular_plots.uncertainty(tmp_path / "uncertainty.png", tables, config)
    assert _is_drawn(tmp_path / "uncertainty.png")


def test_the_lemma_holds_at_its_bound_and_fails_far_below(tmp_path):
    config = lemma.Config(num_states=2, horizon=2, num_episodes=60, num_seeds=20, delta=0.2, index_dims=(1, 64))
    assert config.bound == math.ceil(96 * (math.log(8 / 0.2) + math.log(21)))
    tables = lemma.run(config)
    first, *_, last = tables["results"]
    assert (first["index_dim"], last["index_dim"]) == (1, config.bound) and last["is_bound"]
    assert first["failure_frequency"] == 1.0 and last["failures"] == 0
    assert 0.5 < last["smallest_ratio"] < 1.0 < last["largest_ratio"] < 1.5
    # After one visit the ratio is |sqrt(beta) z_0 + z|^2 / (beta + 1), with mean 1 and
    # variance 4 beta / (beta + 1)^2 / M.
    rows = [row for row in tables["curve"] if row["index_dim"] == 64 and row["visits"] == 1]
    (row,) = rows
    deviation = math.sqrt(4 * 3 / 16 / 64)
    assert abs(row["median"] - 1.0) < 0.5 * deviation
    assert 1.0 - 4 * deviation < row["quantile_01"] < 1.0 - deviation
    tabular_plots.lemma(tmp_path / "lemma.png", tables, config)
    assert _is_drawn(tmp_path / "lemma.png")


def test_regret_tables(tmp_path):
    config = regret.Config(
        num_episodes=60,
        num_seeds=3,
        num_states=3,
        num_actions=2,
        horizon=3,
        cost_episodes=(10, 40),
        agents=("lmc_lsvi",),
        environments=("dirichlet",),
    )
    tables = regret.run(config)
    assert len(tables["results"]) == 3
    end = {row["agent"]: row["regret"] for row in tables["curve"] if row["episode"] == 60}
    finals = [row["regret"] for row in tables["results"] if row["agent"] == "lmc_lsvi"]
    np.testing.assert_allclose(end["lmc_lsvi"], np.mean(finals))
    assert 0.0 < end["lmc_lsvi"] < end["most"] == 180.0 < end["theorem"]
    assert [(row["agent"], row["episodes"]) for row in tables["bench"]] == [("lmc_lsvi", 10), ("lmc_lsvi", 40)]
    assert all(row["step_us"] > 0.0 for row in tables["bench"])  # how it grows is tested without a clock
    tabular_plots.regret(tmp_path / "regret.png", tables, config)
    assert _is_drawn(tmp_path / "regret.png")


def test_first_window():
    optimal = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    assert [deep_sea.first_window(optimal, n) for n in (1, 2, 3, 4, 5)] == [1, 1, 4, 8, None]


def test_deep_sea_is_learned_and_failures_are_counted():
    config = deep_sea.Config(
        num_episodes=300,
        sizes=(4, 6),
        num_seeds=2,
        agents=("hyperagent", "q_learning"),
        index_dims=(4,),
        prior_means=("0",),
        window=20,
        first_seed=0,
    )
    rows = deep_sea.run(config)["results"]
    learned = [row for row in rows if row["agent"] == "hyperagent"]
    assert [(row["size"], row["seed"], row["solved"]) for row in learned] == [
        (4, 0, True),
        (4, 1, True),
        (6, 0, True),
        (6, 1, True),
    ]
    assert all(0 < row["episodes_to_learn"] < 100 for row in learned)
    failed = [row for row in rows if row["agent"] == "q_learning" and not row["solved"]]
    assert failed and all(row["interactions"] == 300 * row["size"] for row in failed)


def test_rmax_is_linear_in_the_size_of_deep_sea():
    config = deep_sea.Config(num_episodes=150, sizes=(8, 16, 32), num_seeds=3, agents=("rmax",), window=20)
    rows = deep_sea.run(config)["results"]
    assert [row["size"] for row in rows] == [8] * 3 + [16] * 3 + [32] * 3
    assert all(2.4 < row["episodes_to_learn"] / row["size"] < 3.2 for row in rows)


def test_speed_compares_the_same_work():
    rows = speed.run(speed.Config(num_seeds=4, num_episodes=200, num_states=3, horizon=3, numpy_seeds=2))["bench"]
    assert [(row["what"], row["seeds_run"]) for row in rows] == [
        ("compiled", 4),
        ("plain numpy", 2),
        ("tuned numpy", 2),
    ]
    for row in rows:
        np.testing.assert_allclose(row["us_per_episode"], 1e6 * row["seconds_run"] / (200 * row["seeds_run"]))
        np.testing.assert_allclose(row["seconds_for_all_seeds"], 800e-6 * row["us_per_episode"])
        np.testing.assert_allclose(row["times_the_compiled"], row["us_per_episode"] / rows[0]["us_per_episode"])
        assert abs(row["mean_return_at_the_end"] - rows[0]["mean_return_at_the_end"]) < 0.2


GROUPS = """
import jax, jax.numpy as jnp, numpy as np
from hyperagent_jax.tabular import base, hyperagent, mdps

four = jax.devices()
assert {group.device for group in base.groups(4, 1)} == set(four) and len(four) == 4
mdp = mdps.dirichlet(jax.random.key(0), 3, 2, 4, beta=3.0)
agent = hyperagent.make_agent(hyperagent.Config(), base.size_of(mdp))
for environment in (mdp, jax.tree.map(lambda x: jnp.stack([x] * 4), mdp)):
    found = [
        base.run_many(agent, environment, jnp.arange(4), 60, seeds_per_group=1, devices=devices)
        for devices in (four, four[:1])
    ]
    np.testing.assert_array_equal(*found)
    assert len(set(found[0].sum(1).tolist())) == 4
print("equal")
"""
STUDIES = """
import jax
from hyperagent_jax.tabular.studies import deep_sea, lemma, regret

settings = dict(num_seeds=4, seeds_per_group=1)
small = dict(num_states=3, num_actions=2, horizon=3, num_episodes=40, **settings)
runs = {
    "lemma": lambda: lemma.run(lemma.Config(index_dims=(2,), delta=0.5, epsilon=0.9, **small)),
    "regret": lambda: regret.run(
        regret.Config(agents=("rlsvi",), environments=("dirichlet",), cost_episodes=(), **small)
    ),
    "deepsea": lambda: deep_sea.run(
        deep_sea.Config(agents=("rlsvi",), sizes=(4,), num_episodes=250, window=50, **settings)
    ),
}
four, tables = jax.devices(), []
for devices in (four, four[:1]):
    jax.local_devices = lambda: devices
    tables.append({name: repr(run()["results"]) for name, run in runs.items()})
assert tables[0] == tables[1] and len(four) == 4, tables
print("equal")
"""


def _run_on_four_devices(code):
    root, flag = str(SCRIPT.parent.parent), "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "PYTHONPATH": root, "XLA_FLAGS": flag}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "equal", done.stderr


def test_groups_on_four_devices_give_the_numbers_of_one_device():
    _run_on_four_devices(GROUPS)


@pytest.mark.slow
def test_groups_on_four_devices_give_the_tables_of_one_device():
    _run_on_four_devices(STUDIES)


def test_groups_of_seeds():
    """One core's share on CPU, an even share of the devices on accelerators, or what the user wants."""

    class Device(NamedTuple):
        platform: str
        number: int

    def sizes(num_seeds, platform, num_devices, **options):
        devices = [Device(platform, i) for i in range(num_devices)]
        groups = base.groups(num_seeds, devices=devices, **options)
        assert [group.device.number for group in groups] == [i % num_devices for i in range(len(groups))]
        return [len(range(num_seeds)[group.seeds]) for group in groups]

    assert sizes(70, "cpu", 2) == [32, 32, 6]
    assert sizes(70, "cpu", 2, on_cpu=70) == [70]
    assert sizes(70, "gpu", 4) == [18, 18, 18, 16]
    assert sizes(3, "tpu", 4) == [1, 1, 1]
    assert sizes(7, "gpu", 2, seeds_per_group=2) == [2, 2, 2, 1]


def test_bad_input_is_one_clear_line(tmp_path):
    bad = tmp_path / "bad.npz"
    np.savez(
        bad,
        transitions=np.full((2, 3, 2, 3), 0.3),
        rewards=np.zeros((2, 3, 2)),
        start=np.eye(3)[0],
    )
    expected = {
        ("regret", "--beta=2"): "--beta must be at least 3 with the theory preset (Assumption 2), got 2",
        ("regret", "--index_dim=0"): "--index_dim must be at least 1, got 0",
        ("regret", f"--environments={bad}"): ("bad.npz: transitions[0, 0, 0] must sum to one, but sums to 0.9"),
        ("regret", "--environments=nowhere.npz"): "nowhere.npz is not an npz file with the arrays transitions",
        ("regret", "--agents=nobody"): "--agents must be among hyperagent",
        ("lemma", "--epsilon=2"): "--epsilon and delta must be between 0 and 1, got 2.0 and 0.1",
        ("deepsea", "--index_dims=0"): "--index_dim must be at least 1, got 0",
        ("deepsea", "--prior_means=much"): "--prior_mean must be a number or \"horizon\", got 'much'",
        ("posterior", "--window=3"): "command posterior has no setting --window",
        # Refused by memory, before anything is built.
        ("regret", "--horizon=1000000000"): "regret needs 12960.00 GB of memory, but",
        ("regret", "--index_dim=1000000000"): "regret needs 120.00 GB of memory, but",
        ("regret", "--num_ois=1000000000"): "regret needs 120.00 GB of memory, but",
        ("deepsea", "--sizes=10,1000000"): "deepsea needs 20000000000000000.00 GB of memory, but",
        ("lemma", "--index_dims=1,1000000000"): "lemma needs 800.00 GB of memory, but",
        ("posterior", "--num_transitions=2000000000", "--index_dim=1000"): "posterior needs 8000.00 GB of memory",
        ("propagation", "--num_samples=2000000000", "--index_dim=1000"): "propagation needs 8000.00 GB of memory",
        ("chain", "--length=1000000000"): "chain needs 800.00 GB of memory, but",
        ("posterior", "--num_updates=1000000000000"): "--num_updates must be less than 2**31, got 1000000000000",
        ("chain", "--num_steps=1000000000000"): "--num_steps must be less than 2**31, got 1000000000000",
        ("theorem",): "unknown command 'theorem'; choose one of lemma, regret, deepsea",
        (): "no command; choose one of lemma",
        ("lemma", "20"): "unexpected argument '20'",
    }
    scripts.check_errors(SCRIPT, expected, tmp_path)


def test_the_script_draws_episodes_to_learn(tmp_path):
    done = _run(
        "deepsea",
        "--sizes=3,4",
        "--num_seeds=2",
        "--agents=rlsvi",
        "--num_episodes=250",
        "--window=50",
        f"--logdir={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    assert _is_drawn(tmp_path / "deepsea" / "deepsea.png")
    assert sources.kind(str(tmp_path / "deepsea")) == "deep_sea"


def test_the_script_writes_tables_picture_and_configuration(tmp_path):
    arguments = ["propagation", "--num_samples=200", f"--logdir={tmp_path}"]
    done = _run(*arguments)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "propagation"
    with open(folder / "results.csv") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 7 * 4 * 2
    record = json.loads((folder / "config.json").read_text())
    assert record["identity"]["config"]["num_samples"] == 200 and "versions" in record
    assert _is_drawn(folder / "propagation.png")
    assert sources.kind(str(folder)) == sources.kind(str(folder / "results.csv")) == "tabular"
    text, summary = tabular.report([str(folder)], tmp_path / "report", None)
    assert summary == "propagation; 1 figure(s)" and _is_drawn(tmp_path / "report" / "propagation.png")
    assert "num_samples 200" in text and "run_tabular.py propagation" in text and "56 rows" in text
    refused = _run(*arguments)
    assert refused.returncode == 2 and "already holds a run" in refused.stderr
    refused = _run("propagation", "--num_samples=2", "--sigma=3e38", f"--logdir={tmp_path / 'extreme'}")
    assert refused.returncode == 2 and refused.stderr == (
        "error: propagation: results would have numbers that are not finite: give less extreme settings\n"
    )


def test_uncertainty_is_drawn_where_there_is_none(tmp_path):
    config = propagation.Config(sigma=0.0, num_samples=2)
    tables = propagation.run(config)
    assert {row["standard_deviation"] for row in tables["results"]} == {0.0}
    tabular_plots.propagation(tmp_path / "a.png", tables, config)
    assert _is_drawn(tmp_path / "a.png")


def test_gaps_of_the_chain_by_hand():
    # Values 0.25, 0.5 and 1; going back is worth half of 0.25, 0.25 and 0.5.
    np.testing.assert_allclose(chain.true_gaps(3, 0.5), [0.125, 0.375, 0.75])
    # Coefficients of two indices and the mean; the right action is 1, then 0.
    beliefs = np.array([[[1.0, 0.0, 5.0], [4.0, 4.0, 7.0]], [[0.0, 0.0, 1.0], [0.0, 6.0, 4.0]]])
    mean, spread = chain.gaps(beliefs, np.array([1, 0]), second_moment=0.25)
    np.testing.assert_allclose(mean, [2.0, -3.0])
    np.testing.assert_allclose(spread, [2.5, 3.0])  # half of |(3, 4)| and |(0, -6)|


@pytest.mark.slow
def test_the_chain_is_measured_and_drawn(tmp_path):
    done = _run("chain", "--num_steps=300", "--eval_every=200", "--num_seeds=2", f"--logdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    tables = {}
    for name in ("results", "returns"):
        with open(tmp_path / "chain" / f"{name}.csv") as f:
            tables[name] = list(csv.DictReader(f))
    assert len(tables["results"]) == 20 * len(tables["returns"]) == 20 * 2 * 2 * len(chain.VARIANTS)
    assert {row["interactions"] for row in tables["returns"]} == {"200", "300"}
    assert all(float(row["spread"]) > 0 for row in tables["results"])
    assert _is_drawn(tmp_path / "chain" / "chain.png")
