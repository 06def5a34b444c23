"""A report in short, for a terminal."""

from __future__ import annotations

from envbuild.cli import output
from envbuild.profile.view import percent
from envbuild.report import words
from envbuild.report.model import Part, Report, Section, Table

_COLOURS = {"same": "32", "faster": "32", "regressed": "1;31", "incomparable": "33", "inconclusive": "33"}
# Tables that a terminal has room for; their ids end so.
_SHOWN = ("-parts", "-ranks", "-sampled", "-peaks", "-collectives", "-rows")
_MOST = 16


def show(report: Report) -> None:
    """Print the report: the figures of each measurement, then what is of all."""
    for number, part in enumerate(report.parts):
        if number:
            output.text()
        _part(part)


def _part(part: Part) -> None:
    about = f" ({words.line(part.about)})" if part.about else ""
    output.text(output.paint(f"{words.line(part.title)}{about}", "1"))
    for section in part.sections:
        _section(section)


def _section(section: Section) -> None:
    if section.verdict:
        painted = output.paint(section.verdict, _COLOURS.get(section.verdict, "33"))
        output.paragraph("  against the baseline: ", f"{painted}: {words.line(section.lead[0])}")
    for number, each in enumerate(section.found, 1):
        share = f", about {percent(each.share)} of the step" if each.share is not None else ""
        output.paragraph(
            f"  {number}. ", f"{words.line(each.title)} [{each.rule}] ({each.confidence} confidence{share})"
        )
        for evidence in each.evidence:
            output.paragraph("       ", words.line(evidence))
        for command in each.commands:
            output.text(f"     next: {words.line(command, 4000)}")
        for change in each.changes:
            output.paragraph("     next, in the training itself: ", words.line(change))
    if section.abstained:
        output.paragraph("  not looked at: ", ", ".join(each.rule for each in section.abstained))
    for table in section.tables:
        _table(table)
    for missing in section.missing:
        output.paragraph("  not available: ", f"{words.line(missing.figure)}: {words.line(missing.reason)}")


def _table(table: Table) -> None:
    if table.id.endswith("-figures"):
        if table.id.endswith("-key-figures"):
            return
        output.pairs(
            (f"  {column.name}", words.figure(value, column.unit))
            for column, value in zip(table.columns, table.rows[0], strict=True)
        )
        return
    if not (table.id.endswith(_SHOWN) or table.id.startswith("history-")):
        return
    rows = [
        [words.figure(value, table.unit(number, column)) for column, value in enumerate(row)]
        for number, row in enumerate(table.rows)
    ]
    output.text()
    output.text(f"{words.line(table.caption)}:")
    output.table([words.line(each.name).upper() for each in table.columns], rows[:_MOST])
    if len(rows) > _MOST:
        output.text(f"... {len(rows) - _MOST} more")
