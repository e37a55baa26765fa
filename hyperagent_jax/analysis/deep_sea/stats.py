"""Statistics of DeepSea runs: episodes to learn with failures counted, and their fits against the size."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperagent_jax.analysis.deep_sea import read

# A line through two sizes always fits perfectly.
MIN_SIZES_OF_FIT = 3
# The agent whose output layer the others' are compared with.
REFERENCE = "hyperagent"


@dataclasses.dataclass(frozen=True)
class Median:
    """A median over all seeds. With `is_bound`, it is a failure, so the median is more than `value`."""

    value: float
    is_bound: bool


@dataclasses.dataclass(frozen=True)
class Summary:
    """Runs of one label and size.

    Attributes:
        size: N of the N x N grid.
        seeds: number of runs.
        solved: number of runs that solved the problem.
        failed: number of runs that reached the limit of episodes.
        crashed: number of runs that ended in an error; they count only in `seeds`.
        mean: mean episodes to learn of the solved runs; biased downwards if some failed.
        standard_error: standard error of `mean`; None with fewer than two solved runs.
        smallest: fewest episodes to learn.
        largest: most episodes to learn.
        median: median over solved and failed runs; None if there are none.
        limit: largest limit of a failed run.
        num_params: number of parameters; None if not on file or not the same in all runs.
        num_output_params: number of parameters of the output layer; None likewise.
        step_seconds: median over runs of the seconds per interaction; None if not on file.
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
    step_seconds: float | None


@dataclasses.dataclass(frozen=True)
class LinearFit:
    """Least-squares fit y = slope x + intercept; R^2 is NaN if all y are equal."""

    slope: float
    intercept: float
    r_squared: float

    def __call__(self, x: npt.ArrayLike) -> np.ndarray:
        return self.slope * np.asarray(x) + self.intercept


@dataclasses.dataclass(frozen=True)
class Group:
    """All runs of one agent with the same settings.

    Attributes:
        label: the agent, and its settings that differ between its groups.
        agent: name of the agent.
        settings: all settings on file.
        runs: the runs, by size and seed.
    """

    label: str
    agent: str
    settings: dict[str, str]
    runs: tuple[read.Run, ...]

    @property
    def sizes(self) -> list[int]:
        """Sizes in ascending order."""
        return sorted({run.size for run in self.runs})

    def at(self, size: int) -> list[read.Run]:
        """Returns the runs of one size."""
        return [run for run in self.runs if run.size == size]

    def summaries(self) -> list[Summary]:
        """Returns a summary per size."""
        return self._summaries

    @functools.cached_property
    def _summaries(self) -> list[Summary]:
        return [summarise(self.at(size)) for size in self.sizes]


@dataclasses.dataclass(frozen=True)
class Fits:
    """Fits of episodes to learn against the size, over the solved runs of a group.

    Attributes:
        points: number of solved runs.
        failed: number of failed runs, which fits cannot use.
        sizes: number of sizes with a solved run.
        linear: fit of episodes against size; None with too few sizes.
        power: power law: fit of the logarithm of episodes against that of size, whose slope is the exponent. None
            with too few sizes.
        power_of_midpoints: as `power`, with the middle of the interval between the evaluation that found a run
            solved and the previous one. Small sizes have long intervals, which makes `power` too flat. None if
            unknown.
        exponent_interval: 95% bootstrap interval of the exponent, of midpoints if they are known: seeds are
            resampled within every size. None without a fit, or if no size has several solved seeds.
        n_log_n: fit of episodes proportional to N log2 N, the episodes needed to collect N^2 items if each episode
            has N of them at random; uses midpoints if they are known. None with too few sizes.
    """

    points: int
    failed: int
    sizes: int
    linear: LinearFit | None
    power: LinearFit | None
    power_of_midpoints: LinearFit | None
    exponent_interval: tuple[float, float] | None
    n_log_n: LinearFit | None

    def coefficients(self) -> dict[str, float | None]:
        """Returns the coefficients of all fits by column of fits.csv; None if there is no fit."""
        low, high = self.exponent_interval or (None, None)
        return {
            "slope": self.linear.slope if self.linear else None,
            "intercept": self.linear.intercept if self.linear else None,
            "r_squared": self.linear.r_squared if self.linear else None,
            "power_law_exponent": self.power.slope if self.power else None,
            "power_law_r_squared": self.power.r_squared if self.power else None,
            "midpoint_exponent": self.power_of_midpoints.slope if self.power_of_midpoints else None,
            "exponent_low": low,
            "exponent_high": high,
            "n_log2_n_factor": self.n_log_n.slope if self.n_log_n else None,
            "n_log2_n_r_squared": self.n_log_n.r_squared if self.n_log_n else None,
        }


@dataclasses.dataclass(frozen=True)
class Ablation:
    """The effect of one setting, all others being equal.

    Attributes:
        setting: name of the setting.
        values: values of the setting: numbers in increasing order, words in order of appearance.
        lines: maps labels, of agent and other settings that differ, to the runs of each (size, value).
    """

    setting: str
    values: tuple[str, ...]
    lines: dict[str, dict[tuple[int, str], list[read.Run]]]

    @property
    def sizes(self) -> list[int]:
        """Sizes in ascending order."""
        return sorted({size for line in self.lines.values() for size, _ in line})


def as_numbers(values: Iterable[str]) -> list[float] | None:
    """Returns the values as finite numbers, or None if one of them is not a finite number."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def in_order(values: Iterable[str]) -> list[str]:
    """Returns the distinct values: numbers in increasing order, anything else in order of appearance."""
    distinct = list(dict.fromkeys(values))
    return distinct if as_numbers(distinct) is None else sorted(distinct, key=float)


def setting_names(runs: Iterable[read.Run]) -> list[str]:
    """Returns the names of all settings, in order of appearance."""
    return list(dict.fromkeys(name for run in runs for name in run.settings))


def varying_settings(runs: Sequence[read.Run]) -> list[str]:
    """Returns the settings that differ between runs of the same agent; an empty value differs from any other."""
    return [name for name in setting_names(runs) if len({run.settings.get(name) for run in runs}) > 1]


def make_label(agent: str, settings: dict[str, str], names: Iterable[str]) -> str:
    """Returns for example "hyperagent, index_dim 16, loss sampled"; empty settings are omitted."""
    return ", ".join([agent, *(f"{name} {settings[name]}" for name in names if name in settings)])


def group(runs: Sequence[read.Run]) -> list[Group]:
    """Groups runs that differ only in size and seed: agents in order of appearance, their settings sorted."""
    groups = []
    for agent in dict.fromkeys(run.agent for run in runs):
        own = [run for run in runs if run.agent == agent]
        names = varying_settings(own)
        orders = {
            name: {
                value: i
                for i, value in enumerate(in_order(run.settings[name] for run in own if name in run.settings))
            }
            for name in names
        }
        parts: dict[tuple, list[read.Run]] = {}
        for run in own:
            parts.setdefault(run.variant, []).append(run)

        def place(part: list[read.Run], orders: dict[str, dict[str, int]] = orders) -> list[int]:
            settings = part[0].settings  # an empty value comes before all others
            return [order[settings[name]] if name in settings else -1 for name, order in orders.items()]

        for part in sorted(parts.values(), key=place):
            settings = dict(part[0].settings)
            ordered = tuple(sorted(part, key=lambda run: (run.size, run.seed)))
            groups.append(Group(make_label(agent, settings, names), agent, settings, ordered))
    return groups


def median_with_failures(episodes: Sequence[int], limits: Sequence[int]) -> Median | None:
    """Returns the median over solved and failed runs.

    A failed run would have needed more episodes than its limit. Replacing it by its limit makes the median a lower
    bound, which is exact as long as no failure is at or below the middle.
    """
    ordered = sorted([(x, False) for x in episodes] + [(x, True) for x in limits])
    if not ordered:
        return None
    value = float(np.median([x for x, _ in ordered]))
    return Median(value, any(failed for _, failed in ordered[: len(ordered) // 2 + 1]))


def summarise(runs: Sequence[read.Run]) -> Summary:
    """Summarises runs that differ only in the seed."""
    (size,) = {run.size for run in runs}
    episodes = [run.episodes for run in runs if run.episodes is not None]
    limits = [run.limit for run in runs if run.limit is not None]
    times = [run.step_seconds for run in runs if run.step_seconds is not None]
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
        step_seconds=float(np.median(times)) if times else None,
    )


def _common(values: Iterable[int | None]) -> int | None:
    distinct = {value for value in values if value is not None}
    return distinct.pop() if len(distinct) == 1 else None


def linear_fit(x: npt.ArrayLike, y: npt.ArrayLike) -> LinearFit:
    """Fits a line to points with at least two distinct x."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    centred = xs - xs.mean()
    slope = float(centred @ (ys - ys.mean()) / (centred @ centred))
    return _judged(slope, float(ys.mean() - slope * xs.mean()), xs, ys)


def proportional_fit(x: npt.ArrayLike, y: npt.ArrayLike) -> LinearFit:
    """Fits a line through the origin to points with at least one nonzero x."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    return _judged(float(xs @ ys / (xs @ xs)), 0.0, xs, ys)


def _judged(slope: float, intercept: float, x: np.ndarray, y: np.ndarray) -> LinearFit:
    total = float(np.sum((y - y.mean()) ** 2))
    residual = float(np.sum((y - slope * x - intercept) ** 2))
    return LinearFit(slope, intercept, 1.0 - residual / total if total > 0.0 else math.nan)


def slope_interval(x: npt.ArrayLike, y: npt.ArrayLike, repetitions: int = 2_000) -> tuple[float, float] | None:
    """Returns the 95% bootstrap interval of the slope of `linear_fit`.

    Points are resampled among those with the same x, as seeds of one size are. None if every x has one point.
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    places = [np.flatnonzero(xs == value) for value in np.unique(xs)]
    if all(len(place) == 1 for place in places):
        return None
    rng = np.random.default_rng(0)
    chosen = np.empty((repetitions, len(xs)), int)
    for place in places:
        chosen[:, place] = rng.choice(place, (repetitions, len(place)))
    centred = xs - xs.mean()
    low, high = np.quantile(ys[chosen] @ centred / (centred @ centred), [0.025, 0.975])
    return float(low), float(high)


def fit(group: Group) -> Fits:
    """Fits the episodes of a group's solved runs against their size."""
    solved = [(run.size, run.episodes, run.interval) for run in group.runs if run.episodes is not None]
    x, y = [size for size, _, _ in solved], [episodes for _, episodes, _ in solved]
    enough = len(set(x)) >= MIN_SIZES_OF_FIT
    middles = [episodes - interval / 2 for _, episodes, interval in solved if interval is not None]
    has_middles = enough and len(middles) == len(y) and min(middles) > 0
    has_power = enough and min(y) > 0
    return Fits(
        points=len(solved),
        failed=sum(run.failed for run in group.runs),
        sizes=len(set(x)),
        linear=linear_fit(x, y) if enough else None,
        power=linear_fit(np.log(x), np.log(y)) if has_power else None,
        power_of_midpoints=linear_fit(np.log(x), np.log(middles)) if has_middles else None,
        exponent_interval=slope_interval(np.log(x), np.log(middles if has_middles else y)) if has_power else None,
        n_log_n=proportional_fit(x * np.log2(x), middles if has_middles else y) if enough else None,
    )


class References:
    """Output-layer parameters of the reference agent, by size and settings."""

    def __init__(self, groups: Sequence[Group]):
        self._counts: dict[int, set[int]] = {}
        self._by_settings: dict[tuple, int] = {}
        for group in groups:
            for summary in group.summaries() if group.agent == REFERENCE else ():
                if count := summary.num_output_params:
                    self._counts.setdefault(summary.size, set()).add(count)
                    self._by_settings[summary.size, *sorted(group.settings.items())] = count

    def ratio(self, group: Group, summary: Summary) -> float | None:
        """Returns the ratio of a summary's output-layer parameters to the reference agent's at the same size.

        If the reference's groups differ in them, other agents are compared with the group that has the same
        settings or else, like the reference's own groups, with the group without settings. None if there is none.
        """
        if summary.num_output_params is None:
            return None
        counts = self._counts.get(summary.size, set())
        reference = next(iter(counts)) if len(counts) == 1 else None
        if reference is None and group.agent != REFERENCE:
            reference = self._by_settings.get((summary.size, *sorted(group.settings.items())))
        reference = reference or self._by_settings.get((summary.size,))
        return summary.num_output_params / reference if reference else None


def ablations(runs: Sequence[read.Run]) -> list[Ablation]:
    """Returns an ablation for each setting that has at least two values for some agent, ignoring empty ones."""
    found = []
    for setting in setting_names(runs):
        values = in_order(run.settings[setting] for run in runs if setting in run.settings)
        lines: dict[str, dict[tuple[int, str], list[read.Run]]] = {}
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
    """Returns fields and rows of summary.csv."""
    names = setting_names([run for part in groups for run in part.runs])
    rows, references = [], References(groups)
    for part in groups:
        for summary in part.summaries():
            ratio = references.ratio(part, summary)
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
                    "step_microseconds": _rounded(summary.step_seconds and 1e6 * summary.step_seconds, 1),
                }
            )
    return list(rows[0]), rows


def fit_rows(groups: Sequence[Group]) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of fits.csv; fits with too few sizes are empty."""
    names = setting_names([run for part in groups for run in part.runs])
    rows = []
    for part in groups:
        fits = fit(part)
        rows.append(
            {
                "agent": part.agent,
                **{name: part.settings.get(name, "") for name in names},
                "sizes_with_solved": fits.sizes,
                "points": fits.points,
                "failed_left_out": fits.failed,
                **{name: _rounded(value, 4) for name, value in fits.coefficients().items()},
            }
        )
    return list(rows[0]), rows


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def format_median(median: Median) -> str:
    """Returns for example "350", "362.5", or "> 10,000" if the median is a failure."""
    return f"{'> ' if median.is_bound else ''}{median.value:,.10g}"
