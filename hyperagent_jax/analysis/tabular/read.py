"""Reads the folder of a study of run_tabular.py."""

from collections.abc import Mapping
import pathlib
from typing import Any, NamedTuple

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources as sources_lib


class Study(NamedTuple):
    """A study as it is on file.

    Attributes:
        name: name of its command.
        folder: its folder.
        tables: rows of its csv files by name.
        settings: its settings.
        source: how it was made.
    """

    name: str
    folder: pathlib.Path
    tables: Mapping[str, list[dict[str, str]]]
    settings: Mapping[str, Any]
    source: sources_lib.Source


def read(place: str) -> Study:
    """Reads a study from its folder or its results.csv."""
    path = pathlib.Path(place)
    folder = path if path.is_dir() else path.parent
    tables = {file.stem: results.read_csv(file) for file in sorted(folder.glob("*.csv"))}
    if not tables or not all(tables.values()):
        raise errors.UserError(f"{folder} does not contain the complete tables of a study: run it again")
    identity = sources_lib.identity(folder)
    first = "results" if "results" in tables else next(iter(tables))
    source = sources_lib.source(folder / f"{first}.csv", len(tables[first]))
    name = str(identity.get("experiment", "")).removeprefix("tabular_")
    return Study(name, folder, tables, sources_lib.part(identity, "config"), source)
