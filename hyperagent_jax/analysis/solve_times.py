"""Statistics of episodes to learn: groups of runs, summaries with failures counted, fits against the size."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from hyperagent_jax.analysis import runs as runs_lib

# A line through two sizes fits whatever the sizes are.
MIN_SIZES_OF_FIT = 3
# The agent that others' output layers are compared with.
REFERENCE = "hyperagent"


@dataclasses.dataclass(frozen=True)
class Median:
    """A median over all seeds. With `is_bound` failures reach into it and it is more than `value`."""

    value: float
    is_bound: bool


@dataclasses.dataclass(frozen=True)
class Summary:
    """Runs of one label and size.

    Attributes:
        size: N of the N x N grid.
        seeds: number of runs.
        solved: runs that solved it.
        failed: runs that reached the limit of episodes.
        crashed: runs that ended in an error; in no other number but `seeds`.
        mean: mean episodes to learn of the solved runs; biased downwards when some failed.
        standard_error: of that mean; None with fewer than two solved runs.
        smallest: fewest episodes to learn.
        largest: most episodes to learn.
        median: over solved and failed runs; None if there are none.
        limit: largest limit of a failed run.
        num_params: parameters; None if not on file or not the same in all runs.
        num_output_params: those of the output layer, likewise.
    """

    size: int
    seeds: int
    solved: int
    failed: int
    crashed: int
    mean: float | None
    standard_error: float | None
    smallest: int | None
    largest: int | None
    median: Median | None
    limit: int | None
    num_params: int | None
    num_output_params: int | None


@dataclasses.dataclass(frozen=True)
class LinearFit:
    """Least squares y = slope x + intercept; R^2 is NaN when all y are the same."""

    slope: float
    intercept: float
    r_squared: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.slope * np.asarray(x) + self.intercept


@dataclasses.dataclass(frozen=True)
class Group:
    """All runs of one agent with the same settings.

    Attributes:
        label: the agent and those of its settings that differ between its groups.
        agent: name of the agent.
        settings: all settings on file.
        runs: the runs, by size and seed.
    """

    label: str
    agent: str
    settings: dict[str, str]
    runs: tuple[runs_lib.Run, ...]

    @property
    def sizes(self) -> list[int]:
        return sorted({run.size for run in self.runs})

    def at(self, size: int) -> list[runs_lib.Run]:
        return [run for run in self.runs if run.size == size]

    def summaries(self) -> list[Summary]:
        return [summarise(self.at(size)) for size in self.sizes]


@dataclasses.dataclass(frozen=True)
class Fits:
    """How episodes to learn grow with the size, over the solved runs of a group.

    Attributes:
        points: solved runs.
        failed: failed runs, which no fit can use.
        sizes: sizes with a solved run.
        linear: episodes against size; None with too few sizes.
        power: the power law, logarithm of the episodes against that of the size; its slope is the exponent. None
            with too few sizes.
        power_of_midpoints: the same with the middle of the interval between the evaluation that found it solved
            and the one before. Small sizes have long intervals, which makes `power` too flat. None if not known.
        n_log_n: episodes in proportion to N log2 N, what it takes to meet all of N^2 things when each episode has
            N of them at random; of midpoints if they are known. None with too few sizes.
    """

    points: int
    failed: int
    sizes: int
    linear: LinearFit | None
    power: LinearFit | None
    power_of_midpoints: LinearFit | None
    n_log_n: LinearFit | None


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What one setting changes, everything else being equal.

    Attributes:
        setting: its name.
        values: its values: numbers by size, words as they appear.
        lines: agent, remaining settings that differ, and the runs of each (size, value).
    """

    setting: str
    values: tuple[str, ...]
    lines: dict[str, dict[tuple[int, str], list[runs_lib.Run]]]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for line in self.lines.values() for size, _ in line})


def as_numbers(values: Iterable[str]) -> list[float] | None:
    """The values as finite numbers, or None if one of them is none."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def in_order(values: Iterable[str]) -> list[str]:
    """Distinct values: numbers by size, anything else by appearance."""
    distinct = list(dict.fromkeys(values))
    return distinct if as_numbers(distinct) is None else sorted(distinct, key=float)


def setting_names(runs: Iterable[runs_lib.Run]) -> list[str]:
    """Names of all settings, by appearance."""
    return list(dict.fromkeys(name for run in runs for name in run.settings))


def varying_settings(runs: Sequence[runs_lib.Run]) -> list[str]:
    """Names of the settings that differ between runs of one agent; a blank differs from any value."""
    return [name for name in setting_names(runs) if len({run.settings.get(name) for run in runs}) > 1]


def make_label(agent: str, settings: dict[str, str], names: Iterable[str]) -> str:
    """For example "hyperagent, index_dim 16, loss sampled"; blank settings are left out."""
    return ", ".join([agent, *(f"{name} {settings[name]}" for name in names if name in settings)])


def group(runs: Sequence[runs_lib.Run]) -> list[Group]:
    """Groups of runs that differ in size and seed only: agents by appearance, their settings in order."""
    groups = []
    for agent in dict.fromkeys(run.agent for run in runs):
        own = [run for run in runs if run.agent == agent]
        names = varying_settings(own)
        orders = {name: in_order(run.settings[name] for run in own if name in run.settings) for name in names}
        parts: dict[tuple, list[runs_lib.Run]] = {}
        for run in own:
            parts.setdefault(run.variant, []).append(run)

        def place(part, orders=orders):
            settings = part[0].settings  # a blank comes before all values
            return [order.index(settings[name]) if name in settings else -1 for name, order in orders.items()]

        for part in sorted(parts.values(), key=place):
            settings = dict(part[0].settings)
            ordered = tuple(sorted(part, key=lambda run: (run.size, run.seed)))
            groups.append(Group(make_label(agent, settings, names), agent, settings, ordered))
    return groups


def median_with_failures(episodes: Sequence[int], limits: Sequence[int]) -> Median | None:
    """The median over solved and failed runs.

    A failed run would have needed more episodes than its limit. With the limit in its place the median is a
    lower bound; it is the median itself as long as no failure is at or below the middle.
    """
    ordered = sorted([(x, False) for x in episodes] + [(x, True) for x in limits])
    if not ordered:
        return None
    value = float(np.median([x for x, _ in ordered]))
    return Median(value, any(failed for _, failed in ordered[: len(ordered) // 2 + 1]))


def summarise(runs: Sequence[runs_lib.Run]) -> Summary:
    """The summary of runs that differ in their seed only."""
    (size,) = {run.size for run in runs}
    episodes = [run.episodes for run in runs if run.solved]
    limits = [run.limit for run in runs if run.failed]
    return Summary(
        size=size,
        seeds=len(runs),
        solved=len(episodes),
        failed=len(limits),
        crashed=sum(run.crashed for run in runs),
        mean=float(np.mean(episodes)) if episodes else None,
        standard_error=float(np.std(episodes, ddof=1) / math.sqrt(len(episodes))) if len(episodes) > 1 else None,
        smallest=min(episodes, default=None),
        largest=max(episodes, default=None),
        median=median_with_failures(episodes, limits),
        limit=max(limits, default=None),
        num_params=_common(run.num_params for run in runs),
        num_output_params=_common(run.num_output_params for run in runs),
    )


def _common(values: Iterable[int | None]) -> int | None:
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


def linear_fit(x: Sequence[float], y: Sequence[float]) -> LinearFit:
    """The least-squares line through points with at least two different x."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    return _judged(slope, float(y.mean() - slope * x.mean()), x, y)


def proportional_fit(x: Sequence[float], y: Sequence[float]) -> LinearFit:
    """The least-squares line through the origin and points of which at least one x is not 0."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    return _judged(float(x @ y / (x @ x)), 0.0, x, y)


def _judged(slope: float, intercept: float, x: np.ndarray, y: np.ndarray) -> LinearFit:
    total = float(np.sum((y - y.mean()) ** 2))
    residual = float(np.sum((y - slope * x - intercept) ** 2))
    return LinearFit(slope, intercept, 1.0 - residual / total if total > 0.0 else math.nan)


def fit(group: Group) -> Fits:
    """The fits of a group's solved runs against their size."""
    solved = [run for run in group.runs if run.solved]
    x, y = [run.size for run in solved], [run.episodes for run in solved]
    enough = len(set(x)) >= MIN_SIZES_OF_FIT
    middles = [run.episodes - run.interval / 2 for run in solved if run.interval is not None]
    has_middles = enough and len(middles) == len(y) and min(middles) > 0
    return Fits(
        points=len(solved),
        failed=sum(run.failed for run in group.runs),
        sizes=len(set(x)),
        linear=linear_fit(x, y) if enough else None,
        power=linear_fit(np.log(x), np.log(y)) if enough and min(y) > 0 else None,
        power_of_midpoints=linear_fit(np.log(x), np.log(middles)) if has_middles else None,
        n_log_n=proportional_fit(x * np.log2(x), middles if has_middles else y) if enough else None,
    )


def output_ratio(group: Group, summary: Summary, groups: Sequence[Group]) -> float | None:
    """Output-layer parameters of a summary over those of the reference agent at the same size.

    If the reference's groups differ in them, another agent is compared with the one that has the same settings
    or else, as are the reference's own groups, with the one without any. None if there is none.
    """
    if summary.num_output_params is None:
        return None
    references = [other for other in groups if other.agent == REFERENCE and summary.size in other.sizes]
    same = [other for other in references if other.settings == group.settings and group.agent != REFERENCE]
    plain = [other for other in references if not other.settings]
    for candidates in (references, same, plain):
        counts = {summarise(other.at(summary.size)).num_output_params for other in candidates} - {None, 0}
        if len(counts) == 1:
            return summary.num_output_params / counts.pop()
    return None


def ablations(runs: Sequence[runs_lib.Run]) -> list[Ablation]:
    """One for each setting with at least two values within some agent; blanks take no part."""
    found = []
    for setting in setting_names(runs):
        values = in_order(run.settings[setting] for run in runs if setting in run.settings)
        lines: dict[str, dict[tuple[int, str], list[runs_lib.Run]]] = {}
        for agent in dict.fromkeys(run.agent for run in runs):
            own = [run for run in runs if run.agent == agent and setting in run.settings]
            if len({run.settings[setting] for run in own}) < 2:
                continue
            rest = [dataclasses.replace(run, settings=_without(run.settings, setting)) for run in own]
            labels = {part.runs[0].variant: part.label for part in group(rest)}
            lines.update({label: {} for label in labels.values()})
            for run, other in zip(own, rest, strict=True):
                line = lines[labels[other.variant]]
                line.setdefault((run.size, run.settings[setting]), []).append(run)
        if lines:
            used = {value for line in lines.values() for _, value in line}
            found.append(Ablation(setting, tuple(value for value in values if value in used), lines))
    return found


def _without(settings: Mapping[str, str], name: str) -> dict[str, str]:
    return {other: value for other, value in settings.items() if other != name}


def summary_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, Any]]]:
    """Fields and rows of summary.csv."""
    names = setting_names([run for part in groups for run in part.runs])
    rows = []
    for part in groups:
        for summary in part.summaries():
            ratio = output_ratio(part, summary, groups)
            rows.append(
                {
                    "agent": part.agent,
                    **{name: part.settings.get(name, "") for name in names},
                    "size": summary.size,
                    "seeds": summary.seeds,
                    "solved": summary.solved,
                    "failed": summary.failed,
                    "crashed": summary.crashed,
                    "mean_over_solved": _rounded(summary.mean, 2),
                    "standard_error_over_solved": _rounded(summary.standard_error, 2),
                    "min_over_solved": summary.smallest,
                    "max_over_solved": summary.largest,
                    "median_over_all": summary.median and format_median(summary.median).replace(",", ""),
                    "limit": summary.limit,
                    "num_params": summary.num_params,
                    "num_output_params": summary.num_output_params,
                    "output_params_over_hyperagent": _rounded(ratio, 4),
                }
            )
    return list(rows[0]), rows


def fit_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, Any]]]:
    """Fields and rows of fits.csv; without enough sizes the fits are blank."""
    names = setting_names([run for part in groups for run in part.runs])
    rows = []
    for part in groups:
        fits = fit(part)
        linear = fits.linear
        rows.append(
            {
                "agent": part.agent,
                **{name: part.settings.get(name, "") for name in names},
                "sizes_with_solved": fits.sizes,
                "points": fits.points,
                "failed_left_out": fits.failed,
                "slope": _rounded(linear and linear.slope, 4),
                "intercept": _rounded(linear and linear.intercept, 4),
                "r_squared": _rounded(linear and linear.r_squared, 4),
                "power_law_exponent": _rounded(fits.power and fits.power.slope, 4),
                "power_law_r_squared": _rounded(fits.power and fits.power.r_squared, 4),
                "midpoint_exponent": _rounded(fits.power_of_midpoints and fits.power_of_midpoints.slope, 4),
                "n_log2_n_factor": _rounded(fits.n_log_n and fits.n_log_n.slope, 4),
                "n_log2_n_r_squared": _rounded(fits.n_log_n and fits.n_log_n.r_squared, 4),
            }
        )
    return list(rows[0]), rows


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def format_median(median: Median) -> str:
    """For example "350", "362.5", or "> 10,000" when the median fails."""
    return f"{'> ' if median.is_bound else ''}{median.value:,.10g}"
