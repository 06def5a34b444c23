"""The lines around a hit, as logical lines: wrapped ones put together, other ranks' lines left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from envbuild.diagnose.lines import LONGEST, Line, clean

# Physical lines on either side of a hit. A pattern of twelve lines that is wrapped threefold still fits.
AROUND = 36
# What `unless` and the telling of handled failures look at.
NEAR = 10
_COMMON = (72, 78, 79, 80, 96, 100, 110, 118, 119, 120, 128, 132, 140, 150, 158, 159, 160, 180, 200)
_LEAST_WIDE = 36
# Nobody's terminal is wider, and a log with longer lines is not wrapped.
_MOST_WIDE = 300
# More physical lines than this are no wrapped line.
_MOST_PARTS = 12
_BREAKS = re.compile(rb"\r\n|\n|\r+(?=[^\n])")


@dataclass(frozen=True, slots=True)
class Logical:
    """One logical line: the numbers of its first and last physical line, its text, and its first line."""

    first: int
    last: int
    text: str
    line: Line
    places: tuple[int, int]


@dataclass
class Window:
    """Physical lines around a place in a buffer; each is cleaned when it is first asked for.

    Attributes:
        raw: The lines' bytes.
        numbers: Their numbers in the file.
        at: Which one holds the hit.
    """

    raw: list[bytes]
    numbers: list[int]
    at: int
    _lines: dict[int, Line] = field(default_factory=dict)

    def line(self, place: int) -> Line:
        """A cleaned line."""
        if place not in self._lines:
            self._lines[place] = clean(self.raw[place], self.numbers[place])
        return self._lines[place]

    @property
    def hit(self) -> Line:
        """The line of the hit."""
        return self.line(self.at)

    def variants(self, lines: int) -> Iterator[tuple[list[Logical], int]]:
        """Logical lines, and which of them holds the hit: as they stand, then put together in the ways in which
        terminals, pagers and loggers wrap; first those that cost least.

        Args:
            lines: How many logical lines before and behind the hit are wanted.
        """
        yield self._plain(lines)
        seen: set[tuple[int, int]] = set()
        for joined in self._joined():
            made = self._logical(joined)
            at = next((number for number, each in enumerate(made) if each.places[0] <= self.at <= each.places[1]), 0)
            key = (hash(made[at].text), made[at].places[0])
            if lines == 1 and (made[at].places[0] == made[at].places[1] or key in seen):
                continue
            seen.add(key)
            yield made, at

    def near(self) -> str:
        """The text within ten lines of the hit."""
        low, high = max(0, self.at - NEAR), min(len(self.raw), self.at + NEAR + 1)
        return "\n".join(self.line(place).whole for place in range(low, high))

    def _plain(self, lines: int) -> tuple[list[Logical], int]:
        made: list[Logical] = []
        author = self.hit.author
        before = [place for place in range(self.at - 1, -1, -1) if lines > 1]
        behind = [place for place in range(self.at + 1, len(self.raw)) if lines > 1]
        chosen = [self.at]
        for side in (before, behind):
            taken = 0
            for place in side:
                if taken == lines - 1:
                    break
                # Lines without an author in a log that has them are continuations of the author's.
                if self.line(place).author in (author, ""):
                    chosen.append(place)
                    taken += 1
        for place in sorted(chosen):
            line = self.line(place)
            made.append(Logical(line.number, line.number, line.text, line, (place, place)))
        return made, sorted(chosen).index(self.at)

    def _joined(self) -> Iterator[Callable[[int], str | None]]:
        """Ways to say whether a line goes on in the next one, and with what between them: None is no."""
        everything = [self.line(place) for place in range(len(self.raw))]
        measures: tuple[Callable[[Line], int], ...] = (
            lambda line: line.wide, lambda line: line.raw, lambda line: len(line.text),
        )  # fmt: skip
        tried: set[tuple[int, int]] = set()
        for number, measure in enumerate(measures):
            sizes = [measure(line) for line in everything]
            near = sizes[max(0, self.at - 3) : self.at + 3]
            widest = max(sizes)
            for width in dict.fromkeys([*sorted(near, reverse=True), widest]):
                likely = width == widest or width in _COMMON or sizes.count(width) > 1
                if not (_LEAST_WIDE <= width <= _MOST_WIDE and likely) or (number, width) in tried:
                    continue
                tried.add((number, width))
                yield lambda place, sizes=sizes, width=width: "" if sizes[place] == width else None  # type: ignore[misc]
        for measure in (measures[0], measures[2]):
            sizes = [measure(line) for line in everything]
            for width in dict.fromkeys([max(sizes[max(0, self.at - 3) : self.at + 4]), max(sizes)]):
                if _LEAST_WIDE <= width <= _MOST_WIDE:
                    yield lambda place, sizes=sizes, width=width: self._word_wrapped(place, sizes, width)  # type: ignore[misc]

    def _word_wrapped(self, place: int, sizes: list[int], width: int) -> str | None:
        following = self.line(place + 1).text.lstrip()
        word = following.partition(" ")[0]
        if not following or not sizes[place] or sizes[place] > width:
            return None
        return " " if sizes[place] + 1 + len(word) > width else None

    def _logical(self, joined: Callable[[int], str | None]) -> list[Logical]:
        made: list[Logical] = []
        place = 0
        while place < len(self.raw):
            start = place
            between: list[str] = []
            while place + 1 < len(self.raw) and len(between) < _MOST_PARTS:
                how = joined(place)
                if how is None:
                    break
                between.append(how)
                place += 1
            made.append(self._together(start, place, between))
            place += 1
        author = next((each.line.author for each in made if each.places[0] <= self.at <= each.places[1]), "")
        return [each for each in made if each.line.author in (author, "")]

    def _together(self, start: int, end: int, between: list[str]) -> Logical:
        first = self.line(start)
        if start == end:
            return Logical(first.number, first.number, first.text, first, (start, end))
        rest = [self.line(place) for place in range(start + 1, end + 1)]
        if any(between) or (first.author and any(line.author == first.author for line in rest)):
            # The prefix is repeated on every part; or the wrap was made at words.
            text = first.text
            for how, line in zip(between, rest, strict=True):
                text = text + how + (line.text.lstrip() if how else line.text if line.author else line.whole)
            return Logical(first.number, rest[-1].number, text, first, (start, end))
        whole = clean(b"".join(self.raw[place] for place in range(start, end + 1)), first.number)
        return Logical(first.number, rest[-1].number, whole.text, whole, (start, end))


def window(buffer: bytearray, size: int, start: int, end: int, number: int) -> Window:
    """The physical lines around a hit.

    Args:
        size: How much of the buffer counts.
        start: Where the hit begins; ``end`` where it ends.
        number: The number of the line that the hit begins in.
    """
    low = _back(buffer, start)
    high = _forth(buffer, end, size)
    piece = bytes(buffer[low:high])
    here = start - low
    raw: list[bytes] = []
    numbers: list[int] = []
    current = number - piece.count(b"\n", 0, here)
    at = begin = 0
    for mark in (*_BREAKS.finditer(piece), None):
        stop = mark.start() if mark else len(piece)
        if begin <= here and (not mark or here < mark.end()):
            at = len(raw)
            raw.append(_around(piece, begin, stop, here))
        else:
            raw.append(piece[begin : min(stop, begin + LONGEST)])
        numbers.append(current)
        current += bool(mark) and b"\n" in mark[0]  # type: ignore[index]
        begin = mark.end() if mark else stop
    first = max(0, at - AROUND)
    return Window(raw[first : at + AROUND + 1], numbers[first : at + AROUND + 1], at - first)


# Bytes on either side of a hit that are looked at: a few dozen lines, or the middle of one.
REACH = 16384


def _back(buffer: bytearray, start: int) -> int:
    least = max(0, start - REACH)
    place = start
    for _ in range(AROUND + 1):
        found = buffer.rfind(b"\n", least, place)
        if found < 0:
            return least if least else 0
        place = found
    return place + 1


def _forth(buffer: bytearray, end: int, size: int) -> int:
    most = min(size, end + REACH)
    place = end
    for _ in range(AROUND + 1):
        found = buffer.find(b"\n", place, most)
        if found < 0:
            return most
        place = found + 1
    return place


def _around(piece: bytes, begin: int, stop: int, here: int) -> bytes:
    """A line; of a very long one what lies around the hit, with its beginning, where the prefix stands."""
    if stop - begin <= LONGEST:
        return piece[begin:stop]
    low = max(begin, here - LONGEST // 2)
    return piece[low : min(stop, here + LONGEST // 2)]
