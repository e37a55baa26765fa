"""The script as a user runs it."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import scripts

SCRIPT = pathlib.Path(__file__).parent.parent / "experiments" / "run_deepsea.py"
SMALL = ["--hidden_sizes=16,16", "--batch_size=32", "--eval_episodes=10", "--noprogress"]
SOLVED = ["--size=4", "--max_episodes=600", *SMALL]


def _command(*arguments):
    return [sys.executable, str(SCRIPT), *arguments]


def _run(*arguments):
    return subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=300, check=False)


def test_bad_input_is_one_clear_line(tmp_path):
    expected = {
        ("--size=0",): "--size must be at least 1, got 0",
        ("--agent=nobody",): "unknown agent 'nobody'; choose one of hyperagent",
        ("--colour=red",): "Unknown command line flag 'colour'",
        ("--sigma=much",): "flag --sigma=much: could not convert string to float",
        ("--loss=exact", "--target_index=dependent"): "use the sampled loss with target_index=dependent",
        ("--logdir=/proc/nowhere",): "cannot write to --logdir=/proc/nowhere",
        ("20",): "unexpected argument '20'",
    }
    scripts.check_errors(SCRIPT, expected, tmp_path)


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The folder of a run that was solved, and what the run printed."""
    folder = tmp_path_factory.mktemp("solved")
    done = _run(*SOLVED, f"--logdir={folder}")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_run_writes_its_results_and_protects_them(solved, tmp_path):
    folder, output = solved
    (row,) = scripts.rows(folder / "results.csv")
    assert (row["agent"], row["size"], row["seed"], row["solved"]) == ("hyperagent", "4", "0", "True")
    assert (row["num_params"], row["num_output_params"]) == ("704", "160")
    assert f"solved in {row['episodes_to_learn']} episodes" in output
    record = json.loads((folder / "config.json").read_text())
    assert record["identity"]["config"]["hidden_sizes"] == [16, 16]
    assert list(record["identity"]) == ["experiment", "agent", "config", "protocol", "runner"]
    assert (folder / "deepsea.png").stat().st_size > 10_000
    curve = scripts.rows(folder / "curve.csv")
    assert int(curve[-1]["interactions"]) == int(row["interactions"])

    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    arguments = [*SOLVED, f"--logdir={tmp_path}"]
    before = (tmp_path / "results.csv").read_bytes()
    refused = _run(*arguments)
    assert refused.returncode == 2 and "already holds a run" in refused.stderr
    other = _run(*arguments, "--resume", "--sigma=0.5")
    assert other.returncode == 2 and "sigma was 0.0001, is now 0.5" in other.stderr
    again = _run(*arguments, "--resume")
    assert again.returncode == 0 and "[done earlier]" in again.stdout
    assert (tmp_path / "results.csv").read_bytes() == before


def test_a_file_of_an_older_version_gets_the_new_columns(solved, tmp_path):
    shutil.copytree(solved[0], tmp_path, dirs_exist_ok=True)
    (row,) = scripts.rows(tmp_path / "results.csv")
    del row["num_output_params"]
    (tmp_path / "results.csv").write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    done = _run(*SOLVED, f"--logdir={tmp_path}", "--num_seeds=2", "--resume")
    assert done.returncode == 0, done.stderr
    old, new = scripts.rows(tmp_path / "results.csv")
    assert list(old) == list(new) and None not in new.values()
    assert old == {**row, "num_output_params": ""}
    assert (new["seed"], new["num_params"], new["num_output_params"]) == ("1", "704", "160")


def test_more_seeds_join_a_run_without_repeating_any(tmp_path):
    """Groups of several seeds, as on accelerators: the finished ones stay out of the new group."""
    arguments = ["--size=4", "--max_episodes=50", f"--logdir={tmp_path}", "--seeds_per_group=4", *SMALL]
    assert _run(*arguments, "--num_seeds=2").returncode == 0
    before = scripts.rows(tmp_path / "results.csv")
    done = _run(*arguments, "--num_seeds=4", "--resume")
    assert done.returncode == 0, done.stderr
    assert "MB per seed, of which the replay" in done.stdout and done.stdout.count("[done earlier]") == 2
    rows = scripts.rows(tmp_path / "results.csv")
    assert rows[:2] == before and [row["seed"] for row in rows] == ["0", "1", "2", "3"]
    seeds = [row["seed"] for row in scripts.rows(tmp_path / "curve.csv")]
    assert seeds == sorted(seeds) and len(seeds) == 4


@pytest.mark.timeout(900)  # many starts of a script
def test_killed_and_resumed_equals_unbroken(tmp_path):
    """kill -9 of everything in the middle; the same command with --resume ends in the same rows."""
    arguments = ["--size=6", "--num_seeds=2", "--num_workers=2", "--max_episodes=2000", "--solved_return=2"]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    done = _run(*arguments, f"--logdir={unbroken}", *SMALL)
    assert done.returncode == 0, done.stderr

    resumed = [*arguments, f"--logdir={broken}", "--checkpoint_seconds=0", "--resume", *SMALL]

    def is_in_the_middle():
        return 6 <= len(scripts.rows(broken / "curve.csv")) < 24 and any(broken.glob("checkpoints/seed_*.npz"))

    scripts.kill_in_the_middle(_command(*resumed), broken, is_in_the_middle)
    done = _run(*resumed)
    assert done.returncode == 0, done.stderr

    def rows_of(folder, name, fields):
        return [[row[field] for field in fields] for row in scripts.rows(folder / name)]

    result_fields = ["seed", "solved", "episodes_to_learn", "interactions", "final_return"]
    assert rows_of(broken, "results.csv", result_fields) == rows_of(unbroken, "results.csv", result_fields)
    curve_fields = ["seed", "interactions", "episodes", "train_return", "eval_return", "loss"]
    assert rows_of(broken, "curve.csv", curve_fields) == rows_of(unbroken, "curve.csv", curve_fields)
