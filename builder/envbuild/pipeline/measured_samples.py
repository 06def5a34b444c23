"""From the profiler's samples to series on one time axis, and what could not be had, with the reason. Pure."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envbuild.pipeline.measured_gpus import Owners
from envbuild.profile.document import Unavailable
from envbuild.profile.figures import Samples, Series

GPU_SERIES = ("gpu_percent", "gpu_memory_bytes", "gpu_clock_hz", "gpu_memory_clock_hz", "gpu_power_watts",
              "gpu_temperature_celsius", "pcie_receive", "pcie_send")  # fmt: skip
# Two of the sampler's intervals (profiler/sampling.py), in seconds.
_BEATS = 1.0
_ON_GPU = "there is no GPU: nothing is copied between host and device"
_SILENT = "NVML does not tell it of this GPU, or of this part of one (MIG)"


def samples_of(samples: Sequence[Mapping[str, Any]], start: float, owners: Owners) -> Samples:
    """Columns of what was sampled.

    Where several programs have sampled, each with its own beat, the axis is that of the first one, and every other
    sample stands at the nearest time of it.

    Args:
        start: The launch's, in seconds since 1970.
        owners: The ranks of each GPU; one that no rank has is left out.
    """
    columns: dict[tuple[str, int | None, str | None, int], dict[int, float]] = defaultdict(dict)
    axis = [sample["at"] for sample in samples if sample.get("of") == samples[0].get("of")]
    for sample in samples:
        place, node = _nearest(axis, sample["at"]), sample.get("node", 0)
        if place is None:
            continue
        for kind, value, rank, device in _figures(sample, owners):
            if value is not None:
                columns[(kind, rank, device, node)][place] = value
    series = tuple(
        Series.model_validate(
            {
                "kind": kind,
                "rank": rank,
                "device": device,
                "node": node,
                "values": [values.get(place) for place in range(len(axis))],
            }
        )
        for (kind, rank, device, node), values in columns.items()
    )
    return Samples(at=tuple(round(at - start, 3) for at in axis), series=series)


def _figures(
    sample: Mapping[str, Any], owners: Owners
) -> Iterator[tuple[str, float | None, int | None, str | None]]:  # fmt: skip
    """Everything in a sample: what it is, how much, whose, and of which device."""
    for kind in ("cpu_percent", "host_memory_bytes"):
        yield kind, sample.get(kind), None, None
    for rank in sample["ranks"]:
        for kind in ("process_cpu_percent", "process_memory_bytes"):
            yield kind, rank.get(kind), rank["rank"], None
    for kinds, rates_of in ((("disk_read", "disk_write"), "disks"), (("network_receive", "network_send"), "networks")):
        for name, rates in sample[rates_of].items():
            for kind, rate in zip(kinds, rates or (), strict=False):
                yield kind, rate, None, name
    for gpu in sample["gpus"]:
        for rank in owners.of(sample, gpu):
            for kind in GPU_SERIES:
                yield kind, gpu.get(kind), rank, f"cuda:{owners.places[rank]}"


def _nearest(axis: Sequence[float], at: float) -> int | None:
    """The place on the axis that is nearest; None where it is further away than two beats."""
    place = bisect.bisect_left(axis, at)
    near = [each for each in (place - 1, place) if 0 <= each < len(axis)]
    best = min(near, key=lambda each: abs(axis[each] - at), default=None)
    return best if best is not None and abs(axis[best] - at) <= _BEATS else None


def unavailable_of(
    name: str,
    accelerator: str,
    samples: Sequence[Mapping[str, Any]],
    reports: Sequence[Mapping[str, Any]],
    owners: Owners,
) -> tuple[Unavailable, ...]:
    """What a pass on this device cannot show, so that nobody takes a gap for a zero."""
    found: list[tuple[str, str]] = []
    if accelerator == "cpu":
        found += [(figure, _ON_GPU) for figure in ("inside.h2d", "inside.d2h", "moved.h2d", "moved.d2h")]
        found += [
            (f"memory.{figure}", "there is no GPU")
            for figure in ("gpu_peak_bytes", "gpu_reserved_peak_bytes", "gpu_total_bytes", "allocation_retries",
                           "host_pinned_bytes")
        ]  # fmt: skip
        found.append(("inside.exposed_communication", "on the CPU nothing tells computing from communicating"))
    elif name != "trace":
        found += [
            (figure, "it is seen by the trace pass only: --pass trace")
            for figure in ("inside.h2d", "inside.d2h", "moved.h2d", "moved.d2h", "inside.exposed_communication")
        ]
    found += [("inside.swap", reason) for reason in dict.fromkeys(r["swap"] for r in reports if r.get("swap"))]
    if name in ("timing", "trace"):
        found.append(("collectives.seconds", "timing a collective takes its overlap away: --pass comms"))
    if len({report.get("steps") or 0 for report in reports}) > 1:
        found.append(("structure.collectives", "the ranks counted over different steps: the training was killed"))
    if not any(sample["networks"] for sample in samples):
        found.append(("network_receive", "the training had no network but the loopback"))
        found.append(("network_send", "the training had no network but the loopback"))
    lacking = [Unavailable(figure=figure, reason=reason[:400]) for figure, reason in found]
    return (*lacking, *_gpus_of(accelerator, samples, owners))


def _gpus_of(accelerator: str, samples: Sequence[Mapping[str, Any]], owners: Owners) -> Iterator[Unavailable]:
    """Figures of a rank's GPU that there are not; said once where it is so for all ranks."""
    if accelerator == "cpu":
        yield from (Unavailable(figure=kind, reason="there is no GPU") for kind in GPU_SERIES)
        return
    told: dict[int, set[str]] = defaultdict(set)
    for sample in samples:
        for gpu in sample["gpus"]:
            for rank in owners.of(sample, gpu):
                told[rank] |= {kind for kind in GPU_SERIES if gpu.get(kind) is not None}
    ranks = sorted({*owners.unknown, *(rank for each in owners.ranks.values() for rank in each)})
    for kind in GPU_SERIES:
        why = {rank: owners.unknown.get(rank, _SILENT) for rank in ranks if kind not in told[rank]}
        if len(why) == len(ranks) and len(set(why.values())) == 1:
            yield Unavailable(figure=kind, reason=why[ranks[0]][:400])
        else:
            for rank, reason in why.items():
                yield Unavailable(figure=kind, reason=reason[:400], rank=rank)
