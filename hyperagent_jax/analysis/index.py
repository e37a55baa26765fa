"""The index of committed results: one line per folder with rows, checked against the folders.

Questions and pages are written by hand in the index itself; rows, commits, machines and commands are filled in
from each folder's config.json.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
import re
import shlex
from typing import Any, NamedTuple

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import sources

TABLES = ("results.csv", "bench.csv")
_HEADS = ("folder", "question", "rows", "commit", "machine", "page")
_START = "| " + " | ".join(_HEADS) + " |"
# Flags that do not change the rows.
_LEFT_OUT = re.compile(r"--(no)?(resume|overwrite|progress)|--num_workers=.*|--(logdir|grid)=.*")


class Entry(NamedTuple):
    """What is written by hand about a folder: the question it answers, and the page that shows it."""

    question: str
    page: str


def folders(root: pathlib.Path) -> list[str]:
    """Returns the folders with rows, relative to `root`, in order."""
    return sorted({str(path.parent.relative_to(root)) for name in TABLES for path in root.rglob(name)})


def entries(text: str) -> dict[str, Entry]:
    """Returns the entries of an index by folder; refuses a folder that appears twice."""
    found: dict[str, Entry] = {}
    for line in text.splitlines():
        if not line.startswith("| ["):
            continue
        cells = list(filter(None, (cell.strip() for cell in re.split(r"(?<!\\)\|", line))))
        name = cells[0].removeprefix("[").partition("]")[0]
        if name in found:
            raise errors.UserError(f"the index has two lines for {name}: remove one")
        if len(cells) < 3:
            raise errors.UserError(f"the index's line for {name} needs a question and a page")
        found[name] = Entry(cells[1], cells[-1])
    return found


def render(root: pathlib.Path, text: str, generated: Mapping[str, Entry] | None = None) -> str:
    """Returns an index brought up to date with the folders.

    Args:
        root: the folder of all results.
        text: the index as it is, with a line `| [folder](folder) | question | page |` for every folder.
        generated: entries of folders that need no line of their own.
    """
    there = folders(root)
    known = {**entries(text), **{name: entry for name, entry in (generated or {}).items() if name in there}}
    if absent := [name for name in known if name not in there]:
        raise errors.UserError(f"the index lists {absent[0]}, which has no {' or '.join(TABLES)}: remove its line")
    if new := [name for name in there if name not in known]:
        line = f"| [{new[0]}]({new[0]}) | question | page |"
        raise errors.UserError(f"the index lacks {new[0]}: add a line {line!r} with its question and page")
    lines = [text.partition(_START)[0].rstrip(), "", _START, "|---" * len(_HEADS) + "|"]
    commands = []
    for name in there:
        record = sources.source(root / name / "results.csv", 0).record
        if record is None:
            raise errors.UserError(f"{root / name} has no config.json that says how its rows were made")
        made = origins(record)
        commits = ", ".join(dict.fromkeys(str(one.get("commit", "unknown"))[:7] for one in made))
        machines = ", ".join(
            dict.fromkeys(
                f"{one['machine'].get('cores')} cores of {one['machine'].get('processor')}"
                for one in made
                if "machine" in one
            )
        )
        entry = known[name]
        rows = sum(len(results.read_csv(root / name / table)) for table in TABLES)
        cells = (f"[{name}]({name})", entry.question, str(rows), commits, machines, entry.page)
        lines.append(f"| {' | '.join(cells)} |")
        commands += ["", *_command(root, name, record)]
    intro = "Flags that do not change the rows (`--resume`, `--num_workers`) are left out."
    return "\n".join([*lines, "", "## Commands", "", intro, "", "```bash", *commands[1:], "```", ""])


def origins(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of a config.json, one per version or machine, that say how its rows were made."""
    return [record, *(one for one in record.get("resumed", []) if isinstance(one, dict))]


def _command(root: pathlib.Path, name: str, record: dict[str, Any]) -> Iterator[str]:
    """Yields a comment and the command that makes or completes the rows of a folder."""
    remark = record.get("remark")
    yield f"# {name}{f': {remark}' if remark else ''}"
    script, *arguments = shlex.split(record.get("command", ""))
    place = pathlib.PurePosixPath(root.name, name)
    is_study = sources.part(record, "identity").get("experiment", "").startswith("tabular_")
    kept = [text for text in arguments if not _LEFT_OUT.fullmatch(text)]
    if script == "paper.py":  # which knows grid and folder
        yield f"python experiments/{script} {_joined(kept)}"
        return
    if "grid" in record:
        file = place / "grid.json"
        text = str(file) if (root.parent / file).exists() else json.dumps(record["grid"])
        kept.append(f"--grid={text}")
    if script == "faults.py":  # which is not of the experiments
        yield f"python tests/{script} --out={place}"
        return
    yield f"python experiments/{script} {_joined([*kept, f'--logdir={place.parent if is_study else place}'])}"


def _joined(arguments: Sequence[str]) -> str:
    """Returns arguments for a shell; values are quoted, names are not."""
    return " ".join(
        f"{name}={shlex.quote(value)}" if is_pair else name
        for name, is_pair, value in (argument.partition("=") for argument in arguments)
    )
