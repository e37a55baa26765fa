"""Grids: how they are planned, and the script as a user runs it."""

import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import types

import jax
import pytest
import scripts

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import atari
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import deep_sea
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import jax_env
from hyperagent_jax.experiment import run_context
from hyperagent_jax.experiment import sweep

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
    "the exact loss needs a target index that is independent of the loss index: use the sampled loss with "
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


class Small(deep_sea.DeepSea):
    """DeepSea with these agents."""

    def configs(self, options=None):
        return CONFIGS


def _plan(*grids, experiment=deep_sea.EXPERIMENT, logdir="logs/sweep"):
    return sweep.plan(experiment, grids, str(logdir))


def _small_plan(**grid):
    return _plan({"agent": ["plain", "deep"], **grid}, experiment=Small())


def _columns(task):
    """What identifies a run, by the names of columns."""
    (seed,) = task.seeds
    return task.columns_of(seed)


def _command(grid, *arguments):
    grid = grid if isinstance(grid, str) else json.dumps(grid)
    return [sys.executable, str(SCRIPT), f"--grid={grid}", "--noprogress", *arguments]


def _run(grid, *arguments):
    return subprocess.run(_command(grid, *arguments), capture_output=True, text=True, timeout=300, check=False)


def _without_times(rows):
    return [[value for name, value in row.items() if "second" not in name] for row in rows]


def test_small_sizes_come_first_then_the_order_of_the_grid_with_seeds_together():
    plan = _plan({"seed": [1, 0], "size": [5, 4], "index_dim": [2, 1, 2]})
    assert plan.key_fields == ("agent", "size", "seed", "index_dim") and plan.shown == ("index_dim",)
    assert [plan.key(_columns(task)) for task in plan.tasks] == [
        ("hyperagent", size, seed, dim) for size in "45" for dim in "21" for seed in "10"
    ]
    task = plan.tasks[-1]
    assert (task.agent, task.protocol.size, task.seeds, task.config.index_dim) == ("hyperagent", 5, (0,), 1)
    assert task.config.replay_capacity == 10_000 * 5 and task.is_cell
    assert plan.result_fields == (
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
    command = "python experiments/run_deepsea.py --agent=hyperagent --size=5 --seed=0 --index_dim=1"
    assert plan.experiment.command(task, 0) == f"{command} --logdir=logs/{task.name}"


def test_keys_left_out_have_their_defaults():
    (task,) = _plan({}).tasks
    assert _columns(task) == {"agent": "hyperagent", "size": "20", "seed": "0"}
    assert task.config == agents.CONFIGS["hyperagent"](replay_capacity=200_000)
    assert task.protocol.solved_return == 0.99
    stochastic = _plan({"stochastic": True, "size": [10, 20]})
    assert [task.protocol.solved_return for task in stochastic.tasks] == [0.301936, 0.293883]


def test_values_are_converted_and_written_as_in_flags():
    plan = _small_plan(agent="deep", rate=[1, 0.25], sizes=[7, 8], fast=False, mapping_seed=[None, 42])
    first, last = plan.tasks[0], plan.tasks[-1]
    assert plan.key_fields == ("agent", "size", "seed", "rate", "sizes", "fast", "mapping_seed")
    assert plan.key(_columns(first)) == ("deep", "20", "0", "1.0", "7,8", "False", "")
    assert plan.key(_columns(last)) == ("deep", "20", "0", "0.25", "7,8", "False", "42")
    assert last.config == Deep(rate=0.25, sizes=(7, 8), fast=False)
    assert (first.protocol.mapping_seed, last.protocol.mapping_seed) == (None, 42)
    assert plan.shown == ("rate", "mapping_seed")
    assert [task.config.sizes for task in _small_plan(agent="deep", sizes=[[7], [8, 9]]).tasks] == [(7,), (8, 9)]


def test_a_setting_that_an_agent_lacks_is_left_blank_and_run_once():
    plan = _small_plan(depth=[1, 2, 3], seed=[0, 1], width=5)
    assert plan.remark == (
        "plain has no depth: left blank there, and duplicate runs are run once (12 combinations give 8 runs)"
    )
    columns = [_columns(task) for task in plan.tasks]
    assert [(own["agent"], own["depth"], own["seed"]) for own in columns] == [
        ("plain", "", "0"),
        ("plain", "", "1"),
        *[("deep", depth, seed) for depth in "123" for seed in "01"],
    ]
    assert all(task.config.width == 5 for task in plan.tasks)
    assert not _small_plan(width=5).remark


def test_names_of_files_are_unique_readable_and_independent_of_the_order_of_keys():
    plan, other = _small_plan(depth=[1, 2], width=[3, 4]), _small_plan(width=[3, 4], depth=[1, 2])
    names = {task.name for task in plan.tasks}
    assert len(names) == len(plan.tasks) == 6
    assert names == {task.name for task in other.tasks}
    assert any(name.startswith("agent=deep_size=20_seed=0_depth=2_width=4_") for name in names)
    long = _small_plan(agent="deep", sizes=[list(range(100, 200)), list(range(100, 201))])
    assert len({task.name for task in long.tasks}) == 2
    assert all(len(task.name) < 150 for task in long.tasks)


def test_identity_leaves_the_values_of_the_grid_open():
    smaller = _small_plan(agent="deep", depth=1, max_episodes=5).fingerprint.settings
    larger = _small_plan(max_episodes=[5, 6], depth=[1, 2], size=4).fingerprint.settings
    assert smaller["experiment"] == "sweep" and "of" not in smaller
    assert smaller["grid_keys"] == larger["grid_keys"] == ["depth", "max_episodes"]
    assert (
        smaller["protocol"]
        == larger["protocol"]
        == {
            "stochastic": False,
            "mapping_seed": None,
            "eval_every": 1000,
            "eval_episodes": 100,
            "solved_return": None,
            "eval_policy": "sample",
        }
    )
    assert smaller["configs"]["deep"] == larger["configs"]["deep"]
    assert list(larger["configs"]) == ["plain", "deep"]
    other = _plan({"env": "CartPole-v1"}, experiment=base.get("gymnasium")).fingerprint.settings
    assert (other["experiment"], other["of"]) == ("sweep", "gymnasium")


# Lists of grids


def test_grids_may_have_different_keys():
    """A key that a grid lacks has its default there: its text, blank only where the agent has no such setting."""
    plan = _plan(
        {"agent": "deep", "depth": [1, 2], "seed": [0, 1]},
        {"agent": ["plain", "deep"], "width": [3, 4], "max_episodes": 50},
        {"agent": "plain", "size": 4, "mapping_seed": 7},
        experiment=Small(),
    )
    assert plan.key_fields == ("agent", "size", "seed", "depth", "width", "max_episodes", "mapping_seed")
    assert [plan.key(_columns(task)) for task in plan.tasks] == [
        ("plain", "4", "0", "", "3", "10000", "7"),  # the smallest size comes first
        ("deep", "20", "0", "1", "3", "10000", ""),
        ("deep", "20", "1", "1", "3", "10000", ""),
        ("deep", "20", "0", "2", "3", "10000", ""),
        ("deep", "20", "1", "2", "3", "10000", ""),
        ("plain", "20", "0", "", "3", "50", ""),
        ("plain", "20", "0", "", "4", "50", ""),
        ("deep", "20", "0", "2", "3", "50", ""),
        ("deep", "20", "0", "2", "4", "50", ""),
    ]
    assert plan.tasks[0].config == Plain() and plan.tasks[0].protocol.mapping_seed == 7
    assert plan.tasks[-1].config == Deep(width=4) and plan.tasks[-1].protocol.max_episodes == 50
    assert plan.notes["grid"][2] == {"agent": "plain", "size": 4, "mapping_seed": 7}
    assert plan.fingerprint.settings["grid_keys"] == ["depth", "mapping_seed", "max_episodes", "width"]
    assert plan.shown == ("depth", "width", "max_episodes", "mapping_seed")
    assert plan.header == "9 run(s) in 7 cell(s)"


def test_the_default_of_a_key_is_the_presets():
    plan = _plan({"num_ois": [1, 5]}, {"agent": ["hyperagent_ois", "ddqn"]})
    assert [(task.agent, dict(task.columns)["num_ois"], task.config) for task in plan.tasks] == [
        (name, text, agents.CONFIGS[name](replay_capacity=200_000, **settings))
        for name, text, settings in (
            ("hyperagent", "1", {"num_ois": 1}),
            ("hyperagent", "5", {"num_ois": 5}),
            ("hyperagent_ois", "5", {}),
            ("ddqn", "", {}),
        )
    ]


def test_what_is_in_several_grids_is_run_once():
    plan = _plan(
        {"agent": "deep", "depth": [1, 2]},
        {"agent": "deep"},
        {"agent": "deep", "depth": [3, 2]},
        experiment=Small(),
    )
    assert [dict(task.columns)["depth"] for task in plan.tasks] == ["1", "2", "3"]  # 2 is the default
    assert plan.notes["grid"] == [
        {"agent": "deep", "depth": [1, 2]},
        {"agent": "deep"},
        {"agent": "deep", "depth": [3, 2]},
    ]
    assert _plan({"size": 4}).notes["grid"] == {"size": 4}


@pytest.mark.parametrize(
    "experiment, preset, agent, first",
    [
        (atari.EXPERIMENT, "authors", "hyperagent", "noisy_net"),
        (jax_env.EXPERIMENT, "minatar", "hypermodel", "hyp"),
    ],
)
def test_an_agent_that_a_preset_does_not_have_is_one_clear_line(experiment, preset, agent, first):
    message = (
        f"{experiment.name} has no settings for {agent} in this preset .see docs/agents.md.; choose one of {first}"
    )
    with pytest.raises(errors.UserError, match=message):
        _plan({"agent": [agent], "preset": preset}, experiment=experiment)


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
        ({"sizes": 7}, "sizes must be a list, each a whole number, got 7"),
        ({"sizes": [[7], 8]}, "sizes must be a list, each a whole number, got 8"),
        ({"sizes": []}, "sizes has no values: its list in the grid is empty"),
        (
            {"agent": "plain", "depth": 1},
            "unknown setting 'depth' in the grid for deepsea with plain; choose from size, stochastic, "
            "mapping_seed, max_episodes, eval_every, eval_episodes, solved_return, eval_policy, runner, "
            "seeds_per_group, "
            "width, rate, replay_capacity",
        ),
    ],
)
def test_bad_grids_are_one_clear_line(grid, message):
    with pytest.raises(errors.UserError) as error:
        _small_plan(**grid)
    assert str(error.value) == message
    if "agent" not in grid:  # the same in a list of grids
        with pytest.raises(errors.UserError) as error:
            _plan({"agent": "deep"}, {"agent": ["plain", "deep"], **grid}, experiment=Small())
        assert str(error.value) == message


def test_grids_are_read_from_json_or_a_file(tmp_path):
    (tmp_path / "grid.json").write_text('\n {"size": [4]}\n')
    assert sweep.read(' {"size": [4]}') == sweep.read(str(tmp_path / "grid.json")) == [{"size": [4]}]
    assert sweep.read('[{"size": 4}, {"sigma": 0}]') == [{"size": 4}, {"sigma": 0}]
    (tmp_path / "list.json").write_text("[4]")
    list_file, nowhere = tmp_path / "list.json", tmp_path / "nowhere.json"
    objects = "must be a JSON object that maps names of settings to lists of values, or a list of such objects"
    for text, message in {
        '{"size": [4}': "--grid is not valid JSON: Expecting ',' delimiter: line 1 column 12 (char 11)",
        '{"size": 4, "size": 5}': "--grid is not valid JSON: 'size' appears twice",
        '{"sigma": NaN}': "--grid is not valid JSON: NaN is not a number",
        "[]": f"--grid {objects}",
        '[{"size": 4}, 5]': f"--grid {objects}",
        str(list_file): f"--grid={list_file} {objects}",
        str(nowhere): f"cannot read --grid={nowhere}: No such file or directory",
    }.items():
        with pytest.raises(errors.UserError) as error:
            sweep.read(text)
        assert str(error.value) == message


def test_the_memory_of_the_largest_run_is_known_before_it_is_taken():
    grid = {"size": [4, 6], "replay_capacity": [100, 200], "target_index": ["transition", "dependent"]}
    plan = _plan(grid)
    num_bytes, task, refused = driver._check(plan)
    (largest,) = [
        task
        for task in plan.tasks
        if task.protocol.size == 6 and task.config.replay_capacity == 200 and task.columns not in refused
    ]
    states = deep_sea.make_program(largest).states
    states = states._replace(key=jax.random.key_data(states.key))
    assert task == largest and num_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(states))


def _refusals(plan):
    *_, refused = driver._check(plan)
    return {plan.key(_columns(task)): refused[task.columns] for task in plan.tasks if task.columns in refused}


def test_agents_say_what_they_refuse():
    plan = _plan({"size": 4, "seed": [0, 1], "target_index": ["transition", "dependent"]})
    assert _refusals(plan) == {("hyperagent", "4", seed, "dependent"): REFUSAL for seed in "01"}
    plan = _plan({"agent": ["hyperagent", "hyperagent_prioritized"], "recent_fraction": 0.75})
    message = "recent_fraction and priority_fraction must be at least 0 and their sum at most 1, got 0.75 and 0.5"
    assert _refusals(plan) == {("hyperagent_prioritized", "20", "0", "0.75"): message}


def test_a_bug_of_one_agent_does_not_end_a_sweep_over_many(monkeypatch):
    plan = _plan({"agent": ["hyperagent", "ddqn"], "size": 4})
    num_bytes = plan.experiment.num_bytes

    def fail_for_ddqn(task):
        if task.agent == "ddqn":
            raise KeyError("lost")
        return num_bytes(task)

    monkeypatch.setattr(plan.experiment, "num_bytes", fail_for_ddqn)
    assert _refusals(plan) == {("ddqn", "4", "0"): "KeyError: 'lost'"}


def test_a_group_of_seeds_that_has_a_checkpoint_stays_as_it_was(tmp_path, monkeypatch):
    """Also when some of its seeds are done, and also when they are a cell of a sweep."""
    monkeypatch.setattr(driver, "FLAGS", types.SimpleNamespace(checkpoint_seconds=0.0))
    plan = _plan({**SMALL, "seed": [0, 1, 2, 3, 4], "seeds_per_group": 2}, logdir=tmp_path)
    group = dataclasses.replace(plan.tasks[0], seeds=(1, 2))
    context = run_context.RunContext(group, print, lambda: False)
    context.progress.reached = 250
    context.save({})
    tasks, reached = driver._grouped(plan, plan.tasks[2:])  # seeds 0 and 1 are done
    assert [task.seeds for task in tasks] == [(1, 2), (3, 4)]
    assert tasks[0].checkpoint == group.checkpoint and tasks[0].checkpoint_seconds == 0.0
    assert list((tmp_path / "checkpoints").iterdir()) == [group.checkpoint]
    assert reached == {plan.key(group.columns_of(seed)): 250 for seed in (1, 2)}


def test_an_unknown_experiment_is_one_clear_line(tmp_path):
    done = _run({"size": 4}, "--experiment=chess", f"--logdir={tmp_path / 'run'}")
    message = "error: unknown experiment 'chess'; choose one of deepsea, bsuite, atari, gymnasium, jax\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert not (tmp_path / "run").exists()


def test_bad_input_ends_the_script_before_anything_is_written(tmp_path):
    grid = {"size": 4, "loss": "exact", "target_index": ["dependent"], "seed": [0, 1]}
    done = _run(grid, f"--logdir={tmp_path / 'run'}")
    message = f"error: no combination of the grid can be run: {REFUSAL}\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_is_a_row_and_is_run_again(tmp_path):
    grid = {**SMALL, "max_episodes": 100, "solved_return": -1, "seed": [0, 1]}
    damaged = tmp_path / "checkpoints" / f"{_plan(grid).tasks[0].name}.npz"
    checkpoint.save(damaged, {}, {"fingerprint": {}, "progress": {}})
    options = [f"--logdir={tmp_path}", "--num_workers=1"]
    done = _run(grid, *options)
    assert (done.returncode, done.stderr) == (0, "")
    failed, well = scripts.rows(tmp_path / "results.csv")
    assert failed["error"] == (
        f"CheckpointError: checkpoint {damaged} was made with a different configuration: move it away"
    )
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
    megabytes = driver._check(_plan(grid))[0] / 1e6
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
        f"1 of 2 runs solved, mean episodes to learn 62.0, 1 with an error; {tmp_path}/results.csv",
    ]
    damaged.unlink()
    again = _run(grid, *options, "--resume")
    assert again.returncode == 0 and "1 of 2 runs are already done" in again.stdout
    repeated, kept = scripts.rows(tmp_path / "results.csv")
    assert kept == well and repeated.items() >= {**settings, **outcome, "seed": "0"}.items()


def test_the_command_of_a_row_runs_it_again(tmp_path):
    grid = {**SMALL, "agent": "hyperagent_ois", "max_episodes": 500, "seed": [3], "stochastic": True}
    done = _run(grid, f"--logdir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    (row,) = scripts.rows(tmp_path / "sweep" / "results.csv")
    _, *arguments = shlex.split(row["command"])
    command = [sys.executable, *arguments, "--noprogress", f"--logdir={tmp_path / 'alone'}"]
    done = subprocess.run(command, cwd=SCRIPT.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (alone,) = scripts.rows(tmp_path / "alone" / "results.csv")
    outcome = ("agent", "size", "seed", "solved", "episodes_to_learn", "interactions", "final_return")
    assert [alone[name] for name in outcome] == [row[name] for name in outcome]


def test_killed_resumed_and_extended_equals_unbroken(tmp_path):
    """kill -9 of everything in the middle; --resume with one more seed ends in the rows of an unbroken sweep."""
    grid = {**SMALL, "max_episodes": 2000, "solved_return": 2, "target_index": ["transition", "dependent"]}
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = _run({**grid, "seed": [0, 1, 2, 3]}, f"--logdir={unbroken}", "--num_workers=1")
    assert done.returncode == 0, done.stderr
    assert "0 of 8 runs solved, 4 with an error" in done.stdout
    refused = [row for row in scripts.rows(unbroken / "results.csv") if row["target_index"] == "dependent"]
    assert [row["error"] for row in refused] == [f"refused: {REFUSAL}"] * 4

    options = [f"--logdir={broken}", "--num_workers=2", "--checkpoint_seconds=0", "--resume"]

    def finished():
        return [row for row in scripts.rows(broken / "results.csv") if not row["error"]]

    def is_in_the_middle():
        # Seeds 0 and 1 run side by side, so one or both have ended when seed 2 is at its first checkpoint.
        return 1 <= len(finished()) <= 2 and any(broken.glob("checkpoints/*seed=2*.npz"))

    scripts.kill_in_the_middle(_command({**grid, "seed": [0, 1, 2]}, *options), broken, is_in_the_middle)
    before = finished()

    done = _run({**grid, "seed": [0, 1, 2, 3]}, *options)
    assert done.returncode == 0, done.stderr
    rows = scripts.rows(broken / "results.csv")
    assert len(rows) == 8 and all(row in rows for row in before)
    assert _without_times(rows) == _without_times(scripts.rows(unbroken / "results.csv"))  # in the same order
    assert not list(broken.glob("checkpoints/*"))
    record = json.loads((broken / "config.json").read_text())
    assert record["grid"]["seed"] == [0, 1, 2, 3]
    assert record["identity"]["configs"]["hyperagent"]["index_dim"] == 4


def test_a_list_of_grids_over_another_experiment(tmp_path):
    tiny = {"steps": 60, "eval_every": 30, "eval_episodes": 1, "min_replay": 20, "hidden_sizes": [8]}
    grids = [
        {**tiny, "env": "CartPole-v1", "seed": [0, 1]},
        {**tiny, "seed": [1]},  # the same environment, by default
        {**tiny, "target_index": ["dependent"]},
    ]
    options = ["--experiment=gymnasium", f"--logdir={tmp_path}", "--num_workers=1"]
    done = _run(grids, *options)
    assert (done.returncode, done.stderr) == (0, "")
    rows = scripts.rows(tmp_path / "results.csv")
    settings = {"steps": "60", "eval_every": "30", "eval_episodes": "1", "min_replay": "20", "hidden_sizes": "8"}
    assert [(row["target_index"], row["seed"]) for row in rows] == [
        ("transition", "0"),
        ("transition", "1"),
        ("dependent", "0"),
    ]
    assert list(rows[0])[:9] == ["agent", "env", "seed", *settings, "target_index"]
    *finished, refused = rows
    assert refused["error"] == f"refused: {REFUSAL}" and refused["final_return"] == ""
    for row in finished:
        outcome = {"agent": "hyperagent", "env": "CartPole-v1", "interactions": "60", "error": ""}
        assert row.items() >= {**settings, **outcome}.items()
        command = "python experiments/run_gymnasium.py --agent=hyperagent --env=CartPole-v1"
        assert row["command"].startswith(f"{command} --seed={row['seed']} --steps=60 --eval_every=30")
        # CartPole earns 1 a step, and its episodes last at least 8.
        assert 8 <= float(row["final_return"]) <= float(row["best_return"]) <= 500
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 run(s) in 2 cell(s), steps=60, eval_every=30, eval_episodes=1, min_replay=20, ")
    assert lines[1] == f"hyperagent on CartPole-v1 seed 0 target_index=dependent: ERROR {refused['error']}"
    mean = results.number((float(finished[0]["final_return"]) + float(finished[1]["final_return"])) / 2)
    assert lines[-6:] == [
        "| agent | env | target_index | runs | final_return | errors |",
        "|---|---|---|---|---|---|",
        f"| hyperagent | CartPole-v1 | transition | 2 of 2 | {mean} | 0 |",
        "| hyperagent | CartPole-v1 | dependent | 0 of 1 |  | 1 |",
        "",
        f"2 of 3 runs finished, 1 with an error; {tmp_path}/results.csv",
    ]
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["grid"] == grids and record["identity"]["of"] == "gymnasium"
