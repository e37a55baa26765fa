"""Scores of bsuite runs: what bsuite's logging wrote, one score per experiment by bsuite's definition."""

from collections.abc import Sequence
import dataclasses
import functools
import importlib
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import runs as runs_lib

# bsuite's order, by kind of difficulty.
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
# What bsuite's logging always writes, and what the scores of experiments need besides.
_COLUMNS = ("steps", "episode", "total_return", "episode_len", "episode_return")
_OWN_COLUMNS = {
    "bandit": ["total_regret"],
    "catch": ["total_regret"],
    "mnist": ["total_regret"],
    "umbrella_length": ["total_regret"],
    "umbrella_distract": ["total_regret"],
    "memory_len": ["total_perfect"],
    "memory_size": ["total_perfect"],
    "mountain_car": ["raw_return"],
    "cartpole": ["raw_return", "best_episode"],
    "cartpole_swingup": ["best_episode"],
    "deep_sea": ["total_bad_episodes"],
    "deep_sea_stochastic": ["total_bad_episodes"],
    "discounting_chain": [],
}
# DeepSea counts as solved at the first logged episode from `first` on at which less than `threshold` of all
# episodes so far had left the diagonal: in the windy one some stay on it by luck.
_SOLVED = {"deep_sea": {"first": 1, "threshold": 0.9}, "deep_sea_stochastic": {"first": 100, "threshold": 0.8}}


@dataclasses.dataclass(frozen=True)
class Log:
    """The runs of one agent.

    Attributes:
        label: its name.
        source: the folder and how it was made.
        frame: the rows of all ids with bsuite's settings of the id, and its `bsuite_id` and `bsuite_env`.
        not_run: maps ids without a log to why there is none.
    """

    label: str
    source: runs_lib.Source
    frame: pd.DataFrame
    not_run: dict[str, str]

    @functools.cached_property
    def scores(self) -> list["Score"]:
        """Its scores."""
        return score(self.frame)

    @functools.cached_property
    def solutions(self) -> dict[str, list["Solution"]]:
        """When it solved the sizes of each kind of DeepSea."""
        return {experiment: solutions(self.frame, experiment) for experiment in _SOLVED}


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of an experiment.

    Attributes:
        experiment: its name.
        score: between 0, a random or useless agent, and 1; not a number where bsuite defines none, as for mnist
            with fewer episodes.
        num_ids: ids that it is of.
        all_ids: ids that the experiment has.
        is_finished: whether these were run to the end.
    """

    experiment: str
    score: float
    num_ids: int
    all_ids: int
    is_finished: bool


@dataclasses.dataclass(frozen=True)
class Solution:
    """When DeepSea of a size was solved, or how many episodes were not enough."""

    size: int
    episode: int
    is_solved: bool

    @property
    def beats_dithering(self) -> bool:
        """Whether it took fewer episodes than random actions do, 2^N, up to bsuite's forgiveness of 100."""
        return self.is_solved and self.episode < 2**self.size + 100


def _sweep():
    try:
        from bsuite import sweep
    except ImportError as error:
        raise errors.UserError("bsuite is not installed: pip install 'hyperagent_jax[bsuite]'") from error
    return sweep


def tags(experiment: str) -> tuple[str, ...]:
    """bsuite's tags of an experiment."""
    return _analysis(experiment).TAGS


def _analysis(experiment: str) -> Any:
    return importlib.import_module(f"bsuite.experiments.{experiment}.analysis")


def read_csv(path: pathlib.Path, bsuite_id: str) -> pd.DataFrame:
    """The rows that bsuite's logging wrote for an id."""
    try:
        frame = pd.read_csv(path)
        experiment = bsuite_id.split("/")[0].removesuffix("_noise").removesuffix("_scale")
        if missing := [name for name in (*_COLUMNS, *_OWN_COLUMNS[experiment]) if name not in frame]:
            raise ValueError(f"it has no column {', '.join(missing)}")
        numbers = frame.apply(pd.to_numeric)
        if not len(numbers) or not np.isfinite(numbers.to_numpy(float)).all():
            raise ValueError("it has no rows" if not len(numbers) else "a number is missing")
        if (numbers.episode.diff().dropna() <= 0).any():
            raise ValueError("its episodes are not in order")
    except FileNotFoundError as error:
        raise errors.UserError(f"there is no {path}, the log of {bsuite_id}") from error
    except OSError as error:
        raise errors.UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # also pandas' errors, and that of a file which is no text
        reason = " ".join(str(error).split())
        raise errors.UserError(f"{path} is damaged: {reason}; delete it and run {bsuite_id} again") from error
    return numbers


def read(folders: Sequence[str | pathlib.Path]) -> list[Log]:
    """The logs in several folders, of run_bsuite.py or of anybody else's bsuite csv files."""
    resolved = [pathlib.Path(folder).resolve() for folder in folders]
    if twins := [folder for folder, path in zip(folders, resolved, strict=True) if resolved.count(path) > 1]:
        raise errors.UserError(f"the same folder is given twice: {twins[0]}")
    logs = [_read_folder(pathlib.Path(folder)) for folder in folders]
    labels = [log.label for log in logs]
    return [
        dataclasses.replace(log, label=f"{log.label}, {folder}") if labels.count(log.label) > 1 else log
        for log, folder in zip(logs, folders, strict=True)
    ]


def _read_folder(folder: pathlib.Path) -> Log:
    sweep = _sweep()
    settings = pd.DataFrame(
        [{"bsuite_id": name, "bsuite_env": name.split("/")[0], **given} for name, given in sweep.SETTINGS.items()]
    )
    identity = runs_lib.identity(folder)
    is_ours = identity.get("experiment") == "bsuite"  # then results.csv says which logs are finished
    rows = results.read_csv(folder / "results.csv") if is_ours else []
    finished = {row["bsuite_id"] for row in rows if row["status"] in (results.FINISHED, results.PARTIAL)}
    not_run = {
        row["bsuite_id"]: f"{row['status']}: {row['reason']}" for row in rows if row["bsuite_id"] not in finished
    }
    frames: dict[str, pd.DataFrame] = {}
    for path in runs_lib.bsuite_files(folder):
        bsuite_id = path.stem.removeprefix(runs_lib.BSUITE_PREFIX).replace("-", "/")
        if bsuite_id not in sweep.SETTINGS:
            raise errors.UserError(f"{path} is of no bsuite id: there is no {bsuite_id}")
        if is_ours and bsuite_id not in finished:
            not_run.setdefault(bsuite_id, "not finished yet")
            continue
        if bsuite_id in frames:
            raise errors.UserError(f"{folder} holds two logs of {bsuite_id}: one in it, one in its folder csv")
        frames[bsuite_id] = read_csv(path, bsuite_id).assign(bsuite_id=bsuite_id)
    if not frames:
        raise errors.UserError(f"{folder} holds no finished bsuite run")
    frame = pd.concat(frames.values(), ignore_index=True)
    known = [name for name in settings if name in frame and name != "bsuite_id"]
    frame = frame.drop(columns=known).merge(settings, on="bsuite_id")
    source = runs_lib.source(folder / "results.csv", len(frames))
    return Log(str(identity.get("agent") or folder.resolve().name), source, frame, not_run)


def solutions(frame: pd.DataFrame, experiment: str) -> list[Solution]:
    """When each size of deep_sea or deep_sea_stochastic was solved."""
    first, threshold = _SOLVED[experiment]["first"], _SOLVED[experiment]["threshold"]
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
    """The scores of all experiments that a frame has rows of, in bsuite's order."""
    sweep = _sweep()
    scores = []
    for experiment in EXPERIMENTS:
        rows = frame[frame.bsuite_env == experiment]
        if not len(rows):
            continue
        if experiment in _SOLVED:  # bsuite's own needs a function that pandas has lost
            beaten = [solution.beats_dithering for solution in solutions(rows, experiment)]
            value = np.mean(beaten) if beaten else np.nan
        else:
            value = _analysis(experiment).score(rows)
        ids = sorted(set(rows.bsuite_id))
        last = rows.groupby("bsuite_id").episode.max()
        all_ids = [name for name in sweep.SWEEP if name.split("/")[0] == experiment]
        is_finished = all(last[name] >= sweep.EPISODES[name] for name in ids)
        scores.append(Score(experiment, float(value), len(ids), len(all_ids), is_finished))
    return scores


def by_tag(scores: Sequence[Score]) -> dict[str, float]:
    """The mean score of the experiments with each tag that any of them has."""
    members = {tag: [x for x in scores if tag in tags(x.experiment)] for tag in TAGS}
    return {tag: average for tag, own in members.items() if not np.isnan(average := mean(own))}


def mean(scores: Sequence[Score]) -> float:
    """The mean of those scores that are defined; not a number if none is."""
    values = [x.score for x in scores if not np.isnan(x.score)]
    return float(np.mean(values)) if values else float("nan")


def curves(frame: pd.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per experiment the logged episodes and the return per episode since the one before, averaged over ids."""
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


def table(logs: Sequence[Log]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Columns and rows of scores.csv."""
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


def solution_table(logs: Sequence[Log]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Columns and rows of deep_sea.csv: when each size was solved."""
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
