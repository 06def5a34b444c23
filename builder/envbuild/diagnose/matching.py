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


# Words with which programs say that they can do without; not "exceeded error retry count", which is the end of it.
_GOES_ON = re.compile(
    r"(?i)\bfall(?:s|ing)?[ -]?back\b|\bfallback\b|\bretry(?:ing)?\b(?! (?:count|limit|exceed))|"
    r"\bwill (?:be )?(?:retr|ignor|skip)|(?<!exception )\bignor(?:ed|ing) |\bskipping\b|\bcontinuing\b|"
    r"\bproceeding\b|\busing \S+ instead\b|\boptional (?:dependency|feature|import)|\bnot fatal\b"
)
# The same, said less plainly; what configure and CMake try out; and what a test run has asked for.
_IS_WELL = re.compile(
    r"(?i)\(ignored\)|\bcan (?:be )?(?:safely )?ignored? |(?<!please )\btrying (?:again|\S+ instead)\b|"
    r"\bnot (?:up|ready) yet\b|\bsleeping (?:for )?\d|\bconftest\.c|\bCMake(?:Scratch|Tmp)\b|\bPASSED$"
)
_TAKES_BACK = re.compile(r"(?i)no fallback|without fallback|fallback (?:also )?failed|failed to fall|not falling")


Found = tuple[re.Match[str], list[Logical]]


def match(signature: Signature, pattern: Pattern, window: Window, *, wrapped: bool) -> Found | None:
    """The match, with the logical lines that it covers; of several ways to read them the one that says more."""
    best: Found | None = None
    for number, variant in enumerate(window.variants(pattern.lines)):
        plain = number == 0 or (number == 1 and pattern.lines > 1)
        if not plain and (not wrapped or (best is not None and _is_whole(best))):
            break
        texts = [each.text for each in variant.lines]
        hit = _search(pattern, texts, variant.at)
        if hit is None and plain:
            # With its prefixes too: what looks like the name of a host may be a part of the message.
            hit = _search(pattern, [each.line.whole for each in variant.lines], variant.at)
        if hit is None:
            continue
        found = hit[0], variant.lines[hit[1] : hit[2] + 1]
        if best is None or _says_more(found, best, firm=variant.firm):
            best = found
    return best


def _is_whole(found: Found) -> bool:
    """Whether a match does not go as far as a line's end, where more of it could have been cut off."""
    hit, _ = found
    return hit.end() < len(hit.string.rstrip()) and None not in hit.groupdict().values()


def _says_more(found: Found, best: Found, *, firm: bool) -> bool:
    said, had = (sum(bool(value) for value in each[0].groupdict().values()) for each in (found, best))
    if said != had:
        return said > had
    starts_alike = found[0][0].startswith(best[0][0])
    return firm and starts_alike and len(found[0][0]) > len(best[0][0])


def _search(pattern: Pattern, texts: list[str], at: int) -> tuple[re.Match[str], int, int] | None:
    low = max(0, at - pattern.lines + 1)
    if pattern.lines > 1 and not pattern.compiled.search("\n".join(texts[low : at + pattern.lines])):
        return None
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
        if (_GOES_ON.search(line.text) or _IS_WELL.search(line.text)) and not _TAKES_BACK.search(line.text):
            return True
        taken += line.number > last
        if taken == 3:
            break
    return False
