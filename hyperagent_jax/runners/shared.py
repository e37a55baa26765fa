"""One learner for several processes: each plays its own games and keeps its own replay, in lock-step.

A round is that of `vector`. In the middle of it all processes tell each other how many interactions it has, so
that the same updates are due in all of them, and which actions they took. The update is one program over the
devices of all processes, for which each samples its part of the batch. If a process is lost, the others still have
the learner and everybody's actions: `rehearse` leads all processes from their last checkpoints to where they were.
"""

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import threading
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import types
from hyperagent_jax.agents import base as agents_base
from hyperagent_jax.environments import base as environments_base
from hyperagent_jax.runners import vector


class Group(Protocol):
    """The processes of a run.

    Attributes:
        rank: number of this one.
        size: how many there are.
    """

    rank: int
    size: int

    def gather(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the int32 numbers that every process passed, [size, n]; all must call it."""

    def jit_update(self, update: Callable[..., Any], keeps_losses: bool) -> Callable[..., Any]:
        """Compiles an update whose batch comes in parts; see `sharding.jit_update_of_parts`."""


class Ballot(Protocol):
    """What processes decide together once a round."""

    def vote(self) -> Sequence[int]:
        """Returns the wishes of this process, as many numbers each time."""

    def count(self, votes: np.ndarray) -> None:
        """Takes the votes of all processes, [size, n]."""


def gather_floats(group: Group, values: Sequence[float]) -> list[list[float]]:
    """Returns the numbers of every process, which may be of different lengths."""
    lengths = group.gather(np.array([len(values)]))[:, 0]
    padded = np.zeros(max(1, int(lengths.max())), np.float64)
    padded[: len(values)] = values
    rows = np.ascontiguousarray(group.gather(padded.view(np.int32))).view(np.float64)
    return [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]


def part_of(agent: agents_base.Agent, size: int) -> agents_base.Agent:
    """Returns the agent that each of `size` processes runs: its share of the replay and of every batch."""
    config = agent.config
    own = dataclasses.replace(
        config,
        batch_size=config.batch_size // size,
        replay_capacity=config.replay_capacity // size,
        # Counted in what the own replay was given.
        importance_beta_steps=config.importance_beta_steps // size,
    )
    return agent._replace(config=own)


class Journal(NamedTuple):
    """What happened after a checkpoint, as any of the processes can tell.

    Attributes:
        base: rounds up to the checkpoint.
        rounds: rounds up to the end.
        actions: actions of all processes, [rounds - base, size, num_envs].
        losses: losses of whole batches, [updates, B]; of length 0 without priorities.
        learner: the learner's state at the end.
        loss: sum of losses at the end.
    """

    base: int
    rounds: int
    actions: Any
    losses: Any
    learner: Any
    loss: Any


class _Boundary(NamedTuple):
    """The end of a round, all updates complete."""

    rounds: int
    updates: int
    learner: Any
    loss: Any


class SharedRunner(vector.VectorRunner):
    """The runner of one of several processes; all must make the same calls."""

    def __init__(
        self,
        agent: agents_base.Agent,
        environment: environments_base.FrameEnvironment,
        seed: int,
        group: Group,
        ballot: Ballot,
    ):
        """Takes what it runs.

        Args:
            agent: the agent, of the whole run.
            environment: the environments of this process, which must be synchronous.
            seed: seed of the run.
            group: the processes.
            ballot: what is decided with them once a round.
        """
        super().__init__(part_of(agent, group.size), environment, seed, part=group.rank)
        self._group, self._ballot = group, ballot
        self._log_lock = threading.Lock()
        self._keeps_losses = bool(agent.config.priority_fraction)
        act, self._shared_update = (
            self._act,
            group.jit_update(vector.make_update(self.agent), self._keeps_losses),
        )
        self._act = lambda learner, *args: act(_local(learner), *args)  # type: ignore[assignment]
        self._update = self._update_and_log
        self._all_have_transitions = False
        self._forced: np.ndarray | None = None  # the actions to take in this round, of this process
        self._start_log(is_on_file=True)
        self.check_agreement()

    def check_agreement(self) -> None:
        """Refuses to continue unless all processes have the same learner, to the last bit."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(_local(self.learner)):
            digest.update(np.asarray(leaf).tobytes())
        found = self._group.gather(np.frombuffer(digest.digest()[:8], np.int32))
        if np.any(found != found[0]):
            raise errors.UserError(
                "the processes do not have the same parameters: use the same kind of processor and the same "
                "versions everywhere, and the files of one run"
            )

    def _start_log(self, is_on_file: bool) -> None:
        """Forgets earlier rounds; `is_on_file` says whether all processes can come back to the current one."""
        self._is_on_file = is_on_file
        self._base, self._base_updates = self.rounds, self.updates
        self._saved_at: tuple[int, int] | None = None  # of a checkpoint that others may still be writing
        self._actions: list[np.ndarray] = []
        self._losses: list[Any] = []
        self.mark_boundary()

    def mark_boundary(self) -> None:
        """Notes that all updates so far are complete; the caller has waited for them."""
        self._boundary = _Boundary(self.rounds, self.updates, self.learner, self._loss)

    def note_checkpoint(self) -> None:
        """Notes that this process has written a checkpoint of the current round."""
        self._saved_at = (self.rounds, self.updates)

    def journal(self) -> Journal | None:
        """What happened since the last checkpoint that all processes have; None if there is none.

        May be called from another thread.
        """
        with self._log_lock:
            last, base = self._boundary, self._base
            if not self._is_on_file or last.rounds <= base:
                return None
            losses = [np.asarray(_local(one)) for one in self._losses[: last.updates - self._base_updates]]
            rounds = self._actions[: last.rounds - base]
        return Journal(
            base,
            last.rounds,
            np.array(rounds, np.int32).reshape(-1, self._group.size, self.environment.num_envs),
            np.array(losses, np.float32).reshape(-1, self._group.size * self.agent.config.batch_size),
            last.learner,
            last.loss,
        )

    def rehearse(
        self,
        journal: Journal,
        evaluated: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Repeats rounds whose actions, losses and last learner are known; no update is computed.

        Args:
            journal: what happened since the current round.
            evaluated: rounds after which totals were taken.
            should_stop: asked after every round; all processes must be told the same.
        """
        losses = iter(journal.losses)

        def known(learner: Any, total: Any, key: Any, batch: Any) -> tuple[Any, Any, Any]:
            return learner, total, self._own(next(losses)) if self._keeps_losses else None

        self._is_on_file = False  # the journal is the only file that leads to these rounds
        self._update = known
        for actions in [*journal.actions, None]:
            if self.rounds in evaluated:
                super().take_totals()
            if actions is None or should_stop():
                break
            self._forced = actions[self._group.rank]
            self.advance()
        self._forced, self._update = None, self._update_and_log
        if self.rounds == journal.rounds:
            self.learner, self._loss = journal.learner, journal.loss
            self.check_agreement()
        self._start_log(is_on_file=False)

    def restore(self, *args: Any, **kwargs: Any) -> bool:
        is_restored = super().restore(*args, **kwargs)
        if self._agreed(is_restored):
            self._all_have_transitions = self._agreed(self.replay.size > 0)
            self._choose_batches(self.interactions)
            self._start_log(is_on_file=True)
            self.check_agreement()
            return True
        return False

    def _agreed(self, holds: bool) -> bool:
        return bool(np.all(self._group.gather(np.array([holds]))))

    def _own(self, losses: Any) -> Any:
        """This process's part of the losses of a whole batch."""
        size = self.agent.config.batch_size
        return _local(losses)[self._group.rank * size : (self._group.rank + 1) * size]

    def _update_and_log(self, learner: Any, total: Any, key: Any, batch: types.Batch) -> tuple[Any, Any, Any]:
        learner, total, losses = self._shared_update(learner, total, key, batch)
        if not self._keeps_losses:
            return learner, total, None
        self._losses.append(losses)
        return learner, total, self._own(losses)

    def _decide(self, actions: np.ndarray) -> np.ndarray:
        self.mark_boundary()
        return actions if self._forced is None else self._forced

    def _count(self, coming: int, actions: np.ndarray) -> int:
        votes = self._ballot.vote()
        head = np.array([coming, self.replay.size > 0, *votes], np.int32)
        rows = self._group.gather(np.concatenate([head, actions.astype(np.int32)]))
        if self._saved_at is not None:  # which all others have written by now, or they would not be here
            with self._log_lock:
                rounds, updates = self._saved_at
                del self._actions[: rounds - self._base]
                del self._losses[: updates - self._base_updates]
                self._base, self._base_updates, self._saved_at = rounds, updates, None
                self._is_on_file = True
        self._actions.append(rows[:, len(head) :])
        self._all_have_transitions = bool(np.all(rows[:, 1]))
        self._ballot.count(rows[:, 2 : len(head)])
        return int(np.sum(rows[:, 0]))

    def _has_transitions(self) -> bool:
        return self._all_have_transitions

    def take_totals(self) -> vector.Totals:
        totals = super().take_totals()
        return totals._replace(scores=sum(gather_floats(self._group, totals.scores), []))

    def count_games(self) -> int:
        return int(np.sum(self._group.gather(np.array([self.games]))))

    @property
    def variables(self) -> types.Variables:
        return _local(super().variables)


def _local(tree: Any) -> Any:
    """The copy of arrays that this process has."""
    return jax.tree.map(lambda x: x.addressable_data(0) if isinstance(x, jax.Array) else x, tree)
