"""The interface of a running task: its clock, its checkpoint, its rows, and whether to stop."""

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
from hyperagent_jax.experiment import rows

# Minimum time between progress reports.
_REPORT_SECONDS = 0.2
# Minimum time between warnings about a checkpoint that cannot be written.
_SAY_SECONDS = 60.0


@dataclasses.dataclass
class Progress:
    """The progress of a task, saved in its checkpoint, including the rows it has reported."""

    reached: int = 0  # in the experiment's unit
    train_seconds: float = 0.0  # spent in `RunContext.training`
    curve: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)  # with their seeds
    results: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)  # by seed
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)  # other state of the experiment, as JSON


def load_progress(path: pathlib.Path) -> tuple[Progress, dict[str, Any]]:
    """Reads the progress and the settings of a checkpoint's task."""
    facts = checkpoint.load_facts(path)
    try:
        progress, settings = Progress(**facts["progress"]), facts["fingerprint"]
        progress.curve = [(seed, row) for seed, row in progress.curve]
        seeds = [*(seed for seed, _ in progress.curve), *map(int, progress.results)]
        every = [*(row for _, row in progress.curve), *progress.results.values()]
        counts = [progress.reached, *seeds, *(row["interactions"] for _, row in progress.curve)]
        if any(type(count) is not int for count in counts):
            raise TypeError("not a count")
        if not all(isinstance(part, dict) for part in (settings, progress.notes, *every)):
            raise TypeError("not of the expected type")
        if not isinstance(progress.train_seconds, int | float):
            raise TypeError("not a time")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise checkpoint.CheckpointError(
            f"checkpoint {path} is corrupt or from another version: move it away to restart the run"
        ) from error
    return progress, settings


class RunContext:
    """The interface of one running task to the driver. Tasks save and return once `should_stop()` is true."""

    def __init__(self, task: base.Task, report: Callable[[base.Event], None], should_stop: Callable[[], bool]):
        """Reads the task's checkpoint, if there is one, and reports its rows again.

        They may never have been written to a file. The receiver skips those that it already has.
        """
        self.task = task
        self.should_stop = self.wants_to_stop = should_stop  # the second need not be the same in all processes
        self.progress = Progress()
        self.has_trained = False  # in this process
        self._said_at: float | None = None
        self._report = report
        self._fingerprint = task.fingerprint()
        self._saved_at = self._reported_at = time.monotonic()
        self._file, remark = self._find() if task.folder else (None, "")
        self.is_resumed = self._file is not None
        if remark:
            self.note(remark)
        if self._file is not None:
            self.progress, saved = load_progress(self._file)
            if self._fingerprint.difference(saved):
                raise checkpoint.CheckpointError(
                    f"checkpoint {self._file} was made with a different configuration: move it away"
                )
            for seed, row in self.progress.curve:
                self._send("curve", seed, row=row, reached=row["interactions"])
            for seed_text, row in self.progress.results.items():
                self._send("result", int(seed_text), row=row)

    def _find(self) -> tuple[pathlib.Path | None, str]:
        """The checkpoint to continue from, and a line for the user."""
        return checkpoint.newest(self.task.checkpoint)

    def _send(self, kind: str, seed: int, **content: Any) -> None:
        self._report(base.Event(kind, self.task.name, seed, **content))

    def load(self, like: Any) -> Any:
        """Returns the arrays of the checkpoint of a resumed task; see `checkpoint.load`."""
        assert self._file is not None  # of a resumed task
        return checkpoint.load(self._file, like)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Counts the time spent inside as training."""
        self.has_trained = True
        begin = time.perf_counter()
        yield
        self.progress.train_seconds += time.perf_counter() - begin

    def advance(self, reached: int, text: str = "") -> None:
        """Records the progress of the task, and reports it at intervals."""
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
        """Returns whether a seed's result has been reported."""
        return str(seed) in self.progress.results

    def note(self, text: str) -> None:
        """Reports a message to the user."""
        self._send("note", self.task.seeds[0], text=text)

    def check_loss(self, loss: Any, what: str, interactions: int | None = None) -> None:
        """Raises an error if training has diverged; pass `interactions` if the unit of progress is different."""
        if not np.isfinite(loss):
            reached = self.progress.reached if interactions is None else interactions
            raise errors.UserError(
                f"{what}: the loss is not finite after {reached:,} interactions; "
                "lower --learning_rate or check the rewards"
            )

    def is_save_due(self, share: float = 1.0) -> bool:
        """Returns whether `share` of `checkpoint_seconds` has passed since the last checkpoint."""
        return time.monotonic() - self._saved_at >= share * self.task.checkpoint_seconds

    def save(self, tree: Any) -> None:
        """Writes a checkpoint; if it cannot be written, warns the user and lets training continue."""
        if self.task.folder:
            if not pathlib.Path(self.task.folder).is_dir():
                raise errors.UserError(
                    f"--logdir={self.task.folder} was removed or renamed during the run: restore it and continue "
                    "with --resume"
                )
            facts = {"fingerprint": self._fingerprint.settings, "progress": dataclasses.asdict(self.progress)}
            try:
                checkpoint.save(self.task.checkpoint, tree, facts, keep_previous=True)
            except checkpoint.CheckpointError as error:
                self._say_not_saved(error)
        self._saved_at = time.monotonic()

    def _say_not_saved(self, error: checkpoint.CheckpointError) -> None:
        if self._said_at is None or time.monotonic() - self._said_at >= _SAY_SECONDS:
            self._said_at = time.monotonic()
            self.note(f"{error}; training continues, and the previous checkpoint is kept")

    def finish(self) -> bool:
        """Returns whether all seeds are done; if so, records their rows and deletes the checkpoint."""
        task = self.task
        if not all(map(self.is_done, task.seeds)):
            return False
        if not task.folder:
            return True
        has_curve = not task.is_cell or base.get(task.experiment).sweeps_curves
        curve = self.progress.curve if has_curve else []
        rows.add(task.folder, rows.Record(task.name, dict(task.columns), self.progress.results, curve))
        checkpoint.delete(task.checkpoint)
        return True
