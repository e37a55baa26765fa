"""Settings that cannot run are one clear line, before anything is built; so is what comes in the first seconds."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from hyperagent_jax import errors
from hyperagent_jax import host_memory
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import sweep
from hyperagent_jax.tabular import mdps
from hyperagent_jax.tabular.studies import chain
from hyperagent_jax.tabular.studies import deep_sea
from hyperagent_jax.tabular.studies import lemma
from hyperagent_jax.tabular.studies import posterior
from hyperagent_jax.tabular.studies import propagation
from hyperagent_jax.tabular.studies import regret

EXPERIMENTS = pathlib.Path(__file__).parent.parent / "experiments"


@pytest.mark.parametrize(
    "study, settings, message",
    [
        (regret, {"agents": ()}, "agents must not be empty"),
        (regret, {"environments": ()}, "environments must not be empty"),
        (regret, {"prior_mean": "nan"}, "prior_mean must be a number or \"horizon\", got 'nan'"),
        (regret, {"first_seed": -1}, "first_seed must be at least 0, got -1"),
        (regret, {"sigma": float("nan")}, "sigma must be a finite number, got nan"),
        (regret, {"lmc_sigma": float("inf")}, "lmc_sigma must be a finite number, got inf"),
        (deep_sea, {"agents": ()}, "agents must not be empty"),
        (deep_sea, {"sizes": ()}, "sizes must not be empty"),
        (deep_sea, {"prior_means": ()}, "prior_means must not be empty"),
        (deep_sea, {"index_dims": ()}, "index_dims must not be empty"),
        (deep_sea, {"first_seed": -1}, "first_seed must be at least 0, got -1"),
        (deep_sea, {"first_seed": 2**31 - 4}, "first_seed must be at most 2147483643, got 2147483644"),
        (regret, {"first_seed": 10**30}, f"first_seed must be at most 2147483618, got {10**30}"),
        (regret, {"lmc_sigma": -1.0}, "lmc_sigma must be at least 0.0, got -1.0"),
        (regret, {"sigma": 1e39}, "sigma must be a finite number of 32 bits, got 1e+39"),
        (deep_sea, {"delta": 0.0}, "delta must be greater than 0.0 and at most 1.0, got 0.0"),
        (deep_sea, {"beta": 0.0}, "beta must be greater than 0.0, got 0.0"),
        (chain, {"seed": 2**31 - 1}, "seed must be at most 2147483646, got 2147483647"),
        (posterior, {"discount": 1.0}, "discount must be at least 0 and below 1, got 1.0"),
        (posterior, {"discount": float("nan")}, "discount must be a finite number, got nan"),
        (posterior, {"learning_rate": float("nan")}, "learning_rate must be a finite number, got nan"),
        (posterior, {"learning_rate": 0.0}, "learning_rate must be greater than 0.0, got 0.0"),
        (posterior, {"seed": -1}, "seed must be at least 0, got -1"),
        (posterior, {"seed": 2**31}, "seed must be at most 2147483647, got 2147483648"),
        (propagation, {"visits": -1.0}, "visits must be at least 0.0, got -1.0"),
        (propagation, {"sigma": float("inf")}, "sigma must be a finite number, got inf"),
        (lemma, {"epsilon": 0.0}, "epsilon must be greater than 0.0, got 0.0"),
        (lemma, {"delta": 2.0}, "delta must be greater than 0.0 and at most 1.0, got 2.0"),
        (lemma, {"beta": float("nan")}, "beta must be a finite number, got nan"),
    ],
)
def test_tabular_studies(study, settings, message):
    with pytest.raises(ValueError) as error:
        study.Config(**settings)
    assert str(error.value) == message


def test_an_mdp_of_other_numbers_is_refused(tmp_path):
    arrays = {"transitions": np.ones((1, 1, 1, 1)), "rewards": np.zeros((1, 1, 1)), "start": np.ones(1)}
    np.savez(tmp_path / "mdp.npz", **arrays)
    assert mdps.load(tmp_path / "mdp.npz").rewards.shape == (1, 1, 1)
    for wrong in (np.zeros((1, 1, 1), complex), np.array([[["a"]]]), np.array([[[None]]])):
        np.savez(tmp_path / "mdp.npz", **{**arrays, "rewards": wrong})
        with pytest.raises(ValueError, match="is not an npz file with the arrays transitions, rewards, start"):
            mdps.load(tmp_path / "mdp.npz")


@pytest.mark.parametrize(
    "experiment, grid",
    [
        ("deepsea", {"size": 4, "batch_size": 10**9}),
        ("deepsea", {"size": 4, "index_dim": 10**9}),
        ("deepsea", {"size": 4, "hidden_sizes": [10**9]}),
        ("deepsea", {"size": 4, "num_ois": 10**9}),
        ("deepsea", {"size": 4, "eval_episodes": 10**9}),
        ("jax", {"env": "explore/deep_sea_4", "eval_episodes": 10**9}),
        ("gymnasium", {"env": "CartPole-v1", "batch_size": 10**9}),
        ("bsuite", {"bsuite_id": "catch/0", "batch_size": 10**9}),
        ("atari", {"game": "Pong", "batch_size": 10**9}),
    ],
)
def test_absurd_sizes_are_refused_by_memory(experiment, grid, monkeypatch):
    if experiment == "jax":
        grid["env"] = "explore/mountain_car"
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 8 * 10**9)
    plan = sweep.plan(base.get(experiment), [grid], "logs/x")
    with pytest.raises(
        errors.UserError, match=r"the run needs [\d.]+ GB of memory, but 8.00 GB are free: lower --"
    ):
        driver._check(plan)


def test_a_grid_of_a_billion_is_refused_at_once():
    thousand = list(range(1, 1001))
    grid = {"seed": thousand, "index_dim": thousand, "min_replay": thousand}
    with pytest.raises(errors.UserError, match="1,000,000,000 combinations, but a sweep is limited to 1,000,000:"):
        sweep.plan(base.get("deepsea"), [grid], "logs/x")


def test_a_shortage_of_memory_is_known_by_its_words():
    words = "RESOURCE_EXHAUSTED: Out of memory allocating 1920000010512 bytes."
    assert host_memory.is_shortage(jax.errors.JaxRuntimeError(words)) and host_memory.is_shortage(MemoryError())
    assert not host_memory.is_shortage(RuntimeError("another"))


@pytest.mark.parametrize(
    "error", [RuntimeError("Unable to initialize backend 'tpu'\nsecond line"), AssertionError()]
)
def test_a_device_that_is_not_there_is_one_line(error, monkeypatch):
    said = {RuntimeError: "RuntimeError: Unable to initialize backend 'tpu'"}.get(type(error), "AssertionError")

    def missing():
        raise error

    monkeypatch.setattr(jax, "default_backend", missing)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    with pytest.raises(errors.UserError) as refused:
        cli.require_backend()
    assert str(refused.value) == (
        f"jax cannot use JAX_PLATFORMS='tpu' here ({said}): unset it, or install jax for that platform"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_imports_is_one_line(number):
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
sys.path.insert(0, {str(EXPERIMENTS)!r})
import common
import os, runpy, threading
threading.Timer(0.2, os.kill, (os.getpid(), {int(number)})).start()
runpy.run_path({str(EXPERIMENTS / "run_deepsea.py")!r})
import time
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_what_is_ignored_stays_ignored():
    code = (
        f"import signal, sys; sys.path.insert(0, {str(EXPERIMENTS)!r}); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); import common; "
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def test_settings_of_slurm(monkeypatch):
    values = cli.flags.FlagValues()
    monkeypatch.setattr(cli.flags, "FLAGS", values)
    for define in ("DEFINE_bool", "DEFINE_integer", "DEFINE_float", "DEFINE_enum", "DEFINE_string", "DEFINE_list"):
        original = getattr(cli.flags, define)
        monkeypatch.setattr(
            cli.flags, define, lambda *a, _f=original, **options: _f(*a, flag_values=values, **options)
        )
    cli.define_run_flags()
    arguments = [
        "--launcher=slurm",
        "--slurm_partition=cpu",
        "--slurm_options=account=me,slurm_mem=8GB,gpu-bind=x",
    ]
    values(["script", *arguments, "--slurm_minutes=90", "--num_workers=30"])
    settings = cli.cluster_settings("logs/x")
    assert settings.options == {"partition": "cpu", "account": "me", "mem": "8GB", "gpu_bind": "x"}
    assert (settings.minutes, settings.most_jobs, settings.address) == (90, 30, "slurm")
    assert settings.folder == os.path.abspath("logs/x")
    assert json.dumps(dict(settings.environment)).count(str(EXPERIMENTS.parent)) >= 1
    # Jobs of about a quarter of what a slot gets, at most 50 runs.
    assert [settings.job_size(n, 10) for n in (1, 39, 80, 400, 10**5)] == [1, 1, 2, 10, 50]
    for flag in ("--cpus_per_task=nan", "--gpus_per_task=inf"):
        name, _, value = flag.partition("=")
        values.unparse_flags()
        values(["script", "--cpus_per_task=1", "--gpus_per_task=0", flag])
        with pytest.raises(errors.UserError, match=f"{name} must be a finite number, got {value}"):
            cli.cluster_settings("logs/x")
    values(["script", "--cpus_per_task=1", "--gpus_per_task=0", "--slurm_options=account"])
    with pytest.raises(errors.UserError, match="--slurm_options=account must have the form name=value"):
        cli.cluster_settings("logs/x")
