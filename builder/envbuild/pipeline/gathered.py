"""What the ranks of several nodes have said, as if one program had: one list of lines, on one time axis. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.pipeline.measured import of_kind
from envbuild.profile.document import Node

Line = dict[str, Any]
Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All of it.

    Attributes:
        nodes: In the order of their first ranks.
        notes: What a reader of its times should know.
    """

    lines: list[Line]
    nodes: tuple[Node, ...]
    notes: tuple[str, ...]


def gather(said: Mapping[int, Sequence[Line]]) -> Gathered:
    """Put the lines of every rank together.

    Args:
        said: The lines that each rank's program has printed, by the rank.
    """
    names = {rank: _node(lines, rank) for rank, lines in sorted(said.items())}
    order = list(dict.fromkeys(names.values()))
    nodes = tuple(_clocks(said, names, order))
    found: list[Line] = []
    for rank, lines in sorted(said.items()):
        place = order.index(names[rank])
        ahead = nodes[place].clock_ahead or 0.0
        found += [
            {**_moved(line, ahead), "node": place, "of": rank}
            for line in lines
            if line["kind"] not in ("launch", "end", "clock")
        ]
    together = [line for _, lines in sorted(said.items()) for line in lines]
    found += [dict(line) for line in of_kind(together, "launch")[:1]]
    ends = of_kind(together, "end")
    found += [_end(ends)] if ends else []
    return Gathered(lines=found, nodes=nodes, notes=tuple(_notes(nodes)))


def _node(lines: Sequence[Line], rank: int) -> str:
    launch = next(iter(of_kind(lines, "launch")), {})
    return str(launch.get("node") or f"the node of rank {rank}")


def _moved(line: Line, ahead: float) -> Line:
    """A line whose times are the first node's."""
    return {**line, **{name: line[name] - ahead for name in ("at", "started", "ended") if line.get(name) is not None}}


def _end(ends: Sequence[Mapping[str, Any]]) -> Line:
    """How it ended, all together."""
    reasons = [str(end["gpus"]) for end in ends if end.get("gpus")]
    error = next((end["error"] for end in ends if end.get("error")), None)
    return {
        "kind": "end",
        "timed_out": any(end.get("timed_out") for end in ends),
        "ranks_started": len(ends),
        "ranks": [rank for end in ends for rank in end.get("ranks") or ()],
        "transports": sorted({each for end in ends for each in end.get("transports") or ()}),
        "gpus": reasons[0] if reasons else None,
        "error": error,
    }


def _clocks(said: Mapping[int, Sequence[Line]], names: Mapping[int, str], order: Sequence[str]) -> Iterator[Node]:
    """Each node's clock against the first one's: before the first step, and how that has changed behind the last."""
    rounds = {rank: [line["rounds"] for line in of_kind(lines, "clock")] for rank, lines in said.items()}
    zero = next((rank for rank in sorted(said) if names[rank] == order[0]), None)
    for name in order:
        if zero is not None and name == names[zero]:
            yield Node(name=name, clock_ahead=0.0, clock_error=0.0)
            continue
        own = [rank for rank in said if names[rank] == name]
        times = [
            bounds
            for when in range(2)
            if (bounds := _bounds([(rounds[rank], rounds[zero]) for rank in own] if zero is not None else [], when))
        ]
        if not times:
            yield Node(name=name)
            continue
        ahead = sum(times[0]) / 2
        error = max(abs(bound - ahead) for bounds in times for bound in bounds)
        yield Node(name=name, clock_ahead=round(ahead, 7), clock_error=round(error, 7))


def _bounds(pairs: Sequence[tuple[Sequence[Rounds], Sequence[Rounds]]], when: int) -> tuple[float, float] | None:
    """Between what and what a clock is ahead.

    A collective is left by nobody before everybody is in: ``left - ahead >= entered`` for its own leaving and the
    other's entering, and the other way round. Each round gives two bounds, and all of them hold.
    """
    low, high = float("-inf"), float("inf")
    for own, other in pairs:
        if len(own) <= when or len(other) <= when:
            continue
        for (entered, left), (other_entered, other_left) in zip(own[when], other[when], strict=False):
            low, high = max(low, entered - other_left), min(high, left - other_entered)
    if high == float("inf"):
        return None
    # Clocks that were set between two rounds contradict one another; the middle is as good as anything then.
    return min(low, high), max(low, high)


def _notes(nodes: Sequence[Node]) -> Iterator[str]:
    others = nodes[1:]
    if any(node.clock_ahead is None for node in others):
        yield "the clocks of the nodes could not be compared: each node's times are on its own axis"
    elif others:
        apart = max(abs(node.clock_ahead or 0.0) for node in others)
        error = max(node.clock_error or 0.0 for node in others)
        yield (
            f"{len(nodes)} nodes on the first one's time axis: their clocks were up to {apart * 1000:.3g} ms apart, "
            f"known to {error * 1000:.3g} ms"
        )
