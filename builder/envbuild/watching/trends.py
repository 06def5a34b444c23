"""Memory and disks that run out: the trend with its confidence, so that a warning comes before the kill."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, median

from envbuild.watching.types import Alert, Memory, Tick

# Mann-Kendall's test wants ten values for its normal approximation; a training's first samples are its own making.
LEAST = 12
_KEPT = 120
_Z = NormalDist().inv_cdf(0.999)
_LOW = 0.05
# Of what the training has: less is no leak that anybody would feel within the horizon.
_GROWN = 0.02
# Nobody knows what comes after more than so many times of what was seen.
_FAR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Growth per second by Theil and Sen, with bounds of 99.8 %."""

    middle: float
    low: float
    high: float


def slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    """The trend of a series; None of fewer than ``LEAST`` points.

    Neighbours are correlated, so every block of a twelfth of the series counts as one point, by its median.
    """
    if len(points) < LEAST:
        return None
    size = len(points) // LEAST
    blocks = [points[at : at + size] for at in range(len(points) - LEAST * size, len(points), size)]
    middles = [(median(at for at, _ in block), median(value for _, value in block)) for block in blocks]
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(middles, 2) if b[0] > a[0])
    if not slopes:
        return None
    count = len(middles)
    # Sen (1968): the bounds are order statistics of the slopes, from the variance of Kendall's S.
    width = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(slopes) - width) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + width) / 2))
    return Slope(middle=median(slopes), low=slopes[low], high=slopes[high])


class Memories:
    """Hears every tick; warns of each memory once, before it is full.

    Args:
        horizon: Seconds before the end from which on a trend is told.
    """

    def __init__(self, horizon: float = 3600.0) -> None:
        self._horizon = horizon
        self._series: dict[str, deque[tuple[float, float]]] = {}
        self._told: set[tuple[str, str]] = set()

    def see(self, tick: Tick) -> list[Alert]:
        """One tick later; before the first step everything grows, and nothing is a trend."""
        found = []
        for memory in tick.memories:
            series = self._series.setdefault(memory.name, deque(maxlen=_KEPT))
            if tick.steps or any(rank.step for rank in tick.ranks):
                series.append((tick.at, float(memory.used)))
            if alert := self._low(tick, memory) or self._creep(tick, memory, list(series)):
                key = (alert.kind, memory.name)
                if key not in self._told:
                    self._told.add(key)
                    found.append(alert)
        return found

    def _low(self, tick: Tick, memory: Memory) -> Alert | None:
        if memory.filled or memory.left >= _LOW * memory.limit:
            return None
        return Alert(
            kind="memory-low", severity="error", at=tick.at,
            message=f"{memory.name}: {size(memory.left)} of {size(memory.limit)} are left",
            evidence=(f"the training has {size(memory.used)}",),
        )  # fmt: skip

    def _creep(self, tick: Tick, memory: Memory, series: list[tuple[float, float]]) -> Alert | None:
        found = slope(series)
        if found is None or found.low <= 0:
            return None
        # Growth that has ended is a cache that is full: the last third has to grow as well.
        last = slope(series[-max(LEAST, len(series) // 3) :])
        span = series[-1][0] - series[0][0]
        if last is None or last.low <= 0 or found.middle * span < _GROWN * memory.used:
            return None
        left = memory.left / found.middle
        if left > min(self._horizon, _FAR * span):
            return None
        soonest, latest = memory.left / found.high, memory.left / found.low
        return Alert(
            kind="memory-creep", severity="warning", at=tick.at,
            message=f"{memory.name} grows by {size(found.middle * 60)} a minute: full in about {span_of(left)}",
            evidence=(
                f"{size(memory.used)} used, {size(memory.left)} left; from {size(series[0][1])} {span_of(span)} ago",
                f"between {span_of(soonest)} and {span_of(latest)} with a confidence of 99.8 %",
            ),
        )  # fmt: skip


class Disks:
    """The disk under an offload: how full it is, and whether the CPUs wait for it."""

    def __init__(self, horizon: float = 3600.0) -> None:
        self._inner = Memories(horizon)
        self._waits: deque[tuple[float, bool]] = deque(maxlen=6)
        self._told = False

    def see(self, tick: Tick, free: Memory | None) -> list[Alert]:
        """One tick later; ``free`` is the swap folder's file system."""
        found = []
        if free is not None:
            seen = Tick(at=tick.at, ranks=tick.ranks, steps=tick.steps, memories=(free,))
            for alert in self._inner.see(seen):
                kind = alert.kind.replace("memory", "disk")
                found.append(Alert(kind=kind, severity=alert.severity, message=alert.message, at=alert.at,
                                   evidence=alert.evidence))  # fmt: skip
        if tick.iowait is None:
            return found
        held = any(rank.state == "D" for rank in tick.ranks)
        self._waits.append((tick.iowait, held))
        if len(self._waits) == self._waits.maxlen and not self._told:
            share = median(wait for wait, _ in self._waits)
            stuck = sum(held for _, held in self._waits)
            if share >= 0.3 and stuck >= 3:
                self._told = True
                found.append(
                    Alert(
                        kind="disk-pressure", severity="warning", at=tick.at,
                        message=f"the disk holds the training back: CPUs wait for it {share:.0%} of their time",
                        evidence=(f"a rank was blocked by a disk in {stuck} of {len(self._waits)} looks",),
                    )
                )  # fmt: skip
        return found


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def span_of(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
