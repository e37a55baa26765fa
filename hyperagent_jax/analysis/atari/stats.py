"""Statistics of Atari scores: human-normalised, aggregated over games, next to the paper's."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hyperagent_jax import results
from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis.atari import published
from hyperagent_jax.analysis.atari import read


def relative_improvement(proposed: float, baseline: float, game: published.Game) -> float:
    """Returns (proposed - baseline) / (max(human, baseline) - random), as in Wang et al. (2016).

    The paper has "- human" in the denominator, which is zero whenever the baseline is below the human.
    """
    return (proposed - baseline) / (max(game.human, baseline) - game.random)


def score_matrix(runs: Sequence[read.Run], agent: str) -> tuple[list[str], np.ndarray]:
    """Returns games and human-normalised scores [games, seeds] of an agent, with the seeds that every game has."""
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
    fields = ["method", "games", "seeds", *aggregates.FIELDS]
    rows: list[dict[str, Any]] = []

    def add(method: str, scores: np.ndarray) -> None:
        games, seeds = scores.shape
        rows.append({"method": method, "games": games, "seeds": seeds, **aggregates.row(scores)})

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
    """Returns the scores by game of all agents and of the paper's methods that cover any of `names`."""
    scores = {agent: mean_scores(found.runs, agent) for agent in found.agents}
    for method, title in published.METHODS.items():
        if own := published.published_scores(method, names):
            scores[title] = own
    return scores


def score_rows(found: read.Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of scores.csv: scores by game of all agents and of the paper's methods."""
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
    """Returns the relative improvement of an agent over all others and over the paper's methods, by game."""
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
