"""Statistics of Atari scores: human-normalised, IQM and its relatives with intervals, next to the paper's."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any

import numpy as np

from hyperagent_jax import results
from hyperagent_jax.analysis.atari import published
from hyperagent_jax.analysis.atari import read


def iqm(scores: np.ndarray) -> float:
    """Returns the interquartile mean: the mean of the middle half of all scores, [games, seeds] or any shape.

    As in scipy.stats.trim_mean(scores, 0.25), a quarter (rounded down) is left out at each end.
    """
    ordered = np.sort(np.asarray(scores, float), axis=None)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def median(scores: np.ndarray) -> float:
    """Returns the median over games of the means over seeds, [games, seeds]."""
    return float(np.median(np.mean(scores, axis=1)))


def mean(scores: np.ndarray) -> float:
    """Returns the mean, [games, seeds]."""
    return float(np.mean(scores))


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {"IQM": iqm, "Median": median, "Mean": mean}


@dataclasses.dataclass(frozen=True)
class Interval:
    """A statistic and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


def stratified_bootstrap(
    scores: np.ndarray, statistic: Callable[[np.ndarray], float], *, repetitions: int = 2_000, seed: int = 0
) -> Interval:
    """Returns a statistic of scores [games, seeds] and its 95% interval.

    Seeds are resampled with replacement within every game (Agarwal et al., 2021). With one seed per game there is
    nothing to draw and the interval is a point.
    """
    scores = np.asarray(scores, float)
    rng = np.random.default_rng(seed)
    num_games, num_seeds = scores.shape
    values = [
        statistic(np.take_along_axis(scores, rng.integers(0, num_seeds, (num_games, num_seeds)), axis=1))
        for _ in range(repetitions)
    ]
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(statistic(scores), float(low), float(high))


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Returns the performance profile: the share of scores [games, seeds] above each threshold [n]."""
    return np.mean(np.asarray(scores)[..., None] > thresholds, axis=(0, 1))


def relative_improvement(proposed: float, baseline: float, game: published.Game) -> float:
    """Returns (proposed - baseline) / (max(human, baseline) - random), as in Wang et al. (2016).

    The paper prints "- human" in the denominator, which is zero wherever the baseline is below the human.
    """
    return (proposed - baseline) / (max(game.human, baseline) - game.random)


def score_matrix(runs: Sequence[read.Run], agent: str) -> tuple[list[str], np.ndarray]:
    """Returns games and human-normalised scores [games, seeds] of an agent: as many seeds as every game has."""
    by_game: dict[str, list[read.Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.agent == agent:
            by_game.setdefault(run.game, []).append(run)
    known = published.games()
    names = sorted(by_game)
    num_seeds = min(len(by_game[name]) for name in names)
    return names, np.array(
        [[known[name].normalize(run.score) for run in by_game[name][:num_seeds]] for name in names]
    )


def summary_rows(runs: Sequence[read.Run]) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of summary.csv: every agent, and the paper's methods in the same games."""
    columns = [f"{name}{end}" for name in STATISTICS for end in ("", "_low", "_high")]
    fields = ["method", "games", "seeds", *columns]
    rows = []

    def add(method: str, scores: np.ndarray) -> None:
        row: dict[str, Any] = {"method": method, "games": scores.shape[0], "seeds": scores.shape[1]}
        for name, statistic in STATISTICS.items():
            interval = stratified_bootstrap(scores, statistic)
            is_point = scores.shape[1] == 1
            row |= {
                name: round(interval.value, 4),
                f"{name}_low": "" if is_point else round(interval.low, 4),
                f"{name}_high": "" if is_point else round(interval.high, 4),
            }
        rows.append(row)

    names = sorted({run.game for run in runs})
    for agent in dict.fromkeys(run.agent for run in runs):
        add(agent, score_matrix(runs, agent)[1])
    for method, title in published.METHODS.items():
        if len(scores := published.published_matrix(method, names)):
            add(title, scores)
    return fields, rows


def mean_scores(runs: Sequence[read.Run], agent: str) -> dict[str, float]:
    """Returns the mean over seeds of an agent's scores, by game."""
    own: dict[str, list[float]] = {}
    for run in runs:
        if run.agent == agent:
            own.setdefault(run.game, []).append(run.score)
    return {game: float(np.mean(own[game])) for game in sorted(own)}


def _baselines(found: read.Results, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns the scores by game of all agents and of those of the paper's methods that have any of `names`."""
    scores = {agent: mean_scores(found.runs, agent) for agent in found.agents}
    for method, title in published.METHODS.items():
        if own := published.published_scores(method, names):
            scores[title] = own
    return scores


def score_rows(found: read.Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of scores.csv: the game's scores by all agents and by the paper's methods."""
    columns = _baselines(found, found.names)
    rows = [
        {
            "game": name,
            "random": published.games()[name].random,
            "human": published.games()[name].human,
            **{label: results.number(scores[name]) if name in scores else "" for label, scores in columns.items()},
        }
        for name in found.names
    ]
    return ["game", "random", "human", *columns], rows


def improvements(found: read.Results, agent: str) -> dict[str, dict[str, float]]:
    """Returns the relative improvement of an agent over every other one and over the paper's methods, by game."""
    ours, known = mean_scores(found.runs, agent), published.games()
    compared = {
        name: {
            game: relative_improvement(ours[game], scores[game], known[game]) for game in ours if game in scores
        }
        for name, scores in _baselines(found, ours).items()
        if name != agent
    }
    return {name: values for name, values in compared.items() if values}


def score_matrices(found: read.Results) -> dict[str, np.ndarray]:
    """Returns human-normalised scores [games, seeds] of all agents and of the paper's methods."""
    scores = {agent: score_matrix(found.runs, agent)[1] for agent in found.agents}
    for method, title in published.METHODS.items():
        if len(matrix := published.published_matrix(method, found.names)):
            scores[title] = matrix
    return scores
