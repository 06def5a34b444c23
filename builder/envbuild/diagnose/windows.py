"""The lines around a hit, as logical lines: wrapped ones put together, other ranks' lines left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

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
# NULs are what a crash leaves of a block that was never written, and what stands between the texts of a binary.
_BREAKS = re.compile(rb"\r\n|\n|\r+(?=[^\n])|\0{2,}")


@dataclass(frozen=True, slots=True)
class Logical:
    """One logical line: the numbers of its first and last physical line, its text, and its first line."""

    first: int
    last: int
    text: str
    line: Line
    places: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Variant:
    """Logical lines, which of them holds the hit, and whether they are put together for a good reason."""

    lines: list[Logical]
    at: int
    firm: bool


# Columns with the prefix, bytes with colours, columns and bytes behind the prefix.
_MEASURES: tuple[Callable[[Line], int], ...] = (
    lambda line: line.wide,
    lambda line: line.raw,
    lambda line: len(line.text),
    lambda line: line.raw - line.wide + len(line.text),
)


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
    _authors: list[str] = field(default_factory=list)
    _variants: dict[int, tuple[list[Variant], Iterator[Variant]]] = field(default_factory=dict)

    def line(self, place: int) -> Line:
        """A cleaned line."""
        if place not in self._lines:
            self._lines[place] = clean(self.raw[place], self.numbers[place])
        return self._lines[place]

    @property
    def hit(self) -> Line:
        """The line of the hit."""
        return self.line(self.at)

    def variants(self, lines: int) -> Iterator[Variant]:
        """Logical lines, and which of them holds the hit: as they stand, then put together in the ways in which
        terminals, pagers and loggers wrap; first those that cost least. Made once for all patterns.

        Args:
            lines: How many logical lines before and behind the hit are wanted.
        """
        made, more = self._variants.setdefault(lines, ([], self._ways(lines)))
        yield from made
        for each in more:
            made.append(each)
            yield each

    def _ways(self, lines: int) -> Iterator[Variant]:
        yield self._plain(lines, own=True)
        if lines > 1:
            yield self._plain(lines, own=False)
        own = [place for place in range(len(self.raw)) if self._author(place) == self._author(self.at)]
        if len(own) < len(self.raw):
            # Ranks write between one another's parts.
            mine = Window([self.raw[at] for at in own], [self.numbers[at] for at in own], own.index(self.at))
            yield from mine._wrapped(lines)
        else:
            yield from self._wrapped(lines)

    def _wrapped(self, lines: int) -> Iterator[Variant]:
        seen: set[tuple[int, str]] = set()
        for joined, starts, firm in self._joined():
            for start in starts:
                made, at = self._logical(joined, start, lines)
                alone = all(each.places[0] == each.places[1] for each in made)
                key = (made[at].places[0], "\n".join(each.text for each in made))
                if alone or key in seen:
                    continue
                seen.add(key)
                yield Variant(made, at, firm)

    def near(self) -> str:
        """The text within ten lines of the hit."""
        low, high = max(0, self.at - NEAR), min(len(self.raw), self.at + NEAR + 1)
        return "\n".join(self.line(place).whole for place in range(low, high))

    def _author(self, place: int) -> str:
        """Who wrote a line: one without a prefix goes on that of the line before it."""
        if not self._authors:
            last = ""
            for each in range(len(self.raw)):
                last = self.line(each).author or last
                self._authors.append(last)
        return self._authors[place]

    def _plain(self, lines: int, *, own: bool) -> Variant:
        """Physical lines, by the hit's author or by all."""
        before: list[int] = []
        behind: list[int] = []
        for side, places in ((before, range(self.at - 1, -1, -1)), (behind, range(self.at + 1, len(self.raw)))):
            for place in places:
                if len(side) == lines - 1:
                    break
                if not own or self._author(place) == self._author(self.at):
                    side.append(place)
        chosen = [*reversed(before), self.at, *behind]
        made = []
        for place in chosen:
            line = self.line(place)
            made.append(Logical(line.number, line.number, line.text, line, (place, place)))
        return Variant(made, len(before), True)

    def _joined(self) -> Iterator[tuple[Callable[[int], str | None], Sequence[int], bool]]:
        """Ways to say whether a line goes on in the next one, and with what between them (None is no); where the
        joining may begin; and whether the width speaks for itself."""
        everything = [self.line(place) for place in range(len(self.raw))]
        tried: set[tuple[int, ...]] = set()
        measured = [[measure(line) for line in everything] for measure in _MEASURES]
        for sizes in measured:
            widest = max(sizes)
            near = sizes[max(0, self.at - 3) : self.at + 3]
            for width in dict.fromkeys([*sorted(near, reverse=True), widest]):
                firm = width in _COMMON or sizes.count(width) > 1
                full = tuple(place for place, size in enumerate(sizes) if size == width)
                if not (_LEAST_WIDE <= width <= _MOST_WIDE and (firm or width == widest)) or full in tried:
                    continue
                tried.add(full)
                yield lambda place, full=frozenset(full): "" if place in full else None, (0,), firm  # type: ignore[misc]
        # Words go to the next line as a whole. Many lines could do that, so as few as possible are put together.
        starts = range(self.at, max(0, self.at - 3) - 1, -1)
        for sizes in measured:
            for width in dict.fromkeys([max(sizes[max(0, self.at - 3) : self.at + 4]), max(sizes)]):
                if _LEAST_WIDE <= width <= _MOST_WIDE:
                    yield partial(self._word_wrapped, sizes, width), starts, False

    def _word_wrapped(self, sizes: list[int], width: int, place: int) -> str | None:
        following = self.line(place + 1).text.lstrip()
        word = following.partition(" ")[0]
        if not following or not sizes[place] or sizes[place] > width:
            return None
        return " " if sizes[place] + 1 + len(word) > width else None

    def _logical(self, joined: Callable[[int], str | None], begin: int, lines: int) -> tuple[list[Logical], int]:
        """The logical line of the hit, joined from a place on, among its neighbours, and its number."""
        hit = self._chain(joined, self.at, begin)
        before: list[Logical] = []
        place = hit.places[0] - 1
        while place >= 0 and len(before) < lines - 1:
            each = self._chain(joined, place, begin, until=place)
            before.append(each)
            place = each.places[0] - 1
        behind: list[Logical] = []
        place = hit.places[1] + 1
        while place < len(self.raw) and len(behind) < lines - 1:
            each = self._chain(joined, place, max(begin, place))
            behind.append(each)
            place = each.places[1] + 1
        return [*reversed(before), hit, *behind], len(before)

    def _chain(self, joined: Callable[[int], str | None], at: int, begin: int, until: int | None = None) -> Logical:
        """The physical lines around one that are joined with it."""
        start = end = at
        between: list[str] = []
        while start > begin and len(between) < _MOST_PARTS and (how := self._goes_on(joined, start - 1)) is not None:
            between.insert(0, how)
            start -= 1
        last = len(self.raw) - 1 if until is None else until
        while begin <= end < last and len(between) < _MOST_PARTS and (how := self._goes_on(joined, end)) is not None:
            between.append(how)
            end += 1
        return self._together(start, end, between)

    def _goes_on(self, joined: Callable[[int], str | None], place: int) -> str | None:
        """``joined``, but for lines that cannot: one with a time of its own is not the rest of another."""
        following = self.line(place + 1).stamp
        if following is not None and following != self.line(place).stamp:
            return None
        return joined(place)

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


def window(buffer: bytearray, size: int, start: int, end: int, number: int, around: int = AROUND) -> Window:
    """The physical lines around a hit.

    Args:
        size: How much of the buffer counts.
        start: Where the hit begins; ``end`` where it ends.
        number: The number of the line that the hit begins in.
        around: How many lines on either side.
    """
    low = _back(buffer, start, around)
    high = _forth(buffer, end, size, around)
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


def _back(buffer: bytearray, start: int, around: int) -> int:
    least = max(0, start - REACH)
    place = start
    for _ in range(around + 1):
        found = buffer.rfind(b"\n", least, place)
        if found < 0:
            return least if least else 0
        place = found
    return place + 1


def _forth(buffer: bytearray, end: int, size: int, around: int) -> int:
    most = min(size, end + REACH)
    place = end
    for _ in range(around + 1):
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
