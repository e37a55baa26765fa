"""Curves and results as scalars for TensorBoard, in a folder per run."""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

from hyperagent_jax import errors

_NOT_SCALARS = {"seed", "interactions", "steps", "solved"}


class Writer:
    """Writes event files to <logdir>/tensorboard/<run>."""

    def __init__(self, logdir: str):
        """Makes a writer; raises UserError if tensorboardX is not installed."""
        try:
            import tensorboardX
        except ImportError as error:
            raise errors.UserError(
                "--tensorboard needs tensorboardX: pip install 'hyperagent_jax[tensorboard]'"
            ) from error
        self._make = tensorboardX.SummaryWriter
        self._folder = pathlib.Path(logdir) / "tensorboard"
        self._files: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def add(self, run: str, prefix: str, row: Mapping[str, Any], reached: int = 0) -> None:
        """Writes the numbers of a row at its interactions.

        Args:
            run: name of the run.
            prefix: the group of the scalars: "curve" or "result".
            row: a row of curve.csv or results.csv.
            reached: where the run resumed; later scalars on file are of steps that were not saved and are dropped.
        """
        step = int(row.get("interactions") or row.get("steps") or 0)
        if prefix == "curve" and step <= self._steps.get(run, -1):  # reported before its process was lost
            return
        self._steps[run] = step
        if run not in self._files:
            purged = reached + 1 if reached else None
            self._files[run] = self._make(str(self._folder / re.sub(r"[^\w.=-]", "_", run)), purge_step=purged)
        for name, value in row.items():
            number = _number(value)
            if name not in _NOT_SCALARS and number is not None:
                self._files[run].add_scalar(f"{prefix}/{name}", number, step)
        if prefix == "result":
            self._files.pop(run).close()

    def close(self) -> None:
        """Writes what is pending and closes all files."""
        while self._files:
            self._files.popitem()[1].close()


def _number(value: Any) -> float | None:
    """Returns a value as a number, or None if it is text or blank."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
