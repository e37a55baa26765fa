"""Builds self-contained HTML pages from sections, pictures and tables that scroll separately."""

import base64
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import html
import math
from typing import Any

DASH = "\N{EN DASH}"  # stands for a missing value

_CSS = """
:root { color-scheme: light dark; --text: #1c2024; --quiet: #5b636d; --page: #f6f7f9; --card: #ffffff;
  --line: #dde1e6; --band: #f0f2f5; --accent: #0b5cad; --warn: #a03b00; --warn-back: #fff3e6; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --quiet: #a3acb7; --page: #14171a; --card: #1d2125; --line: #363c43;
    --band: #262b31; --accent: #7db8f5; --warn: #ffb07a; --warn-back: #33241a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 32px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .9rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
h1, h2, h3, p, dd, summary, code { overflow-wrap: anywhere; }
th, td { overflow-wrap: break-word; }
p { max-width: 75ch; margin: .5rem 0; }
.lead { font-size: 1.1rem; }
.quiet, figcaption, caption { color: var(--quiet); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 24px;
  margin: 24px 0; }
dl.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .45rem 1.4rem;
  margin: 1rem 0 0; }
dl.facts dt { color: var(--quiet); }
dl.facts dd { margin: 0; max-width: 85ch; }
.note:last-child { margin-bottom: 0; }
.note { background: var(--warn-back); border-left: 4px solid var(--warn); border-radius: 4px;
  padding: .55rem .9rem; margin: .7rem 0; max-width: none; }
figure { margin: 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 8px; }
@media (prefers-color-scheme: dark) { figure picture { display: block; background: #fff; padding: 10px;
  border-radius: 10px; } }
figcaption { margin-top: .6rem; max-width: 95ch; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .88rem; }
th, td { padding: .36rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; vertical-align: bottom; line-height: 1.3; }
tbody th { font-weight: 600; background: var(--card); position: sticky; left: 0; z-index: 1;
  border-right: 1px solid var(--line); min-width: 9.5rem; max-width: 20rem; }
thead th:first-child { position: sticky; left: 0; z-index: 2; border-right: 1px solid var(--line); }
tbody:last-child tr:last-child > *, tbody:last-child th { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead .number { white-space: normal; }
thead .over { text-align: center; border-left: 1px solid var(--line); }
.warn { color: var(--warn); font-weight: 600; }
td.text { min-width: 16rem; }
details { border: 1px solid var(--line); border-radius: 8px; margin: .7rem 0; }
summary { cursor: pointer; padding: .6rem .9rem; font-weight: 600; }
summary span { font-weight: 400; color: var(--quiet); }
details > div { padding: 0 .9rem .9rem; }
pre, code { font: .84rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--band); border-radius: 6px; padding: .7rem .9rem; margin: .3rem 0; overflow-x: auto;
  max-height: 30rem; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
footer { color: var(--quiet); font-size: .85rem; padding-bottom: 40px; }
@media (max-width: 640px) {
  main, header, footer { padding-left: 12px; padding-right: 12px; }
  header { padding-top: 20px; }
  h1 { font-size: 1.5rem; }
  section { padding: 14px; margin: 14px 0; }
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dl.facts dd { margin-bottom: .6rem; }
  th, td { padding: .34rem .5rem; }
  tbody th { min-width: 0; max-width: 9rem; }
}
@media print { section { break-inside: avoid; border: 0; padding: 0; } .scroll { overflow: visible; } }
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table, with its CSS class `kind`; or a heading that spans `columns` columns."""

    text: str
    kind: str = "number"
    columns: int = 1


# Rows of headings; a row of a table; labels with their rows.
Heads = list[list[Cell | str]]
Row = list[Cell | float | None]
Blocks = list[tuple[str, list[Row]]]


def whole(title: str, header: str, sections: Iterable[str], footer: str) -> str:
    """Returns the page."""
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        # The browser loads and runs nothing, whatever names and error messages contain.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body>\n<header><h1>{escape(title)}</h1>{header}</header>\n<main>\n{body}\n</main>\n"
        f"<footer>{footer}</footer>\n</body></html>\n"
    )


def escape(value: Any) -> str:
    """Returns a text with HTML's special characters escaped."""
    return html.escape(str(value))


def paragraph(text: str, kind: str = "") -> str:
    """Returns a paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def section(heading: str, *parts: str) -> str:
    """Returns a card with a heading."""
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(heading)}</h2>\n{body}\n</section>"


def details(summary: str, aside: str, *parts: str) -> str:
    """Returns a collapsible part."""
    body = "\n".join(part for part in parts if part)
    return (
        f"<details><summary>{escape(summary)} <span>{escape(aside)}</span></summary>\n<div>{body}</div></details>"
    )


def facts(pairs: Mapping[str, str]) -> str:
    """Returns a definition list."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs.items())
    return f'<dl class="facts">{rows}</dl>'


def figure(name: str, alt: str, caption: str, wide: bytes, narrow: bytes) -> str:
    """Returns a picture as wide as the page, with its data embedded.

    Args:
        name: name of its file.
        alt: what it shows, for screen readers.
        caption: how to read it.
        wide: PNG for screens.
        narrow: PNG for phones.
    """
    for_screens, for_phones = (
        f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (wide, narrow)
    )
    return (
        f'<figure><picture><source media="(max-width: 640px)" srcset="{for_phones}">'
        f'<img src="{for_screens}" alt="{escape(alt)}"></picture>'
        f"<figcaption>{escape(caption)} File: {escape(name)}.</figcaption></figure>"
    )


def number(value: float | None, pattern: str = ",", *, warn: bool = False) -> Cell:
    """Returns a cell with a number, or a dash if there is none; `warn` highlights it."""
    text = DASH if value is None or math.isnan(value) else format(value, pattern).replace("-", "\N{MINUS SIGN}")
    return Cell(text, "number warn" if warn else "number")


def table(
    caption: str,
    heads: Sequence[Sequence[Cell | str]],
    blocks: Iterable[tuple[str, Sequence[Sequence[Cell | float | None]]]],
) -> str:
    """Returns a table.

    Args:
        caption: what the table shows.
        heads: rows of headings; plain text is the heading of a column of numbers, except in the first column.
        blocks: labels and their rows; plain numbers are formatted with commas, None as a dash.
    """
    head = "".join(f"<tr>{_heading(row[0], '')}{''.join(map(_heading, row[1:]))}</tr>" for row in heads)
    bodies = []
    for label, rows in blocks:
        scope = "rowgroup" if len(rows) > 1 else "row"
        # Labels wrap after commas; the first part, which may be a long name, also wraps after underscores.
        name, *others = (escape(part.replace(" ", "\N{NO-BREAK SPACE}")) for part in label.split(", "))
        name = ", ".join([name.replace("_", "_<wbr>"), *others])
        first = f'<th scope="{scope}" rowspan="{len(rows)}">{name}</th>'
        lines = ["".join(map(_data, row)) for row in rows]
        bodies.append(f"<tbody><tr>{first}{'</tr><tr>'.join(lines)}</tr></tbody>\n")
    return (
        f'<h3>{escape(caption)}</h3>\n<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table><thead>{head}</thead>\n{"".join(bodies)}</table></div>'
    )


def _heading(heading: Cell | str, kind: str = "number") -> str:
    cell = heading if isinstance(heading, Cell) else Cell(heading, kind)
    scope = "col" if cell.columns == 1 else "colgroup"
    return f'<th scope="{scope}" colspan="{cell.columns}" class="{cell.kind}">{escape(cell.text)}</th>'


def _data(value: Cell | float | None) -> str:
    cell = value if isinstance(value, Cell) else number(value)
    return f'<td class="{cell.kind}">{escape(cell.text)}</td>'
