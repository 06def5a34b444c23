"""Anchors that a line end splits: of logs that a terminal, a pager or a logger of fixed width has wrapped."""

from __future__ import annotations

import re
from bisect import bisect_right

from envbuild.diagnose.library import Library

_SAMPLE = 8192
# Line end, and what stands before the text of the next line: colours, a launcher's prefix, its time stamp, indent.
_JOIN = re.compile(
    rb"[ \t]*(?:\x1b\[[0-9;]*m)*\r?\n(?:\x1b\[[0-9;]*m)*"
    rb"(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*Z?\]? ?)?"
    rb"(?:\[(?:rank|default|worker|local_rank|gpu)?[ :_-]?\d{1,5}\]:? ?|\[\d+,\d+\](?:<std\w+>)?:? ?| {0,4}\d{1,5}: |"
    rb"[a-z][a-z0-9-]*\d[a-z0-9.-]*: |\([\w.:-]* ?pid=\d+(?:, ip=[\d.]+)?\) ?|"
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+?: ?)?"
    rb"(?:\x1b\[[0-9;]*m)*[ \t]*"
)


def looks_wrapped(buffer: bytearray, low: int, high: int) -> bool:
    """Whether lines of a piece end where a terminal's would: none is long, and several have just the longest's width."""
    sample = bytes(buffer[low : min(high, low + _SAMPLE)])
    sizes = sorted(len(line) for line in sample.replace(b"\r", b"\n").split(b"\n")[1:-1])
    if not sizes:
        return False
    widest = sizes[-1]
    # Prefixes of ranks differ by a few bytes, and colours by some more.
    return 36 <= widest <= 300 and sum(size > widest - 12 for size in sizes) * 20 >= len(sizes)


def split_places(library: Library, buffer: bytearray, size: int, low: int, high: int) -> list[tuple[int, int, bytes]]:
    """Start and end in the buffer of anchors that are split by line ends, a few of each."""
    start, stop = max(0, low - 256), min(size, high + 256)
    text = bytes(buffer[start:stop])
    found: set[tuple[int, int, bytes]] = set()
    for between in (b"", b" "):
        joined = bytearray(_JOIN.sub(between, text))
        marks: tuple[list[int], list[int]] | None = None
        for number in library.find(joined, len(joined)):
            literal = library.literals[number]
            if literal not in library.anchors:
                continue
            marks = marks or _marks(text, len(between))
            at = joined.find(literal)
            for _ in range(64):
                if at < 0:
                    break
                first, last = _place(marks, at), _place(marks, at + len(literal) - 1)
                if b"\n" in text[first:last] and low <= start + first < high:
                    found.add((start + first, start + last + 1, literal))
                at = joined.find(literal, at + 1)
    return sorted(found)[:2000]


def _marks(text: bytes, between: int) -> tuple[list[int], list[int]]:
    """Where joined pieces begin in the joined text, and in the text."""
    places, origins = [0], [0]
    gone = 0
    for each in _JOIN.finditer(text):
        gone += each.end() - each.start() - between
        places.append(each.end() - gone)
        origins.append(each.end())
    return places, origins


def _place(marks: tuple[list[int], list[int]], at: int) -> int:
    places, origins = marks
    piece = bisect_right(places, at) - 1
    return origins[piece] + at - places[piece]
