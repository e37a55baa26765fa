"""Statistics of returns in environments: normalised per environment, aggregated over environments."""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any

import numpy as np

from hyperagent_jax import results
from hyperagent_jax.analysis import aggregates
from hyperagent_jax.analysis.environments import read


@dataclasses.dataclass(frozen=True)
class Scale:
    """The returns that normalisation maps to 0 and 1 in an environment.

    Attributes:
        low: mean return of random actions, or of the worst agent if that is unknown.
        high: mean final return of the best agent.
        is_random: whether `low` is that of random actions.
    """

    low: float
    high: float
    is_random: bool

    @property
    def is_usable(self) -> bool:
        """Whether any agent is better than `low`."""
        return self.high > self.low

    def normalize(self, returns: np.ndarray) -> np.ndarray:
        """Returns (return - low) / (high - low)."""
        return (returns - self.low) / (self.high - self.low)


def returns_of(found: read.Results, env: str, agent: str, field: str = "final_return") -> np.ndarray:
    """Returns the final returns (or another field) of an agent's runs in an environment, by seed, [seeds]."""
    runs = [run for run in found.runs if (run.env, run.agent) == (env, agent)]
    return np.array([getattr(run, field) for run in sorted(runs, key=lambda run: run.seed)])


def scale(found: read.Results, env: str) -> Scale:
    """Returns the scale of an environment."""
    means = [float(np.mean(own)) for agent in found.agents if len(own := returns_of(found, env, agent))]
    random = [run.random_return for run in found.runs if run.env == env and run.random_return is not None]
    return Scale(float(np.mean(random)) if random else min(means), max(means), bool(random))


def compared(found: read.Results) -> list[str]:
    """Returns the environments to aggregate over: all agents ran there, and at least one agent learns."""
    return [
        env
        for env in found.names
        if all(len(returns_of(found, env, agent)) for agent in found.agents) and scale(found, env).is_usable
    ]


def matrix(found: read.Results, agent: str, names: Sequence[str]) -> np.ndarray:
    """Returns normalised final returns [environments, seeds] of an agent, with the seeds that all of them have."""
    own = [scale(found, env).normalize(returns_of(found, env, agent)) for env in names]
    num_seeds = min(map(len, own))
    return np.array([row[:num_seeds] for row in own])


def summary_rows(found: read.Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of summary.csv: every agent over the compared environments."""
    rows: list[dict[str, Any]] = []
    if names := compared(found):
        for agent in found.agents:
            scores = matrix(found, agent, names)
            num_seeds = scores.shape[1]
            rows.append(
                {"method": agent, "environments": len(names), "seeds": num_seeds, **aggregates.row(scores)}
            )
    return ["method", "environments", "seeds", *aggregates.FIELDS], rows


def improvement_rows(found: read.Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of improvement.csv: every pair of agents, once."""
    rows = []
    if names := compared(found):
        scores = {agent: matrix(found, agent, names) for agent in found.agents}
        for ours, theirs in itertools.combinations(found.agents, 2):
            interval = aggregates.stratified_bootstrap(
                scores[ours], scores[theirs], statistic=aggregates.probability_of_improvement
            )
            is_point = scores[ours].shape[1] == scores[theirs].shape[1] == 1
            rows.append(
                {
                    "method": ours,
                    "over": theirs,
                    "probability": round(interval.value, 4),
                    "probability_low": "" if is_point else round(interval.low, 4),
                    "probability_high": "" if is_point else round(interval.high, 4),
                }
            )
    return ["method", "over", "probability", "probability_low", "probability_high"], rows


def score_rows(found: read.Results) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns fields and rows of scores.csv: every agent in every environment, with intervals for the means."""
    rows = []
    for env in found.names:
        own_scale = scale(found, env)
        for agent in found.agents:
            final = returns_of(found, env, agent)
            if not len(final):
                continue
            best = returns_of(found, env, agent, "best_return")
            entry: dict[str, Any] = {"env": env, "method": agent, "seeds": len(final)}
            entry["random"] = results.number(own_scale.low) if own_scale.is_random else ""
            for name, values in (("final", final), ("best", best)):
                interval = aggregates.stratified_bootstrap(values[None], statistic=aggregates.mean)
                entry[name] = results.number(interval.value)
                entry[f"{name}_low"] = "" if len(values) == 1 else results.number(interval.low)
                entry[f"{name}_high"] = "" if len(values) == 1 else results.number(interval.high)
            normalised = float(own_scale.normalize(final).mean()) if own_scale.is_usable else None
            entry["normalised"] = "" if normalised is None else round(normalised, 4)
            rows.append(entry)
    columns = [f"{name}{end}" for name in ("final", "best") for end in ("", "_low", "_high")]
    return ["env", "method", "seeds", "random", *columns, "normalised"], rows
