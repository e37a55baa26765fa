"""The page of a report on DeepSea runs."""

from collections.abc import Sequence
import re
from typing import Any

from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import maps_over_training
from hyperagent_jax.analysis import pages
from hyperagent_jax.analysis import sources as sources_lib
from hyperagent_jax.analysis.deep_sea import plots
from hyperagent_jax.analysis.deep_sea import read
from hyperagent_jax.analysis.deep_sea import stats
from hyperagent_jax.analysis.html import Cell
from hyperagent_jax.analysis.sources import listed
from hyperagent_jax.analysis.sources import plural

_PROTOCOL = ("stochastic", "max_episodes", "eval_every", "eval_episodes", "solved_return")
# Pictures and tables with more lines than this are unreadable.
_MOST_LINES = 60
# Runs whose curves and maps are shown.
_MOST_TRAININGS = 12
# So are pictures with more means than this.
_MOST_CELLS = 500
_R_SQUARED = "R\N{SUPERSCRIPT TWO}"


def make(title: str, runs: Sequence[read.Run], sources: Sequence[sources_lib.Source]) -> pages.Report:
    """Returns the report on all runs of several files."""
    groups = stats.group(runs)
    studies = stats.ablations(runs)
    is_large = len(groups) > _MOST_LINES
    sections = [
        pages.Section(
            "Episodes to learn against size",
            []
            if is_large
            else [
                pages.Drawing(
                    "episodes_to_learn",
                    "Episodes to learn",
                    _overview_caption(runs, groups),
                    plots.episodes_to_learn,
                    groups,
                    "Episodes to learn against the size of DeepSea; the numbers are in the tables below.",
                )
            ],
            [html.paragraph(_too_many(len(groups)), "note")]
            if is_large
            else [_summary_table(groups), _fit_table(groups)],
        ),
        _training_section(read.read_training(runs)),
        *(_ablation_section(study, runs) for study in studies if len(study.lines) <= _MOST_LINES),
    ]
    if any(run.crashed for run in runs):
        sections.append(pages.Section("Crashed runs", [], [_crash_table(groups)]))
    outcomes = {
        "solved": sum(run.solved for run in runs),
        "failed": sum(run.failed for run in runs),
        "crashed": sum(run.crashed for run in runs),
    }
    return pages.Report(
        title=title,
        lead=f"{plural(len(runs), 'run')} of {plural(len({run.agent for run in runs}), 'agent')} on DeepSea: "
        f"{listed(f'{count:,} {name}' for name, count in outcomes.items() if count)}.",
        facts=_facts(runs, groups, sources),
        notes=_notes(runs, sources),
        sections=sections,
        sources=sources,
        closing="The first two tables are also available as summary.csv and fits.csv.",
        tables={"summary.csv": stats.summary_rows(groups), "fits.csv": stats.fit_rows(groups)},
    )


def _too_many(count: int) -> str:
    return (
        f"{count:,} combinations of settings are too many to show: summary.csv and fits.csv "
        "have all of them, and the sections below show the effect of single settings where possible."
    )


def _how_to_read(runs: Sequence[read.Run]) -> str:
    text = "Light points are seeds, lines are means over the seeds that solved it."
    if any(run.failed for run in runs):
        text += (
            " Crosses are seeds that reached the limit of episodes; the label above them is the number of "
            "finished seeds that solved it, whose mean is drawn hollow."
        )
    return text


def _overview_caption(runs: Sequence[read.Run], groups: Sequence[stats.Group]) -> str:
    caption = _how_to_read(runs)
    if any(stats.fit(group).linear for group in groups):
        caption += " Dashed: the least-squares line through all solved seeds."
    if len(groups) > 1:
        caption += " Points of the same size are side by side within a grey band."
    return caption


def _ablation_section(study: stats.Ablation, runs: Sequence[read.Run]) -> pages.Section:
    caption = _how_to_read(runs)
    if any(study.setting not in run.settings for run in runs):
        caption += f" Runs without a value of {study.setting} are left out."
    drawing = pages.Drawing(
        re.sub(r"[^\w.-]", "_", f"ablation_{study.setting}"),
        f"Episodes to learn by {study.setting}",
        caption,
        plots.ablation,
        study,
        f"Episodes to learn against {study.setting}; the numbers are in the table below.",
    )
    is_readable = sum(map(len, study.lines.values())) <= _MOST_CELLS
    drawings = [drawing] if is_readable else []
    return pages.Section(f"Ablation of {study.setting}", drawings, [_ablation_table(study)])


def _training_section(trainings: Sequence[read.Training]) -> pages.Section:
    """Returns curves and maps over training, which run_deepsea.py records and sweeps do not."""
    drawings = []
    for i, training in enumerate(trainings[:_MOST_TRAININGS]):
        name, suffix = f"{training.agent} on DeepSea {training.size}", f"_{i + 1}" if len(trainings) > 1 else ""
        drawings.append(
            pages.Drawing(
                f"learning_curves{suffix}",
                f"{name}: evaluation returns",
                f"A line per seed, from {training.file}.",
                plots.learning_curves,
                training,
                "Evaluation returns by episode.",
            )
        )
        if training.maps is not None and maps_over_training.can_draw(training.maps):
            drawings.append(
                pages.Drawing(
                    f"uncertainty{suffix}",
                    f"{name}: uncertainty over training",
                    f"Standard deviation over indices of the greedy value of every cell, seed "
                    f"{training.maps['seed']}; the colours are logarithmic.",
                    plots.uncertainty_over_training,
                    training,
                    "Maps of the standard deviation of every cell's value, which shrinks over training.",
                )
            )
    return pages.Section("Over training", drawings)


def _facts(
    runs: Sequence[read.Run], groups: Sequence[stats.Group], sources: Sequence[sources_lib.Source]
) -> dict[str, str]:
    seeds = sorted({summary.seeds for group in groups for summary in group.summaries()})
    settings = {
        name: stats.in_order(run.settings[name] for run in runs if name in run.settings)
        for name in stats.setting_names(runs)
    }
    facts = {
        "Agents": listed(dict.fromkeys(run.agent for run in runs)),
        "Sizes": listed(sorted({run.size for run in runs})),
        "Seeds": f"{listed(seeds, 'or')} for each agent{', setting' if settings else ''} and size",
    }
    if settings:
        facts["Settings"] = "; ".join(f"{name} {listed(values)}" for name, values in settings.items())
    facts["Protocol"] = _protocol(_protocols(runs, sources))
    return facts


def _notes(runs: Sequence[read.Run], sources: Sequence[sources_lib.Source]) -> list[str]:
    notes = [f"The configuration of {s.file} is unknown: {s.problem}." for s in sources if s.problem]
    if any(len(values) > 1 for name, values in _protocols(runs, sources).items() if name != "solved_return"):
        notes.append("The runs have different protocols, so not all of them are comparable.")
    if failed := sum(run.failed for run in runs):
        notes.append(
            f"{plural(failed, 'run')} failed. Means over solved seeds ignore failures and are too small; medians "
            "over all seeds count failures as more than their limit."
        )
    if crashed := sum(run.crashed for run in runs):
        notes.append(
            f"{plural(crashed, 'run')} crashed. Crashed runs are excluded from all means, medians and fits."
        )
    return notes


def _protocols(runs: Sequence[read.Run], sources: Sequence[sources_lib.Source]) -> dict[str, list[Any]]:
    """Returns the distinct values of every part of the protocol: those in config.json, and those swept over."""
    found: dict[str, list[Any]] = {}
    for source in sources:
        protocol = sources_lib.part(sources_lib.part(source.record, "identity"), "protocol")
        for name in _PROTOCOL:
            if name in protocol and protocol[name] not in found.setdefault(name, []):
                found[name].append(protocol[name])
    for name in _PROTOCOL:
        for text in stats.in_order(run.settings[name] for run in runs if name in run.settings):
            value: Any = {"True": True, "False": False}.get(text, text)
            if (number := stats.as_numbers([text])) is not None:
                value = int(number[0]) if number[0].is_integer() else number[0]
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def _protocol(found: dict[str, list[Any]]) -> str:
    if not found:
        return "unknown"
    stochastic = found.get("stochastic", [])
    default = "80% of the optimum" if stochastic == [True] else "the optimum"
    texts = {
        name: listed((default if x is None else f"{x:,}" if type(x) is int else x for x in values), "or")
        for name, values in found.items()
    }
    sentences = []
    if stochastic:
        kinds = {"False": "Deterministic", "True": "Stochastic"}
        sentences.append(f"{listed((kinds.get(str(x), x) for x in stochastic), 'or')} DeepSea.")
    if "eval_every" in texts and "eval_episodes" in texts:
        sentence = f"Every {texts['eval_every']} interactions {texts['eval_episodes']} evaluation episodes"
        if "solved_return" in texts:
            sentence += f"; solved when their average return is {texts['solved_return']}"
        sentences.append(f"{sentence}.")
    if "max_episodes" in texts:
        sentences.append(f"Runs fail after {texts['max_episodes']} episodes.")
    return " ".join(sentences)


def _solved(summary: stats.Summary) -> Cell:
    """Returns the cell with the number of solved runs out of all that finished, which excludes crashed ones."""
    finished = summary.solved + summary.failed
    return Cell(f"{summary.solved} of {finished}", "number warn" if summary.failed else "number")


def _summary_table(groups: Sequence[stats.Group]) -> str:
    heads: html.Heads = [
        [
            "",
            Cell("", ""),
            Cell("Runs", "over", 3),
            Cell("Episodes to learn", "over", 4),
            Cell("Parameters", "over", 3),
            Cell("Time", "over"),
        ],
        [
            "Agent",
            "Size",
            "Seeds",
            "Solved",
            "Crashed",
            "Mean over solved",
            "Standard error of the mean",
            "Range over solved",
            "Median over all, failures as > limit",
            "All",
            "Output layer",
            f"Output layer \N{DIVISION SIGN} {stats.REFERENCE}'s",
            "Microseconds per step, median",
        ],
    ]

    references = stats.References(groups)

    def row(group: stats.Group, summary: stats.Summary) -> html.Row:
        median = summary.median
        return [
            summary.size,
            summary.seeds,
            _solved(summary),
            html.number(summary.crashed, "", warn=summary.crashed > 0),
            html.number(summary.mean, ",.1f"),
            html.number(summary.standard_error, ",.1f"),
            Cell(f"{summary.smallest:,}\N{EN DASH}{summary.largest:,}") if summary.solved else None,
            Cell(stats.format_median(median), "number warn" if median.is_bound else "number") if median else None,
            summary.num_params,
            summary.num_output_params,
            html.number(references.ratio(group, summary), ",.2f"),
            html.number(summary.step_seconds and 1e6 * summary.step_seconds, ",.0f"),
        ]

    blocks = [(group.label, [row(group, summary) for summary in group.summaries()]) for group in groups]
    return html.table("Episodes to learn by size", heads, blocks)


def _fit_table(groups: Sequence[stats.Group]) -> str:
    heads: html.Heads = [
        [
            "",
            Cell("Solved seeds", "over", 2),
            Cell("Failed seeds", "over"),
            Cell("Linear: episodes = slope \N{MULTIPLICATION SIGN} N + intercept", "over", 3),
            Cell("Power law", "over", 2),
            Cell("Of midpoints", "over", 5),
        ],
        [
            "Agent",
            "Points",
            "Sizes",
            "Excluded",
            "Slope",
            "Intercept",
            _R_SQUARED,
            "Exponent",
            f"{_R_SQUARED} of logs",
            "Exponent",
            "from",
            "to",
            "Episodes / N log\N{SUBSCRIPT TWO} N",
            _R_SQUARED,
        ],
    ]
    patterns = (",.2f", ",.1f", ".3f", ".2f", ".3f", ".2f", ".2f", ".2f", ".2f", ".3f")
    blocks: html.Blocks = []
    for group in groups:
        fits = stats.fit(group)
        numbers = map(html.number, fits.coefficients().values(), patterns)
        failed = html.number(fits.failed, "", warn=fits.failed > 0)
        blocks.append((group.label, [[fits.points, fits.sizes, failed, *numbers]]))
    note = (
        f"Least squares over all solved seeds, if at least {stats.MIN_SIZES_OF_FIT} sizes have one; the power "
        "law is a line through the logarithms. Fits cannot use failed seeds, so they are too optimistic where "
        "some failed. A solved run is detected at its next evaluation, which overestimates the episodes of small "
        "sizes the most and makes the law look flatter than it is. Midpoints are the middles of the intervals "
        "between evaluations; they are also used for N log\N{SUBSCRIPT TWO} N, a law with a single parameter. The "
        "exponent's 95% interval resamples seeds within every size."
    )
    return html.table("Growth with size", heads, blocks) + html.paragraph(note, "quiet")


def _ablation_table(study: stats.Ablation) -> str:
    over = Cell(f"Mean over solved (solved of finished) for {study.setting}", "over", len(study.values))
    heads: html.Heads = [["", Cell("", ""), over], ["Agent", "Size", *study.values]]

    def text(runs: list[read.Run]) -> Cell:
        summary = stats.summarise(runs)
        solved = _solved(summary)
        return Cell(f"{html.number(summary.mean, ',.1f').text} ({solved.text})", solved.kind)

    blocks = []
    for label, cells in study.lines.items():
        rows: list[html.Row] = [
            [size, *(text(cells[size, value]) if (size, value) in cells else None for value in study.values)]
            for size in sorted({size for size, _ in cells})
        ]
        blocks.append((label, rows))
    return html.table(f"Episodes to learn by {study.setting}", heads, blocks)


def _crash_table(groups: Sequence[stats.Group]) -> str:
    blocks = []
    for group in groups:
        rows: list[html.Row] = [
            [run.size, run.seed, Cell(run.error, "text"), Cell(run.file, "text")]
            for run in group.runs
            if run.crashed
        ]
        if rows:
            blocks.append((group.label, rows))
    return html.table("Errors", [["Agent", "Size", "Seed", Cell("Error", ""), Cell("File", "")]], blocks)
