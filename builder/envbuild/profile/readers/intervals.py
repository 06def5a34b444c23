"""Stretches of time: united, cut into steps, and taken from one another. In bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from envbuild.errors import InputError

# Of 16 bytes each, and five times that while they are put in order: 20,000 kernels in each of 200 steps.
MOST = 4_000_000


class Stretches:
    """Begin and end of many events of one kind."""

    def __init__(self) -> None:
        self._begins = array("d")
        self._ends = array("d")

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: float, end: float) -> None:
        """One event.

        Raises:
            InputError: There are too many to hold.
        """
        if len(self._begins) >= MOST:
            raise InputError(
                f"more than {MOST:,} events of one kind",
                hint="Trace fewer steps: a handful tells as much as a thousand.",
            )
        self._begins.append(begin)
        self._ends.append(end)

    def united(self) -> list[tuple[float, float]]:
        """Without overlap, in order."""
        found: list[tuple[float, float]] = []
        order = sorted(range(len(self._begins)), key=self._begins.__getitem__)
        for place in order:
            begin, end = self._begins[place], self._ends[place]
            if found and begin <= found[-1][1]:
                if end > found[-1][1]:
                    found[-1] = (found[-1][0], end)
            elif end > begin:
                found.append((begin, end))
        return found


def within(stretches: Sequence[tuple[float, float]], steps: Sequence[tuple[float, float]]) -> list[float]:
    """How much of each step the stretches, united, cover."""
    begins = [begin for begin, _ in stretches]
    found = []
    for start, stop in steps:
        place = max(0, bisect_right(begins, start) - 1)
        covered = 0.0
        while place < len(stretches) and stretches[place][0] < stop:
            covered += max(0.0, min(stop, stretches[place][1]) - max(start, stretches[place][0]))
            place += 1
        found.append(covered)
    return found


def without(
    stretches: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """What of the stretches, united, no other one covers."""
    found = []
    place = 0
    for begin, end in stretches:
        while place < len(others) and others[place][1] <= begin:
            place += 1
        at, look = begin, place
        while look < len(others) and others[look][0] < end:
            if others[look][0] > at:
                found.append((at, others[look][0]))
            at = max(at, others[look][1])
            look += 1
        if at < end:
            found.append((at, end))
    return found
