"""A report as data: sections of tables, each figure once. The page, the JSON and the summary are views of it.

A chart has no figures of its own: it names columns of its table, so whatever is drawn can be read, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from envbuild.profile.numbers import write_number
from envbuild.profile.view import Abstained, Cleared, Found

Value = str | int | float | None
Unit = Literal["", "count", "seconds", "bytes", "rate", "percent", "share", "number", "hertz", "watts", "celsius"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; without a unit it holds words."""

    name: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One drawn column: what the legend calls it, and its colour (a number from 0 on, or a part's name)."""

    column: int
    name: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """How some columns of a table are drawn.

    Attributes:
        kind: ``bars``: one for each row, the columns stacked; ``lines``: over the first column.
        first: The column of the bars' names, or of the lines' horizontal axis.
        across: What the horizontal axis is, and the bounds of it; None where they follow from the values.
        zero: Whether the axis of the values begins at 0.
        most: How many bars are drawn; a table may have more rows.
    """

    kind: Literal["bars", "lines"]
    title: str
    lines: tuple[Line, ...]
    first: int = 0
    across: str = ""
    bounds: tuple[float, float] | None = None
    zero: bool = True
    most: int = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Figures.

    Attributes:
        id: Of the element on the page, and in the JSON.
        notes: What a reader should know of them.
        folded: Whether the page shows them only when asked.
        units: Of each row's numbers, where not every row is in the same; a column of the table names them.
    """

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    folded: bool = False
    units: tuple[Unit, ...] = ()

    def unit(self, row: int, column: int) -> Unit:
        """What a value is in."""
        own = self.columns[column].unit
        return self.units[row] if own == "number" and self.units else own

    def drawn(self, chart: Chart) -> tuple[tuple[Value, ...], ...]:
        """The rows that a chart of this table draws; what was not measured is no bar."""
        if chart.kind == "lines":
            return self.rows
        return tuple(row for row in self.rows if any(row[each.column] is not None for each in chart.lines))[
            : chart.most
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A figure that there is not, and why."""

    figure: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One subject.

    Attributes:
        verdict: The word that it comes to, where it comes to one.
        lead: What to know before the figures.
        empty: What is said where there are none.
    """

    id: str
    title: str
    verdict: str | None = None
    lead: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: tuple[Missing, ...] = ()
    found: tuple[Found, ...] = ()
    cleared: tuple[Cleared, ...] = ()
    abstained: tuple[Abstained, ...] = ()
    empty: str = "Nothing of it was measured."

    @property
    def bare(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.tables or self.missing or self.found or self.cleared or self.abstained or self.lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What belongs together: one measurement, or what is of all of them."""

    id: str
    title: str
    about: str
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole of it."""

    title: str
    parts: tuple[Part, ...]


def as_dict(report: Report) -> dict[str, Any]:
    """For ``--json``: what the page's tables hold, by the ids that they have there."""
    return {"title": report.title, "parts": [_part(each) for each in report.parts]}


def plain(value: Value) -> Value:
    """A value that JSON has a word for."""
    return write_number(value) if isinstance(value, float) else value


def _part(part: Part) -> dict[str, Any]:
    sections = [_section(each) for each in part.sections]
    return {"id": part.id, "title": part.title, "about": part.about, "sections": sections}


def _section(section: Section) -> dict[str, Any]:
    return {
        "id": section.id,
        "title": section.title,
        "verdict": section.verdict,
        "lead": list(section.lead),
        "tables": [
            {
                "id": table.id,
                "caption": table.caption,
                "columns": [{"name": each.name, "unit": each.unit or None} for each in table.columns],
                "rows": [[plain(value) for value in row] for row in table.rows],
                "notes": list(table.notes),
            }
            for table in section.tables
        ],
        "unavailable": [{"figure": each.figure, "reason": each.reason} for each in section.missing],
        "findings": [
            {
                "rule": each.rule, "title": each.title, "confidence": each.confidence, "share": each.share,
                "evidence": list(each.evidence), "why": each.why, "experiment": each.experiment,
                "commands": list(each.commands), "changes": list(each.changes),
            }
            for each in section.found
        ],
        "cleared": [{"rule": each.rule, "evidence": each.evidence} for each in section.cleared],
        "abstained": [{"rule": each.rule, "missing": each.missing} for each in section.abstained],
    }  # fmt: skip
