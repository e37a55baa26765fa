"""One run in several processes, over the loopback interface, with scripted games."""

import contextlib
import csv
import dataclasses
import hashlib
import os
import pathlib
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import fake_hosts
import jax
import numpy as np
import pytest

from hyperagent_jax import agents
from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax import sharding
from hyperagent_jax.agents import atari_presets as presets
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import distributed
from hyperagent_jax.experiment import driver
from hyperagent_jax.experiment import shared_atari
from hyperagent_jax.runners import shared

SCRIPT = pathlib.Path(__file__).resolve().parent / "fake_hosts.py"
SMALL = dict(hidden_sizes=(8,), batch_size=8, min_replay=20, replay_capacity=60, n_step=3, priority_fraction=0.5)
SMALL |= dict(importance_beta=0.5, head_regularization=0.1, torso="mlp")


class Ballot:
    """Nobody wants anything."""

    def vote(self):
        return [0]

    def count(self, votes):
        assert not votes.any()


def make_runner(group):
    games = fake_hosts.Games("Pong", 2, (group.rank,))
    agent = agents.make_agent("hyperagent", presets.configs("paper")["hyperagent"](**SMALL), games.spec)
    return shared.SharedRunner(agent, games, 0, group, Ballot())


def digest(runner):
    """All there is of a runner, as text."""
    found = hashlib.sha256(repr(runner.facts()).encode())
    for leaf in jax.tree.leaves(runner.tree()):
        found.update(np.asarray(leaf).tobytes())
    return f"{runner.rounds} {runner.interactions} {runner.updates} {found.hexdigest()}"


def play(group, interactions=120):
    runner = make_runner(group)
    runner.begin()
    while runner.interactions < interactions:
        runner.advance()
    runner.mark_boundary()
    assert runner.updates > 50
    text = digest(runner)
    runner.close()
    return text


class Threads:
    """Processes that are threads of one, each with a device of its own."""

    class Common:
        def __init__(self, size):
            self.mesh = jax.sharding.Mesh(np.array(jax.devices()[:size]), (sharding.AXIS,))
            self.barrier, self.given, self.result = threading.Barrier(size), [None] * size, None

    def __init__(self, rank, common):
        self.rank, self.size, self.common = rank, len(common.given), common

    def gather(self, numbers):
        self.common.given[self.rank] = np.asarray(numbers).astype(np.int32)
        self.common.barrier.wait()
        rows = np.array(self.common.given)
        self.common.barrier.wait()
        return rows

    def jit_update(self, update, keeps_losses):
        compiled = sharding.jit_update_of_parts(update, self.common.mesh, keeps_losses)

        def joint(learner, total, key, batch):
            common = self.common
            common.given[self.rank] = batch
            common.barrier.wait()
            if self.rank == 0:
                sizes = sum(part.replay_size for part in common.given)
                parts = [part._replace(replay_size=None) for part in common.given]
                whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
                common.result = compiled(learner, total, key, whole._replace(replay_size=sizes))
            common.barrier.wait()
            return common.result

        return joint


def play_in_threads(size):
    common, texts = Threads.Common(size), [None] * size

    def run(rank):
        texts[rank] = play(Threads(rank, common))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def free_port():
    """A port that nobody uses, and that no system gives to a connection until process 0 listens there."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def start(command, size=2, **environment):
    """Starts the processes of a run."""
    port = free_port()
    flags = [f"--coordinator_address=127.0.0.1:{port}", f"--num_processes={size}"]
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command), *flags, f"--process_id={rank}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for rank in range(size)
    ]


def finish(processes, timeout=1_000):
    return [(*process.communicate(timeout=timeout), process.returncode) for process in processes]


def main(mode, *flags):
    """What the processes of the first test run."""
    if mode == "threads":
        print(*play_in_threads(2), sep="\n")
        return
    given = dict(flag.removeprefix("--").split("=") for flag in flags)
    address, size, rank = given["coordinator_address"], int(given["num_processes"]), int(given["process_id"])
    with distributed.joined(distributed.Options(True, address, size, rank)) as group:
        with group.in_task():
            print(play(group))


@pytest.mark.timeout(3000)
@pytest.mark.slow
def test_two_processes_are_one_process_with_two_devices():
    """Learner, replays, actions and counters, bit for bit; with priorities and |D| of both replays."""
    for (out, err, code), expected in zip(
        finish(start([__file__, "process"])),
        subprocess.run(
            [sys.executable, __file__, "threads"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        ).stdout.splitlines()[-2:],
        strict=True,
    ):
        assert code == 0, err
        assert out.splitlines()[-1] == expected


def test_what_happened_after_a_checkpoint_is_rehearsed(tmp_path):
    """From the journal of a process: the state, and what follows, are those of the unbroken run."""
    alone = Threads(0, Threads.Common(1))
    unbroken = make_runner(alone)
    unbroken.begin()
    for _ in range(30):
        unbroken.advance()
    checkpoint.save(tmp_path / "run.npz", unbroken.tree(), {})
    facts = unbroken.facts()
    unbroken.note_checkpoint()
    for _ in range(5):
        unbroken.advance()
    unbroken.take_totals()  # an evaluation
    for _ in range(10):
        unbroken.advance()
    unbroken.mark_boundary()
    journal, reached = unbroken.journal(), digest(unbroken)
    assert (journal.base, journal.rounds, journal.actions.shape) == (30, 45, (15, 1, 2))
    resumed = make_runner(alone)
    assert resumed.restore(facts, lambda like: checkpoint.load(tmp_path / "run.npz", like))
    resumed.rehearse(journal, [35])
    assert resumed.journal() is None  # there is no checkpoint that it could begin with
    assert digest(resumed) == reached
    for runner in (unbroken, resumed):
        for _ in range(5):
            runner.advance()
    assert digest(resumed) == digest(unbroken)
    for runner in (unbroken, resumed):
        runner.close()


# Connections


@pytest.fixture
def connected(monkeypatch):
    """Two groups that are connected, their sockets, and the queue of what they say when they end."""
    one, other = socket.socketpair(socket.AF_UNIX)
    ended = queue.SimpleQueue()
    monkeypatch.setattr(distributed, "_SECONDS_TO_HEAR", 0.0)
    monkeypatch.setattr(
        distributed.Group, "end", lambda self, message, code: ended.put((self.rank, message, code))
    )
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *arguments: None)
    before = set(threading.enumerate())
    groups = [
        distributed.Group(rank, 2, None, {1 - rank: distributed.Connection(end)})
        for rank, end in enumerate((one, other))
    ]
    listeners = set(threading.enumerate()) - before
    yield groups, (one, other), ended
    # Listeners must end while `end` is replaced: the real one would end the whole test process.
    for group in groups:
        group._is_over = True
    for end in (one, other):
        end.shutdown(socket.SHUT_RDWR)
    for listener in listeners:
        listener.join(timeout=60)
        assert not listener.is_alive()


def both(*functions):
    results = [None] * len(functions)

    def call(i):
        results[i] = functions[i]()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_processes_tell_each_other_numbers_and_stops(connected):
    groups, _, ended = connected
    for rows in both(*(lambda one=one: one.gather([one.rank, 7]) for one in groups)):
        np.testing.assert_array_equal(rows, [[0, 7], [1, 7]])
    values = [[0.1, -1e300], []]
    for found in both(*(lambda one=one: shared.gather_floats(one, values[one.rank]) for one in groups)):
        assert found == values
    groups[1].tell_to_stop()
    both(*(lambda one=one: one.gather([0]) for one in groups))  # messages keep their order
    assert groups[0].is_told_to_stop

    def differ(group):
        with pytest.raises(errors.UserError, match="the processes have different flags"):
            group.require_same(f"--seed={group.rank}")

    both(*(lambda one=one: differ(one) for one in groups))
    groups[0].close(130)
    with pytest.raises(SystemExit) as caught:
        groups[1].gather([0])
    assert caught.value.code == 130 and ended.empty()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_gone_ends_the_others(lost, connected):
    groups, ends, ended = connected
    saved = []
    groups[1 - lost].save = lambda: saved.append(True)
    groups[lost]._is_over = True  # the lost one says nothing of its own end
    ends[lost].shutdown(socket.SHUT_WR)  # what the system does when a process is killed
    rank, message, code = ended.get(timeout=60)
    assert (rank, code, saved) == (1 - lost, 1, [True])
    assert message == (
        f"process {lost} of 2 was lost: process {rank} ends too; start all of them again with --resume"
    )


@pytest.mark.parametrize("is_told", [False, True])
def test_a_stop_of_another_process_is_a_stop(is_told, monkeypatch):
    group = types.SimpleNamespace(is_told_to_stop=is_told)
    monkeypatch.setattr(distributed, "current", lambda: group)
    plan, display = types.SimpleNamespace(tasks=[]), types.SimpleNamespace(on_event=print)
    assert driver._launch(plan, [], 1, 0, display) is not is_told


def test_the_newest_round_of_which_all_have_a_checkpoint(tmp_path):
    """Process 1 was killed before it could write its second checkpoint."""
    task = base.Task("atari", "ddqn", SharedConfig(), SharedConfig(), (0,), folder=str(tmp_path))

    class Other:
        """Has checkpoints of rounds 20 and 10, and knows what this process does not."""

        rank, size = 0, 2
        rows = [20, 10]

        def gather(self, numbers):
            return np.array([numbers, self.rows])

    def save(rounds):
        progress = {"reached": rounds, "notes": {"runner": {"rounds": rounds}}}
        facts = {"fingerprint": task.fingerprint().settings, "progress": progress}
        checkpoint.save(task.checkpoint, {}, facts, keep_previous=True)

    def reached(rows):
        Other.rows = rows
        context = shared_atari.Context(task, lambda event: None, lambda: False, Other())
        return context.progress.reached if context.is_resumed else None

    assert reached([-1, -1]) is None
    save(20)
    save(30)
    assert reached([20, 10]) == 20
    assert reached([30, 20]) == 30
    assert reached([10, -1]) is None


@dataclasses.dataclass(frozen=True)
class SharedConfig:
    seed: int = 0


# The whole script

ARGUMENTS = [
    "--distributed",
    "--agent=hyperagent",
    "--hidden_sizes=8",
    "--batch_size=8",
    "--min_replay=40",
    "--replay_capacity=100",
    "--priority_fraction=0.5",
    "--num_envs=4",
    "--steps=400",
    "--eval_every=100",
    "--eval_episodes=3",
    "--final_eval_episodes=3",
    "--noprogress",
]


def rows(folder):
    timed = ("seconds", "train_seconds", "interactions_per_second")
    tables = [csv.DictReader((folder / name).open()) for name in ("results.csv", "curve.csv")]
    return [[{k: v for k, v in row.items() if k not in timed} for row in table] for table in tables]


def seconds_to_leave():
    """Ten on a machine that is idle."""
    return 10 * max(1, os.getloadavg()[0] / os.cpu_count())


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_equals_unbroken(tmp_path):
    """kill -9 of either process, before and after the first checkpoint, and SIGTERM: the same rows."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for out, err, code in finish(start([SCRIPT, *ARGUMENTS, f"--logdir={unbroken}"])):
        assert code == 0, (out, err)
    files = {file.name for file in (unbroken / "checkpoints").iterdir()}
    assert files == {"Pong_seed_0_best.npz"}
    command = [SCRIPT, *ARGUMENTS, f"--logdir={broken}", "--resume"]
    hold = tmp_path / "hold"
    for num_rows, (lost, sign, seconds) in enumerate(
        [(1, signal.SIGKILL, 600), (0, signal.SIGKILL, 0), (1, signal.SIGTERM, 600)], 1
    ):
        hold.write_text(str(num_rows))
        before = set(broken.glob("checkpoints/*.npz"))
        processes = start([*command, f"--checkpoint_seconds={seconds}"], HOLD=str(hold))
        while fake_hosts.num_rows(broken / "curve.csv") < num_rows:
            assert all(process.poll() is None for process in processes), finish(processes)
            time.sleep(0.02)
        assert seconds or set(broken.glob("checkpoints/*.npz")) - before
        os.kill(processes[lost].pid, sign)
        if sign == signal.SIGKILL:
            processes[1 - lost].wait(timeout=seconds_to_leave())  # what it knows is on file by then
        hold.unlink()
        ended = finish(processes)
        if sign == signal.SIGTERM:
            assert [code for *_, code in ended] == [130, 130], ended
            assert "repeat the command with --resume" in ended[0][1]
        else:
            _, err, code = ended[1 - lost]
            assert code == 1 and f"process {lost} of 2 was lost" in err and "Traceback" not in err
    for flags, size, message in (
        (["--num_envs=6"], 2, "num_envs was 4, is now 6"),
        ([], 4, "num_processes was 2, is now 4"),
    ):
        refused = finish(start([*command, *flags], size=size))
        assert [code for *_, code in refused] == [2] * size and message in refused[0][1], refused
    for out, err, code in finish(start(command)):
        assert code == 0, (out, err)
    assert rows(broken) == rows(unbroken)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--distributed"], "the processes cannot find each other"),
        (["--distributed", "--data_parallel"], "distributed uses all devices of all processes"),
        (["--distributed", "--launcher=devices"], "--distributed and --launcher=devices are mutually exclusive"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments, f"--logdir={tmp_path / 'run'}"], capture_output=True, text=True
    )
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "run").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
