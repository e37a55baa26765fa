"""bsuite: ids, environments, exact resume, sweeps that survive kill -9, one line for bad input."""

import dataclasses
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest
import scripts

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax.environments import bsuite_adapter
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import bsuite as bsuite_lib
from hyperagent_jax.experiment import run_context

sweep = pytest.importorskip("bsuite.sweep")

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_bsuite.py"
CONFIG = agents.CONFIGS["hyperagent"](hidden_sizes=(8, 8), batch_size=16, min_replay=20)
SMALL = ["--hidden_sizes=8,8", "--batch_size=16", "--min_replay=20"]


def _task(folder, bsuite_id="catch/3", max_episodes=60, config=CONFIG, agent="hyperagent"):
    return base.Task(
        "bsuite",
        agent,
        config,
        bsuite_lib.Protocol(bsuite_id, max_episodes),
        seeds=(0,),
        columns=(("bsuite_id", bsuite_id),),
        folder=str(folder),
        checkpoint_seconds=0.0,
    )


def _run(task, stop_after=None, asked=None):
    """Runs a task; stops when the question was asked that often. Returns the rows it reported."""
    asked, rows = [] if asked is None else asked, []

    def should_stop():
        asked.append(None)
        return stop_after is not None and len(asked) > stop_after

    def report(event):
        if event.kind == "result":
            rows.append(event.row)

    bsuite_lib.EXPERIMENT.run(task, run_context.RunContext(task, report, should_stop))
    return rows


def _log(task):
    return bsuite_adapter.csv_file(task.protocol.bsuite_id, pathlib.Path(task.folder) / "csv").read_text()


def _without_times(row):
    return {name: value for name, value in row.items() if "second" not in name}


def test_names_stand_for_ids():
    assert bsuite_adapter.ids("deep_sea/3") == ("deep_sea/3",)
    assert bsuite_adapter.ids("deep_sea") == tuple(f"deep_sea/{i}" for i in range(21))
    assert bsuite_adapter.ids("SWEEP") == tuple(sweep.SWEEP) and len(sweep.SWEEP) == 468
    assert bsuite_adapter.ids("TESTING, catch/0,bandit/1") == (*sweep.TESTING, "bandit/1")  # each once


@pytest.mark.parametrize(
    "text, message",
    [
        ("deep_sea/21", "unknown bsuite id 'deep_sea/21': the last id of deep_sea is deep_sea/20"),
        ("deep_see", "unknown bsuite id or experiment 'deep_see'; choose SWEEP, TESTING, an id such as "),
        (" ,", "no bsuite id given"),
    ],
)
def test_names_that_stand_for_nothing(text, message):
    with pytest.raises(errors.UserError) as error:
        bsuite_adapter.ids(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "bsuite_id",
    [
        "bandit_noise/7",
        "cartpole/0",
        "cartpole_noise/9",
        "cartpole_swingup/5",
        "catch_noise/1",
        "catch_scale/0",
        "mountain_car_noise/4",
        "deep_sea/1",
        "deep_sea_stochastic/2",
        "discounting_chain/1",
        "memory_len/4",
        "memory_size/3",
        "mountain_car/1",
        "umbrella_distract/3",
        "umbrella_length/6",
    ],
)
def test_environments_are_bsuites_and_repeat_themselves(bsuite_id):
    problem = bsuite_adapter.problem(bsuite_id)
    first, second, other = (bsuite_adapter.make(bsuite_id, seed) for seed in (0, 0, 1))
    assert type(first) is type(bsuite_adapter._bsuite()[0].load_from_id(bsuite_id))
    assert problem.num_episodes == sweep.EPISODES[bsuite_id] == first.bsuite_num_episodes
    rng, longest, differs = np.random.RandomState(0), 0, False
    for _ in range(4):
        steps = [environment.reset() for environment in (first, second, other)]
        length = 0
        while not steps[0].last():
            action = rng.randint(problem.spec.num_actions)
            steps = [environment.step(action) for environment in (first, second, other)]
            np.testing.assert_array_equal(steps[0].observation, steps[1].observation)
            assert steps[0].reward == steps[1].reward
            differs |= steps[0].reward != steps[2].reward
            differs |= not np.array_equal(steps[0].observation, steps[2].observation)
            length += 1
            if steps[2].last() and not steps[0].last():
                other.reset()
        longest = max(longest, length)
        observation = problem.observe(steps[0].observation)
        assert observation.shape == problem.spec.observation_shape
    assert longest <= problem.longest_episode
    # Seeds that bsuite sets are bsuite's; whatever else is random follows the seed of the run.
    fixed = ("deep_sea", "discounting_chain", "memory_len", "memory_size", "umbrella_distract")
    is_fixed = bsuite_id.split("/")[0] in fixed
    assert differs != is_fixed


def test_deep_sea_is_seen_as_cells():
    problem, environment = bsuite_adapter.problem("deep_sea/0"), bsuite_adapter.make("deep_sea/0", 0)
    assert problem.spec.num_states == 100
    cells = [int(problem.observe(environment.reset().observation))]
    for _ in range(9):
        right = environment._action_mapping[environment._row, environment._column]
        cells.append(int(problem.observe(environment.step(right).observation)))
    assert cells == [11 * i for i in range(10)]  # the diagonal


@pytest.mark.parametrize("bsuite_id", ["catch/3", "deep_sea_stochastic/0"])
def test_resume_gives_the_unbroken_run(tmp_path, bsuite_id):
    unbroken, asked, asked_again = _task(tmp_path / "unbroken", bsuite_id), [], []
    (expected,) = _run(unbroken, asked=asked)
    assert expected["status"] == "partial" and expected["reason"] == "60 of 10,000 episodes"
    broken = _task(tmp_path / "broken", bsuite_id)
    assert not _run(broken, stop_after=1)
    half = _log(broken)
    (found,) = _run(broken, asked=asked_again)
    assert len(asked_again) == len(asked) - 1 > 0  # it did not start from the beginning
    assert _without_times(found) == _without_times(expected)
    assert half != _log(broken) == _log(unbroken)


def test_the_log_is_bsuites_own(tmp_path):
    from bsuite.logging import csv_load

    task = _task(tmp_path, "bandit/2", max_episodes=30)
    (row,) = _run(task)
    frame, _ = csv_load.load_bsuite(str(tmp_path / "csv"))
    assert list(frame.episode) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 25, 30]
    assert set(frame.bsuite_id) == {"bandit/2"} and set(frame.mapping_seed) == {2}
    last = frame.iloc[-1]
    assert last.total_return == pytest.approx(row["total_return"], abs=1e-3)
    assert last.total_regret == pytest.approx(30 - row["total_return"], abs=1e-3)
    assert row["steps"] == row["episodes"] == 30


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    task = _task(tmp_path)
    _run(task, stop_after=1)
    other = dataclasses.replace(task, config=dataclasses.replace(CONFIG, sigma=0.5))
    with pytest.raises(errors.UserError, match="was made with a different configuration: move it away"):
        _run(other)


def test_missing_data_is_a_row(tmp_path, monkeypatch):
    from bsuite.environments import mnist

    def load_mnist():
        raise OSError("no such file")

    monkeypatch.setattr(mnist.datasets, "load_mnist", load_mnist)
    bsuite_adapter._mnist_problem.cache_clear()
    reason = "the MNIST data set cannot be loaded: no such file"
    assert _run(_task(tmp_path, "mnist_noise/1")) == [{"status": "skipped", "reason": reason}]
    bsuite_adapter._mnist_problem.cache_clear()


def test_predicted_memory_is_what_the_state_takes(tmp_path):
    import jax

    task = _task(tmp_path, "catch/0")
    program = bsuite_lib.make_program(task)
    state = program.init(jax.random.key(0), np.zeros((10, 5), np.float32))
    assert state.replay.storage.transition.r_t.shape == (90_000,)  # 10,000 episodes of 9 steps
    state = state._replace(key=jax.random.key_data(state.key))
    assert bsuite_lib.EXPERIMENT.num_bytes(task) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def _command(*options):
    return [sys.executable, str(SCRIPT), "--noprogress", *SMALL, *options]


def _script(*options):
    return subprocess.run(_command(*options), capture_output=True, text=True)


@pytest.mark.timeout(900)  # many starts of a script
def test_killed_and_resumed_equals_unbroken(tmp_path):
    """kill -9 in the middle of a sweep; --resume gives the rows and logs of an unbroken one, none twice."""
    ids = "bandit/0,catch/1,deep_sea/2"
    options = [f"--bsuite_id={ids}", "--max_episodes=300"]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = _script(*options, f"--logdir={unbroken}", "--num_workers=1")
    assert done.returncode == 0, done.stderr
    options += [f"--logdir={broken}", "--num_workers=2", "--checkpoint_seconds=0", "--resume"]

    def is_in_the_middle():
        return 1 <= len(scripts.rows(broken / "results.csv")) < 3 and any(broken.glob("checkpoints/*.npz"))

    scripts.kill_in_the_middle(_command(*options), broken, is_in_the_middle)
    before = scripts.rows(broken / "results.csv")
    done = _script(*options)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of 3 runs are already done" in done.stdout
    rows = scripts.rows(broken / "results.csv")
    assert rows[: len(before)] == before

    def outcome(rows):
        return sorted(sorted(_without_times(row).items()) for row in rows)

    assert outcome(rows) == outcome(scripts.rows(unbroken / "results.csv"))
    logs = sorted(path.name for path in (unbroken / "csv").iterdir())
    assert len(logs) == 3 and logs == sorted(path.name for path in (broken / "csv").iterdir())
    for name in logs:
        assert (broken / "csv" / name).read_text() == (unbroken / "csv" / name).read_text()
    assert not list(broken.glob("checkpoints/*"))

    log = broken / "csv" / "bsuite_id_-_catch-1.csv"
    whole = log.read_text()
    log.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    refused = _script(*options)
    message = f"error: {log} is incomplete: delete it and run catch/1 again\n"
    assert (refused.returncode, refused.stderr) == (2, message)
    log.unlink()
    again = _script(*options)  # as that line says; the other ids are left alone
    assert again.returncode == 0 and "2 of 3 runs are already done" in again.stdout
    assert "the log of catch/1 is missing: running it again" in again.stdout and log.read_text() == whole
    assert outcome(scripts.rows(broken / "results.csv")) == outcome(scripts.rows(unbroken / "results.csv"))


def test_rows_of_failed_and_skipped_ids_do_not_block_others(tmp_path):
    logdir = tmp_path / "run"
    options = [f"--logdir={logdir}", "--max_episodes=30", "--num_workers=1"]
    damaged = logdir / "checkpoints" / "bandit-0_seed_0.npz"
    checkpoint.save(damaged, {}, {"fingerprint": {}, "progress": {}})
    done = _script(*options, "--bsuite_id=bandit/0")
    assert done.returncode == 0
    (row,) = scripts.rows(logdir / "results.csv")
    assert row["status"] == "failed" and "different configuration" in row["reason"] and damaged.exists()
    done = _script(*options, "--bsuite_id=bandit/1", "--resume")
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in scripts.rows(logdir / "results.csv")] == ["partial", "failed"]
    damaged.unlink()
    done = _script(*options, "--bsuite_id=bandit/0,bandit/1", "--resume")
    assert "1 of 2 runs are already done" in done.stdout
    rows = scripts.rows(logdir / "results.csv")
    assert [row["bsuite_id"] for row in rows] == ["bandit/0", "bandit/1"]
    assert [row["status"] for row in rows] == ["partial", "partial"]

    # The command of a row gives that row.
    _, script, *flags = shlex.split(rows[0]["command"])
    alone = subprocess.run(
        [sys.executable, script, *flags, f"--logdir={tmp_path / 'alone'}", "--noprogress"],
        capture_output=True,
        cwd=SCRIPT.parent.parent,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    (again,) = scripts.rows(tmp_path / "alone" / "results.csv")
    assert again["total_return"] == rows[0]["total_return"]


def test_logs_of_another_program_are_not_replaced(tmp_path):
    log = tmp_path / "csv" / "bsuite_id_-_bandit-0.csv"
    log.parent.mkdir()
    log.write_text("steps\n")
    done = _script(f"--logdir={tmp_path}", "--bsuite_id=bandit/0", "--max_episodes=30", "--overwrite")
    message = f"--logdir={tmp_path} contains logs of another program: choose another --logdir"
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n") and log.read_text() == "steps\n"


def test_last_logged_is_bsuites():
    from bsuite.utils import wrappers

    logged = [episode for episode in range(1, 2001) if wrappers._logarithmic_logging(episode)]
    for episodes in range(1, 2001):
        assert bsuite_adapter.last_logged(episodes) == max(x for x in logged if x <= episodes)


def test_bad_input_is_one_line_and_writes_nothing(tmp_path):
    for options, message in {
        ("--bsuite_id=deep_sea/99",): "unknown bsuite id 'deep_sea/99': the last id of deep_sea is ",
        ("--agent=dqn",): "unknown agent 'dqn'; choose one of hyperagent, ",
        ("--optimizer=lazy_adam", "--bsuite_id=catch/0"): "optimizer=lazy_adam needs integer observations",
        ("--seed=4294967296",): "4294967296 is not an integer in the range [0, 2147483648]",
        ("--max_episodes=0",): "max_episodes must be at least 1, got 0",
    }.items():
        done = _script(*options, f"--logdir={tmp_path / 'run'}")
        assert done.returncode == 2 and done.stderr.startswith("error: ") and message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "run").exists()
