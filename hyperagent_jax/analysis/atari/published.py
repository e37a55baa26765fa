"""Scores in the paper's tables, and the data and parameters that methods need for human-level scores."""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import pathlib
import types

import numpy as np

from hyperagent_jax import results

_FOLDER = pathlib.Path(__file__).parent
# Columns of scores.csv that are methods, and their titles.
METHODS = {
    "ddqn_zoo": "DDQN (DQN Zoo)",
    "der": "DER",
    "rainbow": "Rainbow",
    "hyperdqn": "HyperDQN",
    "hyperagent": "HyperAgent (paper)",
}


@dataclasses.dataclass(frozen=True)
class Game:
    """A row of the paper's tables.

    Attributes:
        name: the game.
        is_in_26: whether it is one of the 26 games of the first table.
        random: score of random actions.
        human: score of a human.
        published: scores of METHODS; those missing from the paper are absent.
    """

    name: str
    is_in_26: bool
    random: float
    human: float
    published: Mapping[str, float]

    def normalize(self, score: float) -> float:
        """Returns the human-normalised score: 0 for random actions, 1 for the human."""
        return (score - self.random) / (self.human - self.random)


@functools.cache
def games() -> Mapping[str, Game]:
    """Returns the 55 games of the paper's two tables of scores."""
    return types.MappingProxyType(
        {
            row["game"]: Game(
                row["game"],
                row["set"] == "26",
                float(row["random"]),
                float(row["human"]),
                {method: float(row[method]) for method in METHODS if row[method]},
            )
            for row in results.read_csv(_FOLDER / "scores.csv")
        }
    )


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """The data that a method needs to reach an IQM of 1.

    Attributes:
        method: the method's name.
        params: number of parameters.
        interactions: interactions needed to reach an IQM of 1, or those that were not enough.
        reaches_human: whether the method reaches it.
        source: source of the numbers.
    """

    method: str
    params: float
    interactions: float
    reaches_human: bool
    source: str


def efficiencies(num_params: int) -> list[Efficiency]:
    """Returns the methods in the paper's figure of data against parameters; `num_params` is HyperAgent's."""
    return [
        Efficiency(
            row["method"],
            float(row["params"] or num_params * float(row["params_factor"])),
            float(row["interactions"]),
            row["reaches_human"] == "True",
            row["source"],
        )
        for row in results.read_csv(_FOLDER / "efficiency.csv")
    ]


def published_scores(method: str, names: Iterable[str]) -> dict[str, float]:
    """Returns the paper's scores of a method in those of the games `names` that it covers."""
    return {name: games()[name].published[method] for name in names if method in games()[name].published}


def published_matrix(method: str, names: Iterable[str]) -> np.ndarray:
    """Returns the paper's human-normalised scores [games, 1] of a method in those of `names` that it covers."""
    scores = published_scores(method, names)
    return np.array([games()[name].normalize(score) for name, score in scores.items()]).reshape(-1, 1)
