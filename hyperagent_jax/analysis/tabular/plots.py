"""Plots of the tabular studies, from the rows of their tables."""

from collections.abc import Callable, Sequence
import itertools
import math
from typing import Any

import numpy as np

from hyperagent_jax.analysis import maps_over_training
from hyperagent_jax.analysis import style

_LABELS = {
    "hyperagent": "HyperAgent",
    "hyperagent_ois": "HyperAgent w. OIS",
    "hyperagent_theory": "HyperAgent, theory preset",
    "rlsvi": "RLSVI",
    "psrl": "PSRL",
    "lmc_lsvi": "LMC-LSVI",
    "bayes_ucbvi": "Incre-Bayes-UCBVI",
    "rmax": "R-max",
    "q_learning": "Q-learning, epsilon-greedy",
    "theorem": "the theorem's bound",
    "most": "H per episode, the maximum",
    "dirichlet": "Dirichlet MDPs",
    "river_swim": "RiverSwim",
}


def _column(rows: Sequence[dict], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def _by(rows: Sequence[dict], name: str) -> dict[str, list[dict]]:
    """Groups rows by one column, in the order of the file."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


def lemma(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws the ratio |m~|^2 (N + beta) / sigma^2 by visits for some M, and how often it leaves its range by M."""
    results = tables["results"]
    with style.panels(file, "Lemma: incremental posterior approximation", 2) as (left, right):
        groups = _by(tables["curve"], "index_dim")
        shown = [m for m in groups if int(m) in (4, 16, 64, 256) or m == results[-1]["index_dim"]]
        for i, m in enumerate(shown):
            rows, colour = groups[m], style.line_style(i)["color"]
            x = _column(rows, "visits")
            left.plot(x, _column(rows, "quantile_01"), color=colour, label=f"M = {m}")
            left.plot(x, _column(rows, "quantile_99"), color=colour)
        for y, label in ((1.0 - config.epsilon, None), (1.0 + config.epsilon, "1 \N{PLUS-MINUS SIGN} epsilon")):
            left.axhline(y, color="0.3", linestyle="--", linewidth=1.2, label=label)
        left.set(
            xscale="log",
            yscale="log",
            xlabel="visits N",
            ylabel="|m|\N{SUPERSCRIPT TWO} (N + beta) / sigma\N{SUPERSCRIPT TWO}",
            title="1% and 99% quantiles over pairs",
            ylim=(0.02, 6),
        )
        left.legend(ncols=3, loc="lower left")
        x, seeds = _column(results, "index_dim"), _column(results, "seeds")
        failures = _column(results, "failures")
        low, high = np.array([_wilson(k, n) for k, n in zip(failures, seeds, strict=True)]).T
        y = failures / seeds
        right.errorbar(
            x,
            y,
            (np.maximum(y - low, 0), np.maximum(high - y, 0)),
            **style.line_style(0),
            capsize=3,
            label=f"measured, {int(seeds[0])} runs (95% interval)",
        )
        right.axhline(config.delta, color="#d55e00", linestyle="--", label=f"delta = {config.delta:g}")
        right.axvline(x[-1], color="#009e73", linestyle=":", linewidth=2, label=f"M(epsilon) = {int(x[-1])}")
        right.set(
            xscale="log",
            xlabel="index dimension M",
            ylabel="runs that fail",
            title=f"Some pair is ever off by more than epsilon = {config.epsilon:g}",
        )
        right.set_xticks(x[:-1])
        right.minorticks_off()
        right.legend(loc="center left")


def _wilson(k: float, n: float) -> tuple[float, float]:
    """Returns Wilson's 95% interval of a probability."""
    p, z = k / n, 1.96
    middle, width = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return (middle - width) / (1 + z**2 / n), (middle + width) / (1 + z**2 / n)


def regret(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws cumulative regret by episode, a panel per environment, and the cost of a step by episode."""
    environments = _by(tables["curve"], "environment")
    styles = {name: style.line_style(i) for i, name in enumerate(config.agents)}
    with style.panels(file, "Bayesian regret and cost per step", len(environments) + 1, 5.6) as axes:
        for axis, (environment, rows) in zip(axes, environments.items(), strict=False):
            for name, points in _by(rows, "agent").items():
                x, y, error = (_column(points, column) for column in ("episode", "regret", "standard_error"))
                if name in ("theorem", "most"):
                    axis.plot(x, y, color="0.3", linestyle="--" if name == "theorem" else ":", label=_LABELS[name])
                    continue
                colour = styles[name]["color"]
                axis.plot(x, y, color=colour)
                axis.fill_between(
                    x, np.maximum(y - 2 * error, 1e-9), y + 2 * error, color=colour, alpha=0.2, linewidth=0
                )
            low = min(float(row["regret"]) for row in rows)
            axis.set(
                xscale="log",
                yscale="log",
                xlabel="episode",
                ylabel="cumulative regret",
                title=_LABELS.get(environment, environment),
                ylim=(max(low, 0.1) / 1.5, None),
            )
        for name, rows in _by(tables["bench"], "agent").items():
            axes[-1].plot(
                _column(rows, "episodes"),
                _column(rows, "step_us"),
                markersize=5,
                label=_LABELS[name],
                **styles[name],
            )
        axes[-1].set(
            xscale="log",
            yscale="log",
            xlabel="previous episodes",
            ylabel="microseconds per step",
            title="Cost of a step, one seed",
        )
        handles = {}
        for axis in reversed(axes):
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles[label] = handle
        axes[-1].figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)


def propagation(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws one grid for all iterations: rows are states, columns iterations, and each cell has two triangles."""
    rows = tables["results"]
    spread = {
        (int(row["iteration"]), int(row["state"]), row["action"]): float(row["standard_deviation"]) for row in rows
    }
    last, num_states = max(key[0] for key in spread), max(key[1] for key in spread)
    top = max(spread.values()) or 1.0  # without perturbation nothing is uncertain
    title = f"Uncertainty spreads from (4, down), seen {config.visits:g} time{'' if config.visits == 1 else 's'}"
    with style.panels(file, title, 1, 5.2) as (axis,):
        for i, x in itertools.product(range(last + 1), range(1, num_states + 1)):
            left, bottom = i - 0.46, x - 0.46
            corners = {"up": [(0, 0), (0.92, 0), (0, 0.92)], "down": [(0.92, 0.92), (0.92, 0), (0, 0.92)]}
            for action, triangle in corners.items():
                value = spread[i, x, action]
                places = np.array([(left + dx, bottom + dy) for dx, dy in triangle])
                axis.fill(*places.T, facecolor=str(1.0 - 0.85 * value / top), edgecolor="0.5", linewidth=0.8)
                middle = places.mean(0)
                axis.text(
                    *middle,
                    f"{action}\n{value:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if value > 0.55 * top else "0.15",
                )
        axis.grid(False)
        axis.set(
            xlim=(-0.6, last + 0.6),
            ylim=(num_states + 0.6, 0.4),
            ylabel="state",
            xlabel="iteration i of the stochastic Bellman operator (stage t = 6 \N{MINUS SIGN} i)",
            title="Standard deviation of Q(s, a) over index mappings",
        )
        axis.set_xticks(range(last + 1))
        axis.set_yticks(range(1, num_states + 1))


def posterior(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws means and covariances of the trained learner against the closed form."""
    titles = {"mean": "Posterior means", "covariance": "Entries of the posterior covariance"}
    title = f"Exact loss on one-hot features after {config.num_updates:,} updates"
    with style.panels(file, title, len(titles), 5.0) as axes:
        for axis, (name, rows) in zip(axes, _by(tables["results"], "quantity").items(), strict=True):
            x, y = _column(rows, "closed_form"), _column(rows, "trained")
            ends = [min(x.min(), y.min()), max(x.max(), y.max())]
            axis.plot(ends, ends, color="0.6", linewidth=1, zorder=1)
            axis.scatter(x, y, s=26, color=style.line_style(0)["color"], alpha=0.7, linewidths=0, zorder=2)
            axis.set(xlabel="closed form", ylabel="trained", title=f"{titles[name]}: {len(x)}")
            difference = np.max(np.abs(x - y))
            axis.annotate(f"largest difference {difference:.1e}", (0.04, 0.93), xycoords="axes fraction")


def chain(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws a panel per variant: the gaps of one seed at the end, with their spread over indices and the truth."""

    def at_the_end(rows: Sequence[dict]) -> list[dict]:
        return [r for r in rows if (int(r["seed"]), int(r["interactions"])) == (config.seed, config.num_steps)]

    variants, returns = _by(tables["results"], "variant"), _by(tables["returns"], "variant")
    title = f"Q(right) \N{MINUS SIGN} Q(wrong) after {config.num_steps:,} interactions, seed {config.seed}"
    colour, columns = style.line_style(0)["color"], 3
    height = 3.1 * math.ceil(len(variants) / columns)
    with style.picture(file, title, (13.0, height), rows=math.ceil(len(variants) / columns), columns=columns) as (
        _,
        axes,
    ):
        for axis in list(axes.flat)[len(variants) :]:
            axis.set_axis_off()
        for axis, (variant, rows) in zip(axes.flat, variants.items(), strict=False):
            last = at_the_end(rows)
            state, mean, spread = (_column(last, name) for name in ("state", "mean_gap", "spread"))
            axis.fill_between(state, mean - spread, mean + spread, color=colour, alpha=0.25, linewidth=0)
            axis.plot(state, mean, color=colour, label="mean, and standard deviation over indices")
            axis.plot(state, _column(last, "true_gap"), color="0.15", linestyle="--", linewidth=1, label="truth")
            (score,) = at_the_end(returns[variant])
            label = f"state; return {float(score['sample']):.2f} sampled, {float(score['mean']):.2f} mean"
            axis.set(ylim=(-0.06, 0.1), xlabel=label, title=variant)
            axis.title.set_fontsize(10)
            axis.xaxis.label.set_fontsize(9)
        style.legend_of(axes.flat[0].figure, axes.flat[0].get_legend_handles_labels()[0])


def uncertainty(file: style.File, tables: dict[str, list[dict]], config: Any) -> None:
    """Draws maps of the spread of every cell's value over training, a strip per agent."""
    lines: dict[str, list[maps_over_training.Frame]] = {}
    for agent, rows in _by(tables["results"], "agent").items():
        for episodes, cells in _by(rows, "episodes").items():
            spread = np.ma.masked_all((config.size, config.size))
            for cell in cells:
                spread[int(cell["row"]), int(cell["column"])] = float(cell["standard_deviation"])
            frame = maps_over_training.Frame(int(episodes), spread)
            lines.setdefault(_LABELS.get(agent, agent), []).append(frame)
    title = f"Standard deviation of values on DeepSea {config.size}, tabular"
    maps_over_training.draw(file, title, lines)


# The figure of a study, drawn of its tables and settings.
PLOTS: dict[str, Callable[[style.File, Any, Any], None]] = {
    "lemma": lemma,
    "regret": regret,
    "propagation": propagation,
    "posterior": posterior,
    "chain": chain,
    "uncertainty": uncertainty,
}
