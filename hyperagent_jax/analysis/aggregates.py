"""Statistics over problems and seeds: IQM, median and mean, probability of improvement, bootstrap intervals.

Problems are games or environments; scores are matrices [problems, seeds], normalised to be comparable across
problems.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np


def iqm(scores: np.ndarray) -> float:
    """Returns the interquartile mean: the mean of the middle half of all scores, [problems, seeds] or any shape.

    As in scipy.stats.trim_mean(scores, 0.25), a quarter (rounded down) is discarded at each end.
    """
    ordered = np.sort(np.asarray(scores, float), axis=None)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def median(scores: np.ndarray) -> float:
    """Returns the median over problems of the means over seeds, [problems, seeds]."""
    return float(np.median(np.mean(scores, axis=1)))


def mean(scores: np.ndarray) -> float:
    """Returns the mean, [problems, seeds]."""
    return float(np.mean(scores))


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {"IQM": iqm, "Median": median, "Mean": mean}


@dataclasses.dataclass(frozen=True)
class Interval:
    """A statistic and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


def stratified_bootstrap(
    *scores: np.ndarray, statistic: Callable[..., float], repetitions: int = 2_000, seed: int = 0
) -> Interval:
    """Returns a statistic of one or more matrices of scores [problems, seeds] and its 95% interval.

    Seeds are resampled with replacement within every problem of every matrix (Agarwal et al., 2021). With one seed
    per problem, there is nothing to resample and the interval is a point.
    """
    matrices = [np.asarray(matrix, float) for matrix in scores]
    rng = np.random.default_rng(seed)

    def resample(matrix: np.ndarray) -> np.ndarray:
        return np.take_along_axis(matrix, rng.integers(0, matrix.shape[1], matrix.shape), axis=1)

    values = [statistic(*map(resample, matrices)) for _ in range(repetitions)]
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(statistic(*matrices), float(low), float(high))


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Returns the probability that a run of ours [problems, seeds] beats one of theirs [problems, other seeds].

    The problem is drawn uniformly, then a run of each; equal scores count half.
    """
    ours, theirs = np.asarray(ours)[:, :, None], np.asarray(theirs)[:, None, :]
    return float(np.mean((ours > theirs) + 0.5 * (ours == theirs)))


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Returns the performance profile: the fraction of scores [problems, seeds] above each threshold [n]."""
    return np.mean(np.asarray(scores)[..., None] > thresholds, axis=(0, 1))


def mean_band(values: np.ndarray, *, repetitions: int = 1_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of the 95% bootstrap intervals of the mean over seeds of curves [seeds, points]."""
    values = np.asarray(values, float)
    rng = np.random.default_rng(seed)
    # Use the same draw of seeds for all points, because whole runs are resampled.
    means = values[rng.integers(0, len(values), (repetitions, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return low, high


FIELDS = [f"{name}{end}" for name in STATISTICS for end in ("", "_low", "_high")]


def row(scores: np.ndarray) -> dict[str, Any]:
    """Returns the `FIELDS` of a csv file for scores [problems, seeds]; a single seed gives no intervals."""
    entries: dict[str, Any] = {}
    for name, statistic in STATISTICS.items():
        interval = stratified_bootstrap(scores, statistic=statistic)
        is_point = scores.shape[1] == 1
        entries |= {
            name: round(interval.value, 4),
            f"{name}_low": "" if is_point else round(interval.low, 4),
            f"{name}_high": "" if is_point else round(interval.high, 4),
        }
    return entries


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line of text per method with the statistics of its row."""
    return [f"{row['method']}: " + ", ".join(f"{name} {row[name]:.2f}" for name in STATISTICS) for row in rows]
