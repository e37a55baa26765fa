"""Sentences about episodes to learn on DeepSea, computed from rows."""

from collections.abc import Sequence
import math

import numpy as np

from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats
from hyperagent_jax.paper import figure

# Means that are closer than this many standard errors do not count as different.
_CLEAR = 2.0


def groups(found: figure.Found) -> list[stats.Group]:
    """Returns the runs of every line that has any, by its label."""
    made = []
    for line in found.figure.lines:
        runs = [
            read.parse(row.columns, row.folder, row.protocol.eval_every)
            for problem in found.problems
            for row in found.cells[line.label, problem]
        ]
        if runs:
            ordered = tuple(sorted(runs, key=lambda run: (run.size, run.seed)))
            made.append(stats.Group(line.label, line.agent, {}, ordered))
    return made


def largest_size(lines: Sequence[stats.Group], least: int = 2) -> int | None:
    """Returns the largest size at which every line has at least so many runs, or None."""
    sizes = [{size for size in line.sizes if len(line.at(size)) >= least} for line in lines]
    common = set.intersection(*sizes) if sizes else set()
    return max(common, default=None)


def cost(runs: Sequence[read.Run]) -> tuple[float, float]:
    """Returns the mean of the episodes that runs took, failures at their limit, and its standard error."""
    episodes = [run.limit if run.episodes is None else run.episodes for run in runs]
    values = np.array([x for x in episodes if x is not None], float)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def errors_apart(ours: Sequence[read.Run], theirs: Sequence[read.Run]) -> float:
    """Returns by how many standard errors two costs differ; infinite if neither varies and they do."""
    (mean, error), (other, other_error) = cost(ours), cost(theirs)
    spread = math.hypot(error, other_error)
    return abs(mean - other) / spread if spread else math.inf if mean != other else 0.0


def listing(lines: Sequence[stats.Group], size: int) -> str:
    """Returns the mean episodes over solved seeds of every line, and how many solved it."""
    parts = []
    for line in lines:
        if not (runs := line.at(size)):
            continue
        summary = stats.summarise(runs)
        mean = "none" if summary.mean is None else f"{summary.mean:,.0f}"
        parts.append(f"{mean} for {line.label} ({summary.solved} of {summary.solved + summary.failed})")
    return f"Mean episodes of the solved seeds at size {size}: {', '.join(parts)}."


def summary(found: figure.Found) -> tuple[list[stats.Group], int | None, str]:
    """Returns the lines, the largest size that all share, and what every line took there."""
    lines = groups(found)
    size = largest_size(lines)
    return lines, size, "" if size is None else listing(lines, size)


def alike(found: figure.Found) -> str:
    """Says what all lines took, and whether any two of them clearly differ."""
    lines, size, text = summary(found)
    if size is None or len(lines) < 2:
        return text
    pairs = [(errors_apart(a.at(size), b.at(size)), a, b) for i, a in enumerate(lines) for b in lines[i + 1 :]]
    apart, first, second = max(pairs, key=lambda pair: pair[0])
    both = f"{first.label} and {second.label}"
    if apart < _CLEAR:
        return f"{text} No two lines differ clearly: {both} differ most, by {apart:.1f} standard errors."
    return f"{text} {both} differ by {apart:.1f} standard errors, counting failures at the limit."


def against(found: figure.Found, label: str, reference: str) -> str:
    """Says what all lines took, and how one compares with another at the largest size that the two share."""
    lines, _, text = summary(found)
    own = {line.label: line for line in lines}
    if not {label, reference} <= own.keys():
        return text
    size = largest_size([own[label], own[reference]])
    if size is None:
        return text
    ours, theirs = own[label].at(size), own[reference].at(size)
    (mean, _), (other, _) = cost(ours), cost(theirs)
    apart = errors_apart(ours, theirs)
    bound = "at least " if any(run.failed for run in ours) else ""
    if any(run.failed for run in theirs):
        bound = "at most " if not bound else "about "
    clear = "" if apart >= _CLEAR else ", which is not a clear difference"
    return (
        f"{text} At size {size} {label} takes {bound}{mean / other:.2f} times the episodes of {reference} "
        f"({apart:.1f} standard errors{clear})."
    )


def first_failures(found: figure.Found) -> str:
    """Says what all lines took, and from which size on seeds of each fail."""
    lines, _, text = summary(found)
    failing = []
    for line in lines:
        sizes = [size for size in line.sizes if any(run.failed for run in line.at(size))]
        if sizes:
            failing.append(f"{line.label} from size {sizes[0]} on")
    if not lines:
        return text
    if not failing:
        return f"{text} No seed fails at the sizes that were run."
    return f"{text} Some seeds fail: {sources_lib.listed(failing)}."


def growth(found: figure.Found) -> str:
    """Says how the first line grows with the size and which line takes the fewest episodes."""
    lines, size, text = summary(found)
    if not lines:
        return text
    first, fits = lines[0], stats.fit(lines[0])
    parts = []
    if fits.linear and fits.power_of_midpoints:
        sign = "+" if fits.linear.intercept >= 0 else "-"
        parts.append(
            f"{first.label}'s episodes grow like N^{fits.power_of_midpoints.slope:.2f} over sizes "
            f"{first.sizes[0]} to {first.sizes[-1]} ({fits.points} of {fits.points + fits.failed} runs solved; "
            f"the line {fits.linear.slope:.1f} N {sign} {abs(fits.linear.intercept):,.0f} has R2 "
            f"{fits.linear.r_squared:.2f})."
        )
    parts.append(text)
    if size is not None and len(lines) > 1:
        best = min(lines, key=lambda line: cost(line.at(size))[0])
        parts.append(f"{best.label} takes the fewest there, counting failures at the limit.")
    return " ".join(filter(None, parts))
