"""The report as one HTML file: nothing is fetched, nothing in it runs, every text is escaped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envbuild import __version__
from envbuild.profile.view import percent
from envbuild.report import charts, svg, words
from envbuild.report.model import Chart, Report, Table, Unit, Value, plain

# Up to here a text stays on one line.
_SHORT = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart as it stands on the page."""

    title: str
    svg: str
    legend: tuple[tuple[str, str, str], ...]
    bars: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, the exact number behind it, and what it is for the style."""

    text: str
    value: str | None
    kind: str


def html(report: Report) -> str:
    """The page.

    Raises:
        InputError: matplotlib is not installed, and something is to be drawn.
    """
    import jinja2  # slow to import
    from markupsafe import Markup

    environment = jinja2.Environment(
        # envbuild's own, not the project's templates: this page's escaping is what protects its reader.
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    return environment.get_template("page.html.j2").render(
        report=report, version=__version__, cell=cell, percent=percent, line=words.line, drawings=drawings,
        # Made by matplotlib and serialized by ElementTree, which escape what is in it.
        safe=Markup,
    )  # fmt: skip


def drawings(table: Table) -> list[Drawing]:
    """The charts of a table."""
    return [_drawing(table, chart, f"{table.id}-chart-{number}") for number, chart in enumerate(table.charts, 1)]


def _drawing(table: Table, chart: Chart, identity: str) -> Drawing:
    bars = chart.kind == "bars"
    legend = tuple(
        (line.name, svg.colour(f"c-{line.colour}"), "none" if bars else charts.dash(number))
        for number, line in enumerate(chart.lines)
    )
    return Drawing(title=chart.title, svg=charts.draw(table, chart, identity), legend=legend, bars=bars)


def cell(value: Value, unit: Unit) -> Cell:
    """A value for the page: a number stands in the document exactly as in the JSON."""
    text = words.figure(value, unit)
    if value is None:
        return Cell(text=text, value=None, kind="none")
    if isinstance(value, str):
        return Cell(text=text, value=None, kind="words" if len(text) > _SHORT else "word")
    exact = plain(value)
    return Cell(text=text, value=exact if isinstance(exact, str) else json.dumps(exact), kind="number")
