"""Anchors that a line end splits: of logs that a terminal, a pager or a logger of fixed width has wrapped."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from envbuild.diagnose.library import Library

_SAMPLE = 4096
# Line end, and what stands before the text of the next line: colours, a launcher's prefix, its time stamp, indent.
_JOIN = re.compile(
    rb"[ \t]*(?:\x1b\[[0-9;]*m)*\r?\n(?:\x1b\[[0-9;]*m)*"
    rb"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*Z?\]? ?)?"
    rb"(?:\[(?:rank|default|worker|local_rank|gpu)?[ :_-]?\d{1,5}\]:? ?|\[\d+,\d+\](?:<std\w+>)?:? ?| {0,4}\d{1,5}: |"
    rb"[a-z][a-z0-9-]*\d[a-z0-9.-]*: |\([\w.:-]* ?pid=\d+(?:, ip=[\d.]+)?\) ?|"
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+?: ?)?"
    rb"(?:\x1b\[[0-9;]*m)*[ \t]*"
)


_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
_PLAIN_JOIN = re.compile(rb"\n")
# So much of one log is looked through, for prefixes that are repeated and without; its last piece always is.
_MOST_THOROUGH = 4 << 20
_MOST = 64 << 20


@dataclass
class Wraps:
    """Finds split anchors in one log, as long as that is worth its time."""

    library: Library
    _spent: int = 0
    _thorough: int = 0

    def places(
        self, buffer: bytearray, size: int, low: int, high: int, *, last: bool
    ) -> tuple[bool, list[tuple[int, int, bytes]]]:
        """Whether a piece looks wrapped, and start and end in the buffer of anchors that its line ends split.

        Args:
            last: It is the end of the log: there the failure is, so it is looked through whatever it looks like.
        """
        if last:
            return True, _split(self.library, buffer, size, max(low, high - (1 << 20)), high, _JOIN)
        if self._spent >= _MOST:
            return True, []
        wrapped, prefixed = _looks(bytes(buffer[low : min(high, low + _SAMPLE)]))
        if not wrapped:
            return False, []
        self._spent += high - low
        if prefixed and self._thorough < _MOST_THOROUGH:
            self._thorough += high - low
            return True, _split(self.library, buffer, size, low, high, _JOIN)
        return True, _split(self.library, buffer, size, low, high, _PLAIN_JOIN)


def _looks(sample: bytes) -> tuple[bool, bool]:
    """Whether lines end where a terminal's would: many have just the longest's width; and whether they have prefixes."""
    lines = _COLOURS.sub(b"", sample).replace(b"\r", b"\n").split(b"\n")[1:-1]
    if len(lines) < 4:
        return False, False
    bodies = [line[(found.end() - 1 if (found := _JOIN.match(b"\n" + line)) else 0) :] for line in lines]
    prefixed = sum(len(body) < len(line) for body, line in zip(bodies, lines, strict=True)) * 4 > len(lines)
    return any(_piled_up([len(each) for each in some]) for some in (lines, bodies)), prefixed


def _piled_up(sizes: list[int]) -> bool:
    widest = max(sizes)
    full = sizes.count(widest)
    return 36 <= widest <= 300 and full >= 3 and full * 25 >= len(sizes)


def _split(
    library: Library, buffer: bytearray, size: int, low: int, high: int, join: re.Pattern[bytes]
) -> list[tuple[int, int, bytes]]:
    start, stop = max(0, low - 256), min(size, high + 256)
    text = bytes(buffer[start:stop])
    found: set[tuple[int, int, bytes]] = set()
    for between in (b"", b" "):
        joined = bytearray(text.replace(b"\n", between) if join is _PLAIN_JOIN else join.sub(between, text))
        marks: tuple[list[int], list[int]] | None = None
        for number in library.find(joined, len(joined)):
            literal = library.literals[number]
            if literal not in library.anchors or joined.count(literal) == text.count(literal):
                continue
            marks = marks or _marks(text, len(between), join)
            at = joined.find(literal)
            for _ in range(64):
                if at < 0:
                    break
                first, last = _place(marks, at), _place(marks, at + len(literal) - 1)
                if b"\n" in text[first:last] and low <= start + first < high:
                    found.add((start + first, start + last + 1, literal))
                at = joined.find(literal, at + 1)
    return sorted(found)[:2000]


def _marks(text: bytes, between: int, join: re.Pattern[bytes]) -> tuple[list[int], list[int]]:
    """Where joined pieces begin in the joined text, and in the text."""
    places, origins = [0], [0]
    gone = 0
    for each in join.finditer(text):
        gone += each.end() - each.start() - between
        places.append(each.end() - gone)
        origins.append(each.end())
    return places, origins


def _place(marks: tuple[list[int], list[int]], at: int) -> int:
    places, origins = marks
    piece = bisect_right(places, at) - 1
    return origins[piece] + at - places[piece]
