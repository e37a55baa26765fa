"""Grids: how they are planned, and the script as a user runs it."""

import csv
import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import jax
import pytest

from hyperagent_jax import agents
from hyperagent_jax import errors
from hyperagent_jax.runners import deep_sea
from hyperagent_jax.runners import grid as grid_lib

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "sweep.py"
# With the capacity given, runs of any length are the same program, which is then compiled once.
SMALL = {
    "size": 4,
    "hidden_sizes": [16, 16],
    "batch_size": 32,
    "eval_episodes": 10,
    "eval_every": 250,
    "replay_capacity": 400,
}
REFUSAL = (
    "the exact loss needs a target index that is independent of the loss index: use loss=sampled with "
    "target_index=dependent"
)


@dataclasses.dataclass(frozen=True)
class Plain:
    """An agent's config without `depth`."""

    width: int = 3
    rate: float = 0.5
    replay_capacity: int = 100

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width must be at least 1, got {self.width}")


@dataclasses.dataclass(frozen=True)
class Deep(Plain):
    """One with it."""

    depth: int = 2
    sizes: tuple[int, ...] = (1, 2)
    fast: bool = True


CONFIGS = {"plain": Plain, "deep": Deep}


def _plan(**grid):
    return grid_lib.plan({"agent": ["plain", "deep"], **grid}, CONFIGS)


def _command(grid, *arguments):
    grid = grid if isinstance(grid, str) else json.dumps(grid)
    return [sys.executable, str(SCRIPT), f"--grid={grid}", "--noprogress", *arguments]


def _run(grid, *arguments):
    return subprocess.run(_command(grid, *arguments), capture_output=True, text=True, timeout=300, check=False)


def _rows(path):
    with open(path) as f:
        return list(csv.DictReader(f))


def _without_times(rows):
    return sorted([value for name, value in row.items() if "second" not in name] for row in rows)


def test_small_sizes_come_first_then_the_order_of_the_grid_with_seeds_together():
    plan = grid_lib.plan({"seed": [1, 0], "size": [5, 4], "index_dim": [2, 1, 2]}, agents.CONFIGS)
    assert plan.settings == plan.varied == ("index_dim",)
    assert [run.key for run in plan.runs] == [
        ("hyperagent", size, seed, dim) for size in "45" for dim in "21" for seed in "10"
    ]
    task = plan.runs[-1].task
    assert (task.agent, task.protocol.size, task.seeds, task.config.index_dim) == ("hyperagent", 5, (0,), 1)
    assert task.config.replay_capacity == 10_000 * 5 and not task.maps
    assert plan.fields == (
        "agent",
        "size",
        "seed",
        "index_dim",
        "solved",
        "episodes_to_learn",
        "interactions",
        "final_return",
        "num_params",
        "num_output_params",
        "compile_seconds",
        "train_seconds",
        "interactions_per_second",
        "error",
        "command",
    )
    last = plan.runs[-1]
    command = "python experiments/run_deepsea.py --agent=hyperagent --size=5 --seed=0 --index_dim=1"
    assert last.command == f"{command} --logdir=logs/{last.file_name()}"


def test_keys_left_out_have_their_defaults():
    (run,) = grid_lib.plan({}, agents.CONFIGS).runs
    assert run.columns == {"agent": "hyperagent", "size": "20", "seed": "0"}
    assert run.task.config == agents.CONFIGS["hyperagent"](replay_capacity=200_000)
    assert run.task.protocol.solved_return == 0.99
    stochastic = grid_lib.plan({"stochastic": True, "size": [10, 20]}, agents.CONFIGS)
    assert [run.task.protocol.solved_return for run in stochastic.runs] == [0.301936, 0.293883]


def test_values_are_converted_and_written_as_in_flags():
    plan = _plan(agent="deep", rate=[1, 0.25], sizes=[7, 8], fast=False, mapping_seed=[None, 42])
    first, last = plan.runs[0], plan.runs[-1]
    assert list(first.columns.values()) == ["deep", "20", "0", "1.0", "7,8", "False", ""]
    assert list(last.columns.values()) == ["deep", "20", "0", "0.25", "7,8", "False", "42"]
    assert last.task.config == Deep(rate=0.25, sizes=(7, 8), fast=False)
    assert (first.task.protocol.mapping_seed, last.task.protocol.mapping_seed) == (None, 42)
    assert plan.varied == ("rate", "mapping_seed")
    assert [run.task.config.sizes for run in _plan(agent="deep", sizes=[[7], [8, 9]]).runs] == [(7,), (8, 9)]


def test_a_setting_that_an_agent_lacks_is_left_blank_and_run_once():
    plan = _plan(depth=[1, 2, 3], seed=[0, 1], width=5)
    assert plan.num_combinations == 12 and plan.lacking == {"plain": ["depth"]}
    assert [(run.columns["agent"], run.columns["depth"], run.columns["seed"]) for run in plan.runs] == [
        ("plain", "", "0"),
        ("plain", "", "1"),
        *[("deep", depth, seed) for depth in "123" for seed in "01"],
    ]
    assert all(run.task.config.width == 5 for run in plan.runs)


def test_names_of_files_are_unique_readable_and_independent_of_the_order_of_keys():
    plan, other = _plan(depth=[1, 2], width=[3, 4]), _plan(width=[3, 4], depth=[1, 2])
    names = {run.file_name() for run in plan.runs}
    assert len(names) == len(plan.runs) == 6
    assert names == {run.file_name() for run in other.runs}
    assert any(name.startswith("agent=deep_size=20_seed=0_depth=2_width=4_") for name in names)
    long = _plan(agent="deep", sizes=[list(range(100, 200)), list(range(100, 201))])
    assert len({run.file_name() for run in long.runs}) == 2
    assert all(len(run.file_name()) < 150 for run in long.runs)


def test_identity_leaves_the_values_of_the_grid_open():
    smaller = _plan(agent="deep", depth=1, max_episodes=5)
    larger = _plan(max_episodes=[5, 6], depth=[1, 2], size=4)
    assert smaller.identity["grid_keys"] == larger.identity["grid_keys"] == ["depth", "max_episodes"]
    assert (
        smaller.identity["protocol"]
        == larger.identity["protocol"]
        == {
            "stochastic": False,
            "mapping_seed": None,
            "eval_every": 1000,
            "eval_episodes": 100,
            "solved_return": None,
        }
    )
    assert smaller.identity["configs"]["deep"] == larger.identity["configs"]["deep"]
    assert list(larger.identity["configs"]) == ["plain", "deep"]


@pytest.mark.parametrize(
    "grid, message",
    [
        ({"size": ["ten"]}, 'size must be a whole number, got "ten"'),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": [True]}, "size must be a whole number, got true"),
        ({"seed": []}, "seed has no values: its list in the grid is empty"),
        ({"seed": [-1]}, "seed must be between 0 and 2147483648, got -1"),
        ({"mapping_seed": -1}, "mapping_seed must be between 0 and 4294967295, got -1"),
        ({"mapping_seed": "x"}, 'mapping_seed must be a whole number or null, got "x"'),
        ({"agent": "nobody"}, "unknown agent 'nobody'; choose one of plain, deep"),
        ({"agent": [1]}, "agent must be a string, got 1"),
        ({"depth": [1.5]}, "depth must be a whole number, got 1.5"),
        ({"width": [3, 0]}, "width must be at least 1, got 0"),
        ({"rate": "0.5"}, 'rate must be a number, got "0.5"'),
        ({"rate": 10**400}, f"rate must be a number, got {10**400}"),
        ({"rate": None}, "rate must be a number, got null"),
        ({"fast": 1}, "fast must be true or false, got 1"),
        ({"sizes": 7}, "sizes must be a list of a whole number each, got 7"),
        ({"sizes": [[7], 8]}, "sizes must be a list of a whole number each, got 8"),
        ({"sizes": []}, "sizes has no values: its list in the grid is empty"),
        (
            {"agent": "plain", "depth": 1},
            "the grid's 'depth' is no setting of the protocol or of plain; there are: size, stochastic, "
            "mapping_seed, max_episodes, eval_every, eval_episodes, solved_return, width, rate, replay_capacity",
        ),
    ],
)
def test_bad_grids_are_one_clear_line(grid, message):
    with pytest.raises(errors.UserError) as error:
        _plan(**grid)
    assert str(error.value) == message


def test_a_grid_is_read_from_json_or_a_file(tmp_path):
    (tmp_path / "grid.json").write_text('\n {"size": [4]}\n')
    assert grid_lib.read(' {"size": [4]}') == grid_lib.read(str(tmp_path / "grid.json")) == {"size": [4]}
    (tmp_path / "list.json").write_text("[4]")
    list_file, nowhere = tmp_path / "list.json", tmp_path / "nowhere.json"
    for text, message in {
        '{"size": [4}': "--grid is not valid JSON: Expecting ',' delimiter: line 1 column 12 (char 11)",
        '{"size": 4, "size": 5}': "--grid is not valid JSON: 'size' stands there twice",
        '{"sigma": NaN}': "--grid is not valid JSON: NaN is no number",
        str(list_file): f"--grid={list_file} must be a JSON object that maps names of settings to lists of values",
        str(nowhere): f"cannot read --grid={nowhere}: No such file or directory",
    }.items():
        with pytest.raises(errors.UserError) as error:
            grid_lib.read(text)
        assert str(error.value) == message


def test_the_memory_of_the_largest_run_is_known_before_it_is_taken():
    grid = {"size": [4, 6], "replay_capacity": [100, 200], "target_index": ["transition", "dependent"]}
    plan = grid_lib.plan(grid, agents.CONFIGS)
    refused = grid_lib.refusals(plan.runs)
    (largest,) = [
        run.task
        for run in plan.runs
        if run.columns["size"] == "6" and run.columns["replay_capacity"] == "200" and run.key not in refused
    ]
    program = deep_sea.compile_program(largest)
    states = program.init()
    states = states._replace(key=jax.random.key_data(states.key))
    assert grid_lib.largest_bytes(plan.runs, refused) == sum(leaf.nbytes for leaf in jax.tree.leaves(states))


def test_agents_say_what_they_refuse():
    grid = {"size": 4, "seed": [0, 1], "target_index": ["transition", "dependent"]}
    plan = grid_lib.plan(grid, agents.CONFIGS)
    assert grid_lib.refusals(plan.runs) == {("hyperagent", "4", seed, "dependent"): REFUSAL for seed in "01"}
    names = ["hyperagent", "hyperagent_prioritized"]
    plan = grid_lib.plan({"agent": names, "recent_fraction": 0.75}, agents.CONFIGS)
    message = "recent_fraction and priority_fraction must be at least 0 and at most 1 together, got 0.75 and 0.5"
    assert grid_lib.refusals(plan.runs) == {("hyperagent_prioritized", "20", "0", "0.75"): message}


def test_bad_input_ends_the_script_before_anything_is_written(tmp_path):
    grid = {"size": 4, "loss": "exact", "target_index": ["dependent"], "seed": [0, 1]}
    done = _run(grid, f"--logdir={tmp_path / 'run'}")
    message = f"error: no combination of the grid can be run: {REFUSAL}\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_is_a_row_and_is_run_again(tmp_path):
    grid = {**SMALL, "max_episodes": 100, "solved_return": -1, "seed": [0, 1]}
    damaged = tmp_path / "checkpoints" / f"{grid_lib.plan(grid, agents.CONFIGS).runs[0].file_name()}.npz"
    damaged.parent.mkdir()
    damaged.write_text("no checkpoint")
    options = [f"--logdir={tmp_path}", "--num_workers=1"]
    done = _run(grid, *options)
    assert (done.returncode, done.stderr) == (0, "")
    failed, well = _rows(tmp_path / "results.csv")
    assert failed["error"].startswith(f"CheckpointError: checkpoint {damaged} cannot be read (")
    assert failed["error"].endswith("): delete it to start anew")
    settings = {
        "hidden_sizes": "16,16",
        "batch_size": "32",
        "eval_episodes": "10",
        "eval_every": "250",
        "replay_capacity": "400",
        "max_episodes": "100",
        "solved_return": "-1.0",
    }
    assert failed == {
        **dict.fromkeys(failed, ""),
        **settings,
        "agent": "hyperagent",
        "size": "4",
        "seed": "0",
        "solved": "False",
        "error": failed["error"],
        "command": "python experiments/run_deepsea.py --agent=hyperagent --size=4 --seed=0 "
        + " ".join(f"--{name}={value}" for name, value in settings.items())
        + f" --logdir=logs/{damaged.stem}",
    }
    outcome = {
        "agent": "hyperagent",
        "size": "4",
        "solved": "True",
        "episodes_to_learn": "62",
        "interactions": "250",
        "num_params": "704",
        "num_output_params": "160",
        "error": "",
    }
    assert well.items() >= {**settings, **outcome, "seed": "1"}.items()
    lines = done.stdout.splitlines()
    megabytes = grid_lib.largest_bytes(grid_lib.plan(grid, agents.CONFIGS).runs) / 1e6
    assert lines[0] == (
        f"2 run(s) in 1 cell(s), {', '.join(f'{name}={value}' for name, value in settings.items())}, "
        f"states of up to {megabytes:.3g} MB each; results in {tmp_path}"
    )
    assert lines[1] == f"hyperagent size 4 seed 0: ERROR {failed['error']}"
    assert lines[2].startswith("hyperagent size 4 seed 1: solved in 62 episodes (250 interactions, ")
    assert lines[3:] == [
        "",
        "| agent | size | solved | episodes_to_learn | errors |",
        "|---|---|---|---|---|",
        "| hyperagent | 4 | 1 of 2 | 62.0 | 1 |",
        "",
        f"1 of 2 runs solved, 1 with an error; {tmp_path}/results.csv",
    ]
    damaged.unlink()
    again = _run(grid, *options, "--resume")
    assert again.returncode == 0 and "1 of 2 runs are already there" in again.stdout
    kept, mended = _rows(tmp_path / "results.csv")
    assert kept == well and mended.items() >= {**settings, **outcome, "seed": "0"}.items()


def test_the_command_of_a_row_runs_it_again(tmp_path):
    grid = {**SMALL, "agent": "hyperagent_ois", "max_episodes": 500, "seed": [3], "stochastic": True}
    done = _run(grid, f"--logdir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    (row,) = _rows(tmp_path / "sweep" / "results.csv")
    _, *arguments = shlex.split(row["command"])
    command = [sys.executable, *arguments, "--noprogress", f"--logdir={tmp_path / 'alone'}"]
    done = subprocess.run(command, cwd=SCRIPT.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (alone,) = _rows(tmp_path / "alone" / "results.csv")
    outcome = ("agent", "size", "seed", "solved", "episodes_to_learn", "interactions", "final_return")
    assert [alone[name] for name in outcome] == [row[name] for name in outcome]


def test_killed_resumed_and_extended_equals_unbroken(tmp_path):
    """kill -9 of everything in the middle; --resume with one more seed ends in the rows of an unbroken sweep."""
    grid = {**SMALL, "max_episodes": 2000, "solved_return": 2, "target_index": ["transition", "dependent"]}
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = _run({**grid, "seed": [0, 1, 2, 3]}, f"--logdir={unbroken}", "--num_workers=1")
    assert done.returncode == 0, done.stderr
    assert "0 of 8 runs solved, 4 with an error" in done.stdout

    options = [f"--logdir={broken}", "--num_workers=2", "--checkpoint_seconds=0", "--resume"]
    process = subprocess.Popen(
        _command({**grid, "seed": [0, 1, 2]}, *options), stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        finished = _rows(broken / "results.csv") if (broken / "results.csv").exists() else []
        # Seeds 0 and 1 run side by side, so one or both have ended when seed 2 is at its first checkpoint.
        if any(row["error"] == "" for row in finished) and list(broken.glob("checkpoints/*seed=2*.npz")):
            break
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = [row for row in _rows(broken / "results.csv") if not row["error"]]
    assert 1 <= len(before) <= 2 and list(broken.glob("checkpoints/*seed=2*.npz"))

    done = _run({**grid, "seed": [0, 1, 2, 3]}, *options)
    assert done.returncode == 0, done.stderr
    rows = _rows(broken / "results.csv")
    assert len(rows) == 8 and all(row in rows for row in before)
    assert _without_times(rows) == _without_times(_rows(unbroken / "results.csv"))
    assert not list(broken.glob("checkpoints/*"))
    record = json.loads((broken / "config.json").read_text())
    assert record["grid"]["seed"] == [0, 1, 2, 3]
    assert record["identity"]["configs"]["hyperagent"]["index_dim"] == 4
