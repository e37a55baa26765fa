"""The files of a run: results.csv, curve.csv and config.json, which survive any interruption."""

from collections.abc import Sequence
import json
import pathlib
from typing import Any

from hyperagent_jax import errors
from hyperagent_jax import files
from hyperagent_jax import results
from hyperagent_jax.experiment import fingerprint as fingerprint_lib
from hyperagent_jax.experiment import lock


class RunDirectory:
    """The files of a run directory; only one process writes them."""

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
        """Opens or creates the directory; results with different fingerprints are never mixed.

        Args:
            path: the directory.
            fingerprint: the resolved configuration.
            resume: whether to continue an existing run; None for scripts without --resume.
            overwrite: whether to delete existing results.
            extensible: names of settings, themselves dicts, that may gain entries when a run is resumed.
            notes: additional entries of config.json; when a run is resumed, they replace the old ones.
        """
        self.path = pathlib.Path(path)
        self._config = self.path / "config.json"
        self._lock = lock.Lock(self.path)
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
            # Record where a run was resumed if the machine or the version is different.
            filed = [record, *record.get("resumed", [])][-1]  # a list of objects, which `_resumed` has checked
            if any(filed.get(part) != origin[part] for part in ("commit", "versions", "machine")):
                record["resumed"] = [*record.get("resumed", []), origin]
        with files.replacing(self._config) as f:
            f.write(json.dumps(record, indent=2) + "\n")
        for folder in (self.path, self.path / "maps", self.path / "checkpoints"):  # nobody else writes there now
            files.delete_unfinished(folder)

    def _check_ownership(self) -> None:
        """Rejects a folder with files of other programs; deletes the config.json of a run without results."""
        tables = [name for name in self._TABLES if (self.path / name).exists()]
        if self._config.exists():
            if not self._config.is_file():
                raise errors.UserError(f"{self._config} is not a file: choose another --logdir")
            if not tables and not any((self.path / name).exists() for name in ("checkpoints", "rows")):
                self._config.unlink()
            return
        what = f"a {tables[0]} without its config.json" if tables else ""
        if any(self.path.glob("csv/*")):
            what = "logs of another program"
        if what:
            raise errors.UserError(f"--logdir={self.path} contains {what}: choose another --logdir")

    def close(self) -> None:
        """Releases the directory for other processes, as does the end of this one."""
        self._lock.release()

    def _delete(self) -> None:
        for name in self._TABLES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("checkpoints/*", "rows/*", "maps/*", "csv/*", "tensorboard/*/*", "*.png", "*.gif"):
            for file in filter(pathlib.Path.is_file, self.path.glob(pattern)):
                file.unlink()
        self._config.unlink(missing_ok=True)  # last, because it identifies the other files

    def _resumed(
        self, record: dict[str, Any], fingerprint: fingerprint_lib.Fingerprint, extensible: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the record on file updated with `record`; rejects a different configuration."""
        try:
            filed = json.loads(self._config.read_text())
            old = filed["identity"]
            if not all(isinstance(part, dict) for part in (old, *filed.get("resumed", []))):
                raise ValueError("not a JSON object")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise errors.UserError(
                f"{self._config} is corrupt: restore a copy of it, or choose another --logdir (nothing in "
                f"{self.path} was changed)"
            ) from error
        settings = dict(fingerprint.settings)
        old = dict(old)
        for part in extensible:
            before, now = fingerprint.completed(old).get(part, {}), settings[part]
            old[part], settings[part] = {**now, **before}, {**before, **now}
        if difference := fingerprint._replace(settings=settings).difference(old):
            name, was, now = difference
            raise errors.UserError(
                f"--logdir={self.path} holds a run with a different configuration ({name} was {was}, is now "
                f"{now}): choose another --logdir, or add --overwrite to delete it"
            )
        return {**filed, **record, "identity": settings}

    def rows(self, name: str) -> list[dict[str, str]]:
        """Returns the rows of results.csv ("results") or curve.csv ("curve")."""
        return results.read_csv(self.path / f"{name}.csv")

    def add(self, name: str, fields: Sequence[str], row: dict[str, Any]) -> None:
        """Appends one row to a csv file, without waiting for the disk: the task has already saved the row."""
        self._lock.require()
        path = self.path / f"{name}.csv"
        is_new = not path.exists()
        with files.writing(path), open(path, "a", newline="") as f:
            writer = results.csv_writer(f, fields)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def write(self, name: str, fields: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        """Replaces a csv file; columns missing from rows of an older version are left empty."""
        self._lock.require()
        path = self.path / f"{name}.csv"
        if unknown := [column for column in (rows[0] if rows else ()) if column not in fields]:
            raise errors.UserError(
                f"{path} has columns that this version does not write ({', '.join(unknown)}): use another --logdir"
            )
        results.write_csv(path, fields, rows)
