"""What a running task talks to: its clock, its checkpoint, its rows, and whether to stop."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import pathlib
import time
from typing import Any

import numpy as np

from hyperagent_jax import checkpoint
from hyperagent_jax import errors
from hyperagent_jax.experiment import base

# Least time between two reports of progress.
_REPORT_SECONDS = 0.2


@dataclasses.dataclass
class Progress:
    """Where a task stands; saved in its checkpoint, with the rows it has reported."""

    reached: int = 0  # in the experiment's unit
    train_seconds: float = 0.0  # spent in `RunContext.training`
    curve: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)  # with their seeds
    results: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by seed
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)  # what else the experiment must keep, as JSON


def load_progress(path: pathlib.Path) -> tuple[Progress, dict[str, Any]]:
    """Reads where a checkpoint's task stood, and the settings it was made with."""
    facts = checkpoint.load_facts(path)
    try:
        progress, settings = Progress(**facts["progress"]), facts["fingerprint"]
        if type(progress.reached) is not int or not isinstance(settings, dict):
            raise TypeError("facts of a wrong type")
    except (KeyError, TypeError) as error:
        raise checkpoint.CheckpointError(
            f"checkpoint {path} is of another version or corrupt: delete it to restart its run"
        ) from error
    return progress, settings


class RunContext:
    """The surroundings of one running task, which saves and returns once `should_stop()`."""

    def __init__(self, task: base.Task, report: Callable[[base.Event], None], should_stop: Callable[[], bool]):
        """Reads the task's checkpoint, if there is one, and reports its rows again.

        They may never have reached a file. Whoever receives them leaves out those it has.
        """
        self.task = task
        self.should_stop = should_stop
        self.progress = Progress()
        self.is_resumed = bool(task.folder) and task.checkpoint.exists()
        self._report = report
        self._fingerprint = task.fingerprint()
        self._saved_at = self._reported_at = time.monotonic()
        if self.is_resumed:
            self.progress, saved = load_progress(task.checkpoint)
            if self._fingerprint.difference(saved):
                raise checkpoint.CheckpointError(
                    f"checkpoint {task.checkpoint} was made with a different configuration: delete it"
                )
            for seed, row in self.progress.curve:
                self._send("curve", seed, row=row, reached=row["interactions"])
            for seed_text, row in self.progress.results.items():
                self._send("result", int(seed_text), row=row)

    def _send(self, kind: str, seed: int, **content: Any) -> None:
        self._report(base.Event(kind, self.task.name, seed, **content))

    def load(self, like: Any) -> Any:
        """Returns the arrays of the checkpoint of a resumed task; see `checkpoint.load`."""
        return checkpoint.load(self.task.checkpoint, like)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Counts the time inside as training."""
        begin = time.perf_counter()
        yield
        self.progress.train_seconds += time.perf_counter() - begin

    def advance(self, reached: int, text: str = "") -> None:
        """Notes how far the task has come, and reports it now and then."""
        self.progress.reached = reached
        if time.monotonic() - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._send("progress", self.task.seeds[0], reached=reached, text=text)

    def add_curve(self, seed: int, row: dict[str, Any], text: str = "") -> None:
        """Reports a row of curve.csv."""
        self.progress.curve.append((seed, row))
        self._send("curve", seed, row=row, reached=row["interactions"], text=text)

    def add_result(self, seed: int, row: dict[str, Any]) -> None:
        """Reports a seed's row of results.csv."""
        self.progress.results[str(seed)] = row
        self._send("result", seed, row=row)

    def is_done(self, seed: int) -> bool:
        """Returns whether a seed's result was reported."""
        return str(seed) in self.progress.results

    def note(self, text: str) -> None:
        """Reports a line for the user."""
        self._send("note", self.task.seeds[0], text=text)

    def check_loss(self, loss: Any, what: str, interactions: int | None = None) -> None:
        """Refuses to continue when training has diverged; `interactions` is where progress counts episodes."""
        if not np.isfinite(loss):
            reached = self.progress.reached if interactions is None else interactions
            raise errors.UserError(
                f"{what}: the loss is no longer finite after {reached:,} interactions; "
                "lower --learning_rate or check the rewards"
            )

    def is_save_due(self, share: float = 1.0) -> bool:
        """Returns whether that share of `checkpoint_seconds` has passed since the last checkpoint."""
        return time.monotonic() - self._saved_at >= share * self.task.checkpoint_seconds

    def save(self, tree: Any) -> None:
        """Writes a checkpoint."""
        if self.task.folder:
            facts = {"fingerprint": self._fingerprint.settings, "progress": dataclasses.asdict(self.progress)}
            checkpoint.save(self.task.checkpoint, tree, facts)
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Reports that the checkpoint is no longer needed."""
        self._send("finished", self.task.seeds[0])
