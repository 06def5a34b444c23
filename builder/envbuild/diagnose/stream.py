"""One log, from its first byte to its last, in pieces: anchors are found, and matched where they stand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from envbuild.diagnose.library import TELLING, Library
from envbuild.diagnose.lines import plain
from envbuild.diagnose.matching import Match, excluded, goes_on, match
from envbuild.diagnose.progress import Course
from envbuild.diagnose.signature import Pattern, Signature
from envbuild.diagnose.text import shown
from envbuild.diagnose.windows import AROUND, REACH, Window, window
from envbuild.diagnose.wraps import Wraps

# Bytes that are searched at once. Larger ones leave the processor's cache, smaller ones cost calls.
PIECE = 1 << 20
# Of a signature in one log: so many matches from its start, and as many from its end, are kept.
KEPT = 12
# Of an anchor in one piece: so many places are looked at from its start, and one from its end.
PLACES = 24
# After so many places of an anchor in one log, only the last one of each piece is looked at, and not for wraps. At the
# end of the log, where the failure is, everything counts again.
MOST_PLACES = 200
# Lines on either side that are enough where nothing is wrapped.
_FEW = 14
_TELLING = {literal.encode(): literal for literal in TELLING}


class Readable(Protocol):
    """Something that fills a buffer; see ``inputs.Stream``."""

    def read_into(self, buffer: bytearray, at: int) -> int:
        """Fill the buffer from a place on; returns how many bytes there are, 0 at the end."""


@dataclass
class Read:
    """What was found in one log.

    Attributes:
        counts: How often each signature was seen, a lower bound in floods.
        telling: Place of each telling line: (line number, text), the first and the last of each literal.
        lasts: Offset of the last place of each literal of ``until``.
        end: The last lines.
        size: Bytes of it, unpacked.
        interrupted: Ctrl-C ended the reading.
    """

    name: str
    matches: list[Match] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    course: Course = field(default_factory=Course)
    telling: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    lasts: dict[bytes, int] = field(default_factory=dict)
    end: list[tuple[int, str]] = field(default_factory=list)
    size: int = 0
    interrupted: bool = False


@dataclass
class Reader:
    """Reads one log."""

    library: Library
    number: int
    name: str
    rank: int | None = None
    piece: int = PIECE
    told: Callable[[int], None] = lambda size: None
    _tried: Counter[bytes] = field(default_factory=Counter)
    _seen: set[tuple[int, int, str]] = field(default_factory=set)
    _first: dict[str, list[Match]] = field(default_factory=lambda: defaultdict(list))
    _last: dict[str, list[Match]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._wraps = Wraps(self.library)
        self._pieces = 0
        self._line_ends = 0  # line ends before the next piece's buffer
        self._counted: set[str] = set()  # kinds whose flood has been counted in this piece

    def read(self, stream: Readable) -> Read:
        """Read it to its end."""
        done = Read(self.name)
        buffer = bytearray(2 * REACH + self.piece)
        kept = 0  # bytes at the start of the buffer that were read before
        low = 0  # hits before this place have been looked at
        base = 0  # offset in the log of the buffer's first byte
        newlines = 0  # line ends before the buffer
        while True:
            size, ended = kept, False
            try:
                while size < len(buffer) and not ended:
                    got = stream.read_into(buffer, size)
                    size, ended = size + got, not got
                high = size if ended else max(low, size - REACH)
                self._look(done, buffer, size, low, high, base, newlines, last=ended)
            except KeyboardInterrupt:
                # Whoever ends a stream that does not end by itself wants to know what was in it.
                if not base + size:
                    raise
                high, ended, done.interrupted = size, True, True
                self._look(done, buffer, size, low, high, base, newlines, last=True)
            done.course.sample(buffer, low, high, base)
            done.size = base + size
            self.told(done.size)
            if ended:
                done.course.finish(buffer, size, base)
                self._end(done, buffer, size, newlines)
                break
            keep = min(size, 2 * REACH)
            newlines = self._line_ends
            base += size - keep
            low = high - (size - keep)
            buffer[:keep] = buffer[size - keep : size]
            kept = keep
        for kind, matches in self._first.items():
            done.matches += matches + self._last.get(kind, [])
        return done

    def _look(
        self, done: Read, buffer: bytearray, size: int, low: int, high: int, base: int, newlines: int, *, last: bool
    ) -> None:
        """Everything whose first byte lies between two places of the buffer."""
        # Line ends are counted once: for the hits, and on from there for the next piece.
        if high <= low:
            self._line_ends = newlines + buffer.count(b"\n", 0, max(0, size - 2 * REACH))
            return
        literals = self.library.literals
        self._counted.clear()
        self._pieces += 1
        wrapped, split = self._wraps.places(buffer, size, low, high, last=last)
        places: list[tuple[int, int, bytes]] = []
        for number in self.library.find(buffer, size):
            literal = literals[number]
            places += [(at, at + len(literal), literal) for at in self._places(done, buffer, literal, low, high, last)]
        places += split
        places.sort()
        # The next piece's buffer begins here.
        border = max(0, size - 2 * REACH)
        line, counted = newlines, 0
        for start, end, literal in [*places, (size, size, b"")]:
            if counted <= border <= start:
                line += buffer.count(b"\n", counted, border)
                self._line_ends, counted = line, border
            if literal:
                line += buffer.count(b"\n", counted, start)
                counted = start
                self._hit(done, buffer, size, start, end, literal, line + 1, base, wrapped=wrapped, last=last)

    def _places(self, done: Read, buffer: bytearray, literal: bytes, low: int, high: int, final: bool) -> list[int]:
        """Where a literal stands: the first places, and the last."""
        limit = high + len(literal) - 1
        last = buffer.rfind(literal, low, limit)
        if last < 0:
            return []
        anchored = self.library.anchors.get(literal, ())
        most = PLACES if anchored else 1
        if self._tried[literal] >= MOST_PLACES or (
            anchored and all(len(self._first[signature.kind]) >= KEPT for signature, _ in anchored)
        ):
            most = 0
        found: list[int] = []
        at = buffer.find(literal, low, limit)
        while at >= 0 and len(found) < most:
            found.append(at)
            at = buffer.find(literal, at + 1, limit)
        if at >= 0 and last not in found:
            # More than what is looked at: the rest is only counted.
            seen = {signature.kind for signature, _ in anchored if self._first[signature.kind]} - self._counted
            rest = buffer.count(literal, at, limit) - 1 if seen else 0
            self._counted |= seen
            for kind in seen:
                done.counts[kind] += rest
            found.append(last)
        self._tried[literal] += len(found)
        return found

    def _hit(
        self, done: Read, buffer: bytearray, size: int, start: int, end: int, literal: bytes, line: int, base: int,
        *, wrapped: bool, last: bool,
    ) -> None:  # fmt: skip
        if literal in self.library.untils:
            done.lasts[literal] = base + start
        anchored = self.library.anchors.get(literal, ())
        telling = _TELLING.get(literal)
        if not anchored and not telling:
            return
        many = self._tried[literal] > MOST_PLACES and not last
        around = window(buffer, size, start, end, line, _FEW if many else AROUND)
        if telling:
            _note(done.telling[telling], line, _telling(around, telling))
        for signature, pattern in anchored:
            self._match(done, signature, pattern, around, base + start, wrapped=wrapped and not many)

    def _match(
        self, done: Read, signature: Signature, pattern: Pattern, around: Window, offset: int, *, wrapped: bool
    ) -> None:
        found = match(signature, pattern, around, wrapped=wrapped)
        if found is None:
            return
        hit, logical = found
        head = logical[0]
        # Several anchors, and several patterns of a signature, lead to the same line.
        key = (head.first, hit.start() if head.first == logical[-1].first else 0, signature.kind)
        if key in self._seen:
            return
        if len(self._seen) < 100_000:
            self._seen.add(key)
        if excluded(signature, pattern, around):
            return
        # It is lines that are counted, and two patterns may find two places in one.
        line = (head.first, -1, signature.kind)
        if line not in self._seen:
            done.counts[signature.kind] += 1
        if len(self._seen) < 100_000:
            self._seen.add(line)
        made = Match(
            signature=signature,
            pattern=pattern,
            captures={name: value for name, value in hit.groupdict().items() if value is not None},
            log=self.number,
            name=self.name,
            offset=offset,
            first=head.first,
            last=logical[-1].last,
            lines=tuple((each.first, each.text) for each in logical),
            author=head.line.author,
            rank=head.line.rank if head.line.rank is not None else self.rank,
            stamp=next((each.line.stamp for each in logical if each.line.stamp is not None), None),
            quiet=head.line.quiet,
            handled=goes_on(around, logical[-1].last),
        )
        first, last = self._first[signature.kind], self._last[signature.kind]
        if len(first) < KEPT:
            first.append(made)
        else:
            last.append(made)
            del last[:-KEPT]

    def _end(self, done: Read, buffer: bytearray, size: int, newlines: int) -> None:
        start = max(0, size - REACH)
        number = newlines + 1 + buffer.count(b"\n", 0, start)
        lines = bytes(buffer[start:size]).split(b"\n")
        if len(lines) > 1 and start:
            # Its beginning lies before what is looked at.
            del lines[0]
            number += 1
        for raw in lines:
            text = shown(plain(raw.rstrip(b"\r").rpartition(b"\r")[2][-400:]))
            if text:
                done.end.append((number, text))
            number += 1
        del done.end[:-6]


def _note(places: list[tuple[int, str]], line: int, text: str) -> None:
    """Keep the first and the last."""
    if places and places[-1][0] >= line:
        return
    del places[1:]
    places.append((line, text))


def _telling(around: Window, literal: str) -> str:
    """What the line says; of a traceback its last line."""
    hit = around.hit
    if not literal.startswith("Traceback"):
        return hit.text
    for place in range(around.at + 1, len(around.raw)):
        line = around.line(place)
        if line.author in (hit.author, "") and line.text and not line.text[0].isspace():
            return line.text
    return hit.text
