"""The report as Markdown, for a ticket or a mail; it reads as plain text, too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envbuild import __version__
from envbuild.doctor.answers import Answer
from envbuild.doctor.changes import Change
from envbuild.doctor.report import Report, headline, layer_words
from envbuild.doctor.text import glossary
from envbuild.model import Finding

_WORDS = {"error": "Error", "warning": "Warning", "info": "Note"}
# What Markdown (and the HTML that it lets through) would take for its own.
# An underscore inside of a word is none of it.
_SPECIAL = re.compile(r"([\\`*\[\]<>|&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|~(?=~))")


def markdown(report: Report) -> str:
    """The whole report, without the raw facts."""
    held = f", held to {_text(report.held)}" if report.held else ""
    lines = [
        f"# envbuild doctor: {_text(report.subject)}",
        "",
        f"{_text(report.taken)}{held}, by envbuild {__version__}",
        "",
        f"**{_text(report.sums)}**" + (f" {_text(report.first)}" if report.first else ""),
        "",
        *_table(("machine", ""), report.head),
        *_since(report),
        "## Findings",
        "",
        *(_groups(report) if report.groups else ("None.", "")),
    ]
    if report.layers:
        rows = [(each.title, layer_words(each)) for each in report.layers]
        lines += ["## Compilers", "", *_table(("of", "found"), rows)]
    if report.answers:
        lines += ["## Libraries: the file that Python gets for a name, and why that one", ""]
        lines += _table(("name", "file", "why", "version", "needed"), map(_answer, report.answers))
        words = glossary(" ".join(each.why for each in report.answers))
        lines += [*(f"- {_text(each)}" for each in words), *([""] if words else [])]
    if report.problems:
        lines += ["## Could not be looked at", "", *(f"- {_text(each)}" for each in report.problems), ""]
    return "\n".join(lines)


def _text(words: str) -> str:
    return _SPECIAL.sub(r"\\\1", words)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(header)
    made = [names, ["---"] * len(names), *([_text(cell) for cell in row] for row in rows)]
    return [*(f"| {' | '.join(cells)} |" for cells in made), ""]


def _since(report: Report) -> Iterator[str]:
    if report.since is None:
        return
    yield from (f"## What changed since {_text(report.since.taken)}", "")
    for stranger in report.since.strangers:
        yield from (f"Take care: {_text(stranger)}", "")
    if report.since.changes:
        yield from ("The likeliest cause of a new failure first; what came of it last.", "")
        yield from _table(("what", "name", "was", "is"), (_change(each) for each in report.since.changes))
    else:
        yield from ("Nothing that envbuild looks at has changed.", "")
    for each in report.since.gone:
        yield f"- no longer: {_text(headline(each))} ({_text(each.rule)})"
    if report.since.gone:
        yield ""


def _answer(each: Answer) -> tuple[str, ...]:
    return each.name, each.path or "none", each.because, each.version, each.needed


def _change(each: Change) -> tuple[str, ...]:
    now = "gone" if each.new is None else each.new
    return each.what, each.name, each.old or "", f"{now} ({each.note})" if each.note else now


def _groups(report: Report) -> Iterator[str]:
    for number, group in enumerate(report.groups, 1):
        yield from _finding(report, group.root, f"### {number}. ")
        if group.echoes:
            yield from ("Should go away with it:", "")
            for echo in group.echoes:
                yield f"- {_text(headline(echo))} ({_text(echo.rule)})"
            yield ""


def _finding(report: Report, each: Finding, before: str) -> Iterator[str]:
    new = "New. " if report.fresh(each) else ""
    yield from (f"{before}{new}{_WORDS[each.severity.value]}: {_text(headline(each))}", "")
    for line in each.evidence:
        yield f"- {_text(line)}"
    if each.evidence:
        yield ""
    if each.why:
        yield from (f"Why it matters: {_text(each.why)}", "")
    if each.fix:
        yield from (f"What to do: {_text(each.fix)}", "")
    if each.command:
        # Indented, so that no number of backquotes in it ends the block.
        yield from (*(f"    {line}" for line in each.command.splitlines()), "")
    place = f", {each.file}:{each.line}" if each.file else ""
    yield from (f"Source: {_text((each.source or 'as seen') + place)} ({_text(each.rule)})", "")
