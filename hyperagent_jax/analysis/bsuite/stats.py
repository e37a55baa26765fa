"""Statistics of bsuite runs: scores by bsuite's definition, one per experiment, solve times, and curves."""

from collections.abc import Sequence
import dataclasses
import functools
import importlib
import types
from typing import Any

import numpy as np
import pandas as pd

from hyperagent_jax import errors
from hyperagent_jax.analysis import sources as sources_lib

# In bsuite's order, which is by kind of difficulty.
_BASIC = ("bandit", "mnist", "catch", "mountain_car", "cartpole")
EXPERIMENTS = (
    *_BASIC,
    *(f"{name}_noise" for name in _BASIC),
    *(f"{name}_scale" for name in _BASIC),
    "deep_sea",
    "deep_sea_stochastic",
    "cartpole_swingup",
    "umbrella_length",
    "umbrella_distract",
    "discounting_chain",
    "memory_len",
    "memory_size",
)
TAGS = ("basic", "noise", "scale", "exploration", "credit_assignment", "generalization", "memory")
# DeepSea counts as solved at the first logged episode from `first` on at which less than `threshold` of all
# episodes so far have left the diagonal: in the stochastic variant, some stay on it by luck.
_SOLVED = {"deep_sea": (1, 0.9), "deep_sea_stochastic": (100, 0.8)}


@dataclasses.dataclass(frozen=True)
class Log:
    """The runs of one agent.

    Attributes:
        label: name of the agent.
        source: the folder, and how its runs were made.
        frame: the rows of all ids with bsuite's settings of the id, and its `bsuite_id` and `bsuite_env`.
        not_run: maps ids without a log to the reason.
    """

    label: str
    source: sources_lib.Source
    frame: pd.DataFrame
    not_run: dict[str, str]

    @property
    def num_ids(self) -> int:
        """Number of bsuite ids it was run on."""
        return self.frame.bsuite_id.nunique()

    @functools.cached_property
    def scores(self) -> list["Score"]:
        """The agent's scores."""
        return score(self.frame)

    @functools.cached_property
    def solutions(self) -> dict[str, list["Solution"]]:
        """When the agent solved each size, by kind of DeepSea."""
        return {experiment: solutions(self.frame, experiment) for experiment in _SOLVED}


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of an experiment.

    Attributes:
        experiment: name of the experiment.
        score: between 0, a random or useless agent, and 1; NaN if bsuite does not define it, as for mnist with
            fewer episodes.
        num_ids: number of ids that were run.
        all_ids: number of ids of the experiment.
        is_finished: whether these runs are complete.
    """

    experiment: str
    score: float
    num_ids: int
    all_ids: int
    is_finished: bool


@dataclasses.dataclass(frozen=True)
class Solution:
    """When a size of DeepSea was solved, or the number of episodes that were not enough."""

    size: int
    episode: int
    is_solved: bool

    @property
    def beats_dithering(self) -> bool:
        """Whether it took fewer episodes than random actions (2^N), with bsuite's allowance of 100."""
        return self.is_solved and self.episode < 2**self.size + 100


def sweep() -> types.ModuleType:
    """Returns bsuite's list of ids and their settings."""
    try:
        from bsuite import sweep as bsuite_sweep
    except ImportError as error:
        raise errors.UserError("bsuite is not installed: pip install 'hyperagent_jax[bsuite]'") from error
    return bsuite_sweep


def tags(experiment: str) -> tuple[str, ...]:
    """Returns bsuite's tags of an experiment."""
    return _analysis(experiment).TAGS


def _analysis(experiment: str) -> Any:
    return importlib.import_module(f"bsuite.experiments.{experiment}.analysis")


def solutions(frame: pd.DataFrame, experiment: str) -> list[Solution]:
    """Returns when each size of deep_sea or deep_sea_stochastic was solved."""
    first, threshold = _SOLVED[experiment]
    found = []
    mine = frame[(frame.bsuite_env == experiment) & (frame.episode >= first)]
    for size, rows in mine.groupby("size"):
        rows = rows[rows.episode <= _analysis(experiment).NUM_EPISODES]
        solved = rows[rows.total_bad_episodes / rows.episode < threshold]
        if len(solved):
            found.append(Solution(int(size), int(solved.episode.min()), True))
        else:
            found.append(Solution(int(size), int(rows.episode.max()), False))
    return found


def score(frame: pd.DataFrame) -> list[Score]:
    """Scores all experiments that have rows in a frame, in bsuite's order."""
    known = sweep()
    scores = []
    for experiment in EXPERIMENTS:
        rows = frame[frame.bsuite_env == experiment]
        if not len(rows):
            continue
        if experiment in _SOLVED:  # bsuite's own code needs a function that pandas has removed
            beaten = [solution.beats_dithering for solution in solutions(rows, experiment)]
            value = np.mean(beaten) if beaten else np.nan
        else:
            value = _analysis(experiment).score(rows)
        ids = sorted(set(rows.bsuite_id))
        last = rows.groupby("bsuite_id").episode.max()
        all_ids = [name for name in known.SWEEP if name.split("/")[0] == experiment]
        is_finished = all(last[name] >= known.EPISODES[name] for name in ids)
        scores.append(Score(experiment, float(value), len(ids), len(all_ids), is_finished))
    return scores


def by_tag(scores: Sequence[Score]) -> dict[str, float]:
    """Returns the mean score of the experiments with each tag, for all tags that occur."""
    members = {tag: [x for x in scores if tag in tags(x.experiment)] for tag in TAGS}
    return {tag: average for tag, own in members.items() if not np.isnan(average := mean(own))}


def mean(scores: Sequence[Score]) -> float:
    """Returns the mean of the scores that are defined; NaN if none is."""
    values = [x.score for x in scores if not np.isnan(x.score)]
    return float(np.mean(values)) if values else float("nan")


def curves(frame: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the logged episodes and the mean return per episode since the previous one, by experiment."""
    found = {}
    for experiment in EXPERIMENTS:
        rows = frame[frame.bsuite_env == experiment]
        if not len(rows):
            continue
        each = []
        for _, of_id in rows.groupby("bsuite_id"):
            gains = np.diff(of_id.total_return, prepend=0.0) / np.diff(of_id.episode, prepend=0)
            each.append(pd.Series(gains, of_id.episode.to_numpy()))
        average = pd.concat(each, axis=1).mean(axis=1).sort_index()
        found[experiment] = average.index.to_numpy(), average.to_numpy()
    return found


def score_rows(logs: Sequence[Log]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Returns columns and rows of scores.csv."""
    fields = ("agent", "experiment", "score", "tags", "num_ids", "all_ids", "finished")
    rows = [
        {
            "agent": log.label,
            "experiment": x.experiment,
            "score": round(x.score, 4),
            "tags": " ".join(tags(x.experiment)),
            "num_ids": x.num_ids,
            "all_ids": x.all_ids,
            "finished": x.is_finished,
        }
        for log in logs
        for x in log.scores
    ]
    return fields, rows


def solution_rows(logs: Sequence[Log]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Returns columns and rows of deep_sea.csv: when each size was solved."""
    fields = ("agent", "experiment", "size", "solved", "episode", "beats_dithering")
    rows = [
        {
            "agent": log.label,
            "experiment": experiment,
            "size": x.size,
            "solved": x.is_solved,
            "episode": x.episode,
            "beats_dithering": x.beats_dithering,
        }
        for log in logs
        for experiment, found in log.solutions.items()
        for x in found
    ]
    return fields, rows
