"""The paper's figures and tables on Atari; without rows of its protocol, shorter runs and published scores."""

from collections.abc import Callable, Sequence
import functools
import statistics

from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.atari import comparisons
from hyperagent_jax.analysis.atari import page
from hyperagent_jax.analysis.atari import plots
from hyperagent_jax.analysis.atari import published
from hyperagent_jax.analysis.atari import read
from hyperagent_jax.analysis.atari import stats
from hyperagent_jax.paper import figure
from hyperagent_jax.paper.figure import Line

# Runs that are shorter than the paper's 2,000,000 interactions.
_SHORTER = ("atari/hyperagent", "atari/ddqn")
_AGENTS = (Line("HyperAgent"), Line("DDQN (ours)", agent="ddqn"))


def _runs(found: figure.Found) -> read.Results | None:
    """Returns the figure's rows, or those of shorter runs, or None."""
    folders = found.state().folders or [x for x in _SHORTER if (found.root / x / "results.csv").exists()]
    return read.read([str(found.root / folder) for folder in folders]) if folders else None


def _longest(runs: read.Results) -> int:
    return round(max(run.interactions for run in runs.runs), -3)


def _what(found: figure.Found, runs: read.Results) -> str:
    """Says what runs the numbers are of."""
    games = sources_lib.plural(len(runs.names), "game")
    seeds = sources_lib.plural(len({run.seed for run in runs.runs}), "seed")
    shorter = "" if found.state().there else "Runs of the paper's length were not made. "
    return f"{shorter}After about {_longest(runs):,} interactions on {games} ({seeds})"


def _picture(
    draw: Callable[..., None],
    data: Callable[[read.Results], object],
    suffix: str = "",
    *,
    shows_ours: bool = False,
) -> Callable[[figure.Found], Sequence[figure.Picture]]:
    def pictures(found: figure.Found) -> Sequence[figure.Picture]:
        runs = _runs(found)
        if runs is None or not (shown := data(runs)):
            return []
        title = found.figure.title
        if shows_ours and not found.state().there:
            title += f", ours after about {_longest(runs):,} interactions"
        return [figure.Picture(suffix, title, lambda file, heading: draw(file, heading, shown))]

    return pictures


def _scores(found: figure.Found) -> str:
    if (runs := _runs(found)) is None:
        return ""
    rows = stats.summary_rows(runs.runs)[1]
    own = [row for row in rows if row["method"] in runs.agents]
    iqms = sources_lib.listed(f"{row['method']} {row['IQM']:.2f}" for row in own)
    return f"{_what(found, runs)} the IQM of human-normalised scores is {iqms}. {comparisons.table_caveats()}"


def _num_params(runs: read.Results) -> int | None:
    counts = [run.num_params for run in runs.runs if run.agent.startswith("hyperagent") and run.num_params]
    return int(statistics.median(counts)) if counts else None


def _efficiency(found: figure.Found) -> str:
    runs = _runs(found)
    if runs is None or not (params := _num_params(runs)):
        return ""
    return (
        f"Only HyperAgent's number of parameters, {params:,}, is from our network; none of the points is from our "
        f"runs. {comparisons.bbf_caveat()}"
    )


def _hard(runs: read.Results) -> dict[str, dict[str, float]]:
    own = {agent: stats.mean_scores(runs.runs, agent) for agent in runs.agents}
    own = {agent: scores for agent, scores in own.items() if scores.keys() & set(comparisons.HARD_GAMES)}
    return {**own, **comparisons.hard_games()}


def _hard_finding(found: figure.Found) -> str:
    scores = comparisons.hard_games()
    ours, *others = scores
    ahead = [
        game
        for game in comparisons.HARD_GAMES
        if all(scores[ours][game] >= scores[other].get(game, float("-inf")) for other in others)
    ]
    start = "" if found.state().there else "Runs of the paper's length were not made. "
    return (
        f"{start}Among scores that were published with code after 8M frames, {ours} is first in {len(ahead)} of "
        f"{len(comparisons.HARD_GAMES)} games ({sources_lib.listed(ahead)})."
    )


def _improvement_pictures(found: figure.Found) -> Sequence[figure.Picture]:
    del found  # the paper's own table
    return [
        figure.Picture(
            f"_{name}",
            f"HyperAgent (paper) compared with {other}",
            functools.partial(plots.improvements, values=values),
        )
        for name, (other, values) in zip(
            comparisons.BASELINES, comparisons.paper_improvements().items(), strict=True
        )
    ]


def _improvement_finding(found: figure.Found) -> str:
    del found
    counts = [
        f"{other} in {sum(value > 0 for value in values.values())} of {len(values)} games"
        for other, values in comparisons.paper_improvements().items()
    ]
    return (
        f"In the paper's own table, which is what is drawn, HyperAgent is ahead of {sources_lib.listed(counts)}."
    )


def _curve_finding(found: figure.Found) -> str:
    if (runs := _runs(found)) is None or len(runs.curves) < 2:
        return ""
    (name, own), (other, theirs) = list(runs.curves.items())[:2]
    scores = {
        agent: {
            (row["game"], row["seed"], round(int(row["interactions"]), -3)): float(row["eval_score"])
            for row in rows
        }
        for agent, rows in ((name, own), (other, theirs))
    }
    both = scores[name].keys() & scores[other].keys()
    ahead = sum(scores[name][key] > scores[other][key] for key in both)
    return f"{_what(found, runs)} {name} is ahead of {other} in {ahead} of {len(both)} evaluations."


_figure = functools.partial(
    figure.Figure,
    experiment="atari",
    problems=("all26",),
    seeds=(0, 1, 2, 3, 4),
    runs_in="atari",
)

FIGURES = (
    _figure(
        name="atari_table",
        title="Human-normalised scores on Atari",
        place="Section 5.2, and Appendix F for OIS",
        says="After 2M interactions on 26 games the IQM is 1.22 for HyperAgent, 1.15 for HyperAgent w. OIS, 0.70 "
        "for DDQN (ours) and 0.13 for DDQN.",
        lines=(*_AGENTS, Line("HyperAgent w. OIS", agent="hyperagent_ois")),
        pictures=_picture(page.BARS, lambda runs: stats.summary_rows(runs.runs)[1], shows_ours=True),
        finding=_scores,
    ),
    _figure(
        name="data_and_parameters",
        title="Data and parameters for human-level scores",
        place="Section 5.2",
        says="HyperAgent reaches an IQM of 1 with the fewest parameters and modest data.",
        lines=_AGENTS[:1],
        pictures=_picture(
            plots.data_against_parameters,
            lambda runs: published.efficiencies(params) if (params := _num_params(runs)) else [],
        ),
        finding=_efficiency,
    ),
    _figure(
        name="hardest_8",
        title="The eight games that are hardest to explore",
        place="Section 5.2 and Appendix F",
        says="HyperAgent is best in 7 of 8 games.",
        problems=comparisons.HARD_GAMES,
        lines=(_AGENTS[0], Line("HyperAgent w. OIS", agent="hyperagent_ois")),
        pictures=_picture(plots.hard_games, _hard),
        finding=_hard_finding,
    ),
    _figure(
        name="improvements",
        title="Relative improvement by game",
        place="Appendix F",
        says="HyperAgent improves on DDQN, DER and HyperDQN in nearly all games, and on Rainbow in those that are "
        "hard to explore.",
        lines=_AGENTS[:1],
        pictures=_improvement_pictures,
        finding=_improvement_finding,
    ),
    _figure(
        name="curves",
        title="Learning curves on Atari",
        place="Appendix F",
        says="HyperAgent's curves are above those of DDQN (ours), and still rise in some games.",
        lines=_AGENTS,
        pictures=_picture(plots.curves, lambda runs: runs.curves, shows_ours=True),
        finding=_curve_finding,
    ),
)
