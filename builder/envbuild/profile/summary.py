"""The figures that people ask of a measurement: step times, what a step is made of, collectives, utilisation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import TypeVar, get_args

from envbuild.profile.document import Launch, Measurement, Pass
from envbuild.profile.figures import Collective, Inside, Kind, Part, Rank

PARTS: tuple[Part, ...] = get_args(Part)
# A pass that disturbs the step less goes first.
_PASSES: tuple[Pass, ...] = ("timing", "trace", "comms", "parity")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One piece of a step: its median time, and its share of the median step."""

    name: str
    seconds: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Collectives added up; a sum lacks what one of its rows lacks.

    Attributes:
        time, bandwidth: How far the figures can be trusted, in the words of the rows.
        bus_bandwidth: The mean, weighted by time.
    """

    count: int
    bytes: int | None
    seconds: float | None
    time: str | None
    bus_bandwidth: float | None
    bandwidth: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of collective in one pass, over its launches and ranks.

    Attributes:
        steps: Those that it was counted over, of all ranks together.
    """

    op: str
    pass_: Pass
    steps: int
    sums: Sums


def counted(launch: Launch, column: Sequence[float | None]) -> list[float]:
    """A column's values behind the warm-up, those that there are."""
    return [each for each in column[launch.warmup :] if each is not None]


def step_seconds(launch: Launch) -> list[float]:
    """Each step's wall time: that of its slowest rank, which the others wait for."""
    columns = [rank.steps.seconds for rank in launch.ranks if rank.steps.seconds]
    if not columns:
        return []
    known = [[each for each in row if each is not None] for row in zip(*columns, strict=False)]
    return [max(row) for row in known[launch.warmup :] if row]


def launch_seconds(launch: Launch) -> float | None:
    """The launch's median step."""
    steps = step_seconds(launch)
    return median(steps) if steps else None


def timed(measurement: Measurement) -> list[Launch]:
    """Launches whose step times count: those of the timing pass, else of any other that has some."""
    found = [launch for launch in measurement.launches if step_seconds(launch)]
    return [launch for launch in found if launch.pass_ == "timing"] or found


def step_median(measurement: Measurement) -> float | None:
    """The median of the launches' medians."""
    values = [value for launch in timed(measurement) if (value := launch_seconds(launch)) is not None]
    return median(values) if values else None


def step_mean(launches: Sequence[Launch]) -> float | None:
    """The mean step of launches: what the means of its pieces are shares of."""
    steps = [seconds for launch in launches for seconds in step_seconds(launch)]
    return fmean(steps) if steps else None


def shares(measurement: Measurement) -> list[Share]:
    """What a step is made of, by the mean of the ranks and steps; what no part covers is ``other``.

    Means, because they add up, and because a checkpoint or a slow batch is in few steps. A step's wall time holds every
    part, waiting for data too: nothing is added to it.
    """
    launches = timed(measurement) or list(measurement.launches)
    whole = step_mean(launches)
    found = []
    for part in PARTS:
        values = [value for launch in launches for value in ranks_part(launch, part).values()]
        if values:
            seconds = fmean(values)
            found.append(Share(name=part, seconds=seconds, share=seconds / whole if whole else None))
    if whole is not None and found:
        other = max(0.0, whole - sum(each.seconds for each in found))
        found.append(Share(name="other", seconds=other, share=other / whole if whole else None))
    return found


def ranks_part(launch: Launch, part: Part) -> dict[int, float]:
    """Mean of a part, by rank: a checkpoint is in few steps, and its median would be none."""
    return {
        rank.rank: fmean(values) for rank in launch.ranks if (values := counted(launch, rank.steps.parts.get(part, ())))
    }


def inside(measurement: Measurement, name: Inside) -> Share | None:
    """Mean seconds a step of what happens inside the parts, and the share of the step of the same pass.

    A pass that waits for every collective has longer steps, so its figures are no shares of another pass's step.
    """
    by_rank = ranks_inside(measurement, name)
    if not by_rank:
        return None
    launches = holding(measurement, name)
    # In a collective an early rank waits for the last one: the time of the one that waits least is the network's.
    waits = name in ("communication", "exposed_communication")
    seconds = min(by_rank.values()) if waits else fmean(by_rank.values())
    whole = step_mean(launches)
    return Share(name=name, seconds=seconds, share=seconds / whole if whole else None)


def ranks_inside(measurement: Measurement, name: Inside) -> dict[int, float]:
    """Mean seconds a step, by rank, in the first pass that has the figure."""
    columns: dict[int, list[float]] = {}
    for launch in holding(measurement, name):
        for rank in launch.ranks:
            columns.setdefault(rank.rank, []).extend(counted(launch, rank.steps.inside.get(name, ())))
    return {rank: fmean(values) for rank, values in columns.items() if values}


def holding(measurement: Measurement, name: Inside) -> list[Launch]:
    """The launches of one pass that have the figure; a pass that disturbs less goes first."""
    for wanted in _PASSES:
        found = [
            launch
            for launch in measurement.launches
            if launch.pass_ == wanted and any(rank.steps.inside.get(name) for rank in launch.ranks)
        ]
        if found:
            return found
    return []


def traffic(measurement: Measurement) -> list[Traffic]:
    """Collectives by operation and pass: each pass makes all of them again, so two are never added up."""
    steps: dict[tuple[str, Pass], int] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            for op in {each.op for each in rank.collectives}:
                key = (op, launch.pass_)
                # A training that was killed has more steps than its collectives were counted over.
                own = launch.structure.steps or max(0, len(rank.steps.number) - launch.warmup)
                steps[key] = steps.get(key, 0) + own
    groups = grouped(measurement, lambda launch, rank, each: (each.op, launch.pass_))
    return [Traffic(op=op, pass_=name, steps=steps[op, name], sums=sums) for (op, name), sums in sorted(groups.items())]


def busiest(measurement: Measurement) -> dict[str, Traffic]:
    """The traffic by operation: of the pass that has its times, else of the one that disturbs the step least."""
    found: dict[str, Traffic] = {}
    order = {name: place for place, name in enumerate(_PASSES)}
    for each in sorted(traffic(measurement), key=lambda one: (one.sums.seconds is None, order[one.pass_])):
        found.setdefault(each.op, each)
    return found


def grouped(measurement: Measurement, by: Callable[[Launch, Rank, Collective], _Key]) -> dict[_Key, Sums]:
    """Collectives added up by whatever a caller wants to tell apart."""
    groups: dict[_Key, list[Collective]] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            for each in rank.collectives:
                groups.setdefault(by(launch, rank, each), []).append(each)
    return {key: _sums(rows) for key, rows in groups.items()}


def _sums(rows: Sequence[Collective]) -> Sums:
    times = [each.seconds for each in rows if each.seconds is not None]
    sizes = [each.bytes for each in rows if each.bytes is not None]
    speeds = [(each.bus_bandwidth, each.seconds or 1.0) for each in rows if each.bus_bandwidth is not None]
    weight = sum(seconds for _, seconds in speeds)
    return Sums(
        count=sum(each.count for each in rows),
        bytes=sum(sizes) if len(sizes) == len(rows) else None,
        seconds=sum(times) if len(times) == len(rows) else None,
        time=_words({each.time for each in rows}),
        bus_bandwidth=sum(speed * seconds for speed, seconds in speeds) / weight if weight else None,
        bandwidth=_words({each.bandwidth for each in rows}),
    )


def _words(words: set[str | None]) -> str | None:
    return ", ".join(sorted(each for each in words if each)) or None


def series_means(measurement: Measurement, kind: Kind) -> list[float]:
    """The mean of each sampled series of a kind: one for each GPU, node or process."""
    return [
        fmean(values)
        for launch in measurement.launches
        for series in launch.samples.series
        if series.kind == kind and (values := [each for each in series.values if each is not None])
    ]


def spread_over_ranks(values: Sequence[float]) -> float | None:
    """Standard deviation over ranks; None of fewer than two."""
    return pstdev(values) if len(values) > 1 else None


def tokens_per_second(measurement: Measurement) -> float | None:
    """Of all ranks together."""
    seconds = step_median(measurement)
    tokens = {launch.tokens_per_step for launch in timed(measurement)} - {None}
    return (tokens.pop() or 0) / seconds if len(tokens) == 1 and seconds else None


def startup_seconds(measurement: Measurement) -> float | None:
    """The slowest start of the communication."""
    found = [each.communication.startup_seconds for each in measurement.launches]
    return max((each for each in found if each is not None), default=None)


def transports(measurement: Measurement) -> frozenset[str]:
    """What the ranks talk over."""
    return frozenset(each for launch in measurement.launches for each in launch.communication.transports)


def nodes(measurement: Measurement) -> dict[int, str]:
    """The node of each rank, where there are several; empty where there is one, or nobody knows."""
    found: dict[int, str] = {}
    for launch in measurement.launches:
        for rank in launch.ranks:
            if rank.node is not None:
                known = launch.nodes[rank.node].name if rank.node < len(launch.nodes) else f"node {rank.node}"
                found.setdefault(rank.rank, known)
    return found if len(set(found.values())) > 1 else {}
