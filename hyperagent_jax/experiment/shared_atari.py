"""Atari in several processes with one learner: what they decide together, and how they continue after a loss."""

from collections.abc import Callable
import contextlib
import dataclasses
import pathlib
import time
from typing import Any

import jax
import numpy as np

from hyperagent_jax import checkpoint
from hyperagent_jax import types
from hyperagent_jax.experiment import atari
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import distributed
from hyperagent_jax.experiment import run_context
from hyperagent_jax.runners import shared

# Shares of the time between checkpoints are sent in thousandths, up to this.
_FULL_SHARE = 1_000_000


def journal_file(task: base.Task, rank: int) -> pathlib.Path:
    """File of what a process knew when another one was lost."""
    return task.checkpoint.with_name(f"{task.name}_journal_{rank}.npz")


def _rounds(file: pathlib.Path) -> int:
    """The rounds after which a checkpoint was made; -1 for a file that cannot be used."""
    try:
        checkpoint.check(file)
        return int(run_context.load_progress(file)[0].notes["runner"]["rounds"])
    except (checkpoint.CheckpointError, KeyError, TypeError, ValueError):
        return -1


class Context(run_context.RunContext):
    """The surroundings of a task that several processes run: stops and checkpoints are those of all.

    It is the ballot of their runner: any process can ask for a stop, and process 0 has the clock.
    """

    def __init__(
        self,
        task: base.Task,
        report: Callable[[base.Event], None],
        should_stop: Callable[[], bool],
        group: distributed.Group,
    ):
        self.group = group
        self._share, self._stops = 0, False
        super().__init__(task, report, should_stop)
        self._is_asked = should_stop
        self.wants_to_stop, self.should_stop = self._wants_to_stop, lambda: self._stops

    def _wants_to_stop(self) -> bool:
        if self._is_asked():
            self.group.tell_to_stop()
        return self._is_asked() or self.group.is_told_to_stop

    def _find(self) -> tuple[pathlib.Path | None, str]:
        """The newest checkpoint of the round of which all processes have one."""
        files = checkpoint.generations(self.task.checkpoint)
        own = [_rounds(file) for file in files]
        rows = self.group.gather(np.array([*own, -1, -1])[:2])
        common = set.intersection(*(set(row.tolist()) for row in rows)) - {-1}
        if common:
            return files[own.index(max(common))], ""
        is_new = bool(np.all(rows == -1)) and not files
        return None, "" if is_new else "the processes have no checkpoint of the same round: from the beginning"

    def vote(self) -> list[int]:
        """Returns whether this process wants to stop, and how much of the time between checkpoints is over."""
        due = self.task.checkpoint_seconds
        share = (time.monotonic() - self._saved_at) / due if due else np.inf
        return [self._wants_to_stop(), int(min(1000 * share, _FULL_SHARE))]

    def count(self, votes: np.ndarray) -> None:
        """Takes the votes of all."""
        self._stops = self._stops or bool(np.any(votes[:, 0]))
        self._share = int(votes[0, 1])

    def agree_to_stop(self) -> None:
        """Notes that all processes know of a stop."""
        self._stops = True

    def is_save_due(self, share: float = 1.0) -> bool:
        return self._share >= 1000 * share

    def save(self, tree: Any) -> None:
        super().save(tree)
        self._share = 0

    def replace_progress(self, progress: run_context.Progress) -> None:
        """Continues from progress that is further than the checkpoint's, and reports its rows."""
        known = len(self.progress.curve)
        for name, value in progress.notes.items():
            self.progress.notes[name] = value
        self.progress.train_seconds = progress.train_seconds
        for seed, row in progress.curve[known:]:
            self.add_curve(seed, row)

    def finish(self) -> bool:
        task, group = self.task, self.group
        if group.rank:
            return all(map(self.is_done, task.seeds))
        is_done = super().finish()
        if is_done and task.folder:
            for rank in range(group.size):
                checkpoint.delete(dataclasses.replace(task, rank=rank).checkpoint)
                checkpoint.delete(journal_file(task, rank))
        return is_done


class Run(atari.Run):
    """A process's part in a run in progress."""

    runner: shared.SharedRunner
    context: Context

    def __init__(self, task: base.Task, runner: shared.SharedRunner, context: Context):
        super().__init__(task, runner, context)
        self.group, self.part = context.group, (context.group.rank,)

    def begin(self) -> bool:
        """Starts or restores the run, up to the last round that any process knows of; False if asked to stop."""
        if not self.context.is_resumed:
            self.runner.begin()
        elif not self.resume():
            return False
        return self.rehearse()

    def rehearse(self) -> bool:
        """Repeats what happened between the checkpoint and the loss of a process; False if asked to stop."""
        base_rounds, files = self.runner.rounds, {}
        if self.group.rank == 0:
            for rank in range(self.group.size):
                file = journal_file(self.task, rank)
                if (rounds := self._rounds_of(file, base_rounds)) > base_rounds:
                    files[rounds, -rank] = rank
        found = files[max(files)] if files else -1
        chosen = int(self.group.gather(np.array([found]))[0, 0])
        if chosen >= 0:
            file = journal_file(self.task, chosen)
            facts = checkpoint.load_facts(file)
            like = {
                "actions": checkpoint.Unsized(np.int32),
                "losses": checkpoint.Unsized(np.float32),
                "learner": self.runner.learner,
                "loss": jax.numpy.zeros(()),
            }
            tree = checkpoint.load(file, like)
            progress, _ = run_context.load_progress(file)
            self.context.note(
                f"{self.label}: continues where a process was lost, {progress.reached:,} interactions"
            )
            known = len(self.context.progress.curve)
            evaluated = progress.notes.get("evaluated", [])[known : len(progress.curve)]
            journal = shared.Journal(facts["base"], facts["rounds"], **tree)
            self.runner.rehearse(journal, evaluated, self.context.should_stop)
            if self.context.should_stop():
                return False
            self.context.replace_progress(progress)
            self.save()
            self.group.gather(np.zeros(1))  # all have saved: nobody needs the journal any more
        if self.group.rank == 0 and self.task.folder:
            for rank in range(self.group.size):
                checkpoint.delete(journal_file(self.task, rank))
        return True

    def _rounds_of(self, file: pathlib.Path, base_rounds: int) -> int:
        """The rounds that a journal leads to from these; 0 if it is not of use."""
        if not self.task.folder or not file.exists():
            return 0
        try:
            checkpoint.check(file)
            facts = checkpoint.load_facts(file)
        except checkpoint.CheckpointError:
            return 0
        is_ours = not self.task.fingerprint().difference(facts.get("fingerprint", {}))
        return int(facts["rounds"]) if is_ours and facts.get("base") == base_rounds else 0

    def write_journal(self) -> None:
        """Keeps what this process knows, when another one was lost."""
        if (journal := self.runner.journal()) is None or not self.task.folder:
            return
        progress = self.context.progress
        facts = {
            "base": journal.base,
            "rounds": journal.rounds,
            "fingerprint": self.task.fingerprint().settings,
            "progress": dataclasses.asdict(progress),
        }
        tree = journal._asdict()
        del tree["base"], tree["rounds"]
        checkpoint.save(journal_file(self.task, self.group.rank), tree, facts)

    def play(
        self, variables: types.Variables, purpose: int, num_episodes: int, **options: Any
    ) -> list[float] | None:
        """Plays this process's share of the games, and returns the scores of all."""
        if purpose == atari.RECORDING:  # of process 0
            return super().play(variables, purpose, num_episodes, **options)
        share = num_episodes // self.group.size + (self.group.rank < num_episodes % self.group.size)
        scores = super().play(variables, purpose, share, **options) if share else []
        if np.any(self.group.gather(np.array([scores is None]))):
            self.context.agree_to_stop()
            return None
        return sum(shared.gather_floats(self.group, scores or []), [])

    def evaluate_and_report(self) -> bool:
        self.check_loss()  # waits for all updates
        self.runner.mark_boundary()
        self.notes.setdefault("evaluated", []).append(self.runner.rounds)
        if super().evaluate_and_report():
            return True
        self.notes["evaluated"].pop()
        return False

    def keep_best(self, params: types.Params) -> None:
        if self.group.rank == 0:
            super().keep_best(params)

    def save(self) -> None:
        super().save()
        self.runner.note_checkpoint()

    def finish(self) -> None:
        self.group.gather(np.zeros(1))  # process 0 has written the best parameters
        super().finish()

    def record(self, variables: types.Variables) -> None:
        if self.group.rank == 0:
            super().record(variables)


def run(task: base.Task, group: distributed.Group, context: Context) -> None:
    """Runs this process's part of a task."""
    with contextlib.closing(atari.make_shared_runner(task, group, context)) as runner:
        own = Run(task, runner, context)
        group.save = own.write_journal
        if own.begin() and own.train():
            own.finish()
        group.save = lambda: None
