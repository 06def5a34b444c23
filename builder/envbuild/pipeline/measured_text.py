"""A measurement as a terminal shows it: the parts of the step, the memory, the collectives. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from envbuild.pipeline.sizes import format_size
from envbuild.profile.document import Launch, Measurement
from envbuild.profile.figures import Disk, Rank

_TOP = 5


def summary(measurement: Measurement) -> Iterator[str]:
    """Its lines."""
    for launch in measurement.launches:
        if launch.pass_ == "parity":
            yield from _parity(launch)
        elif launch.pass_ == "trace":
            yield from _trace(launch)
        else:
            yield from _steps(launch)
            if launch.pass_ == "comms":
                yield from _collectives(launch)
            else:
                yield from _surroundings(launch)


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0


def _counted(launch: Launch, values: Sequence[float | None]) -> Sequence[float | None]:
    return values[launch.warmup :] or values


def _steps(launch: Launch) -> Iterator[str]:
    seconds = [_median(_counted(launch, rank.steps.seconds)) for rank in launch.ranks]
    if not seconds:
        return
    slowest = max(seconds)
    rate = f", {launch.tokens_per_step / slowest:,.0f} tokens/s" if launch.tokens_per_step and slowest else ""
    count = max(len(rank.steps.number) for rank in launch.ranks) - launch.warmup
    yield f"{launch.pass_}: {slowest * 1000:.1f} ms a step (median of {count}, slowest of {len(seconds)} ranks){rate}"
    names = list(dict.fromkeys(name for rank in launch.ranks for name in rank.steps.parts))
    nodes = [launch.nodes[rank.node or 0].name if (rank.node or 0) < len(launch.nodes) else "" for rank in launch.ranks]
    several = len(set(nodes)) > 1
    yield "  rank  " + "  ".join(f"{name:>10}" for name in (*names, "other")) + ("  node" if several else "")
    for rank, whole, node in zip(launch.ranks, seconds, nodes, strict=True):
        # Means: of a checkpoint every tenth step the median would be none.
        means = [_mean(launch, rank, name) for name in names]
        total = _mean(launch, rank, None)
        cells = [f"{value * 1000:8.1f}ms" for value in (*means, max(0.0, total - sum(means)))]
        where = f"  {node}" if several else ""
        yield (f"  {rank.rank:<4}  " + "  ".join(cells) if whole else f"  {rank.rank:<4}  -") + where
    yield from _swapping(launch)


def _swapping(launch: Launch) -> Iterator[str]:
    """What the rank that waits longest waits for the offload's disk."""
    names: tuple[Disk, Disk] = ("swap_read", "swap_write")
    waits = {
        rank.rank: statistics.fmean(known)
        for rank in launch.ranks
        if (known := [each for each in _counted(launch, rank.steps.inside.get("swap", ())) if each is not None])
    }
    if not waits:
        return
    number, wait = max(waits.items(), key=lambda each: each[1])
    steps = next(rank.steps for rank in launch.ranks if rank.rank == number)
    columns = [[each or 0 for each in _counted(launch, steps.disk.get(name, ()))] for name in names]
    read, written = (int(statistics.fmean(column)) if column else 0 for column in columns)
    yield (
        f"  rank {number} waits {wait * 1000:.1f} ms a step for the offload's disk: "
        f"{format_size(read)} read, {format_size(written)} written"
    )


def _mean(launch: Launch, rank: Rank, name: str | None) -> float:
    values = rank.steps.seconds if name is None else rank.steps.parts.get(name, ())  # type: ignore[call-overload]
    known = [value for value in _counted(launch, values) if value is not None]
    return statistics.fmean(known) if known else 0.0


def _surroundings(launch: Launch) -> Iterator[str]:
    peaks = [rank.memory.host_peak_bytes for rank in launch.ranks if rank.memory.host_peak_bytes]
    gpu = [rank.memory.gpu_peak_bytes for rank in launch.ranks if rank.memory.gpu_peak_bytes]
    memory = [
        f"{format_size(max(peaks))} of host memory" if peaks else "",
        f"{format_size(max(gpu))} of GPU" if gpu else "",
    ]
    if any(memory):
        yield f"  the largest rank took {' and '.join(filter(None, memory))}"
    structure, talk = launch.structure, launch.communication
    if structure.parameters and structure.host_tensor_bytes:
        each = structure.host_tensor_bytes / structure.parameters
        yield f"  {structure.parameters:,} parameters, {each:.1f} bytes of host tensors for each"
    if structure.checkpoint_bytes:
        yield f"  a checkpoint is {format_size(structure.checkpoint_bytes)}"
    if talk.startup_seconds is not None:
        imports = f", importing torch and DeepSpeed {talk.import_seconds:.1f} s" if talk.import_seconds else ""
        yield f"  {talk.backend}: {talk.startup_seconds:.1f} s until the first collective was done{imports}"


def _collectives(launch: Launch) -> Iterator[str]:
    rank = launch.ranks[0]
    counted = launch.structure.steps or 1
    rows = sorted(rank.collectives, key=lambda row: -(row.seconds or 0.0))[:_TOP]
    for row in rows:
        size = format_size(row.message_bytes) if row.message_bytes else "no message"
        bus = f", {row.bus_bandwidth / 1e9:.2f} GB/s on the bus" if row.bus_bandwidth else ""
        each = (row.seconds or 0.0) / row.count * 1000 if row.count else 0.0
        yield f"  {row.op}: {row.count / counted:g} a step of {size}, {each:.2f} ms each{bus}"
    if len(rank.collectives) > len(rows):
        yield f"  and {len(rank.collectives) - len(rows)} more kinds (--json has them)"


def _trace(launch: Launch) -> Iterator[str]:
    yield f"trace: what took the time in {launch.structure.steps or 0} steps, on rank {launch.ranks[0].rank}"
    for row in launch.ranks[0].operators[:_TOP]:
        device = f", {row.device_seconds * 1000:.1f} ms on the GPU" if row.device_seconds else ""
        yield f"  {row.name[:60]}: {row.count} times, {row.seconds * 1000:.1f} ms{device}"


def _parity(launch: Launch) -> Iterator[str]:
    for row in launch.structure.parity:
        verdict = "the step is plain torch's" if row.passed else "THE STEP IS NOT PLAIN TORCH'S"
        figures = [
            f"{name} {value:.2g}"
            for name, value in (("gradients apart by", row.gradient_error), ("losses by", row.loss_error),
                                ("parameters by", row.parameter_error))
            if value is not None
        ]  # fmt: skip
        yield f"parity ({row.precision}): {verdict}: {', '.join(figures)}"
