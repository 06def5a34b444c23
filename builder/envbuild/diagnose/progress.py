"""What training prints as it goes on, and when it has ended well."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# How much of the end of each piece of a log is looked at, and of the whole log's (bytes).
SAMPLE = 2048
TAIL = 1 << 18

_PROGRESS = re.compile(
    rb"(?i)(?:\b(?:global[_ ])?step(?:s)?\b['\"]?[ =:#]{1,3}(?P<step>\d{1,9})|"
    rb"\biter(?:ation)?[ =:#]{1,12}(?P<iter>\d{1,9})|"
    rb"'loss': ?(?P<loss>[-\d.]+).{0,200}?'epoch': ?(?P<epoch>[\d.]+)|"
    rb"\| *(?P<bar>\d{1,9})/\d{1,9} \[[\d:]+<[\d:?]+, +[\d.?]+ ?(?:s/it|it/s))"
)
_LOADS = re.compile(
    rb"(?i)loading|download|\bmap\b|tokeniz|fetching|generating|preprocess|filter|upload|checkpoint shards"
)
_ENDED = re.compile(
    rb"(?im)\btraining (?:is )?(?:completed?|finished|done|succeeded)\b|\bfinished training\b|'train_runtime'|"
    rb"train_runtime *=|\bexits successfully\b|"
    # pytest, where nothing has failed.
    rb"^=* ?\d+ passed(?:, \d+ (?:skipped|deselected|xfailed|xpassed|warnings?))* in [\d.]+s"
)


@dataclass
class Course:
    """How the training of one log went: where it made progress, and where it said that it has ended well (offsets)."""

    points: list[tuple[int, float]] = field(default_factory=list)
    ended: int = -1

    def sample(self, buffer: bytearray, low: int, high: int, base: int) -> None:
        """Look at the end of a piece; ``base`` is the offset of the buffer in the log."""
        start = max(low, high - SAMPLE)
        # From the next line on: a cut line could be anything.
        start = max(start, buffer.find(b"\n", start, high) + 1)
        self._take(bytes(buffer[start:high]), base + start, 1)

    def finish(self, buffer: bytearray, size: int, base: int) -> None:
        """Look at the end of the log."""
        start = max(0, size - TAIL)
        self.points = [point for point in self.points if point[0] < base + start]
        tail = bytes(buffer[start:size])
        self._take(tail, base + start, 2000)
        ends = [found.start() for found in _ENDED.finditer(tail)]
        self.ended = base + start + ends[-1] if ends else -1

    def _take(self, text: bytes, base: int, most: int) -> None:
        taken: list[tuple[int, float]] = []
        for found in _PROGRESS.finditer(text):
            line = text.rfind(b"\n", 0, found.start()) + 1
            if _LOADS.search(text, max(line, found.start() - 200), found.start()):
                continue
            number = next((each for each in found.groups() if each), b"0")
            try:
                taken.append((base + found.start(), float(number)))
            except ValueError:
                continue
        self.points += taken[-most:]

    def went_on(self, offset: int) -> bool:
        """Whether training began after this place, and made its steps: then it was not this that kept it from it.

        Progress before and after may be anything: other ranks that wrote a little longer, or a second attempt.
        """
        behind = [number for place, number in self.points if place > offset]
        before = any(place < offset for place, _ in self.points)
        steps = [number for number in behind if number]
        return not before and len(behind) >= 5 and steps == sorted(steps)

    def began_after(self, offset: int) -> bool:
        """Whether there is progress after this place, and none before."""
        places = [place for place, _ in self.points]
        return bool(places) and min(places) > offset

    def ended_well(self, offset: int) -> bool:
        """Whether the log says after this place that training is complete."""
        return self.ended > offset
