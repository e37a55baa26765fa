"""The files behind a report: the kind of their runs, their rows, and how they were made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any, NamedTuple, TypeVar

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import html
from hyperagent_jax.analysis.html import Cell

_T = TypeVar("_T")


class Kind(NamedTuple):
    """How to recognise a kind of run whose config.json does not name it.

    Attributes:
        column: a column that only its results.csv has.
        patterns: files that only its folders contain.
        experiments: names in config.json, if they are not that of the kind.
    """

    column: str = ""
    patterns: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()


# The first kind that matches a place reports on it; the package of the same name has the function `report`.
KINDS = {
    "bsuite": Kind(patterns=("bsuite_id_-_*.csv", "csv/bsuite_id_-_*.csv")),
    "atari": Kind(column="game"),
    "environments": Kind(column="best_return"),
    # The study deepsea is missing: its rows are those of DeepSea.
    "tabular": Kind(
        experiments=tuple(
            f"tabular_{name}"
            for name in ("lemma", "regret", "propagation", "posterior", "chain", "uncertainty", "bench")
        )
    ),
    "deep_sea": Kind(),
}
_DEFAULT_KIND = "deep_sea"


@dataclasses.dataclass(frozen=True)
class Source:
    """A results.csv and how it was made.

    Attributes:
        file: the results.csv.
        num_runs: its number of rows.
        record: the config.json next to it, or None.
        problem: why there is no record; empty if there is one.
    """

    file: str
    num_runs: int
    record: dict[str, Any] | None
    problem: str = ""


def source(path: pathlib.Path, num_runs: int) -> Source:
    """Returns the source of a results.csv with `num_runs` runs.

    A report without configurations is still useful, so a missing one is a note rather than an error.
    """
    config = path.with_name("config.json")
    try:
        record = json.loads(config.read_text())
        if not isinstance(record, dict):
            raise ValueError
    except FileNotFoundError:
        return Source(str(path), num_runs, None, f"{config} does not exist")
    except (OSError, ValueError):
        return Source(str(path), num_runs, None, f"{config} is corrupt")
    return Source(str(path), num_runs, record)


def part(record: Any, name: str) -> dict[str, Any]:
    """Returns a dict within a dict, or an empty one, because a config.json may have been edited by hand."""
    found = record.get(name) if isinstance(record, dict) else None
    return found if isinstance(found, dict) else {}


def identity(folder: pathlib.Path) -> dict[str, Any]:
    """Returns the configuration in the config.json of a folder; empty if there is none."""
    return part(source(folder / "results.csv", 0).record, "identity")


def kind(place: str) -> str:
    """Returns the kind, a key of `KINDS`, of the runs in a results.csv or a folder."""
    path = pathlib.Path(place)
    if not path.exists():
        raise _absent(path)
    folder = path if path.is_dir() else path.parent
    experiment, columns = identity(folder).get("experiment"), _columns(results_files([place])[0])
    for name, known in KINDS.items():
        if (
            experiment in (name, *known.experiments)
            or known.column in columns
            or (path.is_dir() and own_files(name, folder))
        ):
            return name
    return _DEFAULT_KIND


def own_files(kind: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in a folder that only this kind of run has."""
    return sorted(path for pattern in KINDS[kind].patterns for path in folder.glob(pattern))


def _columns(path: pathlib.Path) -> list[str]:
    """Returns the columns of a csv file; none if it cannot be read."""
    try:
        with open(path) as f:
            return list(filter(None, f.readline().strip().split(",")))
    except (OSError, UnicodeDecodeError):
        return []


def results_files(places: Iterable[str]) -> list[pathlib.Path]:
    """Returns the results.csv of each place: the file itself, or the one in the folder."""
    return [path / "results.csv" if path.is_dir() else path for path in map(pathlib.Path, places)]


def read_rows(path: pathlib.Path, needed: Sequence[str], what: str = "results.csv") -> list[dict[str, str]]:
    """Reads a results.csv.

    Args:
        path: the file.
        needed: required columns.
        what: what the file should be, for the message if columns are missing.

    Returns:
        The rows, possibly none.
    """
    if not path.exists():
        raise _absent(path)
    rows = results.read_csv(path)
    if rows and (missing := [name for name in needed if name not in rows[0]]):
        raise errors.UserError(f"{path} is not a {what}: it has no column {', '.join(missing)}")
    return rows


def parse_rows(
    path: pathlib.Path, rows: Sequence[dict[str, str]], parse: Callable[[dict[str, str]], _T]
) -> list[_T]:
    """Applies `parse` to all rows of a file; turns its ValueError into a message that names file and row."""
    parsed = []
    for number, row in enumerate(rows, start=1):
        try:
            parsed.append(parse(row))
        except ValueError as error:
            raise errors.UserError(f"{path}, row {number}: {one_line(error)}") from error
    return parsed


def file_runs(parsed: Sequence[Any], problem: str, runs: dict[tuple[str, str, int], Any], notes: list[str]) -> int:
    """Files the parsed rows of one results.csv.

    Args:
        parsed: runs, and texts about rows that are not one.
        problem: the runs' attribute with the name of their problem.
        runs: receives the runs, by problem, agent and seed; none may be there already.
        notes: receives the texts.

    Returns:
        The number of runs.
    """
    finished = [run for run in parsed if not isinstance(run, str)]
    notes += [note for note in parsed if isinstance(note, str)]
    for run in finished:
        key = getattr(run, problem), run.agent, run.seed
        if key in runs:
            name = one_line(f"{run.agent} on {key[0]}, seed {run.seed}")
            raise errors.UserError(f"duplicate run: {name}")
        runs[key] = run
    return len(finished)


def run_length(interactions: Sequence[int]) -> str:
    """Returns the lengths of runs as a text; with parallel environments a run may end a few interactions late."""
    low, high = min(interactions), max(interactions)
    return f"{low:,}" + (f" to {high:,}" if high > 1.01 * low else "")


def _absent(path: pathlib.Path) -> errors.UserError:
    return errors.UserError(f"{path} does not exist: give a results.csv or a folder that contains one")


def one_line(text: Any) -> str:
    """Returns a text, which may come from a file, without line breaks."""
    return " ".join(str(text).split())


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Returns the entries of nested dicts as JSON, keyed by their names joined with dots."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value, ensure_ascii=False)}
    entries = {}
    for name, nested in value.items():
        entries.update(flat(nested, f"{prefix}.{name}" if prefix else str(name)))
    return entries


def differing_settings(paths: Sequence[pathlib.Path], ignored: Sequence[str] = ()) -> list[str]:
    """Returns " (name value, ...)" per results.csv: the settings that differ between files of the same agent.

    A preset, or the protocol, stands for the settings that it implies.

    Args:
        paths: the files.
        ignored: settings to ignore, as names joined with dots.
    """
    known = [flat(identity(path.parent)) for path in paths]
    texts = []
    for own in known:
        others = [other for other in known if other.get("agent") == own.get("agent")]
        # A setting that only newer versions record may not differ.
        names = [name for name in own if len({other[name] for other in others if name in other}) > 1]
        names = [name for name in names if name not in ignored]
        names = [name for name in names if not name.startswith("config.")] or names
        values = ", ".join(f"{name.split('.')[-1]} {json.loads(own[name])}" for name in names)
        texts.append(f" ({values})" if values else "")
    return texts


def plural(count: int, name: str) -> str:
    """Returns a number and a noun."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def listed(values: Iterable[Any], last: str = "and") -> str:
    """Returns "a, b and c"."""
    *front, final = map(str, values)
    return f"{', '.join(front)} {last} {final}" if front else final


def section(sources: Sequence[Source], unit: str) -> str:
    """Returns the section that describes how the runs were made; `unit` is what the number of a source counts."""
    return html.section(
        "Where the runs come from", *(_details(source, unit) for source in sources), _differences(sources)
    )


def footer(note: str) -> str:
    """Returns the footer: the command and commit that made a page, and a note."""
    made = results.provenance()
    return (
        f"<p>Made by <code>{html.escape(made['command'])}</code> at commit "
        f"<code>{html.escape(made['commit'])}</code>. {html.escape(note)}</p>"
    )


def _details(source: Source, unit: str) -> str:
    """Returns command, commit, versions, machine and configuration of one file."""
    aside = plural(source.num_runs, unit)
    if source.record is None:
        return html.details(source.file, aside, html.paragraph(f"Unknown: {source.problem}.", "note"))
    record = dict(source.record)
    command, commit = record.pop("command", "not recorded"), str(record.pop("commit", "unknown"))
    facts = {"Commit": commit}
    for name in ("versions", "machine"):
        if found := part(record, name):
            facts[name.capitalize()] = ", ".join(f"{key} {value}" for key, value in found.items())
            del record[name]
    config = json.dumps(record, indent=2, ensure_ascii=False)
    return html.details(
        source.file,
        f"{aside}, commit {commit[:10]}{'+changes' if commit.endswith('+changes') else ''}",
        f'<h3>Command</h3><pre class="wrap">{html.escape(command)}</pre>',
        html.facts(facts),
        f'<h3>Configuration</h3><pre tabindex="0">{html.escape(config)}</pre>',
    )


def _differences(sources: Sequence[Source]) -> str:
    """Returns the settings in which configurations differ, including several configurations of one agent."""
    known = [source for source in sources if source.record is not None]
    configs: list[Mapping[str, str]] = [flat(part(source.record, "identity")) for source in known]
    names = list(dict.fromkeys(name for config in configs for name in config))
    names = [name for name in names if len({config[name] for config in configs if name in config}) > 1]
    if not names:
        return ""
    heading = "Differences between the configurations"
    heads: html.Heads = [["Setting", *(Cell(source.file, "") for source in known)]]
    blocks = [(name, [[Cell(config.get(name, html.DASH), "") for config in configs]]) for name in names]
    return html.details(heading, plural(len(names), "difference"), html.table(heading, heads, blocks))
