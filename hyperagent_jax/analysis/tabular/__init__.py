"""Reports on studies of run_tabular.py: their figure, their tables and their settings."""

from collections.abc import Sequence
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Draws studies and writes the page.

    Args:
        places: folders of studies, or their results.csv.
        out: folder for pictures.
        title: heading of the page; None for the default.

    Returns:
        The page, and a line of text that summarises it.
    """
    from hyperagent_jax.analysis.tabular import page  # requires matplotlib, which is optional
    from hyperagent_jax.analysis.tabular import read

    studies = [read.read(place) for place in places]
    made = page.make(title or "The theory in tables", studies)
    text = made.write(out)
    return text, f"{', '.join(study.name for study in studies)}; {made.num_drawings} figure(s)"
