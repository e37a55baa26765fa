"""Reports on DeepSea runs of run_deepsea.py and sweep.py: episodes to learn against the size."""

from collections.abc import Sequence
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Plots runs and writes their tables.

    Args:
        places: results.csv files, or folders that contain one.
        out: folder for pictures and tables.
        title: heading of the page; None for the default.

    Returns:
        The page, and a line of text that summarises it.
    """
    from hyperagent_jax.analysis.deep_sea import page  # requires matplotlib, which is optional
    from hyperagent_jax.analysis.deep_sea import read

    runs, sources = read.read(places)
    made = page.make(title or "Episodes to learn on DeepSea", runs, sources)
    text = made.write(out)
    solved = sum(run.solved for run in runs)
    return text, f"{len(runs)} runs, {solved} solved; {made.num_drawings} figure(s)"
