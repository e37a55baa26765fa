"""Reads bsuite runs: the logs of an agent's ids, and which of these are finished."""

from collections.abc import Sequence
import dataclasses
import pathlib

import pandas as pd

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.bsuite import logs as logs_lib
from hyperagent_jax.analysis.bsuite import stats

_PREFIX = "bsuite_id_-_"  # of bsuite's file names
_NEEDED = ("bsuite_id", "status", "reason")


def read(folders: Sequence[str | pathlib.Path]) -> list[stats.Log]:
    """Reads the logs in several folders, written by run_bsuite.py or any program that uses bsuite's logging."""
    resolved = [pathlib.Path(folder).resolve() for folder in folders]
    if twins := [folder for folder, path in zip(folders, resolved, strict=True) if resolved.count(path) > 1]:
        raise errors.UserError(f"duplicate folder: {twins[0]}")
    logs = [_read_folder(pathlib.Path(folder)) for folder in folders]
    labels = [log.label for log in logs]
    return [
        dataclasses.replace(log, label=f"{log.label}, {folder}") if labels.count(log.label) > 1 else log
        for log, folder in zip(logs, folders, strict=True)
    ]


def _read_folder(folder: pathlib.Path) -> stats.Log:
    known_ids = stats.sweep().SETTINGS
    identity = sources_lib.identity(folder)
    is_ours = identity.get("experiment") == "bsuite"  # then results.csv says which logs are finished
    table = folder / "results.csv"
    what = "results.csv of run_bsuite.py"
    rows = sources_lib.read_rows(table, _NEEDED, what) if is_ours and table.exists() else []
    finished = {row["bsuite_id"] for row in rows if row["status"] in (results.FINISHED, results.PARTIAL)}
    not_run = {
        row["bsuite_id"]: f"{row['status']}: {row['reason']}" for row in rows if row["bsuite_id"] not in finished
    }
    frames: dict[str, pd.DataFrame] = {}
    for path in sources_lib.own_files("bsuite", folder):
        bsuite_id = path.stem.removeprefix(_PREFIX).replace("-", "/")
        if bsuite_id not in known_ids:
            raise errors.UserError(f"{path} is not the log of a bsuite id: unknown id {bsuite_id}")
        if is_ours and bsuite_id not in finished:
            not_run.setdefault(bsuite_id, "not finished yet")
            continue
        if bsuite_id in frames:
            raise errors.UserError(f"{folder} contains two logs of {bsuite_id}: one in it, one in its folder csv")
        frames[bsuite_id] = pd.DataFrame(logs_lib.read(path, bsuite_id)).assign(bsuite_id=bsuite_id)
    if not frames:
        raise errors.UserError(f"{folder} contains no finished bsuite run")
    frame = pd.concat(frames.values(), ignore_index=True)
    settings = pd.DataFrame(
        [{"bsuite_id": name, "bsuite_env": name.split("/")[0], **given} for name, given in known_ids.items()]
    )
    known = [name for name in settings if name in frame and name != "bsuite_id"]
    frame = frame.drop(columns=known).merge(settings, on="bsuite_id")
    source = sources_lib.source(table, len(frames))
    return stats.Log(str(identity.get("agent") or folder.resolve().name), source, frame, not_run)
