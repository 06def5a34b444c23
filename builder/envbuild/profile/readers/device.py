"""What a GPU did, gathered from a trace: kernels, collectives and copies, then cut into steps."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from envbuild.profile.bandwidth import bus_bandwidth
from envbuild.profile.figures import Collective, Direction, Steps
from envbuild.profile.readers.intervals import Stretches, within, without

_KERNEL = re.compile(r"nccl\w*Kernel\w*?_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll\w*)")
_OPS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "SendRecv": "send_recv",
}  # fmt: skip


@dataclass(slots=True)
class Told:
    """Collectives of one kind and size."""

    count: int = 0
    seconds: float = 0.0
    bytes: int | None = 0


@dataclass(slots=True)
class Device:
    """One process's device; times in seconds on the trace's own axis."""

    compute: Stretches = field(default_factory=Stretches)
    communication: Stretches = field(default_factory=Stretches)
    copies: dict[Direction, Stretches] = field(default_factory=lambda: {"h2d": Stretches(), "d2h": Stretches()})
    sizes: dict[Direction, tuple[array[float], array[int]]] = field(default_factory=dict)
    collectives: dict[tuple[str, int | None, int | None], Told] = field(default_factory=dict)

    @property
    def used(self) -> bool:
        """Whether there is anything of a GPU in the trace."""
        return bool(len(self.compute) or any(len(each) for each in self.copies.values()))

    def kernel(self, name: str, begin: float, end: float) -> str | None:
        """A kernel; the collective that it is, if it is one."""
        if "nccl" in name or "rccl" in name:
            self.communication.add(begin, end)
            return op_of(name)
        self.compute.add(begin, end)
        return None

    def copy(self, direction: Direction, begin: float, end: float, size: int | None) -> None:
        """A copy between host and device."""
        self.copies[direction].add(begin, end)
        if size is not None:
            begins, sizes = self.sizes.setdefault(direction, (array("d"), array("q")))
            begins.append(begin)
            sizes.append(size)

    def collective(self, op: str, seconds: float, size: int | None, ranks: int | None) -> None:
        """One collective; of so many ranks and bytes, where that is known."""
        told = self.collectives.setdefault((op, size, ranks), Told())
        told.count += 1
        told.seconds += seconds
        told.bytes = None if size is None or told.bytes is None else told.bytes + size

    def rows(self) -> tuple[Collective, ...]:
        """The collectives."""
        found = []
        for (op, size, ranks), told in sorted(self.collectives.items(), key=lambda each: (each[0][0], each[0][1] or 0)):
            speed = bus_bandwidth(op, told.bytes or 0, told.seconds, ranks or 0)
            found.append(
                Collective(
                    op=op, count=told.count, bytes=told.bytes, message_bytes=size, group_size=ranks,
                    seconds=told.seconds, time="measured", bus_bandwidth=speed,
                    bandwidth="computed" if speed is not None else None,
                )
            )  # fmt: skip
        return tuple(found)

    def _moved(self, spans: Sequence[tuple[float, float]]) -> dict[str, tuple[int, ...]]:
        columns: dict[str, list[int]] = {direction: [0] * len(spans) for direction in self.copies}
        starts = [begin for begin, _ in spans]
        for direction, (begins, sizes) in self.sizes.items():
            for begin, size in zip(begins, sizes, strict=True):
                place = bisect_right(starts, begin) - 1
                if place >= 0 and begin < spans[place][1]:
                    columns[direction][place] += size
        return {direction: tuple(column) for direction, column in columns.items()}

    def steps(self, named: Sequence[tuple[int, float, float]], waits: Stretches, optimizer: Stretches) -> Steps:
        """The columns of steps whose number, begin and end are known."""
        spans = [(begin, end) for _, begin, end in named]
        first = spans[0][0]
        inside: dict[str, tuple[float, ...]] = {}
        moved: dict[str, tuple[int, ...]] = {}
        busy, talking = self.compute.united(), self.communication.united()
        if talking or self.used:
            inside["communication"] = _column(within(talking, spans))
        if self.used:
            # On a CPU nobody knows what is computed meanwhile, nor what is copied: no figure, and no 0.
            inside["compute"] = _column(within(busy, spans))
            inside["exposed_communication"] = _column(within(without(talking, busy), spans))
            for direction, stretches in self.copies.items():
                inside[direction] = _column(within(stretches.united(), spans))
            moved = self._moved(spans)
        if len(optimizer):
            inside["optimizer_kernel"] = _column(within(optimizer.united(), spans))
        return Steps(
            number=tuple(number for number, _, _ in named), at=tuple(begin - first for begin, _ in spans),
            seconds=tuple(max(0.0, end - begin) for begin, end in spans),
            parts={"data_wait": _column(within(waits.united(), spans))} if len(waits) else {},
            inside=inside, moved=moved,  # type: ignore[arg-type]
        )  # fmt: skip


def op_of(name: str) -> str:
    """The collective's name, from that of NCCL's kernel."""
    found = _KERNEL.search(name)
    return _OPS.get(found[1], "all_to_all") if found else "collective"


def _column(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(value if math.isfinite(value) else 0.0 for value in values)
