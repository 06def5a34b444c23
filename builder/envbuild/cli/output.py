"""The only place that writes to stdout: results as text or as one JSON document."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.profile.numbers import in_words

if TYPE_CHECKING:
    from envbuild.model import Finding

_SIGNS = {"error": "error", "warning": "warning", "info": "info"}
_COLOURS = {"error": "31", "warning": "33", "info": "36"}


# What went wrong with stdout; it is told at the end, when the work is done.
_lost: list[OSError] = []


def prepare() -> None:
    """Make both streams take every text: closed ones swallow it, poor encodings get escapes."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # It lives as long as the process.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        with contextlib.suppress(AttributeError, ValueError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def finish(code: int, *, failed: int) -> int:
    """Flush the result; returns the exit code, ``failed`` in place of 0 when the result could not be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _lose(error)
    if _lost:
        narrate(f"error: cannot write the result: {_lost[0].strerror or _lost[0]}")
        return code or failed
    return code


def result(content: str) -> None:
    """A piece of the result, as it is."""
    try:
        sys.stdout.write(content)
    except OSError as error:
        _lose(error)


def _lose(error: OSError) -> None:
    # A reader that left (`envbuild list | head`) is no failure. Either way the rest goes nowhere, and the exit
    # code stays the one of the work.
    if not isinstance(error, BrokenPipeError):
        _lost.append(error)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def text(line: str = "") -> None:
    """One line of the result."""
    result(line + "\n")


def narrate(line: str) -> None:
    """One line of narration, to stderr; where nobody reads it, the work goes on."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")


def document(command: str, **payload: Any) -> None:
    """The result as one JSON document with its schema's name."""
    body = {"schema": f"envbuild.{command}/1", **payload}
    # In an encoding that cannot carry every character, JSON has escapes of its own.
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text(json.dumps(in_words(body), indent=2, ensure_ascii=plain, default=str, allow_nan=False))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Columns under a header, as wide as their content.

    Args:
        rows: A cell may have several lines: they stand under one another where somebody reads, and in a pipe in one,
            with commas between them.
        spare: Columns that a narrow reader can do without, first what goes first. Only where somebody reads: a pipe
            gets all of them.
    """
    lines = [tuple(header), *(line for row in rows for line in _stacked(row))]
    columns = list(range(len(header)))
    widths = [max(len(line[column]) for line in lines) for column in columns]
    gone = []
    for name in spare if _is_read() else ():
        if sum(widths[column] for column in columns) + 2 * (len(columns) - 1) <= width():
            break
        columns.remove(header.index(name))
        gone.append(name)
    for number, line in enumerate(lines):
        joined = "  ".join(line[column].ljust(widths[column]) for column in columns).rstrip()
        text(paint(joined, "1") if number == 0 else joined)
    if gone:
        narrate(f"note: {width()} columns have no room for {', '.join(gone)}; --json has everything")


def _stacked(row: Sequence[str]) -> list[tuple[str, ...]]:
    if not _is_read():
        return [tuple(cell.replace("\n", ",") for cell in row)]
    cells = [cell.splitlines() or [""] for cell in row]
    return [
        tuple(cell[number] if number < len(cell) else "" for cell in cells) for number in range(max(map(len, cells)))
    ]


def wrapped(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns whose last one wraps, and the second where it is long; under one another where there is no room."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    room = width() - sum(widths[:1] + widths[2:-1]) - 2 * (len(header) - 1)
    widths[1] = min(widths[1], max(20, room * 2 // 5))
    widths[-1] = room - widths[1]
    stacked = widths[-1] < _NARROWEST
    for number, line in enumerate(lines):
        if stacked:
            if number:
                paragraph("", "  ".join(line[:-1]))
                paragraph("    ", line[-1])
            continue
        cells = [_lines(cell, wide) for cell, wide in zip(line, widths, strict=True)]
        for part in range(max(map(len, cells))):
            each = [cell[part] if part < len(cell) else "" for cell in cells]
            joined = "  ".join(cell.ljust(wide) for cell, wide in zip(each, widths, strict=True)).rstrip()
            text(paint(joined, "1") if number == 0 else joined)


# A column of words that is narrower than this is no pleasure to read.
_NARROWEST = 28


def _lines(cell: str, wide: int) -> list[str]:
    return textwrap.wrap(cell, wide, break_on_hyphens=False) or [""]


def _is_read() -> bool:
    """Whether somebody reads who has so many columns and no more."""
    return "COLUMNS" in os.environ or sys.stdout.isatty()


def width() -> int:
    """Columns that a reader has: those of the terminal, or of COLUMNS; 100 where nobody says."""
    wide = shutil.get_terminal_size((100, 24)).columns
    return max(20, wide)


def paragraph(before: str, words: str) -> None:
    """Words behind a first few, wrapped to the reader's columns, every line under the first."""
    inner = textwrap.wrap(words, max(16, width() - len(before)), break_on_hyphens=False, break_long_words=False)
    for number, line in enumerate(inner or [""]):
        text((before if number == 0 else " " * len(before)) + line)


def plan(values: Mapping[str, Any]) -> None:
    """What ``--json`` would give of a plan, in two columns: a list has a line for each of its values."""
    pairs(
        (name, "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else "-" if value is None else str(value))
        for name, value in values.items()
    )


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns; a value may have several lines."""
    lines = list(rows)
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        first, *rest = value.splitlines() or [""]
        text(f"{name.ljust(width)}  {first}".rstrip())
        for line in rest:
            text(" " * width + f"  {line}")


def findings(found: Iterable[Finding], *, narrated: bool = False) -> None:
    """Findings as people read them: what, where, why, what to do, who says so."""
    out, write = (sys.stderr, narrate) if narrated else (sys.stdout, text)
    for finding in found:
        word = _SIGNS[finding.severity.value]
        place = f"{finding.file}:{finding.line}:{finding.column}: " if finding.file else ""
        head = paint(word, _COLOURS[finding.severity.value], stream=out)
        # Many a message begins with what it is about, as it stands alone in --json.
        about = "" if finding.message.startswith(f"{finding.subject} ") else f"{finding.subject}: "
        write(f"{place}{head} [{finding.rule}] {about}{finding.message}")
        if finding.fix:
            write(f"    fix: {finding.fix}")
        if finding.source:
            write(f"    source: {finding.source}")


def report(command: str, found: Sequence[Finding], what: str, *, as_json: bool) -> bool:
    """Print findings with their sum, or as one document; returns whether one of them is an error."""
    from envbuild.pipeline.findings import errors

    wrong = errors(list(found))
    if as_json:
        document(command, findings=documents(found))
    else:
        findings(found)
        narrate(f"{what}, {len(wrong)} error(s), {len(found) - len(wrong)} other finding(s)")
    return bool(wrong)


def documents(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings for ``--json``."""
    from envbuild.pipeline.proof import as_dict

    return [as_dict(finding) for finding in found]


def paint(line: str, code: str, *, stream: Any = None) -> str:
    """Colour for terminals; none for pipes, CI and NO_COLOR."""
    out = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("CI") or not out.isatty():
        return line
    return f"\x1b[{code}m{line}\x1b[0m"
