"""A report: sections of pictures and tables, their files, and the page that contains all of them."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import io
import pathlib
from typing import Any, NamedTuple

from hyperagent_jax import results
from hyperagent_jax.analysis import html
from hyperagent_jax.analysis import sources as sources_lib


class Drawing(NamedTuple):
    """A picture to be drawn.

    Attributes:
        name: stem of the file name.
        title: heading within the picture.
        caption: how to read the picture.
        draw: called as `draw(file, title, data, narrow=...)`; writes a PNG for screens or for phones.
        data: the data to draw.
        alt: what the picture shows, for screen readers.
    """

    name: str
    title: str
    caption: str
    draw: Callable[..., None]
    data: Any
    alt: str

    def figure(self, out: pathlib.Path) -> str:
        """Draws the picture, writes the version for screens to `out`, and returns both versions as HTML."""
        versions = []
        for narrow in (False, True):
            buffer = io.BytesIO()
            self.draw(buffer, self.title, self.data, narrow=narrow)
            versions.append(buffer.getvalue())
        path = out / f"{self.name}.png"
        path.write_bytes(versions[0])
        wide, narrow_version = versions
        return html.figure(path.name, self.alt, self.caption, wide, narrow_version)


class Section(NamedTuple):
    """A part of a page: pictures, followed by tables as HTML. A section without either is omitted."""

    heading: str
    drawings: Sequence[Drawing]
    tables: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a page and its files.

    Attributes:
        title: heading of the page.
        lead: one sentence about the runs.
        facts: facts about the runs, by name.
        notes: warnings for the reader.
        sections: pictures and tables.
        sources: the files that contain the runs.
        closing: sentence of the footer about the csv files.
        tables: file names with the fields and rows of csv files.
        unit: what the number of a source counts.
    """

    title: str
    lead: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    sections: Sequence[Section]
    sources: Sequence[sources_lib.Source]
    closing: str
    tables: Mapping[str, tuple[Sequence[str], Sequence[dict[str, Any]]]]
    unit: str = "run"

    @property
    def num_drawings(self) -> int:
        """Number of pictures on the page."""
        return sum(len(section.drawings) for section in self.sections)

    def write(self, out: pathlib.Path) -> str:
        """Writes pictures and csv files to a folder and returns the page."""
        out.mkdir(parents=True, exist_ok=True)
        about = html.facts(self.facts) + "".join(html.paragraph(note, "note") for note in self.notes)
        shown = [html.section("What was run", about)]
        for section in self.sections:
            if parts := [*(drawing.figure(out) for drawing in section.drawings), *section.tables]:
                shown.append(html.section(section.heading, *parts))
        shown.append(sources_lib.section(self.sources, self.unit))
        for name, (fields, rows) in self.tables.items():
            results.write_csv(out / name, fields, rows)
        lead = html.paragraph(self.lead, "lead")
        return html.whole(self.title, lead, shown, sources_lib.footer(self.closing))
