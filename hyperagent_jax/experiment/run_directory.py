"""The files of a run: results.csv, curve.csv and config.json, which survive any interruption."""

from collections.abc import Callable, Sequence
import fcntl
import json
import os
import pathlib
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.experiment import fingerprint as fingerprint_lib


class RunDirectory:
    """The files of one run; only one process writes them."""

    _TABLES = ("results.csv", "curve.csv", "bench.csv", "memory.csv")

    def __init__(
        self,
        path: str,
        fingerprint: fingerprint_lib.Fingerprint,
        *,
        resume: bool | None,
        overwrite: bool,
        extensible: Sequence[str] = (),
        notes: dict[str, Any] | None = None,
    ):
        """Opens or makes the directory; results of different fingerprints never mix.

        Args:
            path: the directory.
            fingerprint: the resolved configuration.
            resume: continue with what is there; None where that cannot be asked for.
            overwrite: delete results that are there.
            extensible: parts of the settings, dicts themselves, that may gain entries when a run is resumed.
            notes: further entries of config.json; those of a resumed run replace the old ones.
        """
        self.path = pathlib.Path(path)
        self._config = self.path / "config.json"
        self._lock()
        if resume and overwrite:
            raise errors.UserError("--resume and --overwrite are mutually exclusive: give one of them")
        self._check_ownership()
        record = {"identity": fingerprint.settings, **(notes or {})}
        if self._config.exists():
            if overwrite:
                self._delete()
            elif not resume:
                advice = "" if resume is None else "--resume to continue it, "
                raise errors.UserError(
                    f"--logdir={path} already holds a run: add {advice}--overwrite to delete it, "
                    "or choose another --logdir"
                )
            else:
                record = self._resumed(record, fingerprint, extensible)
        origin = results.provenance()
        if not self._config.exists():
            record.update(origin)
        else:
            # A run that is resumed elsewhere, or by another version, lists where.
            filed = [record, *record.get("resumed", [])][-1]
            if any(filed.get(part) != origin[part] for part in ("commit", "versions", "machine")):
                record["resumed"] = [*record.get("resumed", []), origin]
        with results.replacing(self._config) as f:
            f.write(json.dumps(record, indent=2) + "\n")

    def _lock(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_file = open(self.path / ".lock", "w")
        except OSError as error:
            raise errors.UserError(f"cannot write to --logdir={self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise errors.UserError(
                f"--logdir={self.path} is in use by another run: choose another --logdir"
            ) from error

    def _check_ownership(self) -> None:
        """Refuses files of other programs; deletes the config.json of a run that ended before it had any."""
        tables = [name for name in self._TABLES if (self.path / name).exists()]
        if self._config.exists():
            if not tables and not (self.path / "checkpoints").exists():
                self._config.unlink()
            return
        what = f"a {tables[0]} without the config.json that says what it is of" if tables else ""
        if any(self.path.glob("csv/*")):
            what = "logs of another program"
        if what:
            raise errors.UserError(f"--logdir={self.path} holds {what}: choose another --logdir")

    def close(self) -> None:
        """Lets other processes open the directory; also happens when this one ends."""
        self._lock_file.close()

    def _delete(self) -> None:
        for name in self._TABLES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("checkpoints/*", "maps/*", "csv/*", "*.png", "*.gif"):
            for file in filter(pathlib.Path.is_file, self.path.glob(pattern)):
                file.unlink()
        self._config.unlink(missing_ok=True)  # last: it says what the rest is

    def _resumed(
        self, record: dict[str, Any], fingerprint: fingerprint_lib.Fingerprint, extensible: Sequence[str]
    ) -> dict[str, Any]:
        """The record on file updated with `record`; refuses one of a different configuration."""
        try:
            filed = json.loads(self._config.read_text())
            old = filed["identity"]
            if not isinstance(old, dict):
                raise ValueError("identity is not an object")
        except (ValueError, KeyError, TypeError) as error:
            raise errors.UserError(f"{self._config} is corrupt: use --overwrite or another --logdir") from error
        settings = dict(fingerprint.settings)
        old = dict(old)
        for part in extensible:
            before, now = fingerprint.completed(old).get(part, {}), settings[part]
            old[part], settings[part] = {**now, **before}, {**before, **now}
        if difference := fingerprint._replace(settings=settings).difference(old):
            name, was, now = difference
            raise errors.UserError(
                f"--logdir={self.path} holds a run with a different configuration ({name} was {was}, is now "
                f"{now}): choose another --logdir or --overwrite"
            )
        return {**filed, **record, "identity": settings}

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of results.csv ("results") or curve.csv ("curve")."""
        return results.read_csv(self.path / f"{name}.csv")

    def require_numbers(self, name: str, *columns: str) -> None:
        """Refuses a csv file without these columns of whole numbers."""
        try:
            for row in self.rows(name):
                for column in columns:
                    int(row[column])
        except (KeyError, ValueError) as error:
            raise errors.UserError(f"{self.path / name}.csv is corrupt: fix or delete it") from error

    def add(self, name: str, fields: Sequence[str], row: dict[str, Any]) -> None:
        """Appends one row to a csv file."""
        path = self.path / f"{name}.csv"
        is_new = not path.exists()
        with results.writing(path), open(path, "a", newline="") as f:
            writer = results.csv_writer(f, fields)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
            f.flush()
            os.fsync(f.fileno())

    def filter_rows(self, name: str, fields: Sequence[str], condition: Callable[[dict[str, str]], bool]) -> None:
        """Drops the rows of a csv file that do not meet a condition, and any line cut short.

        Columns that the file does not have yet, because an older version wrote it, are left blank.
        """
        path = self.path / f"{name}.csv"
        rows = [row for row in self.rows(name) if condition(row)]
        if unknown := [column for column in (rows[0] if rows else ()) if column not in fields]:
            raise errors.UserError(
                f"{path} has columns that this version does not write ({', '.join(unknown)}): use another --logdir"
            )
        if path.exists():
            results.write_csv(path, fields, rows)
