"""The page of a report: what was run, pictures, tables, and where the runs come from."""

from collections.abc import Iterable, Sequence
import json
from typing import Any

from hyperagent_jax.analysis import document
from hyperagent_jax.analysis import runs as runs_lib
from hyperagent_jax.analysis import solve_times
from hyperagent_jax.analysis.document import Cell

_PROTOCOL = ("stochastic", "max_episodes", "eval_every", "eval_episodes", "solved_return")


def build(
    title: str,
    runs: Sequence[runs_lib.Run],
    sources: Sequence[runs_lib.Source],
    overview: document.Picture,
    studies: Sequence[tuple[solve_times.Ablation, document.Picture]],
    provenance: dict[str, Any],
) -> str:
    """The page.

    Args:
        title: the heading.
        runs: all runs.
        sources: the files they are from.
        overview: episodes to learn against the size.
        studies: settings with their pictures.
        provenance: command and commit that made the page.
    """
    groups = solve_times.group(runs)
    how_to_read = "Light points are seeds, lines the mean over those that solved it."
    if any(run.failed for run in runs):
        how_to_read += (
            " Crosses are seeds that reached the limit of episodes; above them stands how many of the finished "
            "seeds solved it, and the mean over these few is hollow."
        )
    caption = how_to_read
    if any(solve_times.fit(group).linear for group in groups):
        caption += " Dashed: the least-squares line through all solved seeds."
    if len(groups) > 1:
        caption += " What belongs to one size is set side by side within a grey band."
    sections = [
        document.section("What was run", _about(runs, groups, sources)),
        document.section(
            "Episodes to learn against size",
            document.figure(overview, caption),
            _summary_table(groups),
            _fit_table(groups),
        ),
    ]
    for study, picture in studies:
        caption = how_to_read
        if any(study.setting not in run.settings for run in runs):
            caption += f" Runs for which {study.setting} is blank are left out."
        sections.append(
            document.section(
                f"Ablation of {study.setting}", document.figure(picture, caption), _ablation_table(study)
            )
        )
    if any(run.crashed for run in runs):
        sections.append(document.section("Crashed runs", _crash_table(groups)))
    sections.append(
        document.section("Where the runs come from", *map(source_details, sources), differences(sources))
    )
    closing = footer(provenance, "The first two tables are also in summary.csv and fits.csv.")
    return document.whole(title, _lead(runs), sections, closing)


def footer(provenance: dict[str, Any], note: str) -> str:
    """How a page was made, and a note."""
    return (
        f"<p>Made by <code>{document.escape(provenance['command'])}</code> at commit "
        f"<code>{document.escape(provenance['commit'])}</code>. {document.escape(note)}</p>"
    )


def _listed(values: Iterable[Any], last: str = "and") -> str:
    *front, final = map(str, values)
    return f"{', '.join(front)} {last} {final}" if front else final


def plural(count: int, name: str) -> str:
    """A number and a noun."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _lead(runs: Sequence[runs_lib.Run]) -> str:
    outcomes = {
        "solved": sum(run.solved for run in runs),
        "failed": sum(run.failed for run in runs),
        "crashed": sum(run.crashed for run in runs),
    }
    return document.paragraph(
        f"{plural(len(runs), 'run')} of {plural(len({run.agent for run in runs}), 'agent')} on DeepSea: "
        f"{_listed(f'{count:,} {name}' for name, count in outcomes.items() if count)}.",
        "lead",
    )


def _about(
    runs: Sequence[runs_lib.Run], groups: Sequence[solve_times.Group], sources: Sequence[runs_lib.Source]
) -> str:
    seeds = sorted({summary.seeds for group in groups for summary in group.summaries()})
    settings = {
        name: solve_times.in_order(run.settings[name] for run in runs if name in run.settings)
        for name in solve_times.setting_names(runs)
    }
    facts = {
        "Agents": _listed(dict.fromkeys(run.agent for run in runs)),
        "Sizes": _listed(sorted({run.size for run in runs})),
        "Seeds": f"{_listed(seeds, 'or')} for each agent{', setting' if settings else ''} and size",
    }
    if settings:
        facts["Settings"] = "; ".join(f"{name} {_listed(values)}" for name, values in settings.items())
    facts["Protocol"] = _protocol(runs, sources)

    notes = [f"How the runs of {s.file} were made is not known: {s.problem}." for s in sources if s.problem]
    if any(len(values) > 1 for name, values in _protocols(runs, sources).items() if name != "solved_return"):
        notes.append("The protocol is not the same in all runs: not all of them are comparable.")
    if failed := sum(run.failed for run in runs):
        notes.append(
            f"{plural(failed, 'run')} failed. A mean over solved seeds leaves failures out and is too small; the "
            "median over all counts them as more than their limit."
        )
    if crashed := sum(run.crashed for run in runs):
        notes.append(
            f"{plural(crashed, 'run')} crashed, which is neither solved nor failed: in no mean, median or fit."
        )
    return document.facts(facts) + "".join(document.paragraph(note, "note") for note in notes)


def _protocols(runs: Sequence[runs_lib.Run], sources: Sequence[runs_lib.Source]) -> dict[str, list[Any]]:
    """The distinct values of every part of the protocol: those on record, and those that are settings."""
    found: dict[str, list[Any]] = {}
    for source in sources:
        protocol = _part(_part(source.record, "identity"), "protocol")
        for name in _PROTOCOL:
            if name in protocol and protocol[name] not in found.setdefault(name, []):
                found[name].append(protocol[name])
    for name in _PROTOCOL:
        for text in solve_times.in_order(run.settings[name] for run in runs if name in run.settings):
            value = {"True": True, "False": False}.get(text, text)
            if (number := solve_times.as_numbers([text])) is not None:
                value = int(number[0]) if number[0].is_integer() else number[0]
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return found


def _part(record: Any, name: str) -> dict[str, Any]:
    """A dict within a dict; empty if it is not there, for records are written by hand, too."""
    part = record.get(name) if isinstance(record, dict) else None
    return part if isinstance(part, dict) else {}


def _protocol(runs: Sequence[runs_lib.Run], sources: Sequence[runs_lib.Source]) -> str:
    found = _protocols(runs, sources)
    if not found:
        return "not known"
    stochastic = found.get("stochastic", [])
    default = "80% of the optimum" if stochastic == [True] else "the optimum"
    texts = {
        name: _listed((default if x is None else f"{x:,}" if type(x) is int else x for x in values), "or")
        for name, values in found.items()
    }
    sentences = []
    if stochastic:
        kinds = {"False": "Deterministic", "True": "Stochastic"}
        sentences.append(f"{_listed((kinds.get(str(x), x) for x in stochastic), 'or')} DeepSea.")
    if "eval_every" in texts and "eval_episodes" in texts:
        sentence = f"Every {texts['eval_every']} interactions {texts['eval_episodes']} evaluation episodes"
        if "solved_return" in texts:
            sentence += f"; solved when their average return is {texts['solved_return']}"
        sentences.append(f"{sentence}.")
    if "max_episodes" in texts:
        sentences.append(f"Failed after {texts['max_episodes']} episodes.")
    return " ".join(sentences)


def _solved(summary: solve_times.Summary) -> Cell:
    """Crashed runs were never finished and do not count."""
    finished = summary.solved + summary.failed
    return Cell(f"{summary.solved} of {finished}", "number warn" if summary.failed else "number")


def _summary_table(groups: Sequence[solve_times.Group]) -> str:
    heads = [
        [
            Cell("", ""),
            Cell("", ""),
            Cell("Runs", "over", 3),
            Cell("Episodes to learn", "over", 4),
            Cell("Parameters", "over", 3),
        ],
        [Cell("Agent", "")]
        + [
            Cell(text)
            for text in (
                "Size",
                "Seeds",
                "Solved",
                "Crashed",
                "Mean over solved",
                "Standard error of that mean",
                "Range over solved",
                "Median over all, failures as > limit",
                "All",
                "Output layer",
                f"Output layer \N{DIVISION SIGN} {solve_times.REFERENCE}'s",
            )
        ],
    ]
    blocks = []
    for group in groups:
        rows = []
        for summary in group.summaries():
            span = None
            if summary.solved:
                span = f"{summary.smallest:,}\N{EN DASH}{summary.largest:,}"
            median = summary.median
            rows.append(
                [
                    document.number(summary.size),
                    document.number(summary.seeds),
                    _solved(summary),
                    Cell(str(summary.crashed), "number warn" if summary.crashed else "number"),
                    document.number(summary.mean, ",.1f"),
                    document.number(summary.standard_error, ",.1f"),
                    Cell(span) if span else document.number(None),
                    document.number(None)
                    if median is None
                    else Cell(solve_times.format_median(median), "number warn" if median.is_bound else "number"),
                    document.number(summary.num_params),
                    document.number(summary.num_output_params),
                    document.number(solve_times.output_ratio(group, summary, groups), ",.2f"),
                ]
            )
        blocks.append((group.label, rows))
    return document.table("Episodes to learn by size", heads, blocks)


def _fit_table(groups: Sequence[solve_times.Group]) -> str:
    heads = [
        [
            Cell("", ""),
            Cell("Solved seeds", "over", 2),
            Cell("Failed seeds", "over"),
            Cell("Linear: episodes = slope \N{MULTIPLICATION SIGN} N + intercept", "over", 3),
            Cell("Power law", "over", 3),
            Cell("Of midpoints", "over", 2),
        ],
        [Cell("Agent", "")]
        + [
            Cell(text)
            for text in (
                "Points",
                "Sizes",
                "Left out",
                "Slope",
                "Intercept",
                "R\N{SUPERSCRIPT TWO}",
                "Exponent",
                "R\N{SUPERSCRIPT TWO} of logs",
                "Exponent of midpoints",
                "Episodes / N log\N{SUBSCRIPT TWO} N",
                "R\N{SUPERSCRIPT TWO}",
            )
        ],
    ]
    blocks = []
    for group in groups:
        fits = solve_times.fit(group)
        linear, power = fits.linear, fits.power
        blocks.append(
            (
                group.label,
                [
                    [
                        document.number(fits.points),
                        document.number(fits.sizes),
                        Cell(str(fits.failed), "number warn" if fits.failed else "number"),
                        document.number(linear and linear.slope, ",.2f"),
                        document.number(linear and linear.intercept, ",.1f"),
                        document.number(linear and linear.r_squared, ".3f"),
                        document.number(power and power.slope, ".2f"),
                        document.number(power and power.r_squared, ".3f"),
                        document.number(fits.power_of_midpoints and fits.power_of_midpoints.slope, ".2f"),
                        document.number(fits.n_log_n and fits.n_log_n.slope, ".2f"),
                        document.number(fits.n_log_n and fits.n_log_n.r_squared, ".3f"),
                    ]
                ],
            )
        )
    least = solve_times.MIN_SIZES_OF_FIT
    note = (
        f"Least squares over all solved seeds, where at least {least} sizes have one; the power law is a line "
        "through the logarithms. Fits cannot use failed seeds: where some failed they are too optimistic. A run "
        "is found solved at the next evaluation, which rounds the episodes of small sizes up the most and makes "
        "the law look flatter than it is; midpoints are the middles of the intervals between evaluations, and "
        "used for N log\N{SUBSCRIPT TWO} N, a law with one number."
    )
    return document.table("Growth with size", heads, blocks) + document.paragraph(note, "quiet")


def _ablation_table(study: solve_times.Ablation) -> str:
    heads = [
        [
            Cell("", ""),
            Cell("", ""),
            Cell(f"Mean over solved (solved of finished) for {study.setting}", "over", len(study.values)),
        ],
        [Cell("Agent", ""), Cell("Size"), *map(Cell, study.values)],
    ]
    blocks = []
    for label, cells in study.lines.items():
        rows = []
        for size in sorted({size for size, _ in cells}):
            row = [document.number(size)]
            for value in study.values:
                if (size, value) not in cells:
                    row.append(document.number(None))
                    continue
                summary = solve_times.summarise(cells[size, value])
                solved = _solved(summary)
                row.append(Cell(f"{document.number(summary.mean, ',.1f').text} ({solved.text})", solved.kind))
            rows.append(row)
        blocks.append((label, rows))
    return document.table(f"Episodes to learn by {study.setting}", heads, blocks)


def _crash_table(groups: Sequence[solve_times.Group]) -> str:
    blocks = []
    for group in groups:
        rows = [
            [document.number(run.size), document.number(run.seed), Cell(run.error, "text"), Cell(run.file, "text")]
            for run in group.runs
            if run.crashed
        ]
        if rows:
            blocks.append((group.label, rows))
    heads = [[Cell("Agent", ""), Cell("Size"), Cell("Seed"), Cell("Error", ""), Cell("File", "")]]
    return document.table("Errors", heads, blocks)


def source_details(source: runs_lib.Source, what: str = "run") -> str:
    """Command, commit, versions, machine and configuration of one file."""
    aside = plural(source.num_runs, what)
    if source.record is None:
        return document.details(source.file, aside, document.paragraph(f"Not known: {source.problem}.", "note"))
    record = dict(source.record)
    command, commit = record.pop("command", "not recorded"), str(record.pop("commit", "unknown"))
    facts = {"Commit": commit}
    for name in ("versions", "machine"):
        if part := _part(record, name):
            facts[name.capitalize()] = ", ".join(f"{key} {value}" for key, value in part.items())
            del record[name]
    config = json.dumps(record, indent=2, ensure_ascii=False)
    return document.details(
        source.file,
        f"{aside}, commit {commit[:10]}{'+changes' if commit.endswith('+changes') else ''}",
        f'<h3>Command</h3><pre class="wrap">{document.escape(command)}</pre>',
        document.facts(facts),
        f'<h3>Configuration</h3><pre tabindex="0">{document.escape(config)}</pre>',
    )


def differences(sources: Sequence[runs_lib.Source]) -> str:
    """What configurations that both have it do not agree on: an agent's runs may come from several."""
    known = [source for source in sources if source.record is not None]
    configs = [runs_lib.flat(_part(source.record, "identity")) for source in known]
    names = list(dict.fromkeys(name for config in configs for name in config))
    names = [name for name in names if len({config[name] for config in configs if name in config}) > 1]
    if not names:
        return ""
    heads = [[Cell("Setting", ""), *(Cell(source.file, "") for source in known)]]
    blocks = [(name, [[Cell(config.get(name, "\N{EN DASH}"), "") for config in configs]]) for name in names]
    table = document.table("What differs between the configurations", heads, blocks)
    return document.details("What differs between the configurations", plural(len(names), "difference"), table)
