"""From the profiler's samples to series on one time axis, and what could not be had, with the reason. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.profile.document import Unavailable
from envbuild.profile.figures import Samples, Series

_GPU_SERIES = ("gpu_percent", "gpu_memory_bytes", "gpu_clock_hz", "gpu_memory_clock_hz", "gpu_power_watts",
               "gpu_temperature_celsius", "pcie_receive", "pcie_send")  # fmt: skip
_ON_GPU = "there is no GPU: nothing is copied between host and device"


def samples_of(samples: Sequence[Mapping[str, Any]], start: float) -> Samples:
    """Columns of what was sampled; ``start`` is the launch's, in seconds since 1970."""
    columns: dict[tuple[str, int | None, str | None], dict[int, float]] = defaultdict(dict)

    def put(place: int, kind: str, value: float | None, rank: int | None = None, device: str | None = None) -> None:
        if value is not None:
            columns[(kind, rank, device)][place] = value

    for place, sample in enumerate(samples):
        put(place, "cpu_percent", sample.get("cpu_percent"))
        put(place, "host_memory_bytes", sample.get("host_memory_bytes"))
        for rank in sample["ranks"]:
            for kind in ("process_cpu_percent", "process_memory_bytes"):
                put(place, kind, rank.get(kind), rank=rank["rank"])
        for name, rates in sample["disks"].items():
            for kind, rate in zip(("disk_read", "disk_write"), rates or (), strict=False):
                put(place, kind, rate, device=name)
        for name, rates in sample["networks"].items():
            for kind, rate in zip(("network_receive", "network_send"), rates or (), strict=False):
                put(place, kind, rate, device=name)
        for index, gpu in enumerate(sample["gpus"]):
            for kind, value in gpu.items():
                put(place, kind, value, rank=index, device=f"cuda:{index}")
    series = tuple(
        Series.model_validate(
            {
                "kind": kind,
                "rank": rank,
                "device": device,
                "node": 0,
                "values": [values.get(place) for place in range(len(samples))],
            }
        )
        for (kind, rank, device), values in columns.items()
    )
    return Samples(at=tuple(round(sample["at"] - start, 3) for sample in samples), series=series)


def unavailable_of(
    name: str, accelerator: str, samples: Sequence[Mapping[str, Any]], end: Mapping[str, Any]
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
    if name in ("timing", "trace"):
        found.append(("collectives.seconds", "timing a collective takes its overlap away: --pass comms"))
    if not any(sample["gpus"] for sample in samples):
        reason = "there is no GPU" if accelerator == "cpu" else end.get("gpus") or "NVML gave no figures"
        found += [(kind, reason) for kind in _GPU_SERIES]
    if not any(sample["networks"] for sample in samples):
        found.append(("network_receive", "the training had no network but the loopback"))
        found.append(("network_send", "the training had no network but the loopback"))
    return tuple(Unavailable(figure=figure, reason=reason[:400]) for figure, reason in found)
