"""Reports on runs of run_jax.py and run_gymnasium.py and sweeps of them: curves and normalised returns."""

from collections.abc import Sequence
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Plots runs and writes their tables.

    Args:
        places: results.csv files, or folders that contain one.
        out: folder for pictures and tables.
        title: heading of the page; None for the default.

    Returns:
        The page, and lines of text that summarise the returns and the page.
    """
    from hyperagent_jax.analysis import aggregates
    from hyperagent_jax.analysis.environments import page  # requires matplotlib, which is optional
    from hyperagent_jax.analysis.environments import read
    from hyperagent_jax.analysis.environments import stats

    found = read.read(places)
    summary = stats.summary_rows(found)
    made = page.make(title or "Returns in environments", found, summary)
    text = made.write(out)
    lines = aggregates.lines(summary[1])
    conclusion = f"{len(found.runs)} runs in {len(found.names)} environment(s); {made.num_drawings} figures"
    return text, "\n".join([*lines, conclusion])
