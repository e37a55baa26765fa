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
            # A run that is resumed elsewhere, or by another version, lists where.
            filed = [record, *record.get("resumed", [])][-1]  # lists of objects, `_resumed` has looked
            if any(filed.get(part) != origin[part] for part in ("commit", "versions", "machine")):
                record["resumed"] = [*record.get("resumed", []), origin]
        with files.replacing(self._config) as f:
            f.write(json.dumps(record, indent=2) + "\n")

    def _check_ownership(self) -> None:
        """Refuses files of other programs; deletes the config.json of a run that ended before it had any."""
        tables = [name for name in self._TABLES if (self.path / name).exists()]
        if self._config.exists():
            if not self._config.is_file():
                raise errors.UserError(f"{self._config} is not a file: choose another --logdir")
            if not tables and not any((self.path / name).exists() for name in ("checkpoints", "rows")):
                self._config.unlink()
            return
        what = f"a {tables[0]} without the config.json that says what it is of" if tables else ""
        if any(self.path.glob("csv/*")):
            what = "logs of another program"
        if what:
            raise errors.UserError(f"--logdir={self.path} holds {what}: choose another --logdir")

    def close(self) -> None:
        """Lets other processes open the directory; also happens when this one ends."""
        self._lock.release()

    def _delete(self) -> None:
        for name in self._TABLES:
            (self.path / name).unlink(missing_ok=True)
        for pattern in ("checkpoints/*", "rows/*", "maps/*", "csv/*", "*.png", "*.gif"):
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
            if not all(isinstance(part, dict) for part in (old, *filed.get("resumed", []))):
                raise ValueError("a part that is not an object")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise errors.UserError(
                f"{self._config} is damaged: put a copy of it back, or choose another --logdir; what else is in "
                f"{self.path} was not touched"
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
                f"{now}): choose another --logdir or --overwrite"
            )
        return {**filed, **record, "identity": settings}

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of results.csv ("results") or curve.csv ("curve")."""
        return results.read_csv(self.path / f"{name}.csv")

    def add(self, name: str, fields: Sequence[str], row: dict[str, Any]) -> None:
        """Appends one row to a csv file, without waiting for the disk: whoever made the row has it on file."""
        self._lock.require()
        path = self.path / f"{name}.csv"
        is_new = not path.exists()
        with files.writing(path), open(path, "a", newline="") as f:
            writer = results.csv_writer(f, fields)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def write(self, name: str, fields: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        """Replaces a csv file; columns that its rows lack, because an older version wrote them, are left blank."""
        self._lock.require()
        path = self.path / f"{name}.csv"
        if unknown := [column for column in (rows[0] if rows else ()) if column not in fields]:
            raise errors.UserError(
                f"{path} has columns that this version does not write ({', '.join(unknown)}): use another --logdir"
            )
        results.write_csv(path, fields, rows)
