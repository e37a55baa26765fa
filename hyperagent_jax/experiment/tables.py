"""results.csv and curve.csv of a plan: checks rows, writes each once, and finally sorts them as in the plan."""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax.experiment import base
from hyperagent_jax.experiment import rows as rows_lib
from hyperagent_jax.experiment import run_directory

Key = tuple[str, ...]

# Columns of text that are not keys.
_TEXTS = {"agent", "env", "game", "bsuite_id", "status", "reason", "error", "command"}


class Tables:
    """The rows of a run directory."""

    def __init__(self, plan: base.Plan, directory: run_directory.RunDirectory):
        """Reads existing rows, including those recorded by tasks after their driver was killed."""
        self._plan = plan
        self._directory = directory
        self.tasks: dict[Key, base.Task] = {plan.key(task.columns_of(task.seeds[0])): task for task in plan.tasks}
        filed = list(rows_lib.Reader(directory.path).new())
        self._results = self._read_results(filed)
        self._curve: set[tuple[Key, int]] = set()
        self._filed = filed

    def _read_results(self, filed: Sequence[rows_lib.Record]) -> dict[Key, dict[str, str]]:
        plan, directory = self._plan, self._directory
        on_file = directory.rows("results")
        self._check("results", on_file)
        rows: dict[Key, dict[str, str]] = {}
        for number, row in enumerate(on_file):
            if (key := plan.key(row)) in rows:
                raise _damaged(directory, "results", number, "duplicate run")
            rows[key] = row
        for key, task, seed, row in self._results_of(filed):
            full = _as_text(self.full_row(task, seed, row))
            if (key not in rows or rows[key].get("error")) and not self._problem("results", full):
                rows[key] = full
        kept = {
            key: row
            for key, row in rows.items()
            if key not in self.tasks or plan.experiment.is_done(row, directory)
        }
        if kept or self._exists("results"):  # an empty or torn heading is replaced, too
            directory.write("results", plan.result_fields, list(kept.values()))
        return kept

    def _exists(self, name: str) -> bool:
        return (self._directory.path / f"{name}.csv").exists()

    def _results_of(self, filed: Sequence[rows_lib.Record]) -> list[tuple[Key, base.Task, int, dict[str, Any]]]:
        """Returns the results in `filed` that belong to this plan."""
        found = []
        for record in filed:
            for seed, row in record.results.items():
                key = self._plan.key({**record.columns, "seed": seed}, missing="")
                if key in self.tasks:
                    found.append((key, self.tasks[key], int(seed), row))
        return found

    def _check(self, name: str, rows: Sequence[dict[str, str]]) -> None:
        """Rejects a table with rows that this library cannot have written."""
        for number, row in enumerate(rows):
            if problem := self._problem(name, row):
                raise _damaged(self._directory, name, number, problem)

    def _problem(self, name: str, row: dict[str, str]) -> str:
        """Returns why this library cannot have written a row of a table; blank if it can."""
        plan = self._plan
        task, keys = plan.tasks[0], plan.key_fields
        try:
            plan.key(row)
            _count(row, "seed")
            for column, value in row.items():
                if column == "solved":
                    if value not in ("True", "False", ""):
                        raise ValueError(f"solved is {value!r}")
                elif column not in _TEXTS and column not in keys and value != "":
                    if not math.isfinite(float(value)):
                        raise ValueError(f"{column} is {value}")
            if name == "curve" or row.get("interactions"):
                _count(row, "interactions")
            if name == "results" and not row.get("error"):
                plan.experiment.outcome(row)
                problem = plan.experiment.problem
                shared = {"agent": task.agent, problem: str(getattr(task.protocol, problem))}
                for column, value in () if plan.is_sweep else shared.items():
                    if column not in keys and row[column] != value:
                        raise ValueError(f"{column} is {row[column]!r}")
        except KeyError as error:
            return f"no column {error.args[0]}"
        except (ValueError, TypeError, OverflowError) as error:
            return str(error)
        return ""

    @property
    def done(self) -> Mapping[Key, dict[str, Any]]:
        """The rows of results.csv by key."""
        return self._results

    def begin(self, reached: Mapping[Key, int]) -> None:
        """Drops rows of curve.csv that will be reported again; `reached` is the progress in checkpoints."""
        plan = self._plan
        if not plan.curve_fields:
            return
        on_file = self._directory.rows("curve")
        self._check("curve", on_file)
        rows = []
        for row in on_file:
            key, at = plan.key(row), int(row["interactions"])
            is_pending = key in self.tasks and key not in self._results
            if (not is_pending or at <= reached.get(key, 0)) and (key, at) not in self._curve:
                rows.append(row)
                self._curve.add((key, at))
        if self._exists("curve"):
            self._directory.write("curve", plan.curve_fields, rows)
        for record in self._filed:
            for seed, row in record.curve:
                key = plan.key({**record.columns, "seed": str(seed)}, missing="")
                if key in self.tasks and key in self._results:
                    task = self.tasks[key]
                    if not self._problem("curve", _as_text({**row, **task.columns_of(seed)})):
                        self._write_curve(task, key, seed, row)

    def without_curve(self) -> list[Key]:
        """Returns the finished runs whose last evaluation is not in curve.csv, which somebody has changed."""
        if not self._plan.curve_fields:
            return []
        return [
            key
            for key, row in self._results.items()
            if key in self.tasks and not row.get("error") and (key, int(row["interactions"])) not in self._curve
        ]

    def full_row(self, task: base.Task, seed: int, row: dict[str, Any]) -> dict[str, Any]:
        """Returns a row with exactly the columns of results.csv."""
        fields = self._plan.result_fields
        known = {**row, **task.columns_of(seed), "agent": task.agent}
        if "command" in fields:
            known["command"] = self._plan.experiment.command(task, seed)
        return {name: known.get(name, "") for name in fields}

    def add_result(self, task: base.Task, seed: int, row: dict[str, Any]) -> dict[str, Any] | None:
        """Writes a row of results.csv and returns it, or None if it already exists."""
        key = self._plan.key(task.columns_of(seed))
        if key in self._results:
            return None
        full = self.full_row(task, seed, row)
        self._directory.add("results", self._plan.result_fields, full)
        self._results[key] = full
        return full

    def add_curve(self, task: base.Task, seed: int, row: dict[str, Any]) -> None:
        """Writes a row of curve.csv unless it already exists."""
        key = self._plan.key(task.columns_of(seed))
        if self._plan.curve_fields and key not in self._results:
            self._write_curve(task, key, seed, row)

    def _write_curve(self, task: base.Task, key: Key, seed: int, row: dict[str, Any]) -> None:
        at = (key, int(row["interactions"]))
        if at not in self._curve:
            self._curve.add(at)
            self._directory.add("curve", self._plan.curve_fields, {**row, **task.columns_of(seed)})

    def finish(self) -> dict[Key, dict[str, str]]:
        """Sorts all rows in the order of the plan; returns the results by key."""
        plan = self._plan
        order = {key: position for position, key in enumerate(self.tasks)}

        def position(row: dict[str, str]) -> int:
            return order.get(plan.key(row), len(order))

        def by_interactions(row: dict[str, str]) -> tuple[int, Key, int]:
            return position(row), plan.key(row), int(row["interactions"])

        rows = self._sorted("results", plan.result_fields, position)
        if plan.curve_fields:
            self._sorted("curve", plan.curve_fields, by_interactions)
        placed = all(
            self._plan.key({**record.columns, "seed": seed}, missing="") in self.tasks
            for record in self._filed
            for seed in record.results
        )
        if placed:  # other records belong to a larger plan, which still needs them
            rows_lib.delete(self._directory.path)
        return {key: row for row in rows if (key := plan.key(row)) in self.tasks}

    def _sorted(
        self, name: str, fields: Sequence[str], position: Callable[[dict[str, str]], Any]
    ) -> list[dict[str, str]]:
        rows = sorted(self._directory.rows(name), key=position)
        if rows:
            self._directory.write(name, fields, rows)
        return rows


def _as_text(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items()}


def _count(row: Mapping[str, str], column: str) -> None:
    if int(row[column]) < 0:
        raise ValueError(f"{column} is {row[column]}")


def _damaged(directory: run_directory.RunDirectory, name: str, number: int, problem: str) -> errors.UserError:
    path = directory.path / f"{name}.csv"
    line = " ".join(problem.split())
    return errors.UserError(
        f"{path} is corrupt (row {number + 1}: {line}): fix it, or move the file away to run everything again"
    )
