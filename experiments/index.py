"""Brings results/README.md up to date with the folders of results: run it after adding one."""

import pathlib

import common  # isort: skip  # noqa: F401  (sets the environment that jax reads)

from hyperagent_jax import files
from hyperagent_jax.analysis import index
from hyperagent_jax.experiment import cli
from hyperagent_jax.paper import main as paper

ROOT = pathlib.Path(__file__).resolve().parent.parent / "results"


def main() -> None:
    file = ROOT / "README.md"
    text = index.render(ROOT, file.read_text(encoding="utf-8"), paper.index_entries())
    with files.replacing(file) as f:
        f.write(text)


if __name__ == "__main__":
    cli.run(main)
