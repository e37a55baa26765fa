"""Reports on DeepSea runs, those of run_deepsea.py and of sweep.py: episodes to learn against the size."""

from collections.abc import Sequence
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Draws runs and writes their tables.

    Args:
        places: results.csv files, or folders that hold one.
        out: folder for pictures and tables.
        title: heading of the page; None for the default.

    Returns:
        The page and a line about it.
    """
    from hyperagent_jax.analysis.deep_sea import page  # needs matplotlib, which is optional
    from hyperagent_jax.analysis.deep_sea import read

    runs, sources = read.read(places)
    made = page.make(title or "Episodes to learn on DeepSea", runs, sources)
    text = made.write(out)
    solved = sum(run.solved for run in runs)
    return text, f"{len(runs)} runs, {solved} solved; {made.num_drawings} figure(s)"
