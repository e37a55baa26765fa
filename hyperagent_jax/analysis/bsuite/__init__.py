"""Reports on bsuite runs of run_bsuite.py or of any agent with bsuite's csv logging."""

from collections.abc import Sequence
import math
import pathlib


def report(places: Sequence[str], out: pathlib.Path, title: str | None) -> tuple[str, str]:
    """Scores and plots runs and writes their tables.

    Args:
        places: folders of one agent each, or the results.csv in them.
        out: folder for pictures and tables.
        title: heading of the page; None for the default.

    Returns:
        The page, and lines of text that summarise the scores and the page.
    """
    from hyperagent_jax.analysis.bsuite import page  # requires matplotlib and pandas, which are optional
    from hyperagent_jax.analysis.bsuite import read
    from hyperagent_jax.analysis.bsuite import stats

    paths = map(pathlib.Path, places)
    logs = read.read([path if path.is_dir() else path.parent for path in paths])
    made = page.make(title or "bsuite", logs)
    text = made.write(out)
    lines = []
    for log in logs:
        defined = sum(not math.isnan(score.score) for score in log.scores)
        lines.append(f"{log.label}: mean score {stats.mean(log.scores):.3f} over {defined} experiment(s)")
    ids = sum(log.num_ids for log in logs)
    return text, "\n".join([*lines, f"{ids} bsuite ids of {len(logs)} agent(s); {made.num_drawings} figures"])
