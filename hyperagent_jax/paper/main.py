"""The command: lists figures, redraws them and the page, and runs what is missing."""

import pathlib

from absl import flags

from hyperagent_jax import errors
from hyperagent_jax import files
from hyperagent_jax.analysis import index
from hyperagent_jax.experiment import cli
from hyperagent_jax.experiment import driver
from hyperagent_jax.paper import atari
from hyperagent_jax.paper import deep_sea
from hyperagent_jax.paper import page
from hyperagent_jax.paper import tabular

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # those defined here belong to the script, whose --help lists them
FIGURES: dict[str, page.Entry] = {x.name: x for x in (*deep_sea.FIGURES, *atari.FIGURES, *tabular.FIGURES)}
COMMANDS = ("list", "all", *FIGURES)


def index_entries() -> dict[str, index.Entry]:
    """Returns the entries of the folders of figures in the index of results."""
    return {
        entry.folder: index.Entry(f"{entry.title}: what is the result?", "[paper](../docs/paper.md)")
        for entry in (*deep_sea.FIGURES, *atari.FIGURES)
    }


def define_flags() -> None:
    """Defines the flags of the script."""
    flags.DEFINE_bool("run", False, "Make the missing runs of the figure first; resumes interrupted ones.")
    flags.DEFINE_string("results", "results", "Folder of the rows; new ones go to its subfolder paper.")
    flags.DEFINE_string("out", "docs", "Folder for paper.md, and for the pictures in its subfolder paper.")
    cli.define_run_flags()
    flags.adopt_module_key_flags(cli)


def main(command: str) -> int:
    """Executes a command and returns the exit code."""
    root, file = pathlib.Path(FLAGS.results), pathlib.Path(FLAGS.out) / "paper.md"
    if not root.is_dir():
        raise errors.UserError(f"there is no folder --results={root}: run this in the project's folder")
    if command == "list":
        _list(root)
        return 0
    chosen = list(FIGURES) if command == "all" else [command]
    if FLAGS.run:
        for name in chosen:
            if code := _run(name, root):
                return code
    opened = [(entry, entry.open(root)) for entry in FIGURES.values()]
    for entry, found in opened:
        if entry.name in chosen:
            _draw(entry, found, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as f:
        f.write(page.write(file, opened, root))
    print(f"page: {file}")
    return 0


def _list(root: pathlib.Path) -> None:
    """Prints the state of every figure."""
    rows = []
    for name, entry in FIGURES.items():
        state = entry.open(root).state()
        rows.append(
            {
                "figure": name,
                "title": entry.title,
                "runs": f"{state.there:,} of {state.needed:,}",
                "missing": _shortened("; ".join(state.missing)) or "nothing",
            }
        )
    list(cli.print_table(rows))


def _shortened(text: str, length: int = 110) -> str:
    return text if len(text) <= length else f"{text[:length].rpartition(' ')[0]} ..."


def _run(name: str, root: pathlib.Path) -> int:
    """Runs what is missing of a figure; returns the exit code."""
    plan = FIGURES[name].open(root).plan()
    if plan is None:
        print(f"{name}: no run is missing")
        return 0
    FLAGS["resume"].value = not FLAGS.overwrite
    return driver.execute(plan)


def _draw(entry: page.Entry, found: page.Opened, file: pathlib.Path) -> None:
    """Draws the pictures of a figure and prints what came out."""
    pictures = found.pictures()
    for picture in pictures:
        path = page.picture_file(file, entry.name, picture)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.draw(path, picture.title)
    print(f"{entry.name}: {found.finding() or 'no rows'}", flush=True)
