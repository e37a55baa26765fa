"""Reports on Atari runs of run_atari.py: learning curves and human-normalised scores."""

from collections.abc import Sequence
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Plots runs and writes their tables.

    Args:
        places: results.csv files, or folders that contain one.
        out: folder for pictures and tables.
        title: heading of the page; None for the default.

    Returns:
        The page, and lines of text that summarise the scores and the page.
    """
    from hyperagent_jax.analysis import aggregates
    from hyperagent_jax.analysis.atari import page  # requires matplotlib, which is optional
    from hyperagent_jax.analysis.atari import read
    from hyperagent_jax.analysis.atari import stats

    found = read.read(places)
    table = stats.summary_rows(found.runs)
    made = page.make(title or "Atari", found, table)
    text = made.write(out)
    lines = aggregates.lines(table[1])
    summary = f"{len(found.runs)} runs on {len(found.names)} game(s); {made.num_drawings} figures"
    return text, "\n".join([*lines, summary])
