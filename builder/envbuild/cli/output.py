"""The only place that writes to stdout: results as text or as one JSON document."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envbuild.model import Finding

_SIGNS = {"error": "error", "warning": "warning", "info": "info"}
_COLOURS = {"error": "31", "warning": "33", "info": "36"}


def text(line: str = "") -> None:
    """One line of the result."""
    sys.stdout.write(line + "\n")


def narrate(line: str) -> None:
    """One line of narration, to stderr."""
    sys.stderr.write(line + "\n")


def document(command: str, **payload: Any) -> None:
    """The result as one JSON document with its schema's name."""
    body = {"schema": f"envbuild.{command}/1", **payload}
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False, default=str) + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns under a header, as wide as their content."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        joined = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        text(paint(joined, "1") if number == 0 else joined)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    lines = list(rows)
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        text(f"{name.ljust(width)}  {value}".rstrip())


def findings(found: Iterable[Finding], *, stream: Any = None) -> None:
    """Findings as people read them: what, where, why, what to do, who says so."""
    out = stream or sys.stdout
    for finding in found:
        word = _SIGNS[finding.severity.value]
        place = f"{finding.file}:{finding.line}:{finding.column}: " if finding.file else ""
        head = paint(word, _COLOURS[finding.severity.value], stream=out)
        out.write(f"{place}{head} [{finding.rule}] {finding.subject}: {finding.message}\n")
        if finding.fix:
            out.write(f"    fix: {finding.fix}\n")
        if finding.source:
            out.write(f"    source: {finding.source}\n")


def paint(line: str, code: str, *, stream: Any = None) -> str:
    """Colour for terminals; none for pipes, CI and NO_COLOR."""
    out = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("CI") or not out.isatty():
        return line
    return f"\x1b[{code}m{line}\x1b[0m"
