"""Shows a user the progress of running tasks, their results and their messages."""

from collections.abc import Mapping, Sequence
import sys
import time
from typing import Any

import tqdm

from hyperagent_jax import results
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import tables as tables_lib
from hyperagent_jax.experiment import tensorboard

# Without a progress bar, print a line of progress this often.
_SAY_SECONDS = 60.0


class Display:
    """Shows progress, and writes rows as they are reported."""

    def __init__(
        self,
        plan: base.Plan,
        tables: tables_lib.Tables,
        tasks: Sequence[base.Task],
        reached: Mapping[tables_lib.Key, int],
        has_bar: bool,
        scalars: tensorboard.Writer | None = None,
    ):
        """Creates a display; `reached` is the progress that each row already had."""
        self._scalars = scalars
        self._resumed_at = reached
        self._plan = plan
        self._tables = tables
        self._tasks = {task.name: task for task in tasks}
        self._lengths = {
            plan.key(task.columns_of(seed)): 1 if plan.is_sweep else plan.experiment.length(task.protocol)
            for task in tasks
            for seed in task.seeds
        }
        self._reached = {key: 0 if plan.is_sweep else reached.get(key, 0) for key in self._lengths}
        self._said_at = time.monotonic()
        total = sum(self._lengths.values())
        self._bar = tqdm.tqdm(
            initial=sum(self._reached.values()),
            total=total,
            unit="run" if plan.is_sweep else plan.experiment.unit,
            unit_scale=total >= 10_000,
            disable=not has_bar,
            mininterval=0.2,
            smoothing=0.05,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def close(self) -> None:
        """Ends the bar and closes event files."""
        self._bar.close()
        if self._scalars:
            self._scalars.close()

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        self._bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def on_event(self, event: base.Event) -> None:
        """Handles one event of a task."""
        task = self._tasks[event.task]
        if event.kind == "note":
            self.say(event.text)
        elif event.kind == "result":
            self._add_result(task, event.seed, event.row)
        else:
            self._advance(self._plan.key(task.columns_of(event.seed)), event.reached, event.text)
            if event.kind == "curve":
                self._tables.add_curve(task, event.seed, event.row)
                self._write_scalars(task, event.seed, "curve", event.row)

    def _write_scalars(self, task: base.Task, seed: int, prefix: str, row: Mapping[str, Any]) -> None:
        if self._scalars:
            columns = task.columns_of(seed)
            values = {"agent": task.agent, **columns}
            run = "_".join(f"{name}={value}" for name, value in values.items() if value != "")
            reached = self._resumed_at.get(self._plan.key(columns), 0)
            self._scalars.add(run, prefix, row, reached)

    def _advance(self, key: tables_lib.Key, reached: int, text: str) -> None:
        plan = self._plan
        shown = {"agent", plan.experiment.problem, "seed", *plan.shown}
        values = zip(plan.key_fields, key, strict=True)
        label = " ".join(f"{name} {value}" for name, value in values if value and name in shown)
        self._bar.set_postfix_str(f"{label} {text}".strip(), refresh=False)
        if self._bar.disable and time.monotonic() - self._said_at >= _SAY_SECONDS:
            self._said_at = time.monotonic()
            print(f"{label}: {reached:,} {plan.experiment.unit}s {text}".strip(), flush=True)
        if not plan.is_sweep:
            self._bar.update(max(0, reached - self._reached[key]))
            self._reached[key] = max(reached, self._reached[key])

    def on_failure(self, task: base.Task, message: str) -> None:
        """Handles a task that failed: writes a row with the reason for each of its seeds."""
        failure = {"solved": False, "status": results.FAILED, "reason": message, "error": message}
        for seed in task.seeds:
            self._add_result(task, seed, failure)

    def on_lost(self, task: base.Task, message: str) -> None:
        """Handles a task whose process was lost and that is run again."""
        self.say(f"{task.name}: {message}")

    def _add_result(self, task: base.Task, seed: int, row: dict) -> None:
        full = self._tables.add_result(task, seed, row)
        if full is None:
            return
        if not full.get("error"):
            self._write_scalars(task, seed, "result", row)
        key = self._plan.key(full)
        if self._plan.is_sweep:
            self._bar.update()
        elif not self._bar.disable:  # it needs no more of its budget
            self._bar.total -= self._lengths[key] - self._reached[key]
            self._bar.refresh()
        self.say(self._plan.experiment.summary(full, self._plan.shown))
