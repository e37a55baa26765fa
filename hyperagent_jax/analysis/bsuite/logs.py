"""Reads the csv files of bsuite's logging, one per id, without pandas."""

import csv
import math
import pathlib

from hyperagent_jax import errors

# Columns that bsuite's logging always writes, and those that the scores of some experiments need in addition.
_COLUMNS = ("steps", "episode", "total_return", "episode_len", "episode_return")
_OWN_COLUMNS = {
    "bandit": ("total_regret",),
    "catch": ("total_regret",),
    "mnist": ("total_regret",),
    "umbrella_length": ("total_regret",),
    "umbrella_distract": ("total_regret",),
    "memory_len": ("total_perfect",),
    "memory_size": ("total_perfect",),
    "mountain_car": ("raw_return",),
    "cartpole": ("raw_return", "best_episode"),
    "cartpole_swingup": ("best_episode",),
    "deep_sea": ("total_bad_episodes",),
    "deep_sea_stochastic": ("total_bad_episodes",),
    "discounting_chain": (),
}


def read(path: pathlib.Path, bsuite_id: str) -> dict[str, list[float]]:
    """Returns the columns of the log of an id; rejects an incomplete one."""
    try:
        with open(path, newline="") as f:
            return _parse([row for row in csv.reader(f) if row], bsuite_id)
    except FileNotFoundError as error:
        raise errors.UserError(f"{path}, the log of {bsuite_id}, does not exist") from error
    except OSError as error:
        raise errors.UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, csv.Error) as error:  # including that of a file that is not text
        reason = " ".join(str(error).split())
        raise errors.UserError(f"{path} is corrupt: {reason}; delete it and run {bsuite_id} again") from error


def last_episode(path: pathlib.Path, bsuite_id: str) -> int:
    """Returns the last episode in the log of an id; rejects an incomplete one."""
    return int(read(path, bsuite_id)["episode"][-1])


def _parse(lines: list[list[str]], bsuite_id: str) -> dict[str, list[float]]:
    if not lines:
        raise ValueError("No columns to parse from file")
    names, *rows = lines
    experiment = bsuite_id.split("/")[0].removesuffix("_noise").removesuffix("_scale")
    if missing := [name for name in (*_COLUMNS, *_OWN_COLUMNS[experiment]) if name not in names]:
        raise ValueError(f"it has no column {', '.join(missing)}")
    if longer := [row for row in rows if len(row) > len(names)]:
        raise ValueError(f"Expected {len(names)} fields, saw {len(longer[0])}")
    columns = {
        name: [_number(row[i] if i < len(row) else "", position) for position, row in enumerate(rows)]
        for i, name in enumerate(names)
    }
    if not rows:
        raise ValueError("it has no rows")
    if not all(math.isfinite(x) for column in columns.values() for x in column):
        raise ValueError("a number is missing")
    episodes = columns["episode"]
    if any(later <= earlier for earlier, later in zip(episodes, episodes[1:], strict=False)):
        raise ValueError("its episodes are not in order")
    return columns


def _number(text: str, position: int) -> float:
    if not text.strip():
        return math.nan
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f'Unable to parse string "{text}" at position {position}') from error
