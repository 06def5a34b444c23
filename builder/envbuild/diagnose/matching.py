"""Whether a hit of an anchor is a match of its pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envbuild.diagnose.lines import Line
from envbuild.diagnose.signature import Pattern, Signature
from envbuild.diagnose.windows import Logical, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A pattern that was found.

    Attributes:
        log: Number of the log, in the order in which they were read.
        offset: Byte of the log, unpacked.
        first: Number of the line where the match begins; ``last`` of the one where it ends.
        lines: The matched logical lines.
        rank: Which rank wrote it, where that is known.
        handled: The lines around it say that the program went on without what failed.
    """

    signature: Signature
    pattern: Pattern
    captures: dict[str, str]
    log: int
    name: str
    offset: int
    first: int
    last: int
    lines: tuple[tuple[int, str], ...]
    author: str
    rank: int | None
    stamp: float | None
    quiet: bool
    handled: bool


# Words with which programs say that they can do without.
_GOES_ON = re.compile(
    r"(?i)\bfall(?:s|ing)?[ -]?back\b|\bfallback\b|\bretry(?:ing)?\b|\bwill (?:be )?(?:retr|ignor|skip)|\bignor(?:ed|ing) |"
    r"\bskipping\b|\bcontinuing\b|\bproceeding\b|\busing \S+ instead\b|\boptional (?:dependency|feature|import)|\bnot fatal\b"
)
_TAKES_BACK = re.compile(r"(?i)no fallback|without fallback|fallback (?:also )?failed|failed to fall|not falling")


def match(
    signature: Signature, pattern: Pattern, window: Window, *, wrapped: bool
) -> tuple[re.Match[str], list[Logical]] | None:
    """The match, with the logical lines that it covers."""
    for number, (logical, at) in enumerate(window.variants(pattern.lines)):
        if number and not wrapped:
            return None
        # As it stands, with its prefixes too: what looks like the name of a host may be a part of the message.
        wholes = [] if number else [[each.line.whole for each in logical]]
        for texts in ([each.text for each in logical], *wholes):
            found = _search(pattern, texts, at)
            if found:
                hit, low, high = found
                return hit, logical[low : high + 1]
    return None


def _search(pattern: Pattern, texts: list[str], at: int) -> tuple[re.Match[str], int, int] | None:
    low = max(0, at - pattern.lines + 1)
    for start in range(low, at + 1):
        end = min(len(texts), start + pattern.lines)
        text = "\n".join(texts[start:end])
        for hit in pattern.compiled.finditer(text):
            # The line of the hit has to have a part in it: other hits find the others.
            first = start + _line_of(texts[start:end], hit.start())
            last = start + _line_of(texts[start:end], max(hit.start(), hit.end() - 1))
            if first <= at <= last:
                return hit, first, last
        if pattern.lines == 1:
            break
    return None


def _line_of(texts: list[str], offset: int) -> int:
    for number, text in enumerate(texts):
        offset -= len(text) + 1
        if offset < 0:
            return number
    return len(texts) - 1


def excluded(signature: Signature, pattern: Pattern, window: Window) -> bool:
    """Whether the lines around it say that it is something else."""
    if not (signature.unless or pattern.unless):
        return False
    near = window.near()
    return any(re.search(each, near) for each in (*signature.unless, *pattern.unless))


def goes_on(window: Window, last: int) -> bool:
    """Whether the matched line, or one of the three behind it by the same author, says that it can do without."""
    author = window.hit.author
    taken = 0
    for place in range(window.at, len(window.raw)):
        line: Line = window.line(place)
        if line.number > last and line.author not in (author, ""):
            continue
        if _GOES_ON.search(line.text) and not _TAKES_BACK.search(line.text):
            return True
        taken += line.number > last
        if taken == 3:
            break
    return False
