"""Statistics of Atari scores: human-normalised, IQM and its relatives with intervals, beside the paper's."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import types

import numpy as np

from hyperagent_jax import errors
from hyperagent_jax import results
from hyperagent_jax.analysis import runs as runs_lib

_FOLDER = pathlib.Path(__file__).parent
# Columns of atari_scores.csv that are methods, and how the paper calls them.
METHODS = {
    "ddqn_zoo": "DDQN (DQN Zoo)",
    "der": "DER",
    "rainbow": "Rainbow",
    "hyperdqn": "HyperDQN",
    "hyperagent": "HyperAgent (paper)",
}
NEEDED = ("game", "agent", "seed", "score", "interactions")


@dataclasses.dataclass(frozen=True)
class Game:
    """A row of the paper's tables.

    Attributes:
        name: the game.
        is_in_26: whether it is one of the 26 games of the first table.
        random: score of random actions.
        human: score of a human.
        published: scores of METHODS; those that the paper does not give are absent.
    """

    name: str
    is_in_26: bool
    random: float
    human: float
    published: Mapping[str, float]

    def normalize(self, score: float) -> float:
        """The score on a scale on which random actions have 0 and the human has 1."""
        return (score - self.random) / (self.human - self.random)


@functools.cache
def games() -> Mapping[str, Game]:
    """The 55 games of the paper's two tables of scores."""
    return types.MappingProxyType(
        {
            row["game"]: Game(
                row["game"],
                row["set"] == "26",
                float(row["random"]),
                float(row["human"]),
                {method: float(row[method]) for method in METHODS if row[method]},
            )
            for row in results.read_csv(_FOLDER / "atari_scores.csv")
        }
    )


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """How much data a method needs for an IQM of 1.

    Attributes:
        method: its name.
        params: number of parameters.
        interactions: interactions at which it reaches an IQM of 1, or has not reached it.
        reaches_human: whether it reaches it.
        source: where the numbers are from.
    """

    method: str
    params: float
    interactions: float
    reaches_human: bool
    source: str


def efficiencies(num_params: int) -> list[Efficiency]:
    """The methods of the paper's figure of data against parameters; `num_params` are HyperAgent's."""
    return [
        Efficiency(
            row["method"],
            float(row["params"] or num_params * float(row["params_factor"])),
            float(row["interactions"]),
            row["reaches_human"] == "True",
            row["source"],
        )
        for row in results.read_csv(_FOLDER / "atari_efficiency.csv")
    ]


def iqm(scores: np.ndarray) -> float:
    """Interquartile mean: the mean of the middle half of all scores, [games, seeds] or any shape.

    As in scipy.stats.trim_mean(scores, 0.25), a quarter (rounded down) is left out at each end.
    """
    ordered = np.sort(np.asarray(scores, float), axis=None)
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def median(scores: np.ndarray) -> float:
    """The median over games of the means over seeds, [games, seeds]."""
    return float(np.median(np.mean(scores, axis=1)))


def mean(scores: np.ndarray) -> float:
    """The mean, [games, seeds]."""
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
    """A statistic of scores [games, seeds] and its 95% interval.

    Seeds are drawn anew with replacement within every game (Agarwal et al., 2021). With one seed per game there is
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
    """Performance profile: the share of scores [games, seeds] above each threshold [n]."""
    return np.mean(np.asarray(scores)[..., None] > thresholds, axis=(0, 1))


def relative_improvement(proposed: float, baseline: float, game: Game) -> float:
    """(proposed - baseline) / (max(human, baseline) - random), as in Wang et al. (2016).

    The paper prints "- human" in the denominator, which is zero wherever the baseline is below the human.
    """
    return (proposed - baseline) / (max(game.human, baseline) - game.random)


@dataclasses.dataclass(frozen=True)
class Run:
    """A row of a results.csv of run_atari.py."""

    game: str
    agent: str
    seed: int
    score: float
    interactions: int
    num_params: int | None = None


@dataclasses.dataclass(frozen=True)
class Results:
    """What several results.csv files of run_atari.py hold.

    Attributes:
        runs: the finished runs; their `agent` has a note where the files have several configurations of one.
        notes: a line for every run that is not among them, with the reason.
        curves: rows of the curve.csv beside them, by agent; agents without any are absent.
        sources: the files.
    """

    runs: list[Run]
    notes: list[str]
    curves: dict[str, list[dict[str, str]]]
    sources: list[runs_lib.Source]

    @property
    def agents(self) -> list[str]:
        """The agents, in the order of the files."""
        return list(dict.fromkeys(run.agent for run in self.runs))

    @property
    def names(self) -> list[str]:
        """The games."""
        return sorted({run.game for run in self.runs})


def read(places: Sequence[str]) -> Results:
    """Reads several results.csv files, or those of folders that hold one."""
    runs: dict[tuple[str, str, int], Run] = {}
    notes, curves, sources = [], {}, []
    paths = [path / "results.csv" if path.is_dir() else path for path in map(pathlib.Path, places)]
    for path, differing in zip(paths, runs_lib.differing_settings(paths), strict=True):
        if not path.exists():
            raise errors.UserError(f"there is no {path}: give a results.csv or a folder that holds one")
        rows = results.read_csv(path)
        if rows and (missing := [name for name in NEEDED if name not in rows[0]]):
            absent = ", ".join(missing)
            raise errors.UserError(f"{path} is no results.csv of run_atari.py: it has no column {absent}")
        found = []
        for number, row in enumerate(rows, start=1):
            name = f"{row['agent']} on {row['game']}, seed {row['seed']}"
            if row.get("error"):
                notes.append(f"Not finished: {name}: {row['error']}.")
                continue
            if row["game"] not in games():
                notes.append(f"Only its curve is shown: {name}: no human score is known for this game.")
                continue
            run = _parse({**row, "agent": row["agent"] + differing}, path, number)
            key = (run.game, run.agent, run.seed)
            if key in runs:
                raise errors.UserError(f"the same run is there twice: {run.agent} on {run.game}, seed {run.seed}")
            runs[key] = run
            found.append(run)
        for agent in dict.fromkeys(row["agent"] + differing for row in rows):
            if points := _curve(path.with_name("curve.csv")):
                curves.setdefault(agent, []).extend(points)
        sources.append(runs_lib.source(path, len(found)))
    if not runs:
        raise errors.UserError("there are no finished runs in " + ", ".join(map(str, places)))
    return Results(list(runs.values()), notes, curves, sources)


def _curve(path: pathlib.Path) -> list[dict[str, str]]:
    """The rows of a curve.csv, checked; none if there is no such file."""
    rows = results.read_csv(path)
    try:
        for row in rows:
            row["game"], int(row["seed"]), int(row["interactions"]), float(row["eval_score"])
    except (KeyError, ValueError) as error:
        raise errors.UserError(f"{path} is damaged: mend or delete it") from error
    return rows


def _parse(row: Mapping[str, str], path: pathlib.Path, number: int) -> Run:
    try:
        params = int(row["num_params"]) if row.get("num_params") else None
        numbers = int(row["seed"]), float(row["score"]), int(row["interactions"]), params
        return Run(row["game"], row["agent"], *numbers)
    except ValueError as error:
        raise errors.UserError(f"{path}, row {number}: {error}") from error


def score_matrix(runs: Sequence[Run], agent: str) -> tuple[list[str], np.ndarray]:
    """Games and human-normalised scores [games, seeds] of an agent: as many seeds as every game has."""
    by_game: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.agent == agent:
            by_game.setdefault(run.game, []).append(run)
    known = games()
    names = sorted(by_game)
    num_seeds = min(len(by_game[name]) for name in names)
    return names, np.array(
        [[known[name].normalize(run.score) for run in by_game[name][:num_seeds]] for name in names]
    )


def published_matrix(method: str, names: Sequence[str]) -> np.ndarray:
    """Human-normalised scores [games, 1] that the paper gives for a method in those of `names` it has."""
    known = games()
    return np.array(
        [
            [known[name].normalize(known[name].published[method])]
            for name in names
            if method in known[name].published
        ]
    ).reshape(-1, 1)


def summary_rows(runs: Sequence[Run]) -> tuple[list[str], list[dict[str, object]]]:
    """Fields and rows of a table: statistics of every agent, and of the paper's methods in the same games."""
    columns = [f"{name}{end}" for name in STATISTICS for end in ("", "_low", "_high")]
    fields = ["method", "games", "seeds", *columns]
    rows = []

    def add(method, scores):
        row: dict[str, object] = {"method": method, "games": scores.shape[0], "seeds": scores.shape[1]}
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
    for method, title in METHODS.items():
        if len(scores := published_matrix(method, names)):
            add(title, scores)
    return fields, rows


def mean_scores(runs: Sequence[Run], agent: str) -> dict[str, float]:
    """Mean over seeds of an agent's scores, by game."""
    own: dict[str, list[float]] = {}
    for run in runs:
        if run.agent == agent:
            own.setdefault(run.game, []).append(run.score)
    return {game: float(np.mean(own[game])) for game in sorted(own)}


def score_rows(found: Results) -> tuple[list[str], list[dict[str, object]]]:
    """Fields and rows of a table: the game's scores by all agents and by those that the paper has."""
    known = games()
    ours = {agent: mean_scores(found.runs, agent) for agent in found.agents}
    methods = {
        title: {name: known[name].published[method] for name in found.names if method in known[name].published}
        for method, title in METHODS.items()
    }
    columns = {**ours, **{title: scores for title, scores in methods.items() if scores}}
    rows = [
        {
            "game": name,
            "random": known[name].random,
            "human": known[name].human,
            **{label: results.number(scores[name]) if name in scores else "" for label, scores in columns.items()},
        }
        for name in found.names
    ]
    return ["game", "random", "human", *columns], rows


def improvements(found: Results, agent: str) -> dict[str, dict[str, float]]:
    """Relative improvement of an agent over every other one and over the paper's methods, by game."""
    known, ours = games(), mean_scores(found.runs, agent)
    baselines = {other: mean_scores(found.runs, other) for other in found.agents if other != agent}
    for method, title in METHODS.items():
        baselines[title] = {
            game: known[game].published[method] for game in ours if method in known[game].published
        }
    compared = {
        name: {
            game: relative_improvement(ours[game], scores[game], known[game]) for game in ours if game in scores
        }
        for name, scores in baselines.items()
    }
    return {name: values for name, values in compared.items() if values}
