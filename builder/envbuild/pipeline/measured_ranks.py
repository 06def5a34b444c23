"""From the lines of one rank to its columns: steps, memory, collectives, operators. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envbuild.profile.bandwidth import bus_bandwidth
from envbuild.profile.figures import Collective, Cores, Memory, Operator, Rank, Steps

_PARTS = ("data_wait", "forward", "backward", "reduction", "optimizer", "checkpoint")


def rank_of(
    report: Mapping[str, Any], ranks: Mapping[int, Mapping[str, Any]], lines: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]], start: float, accelerator: str,
) -> Rank:  # fmt: skip
    """One rank of a pass.

    Args:
        report: Its line at the end of the pass.
        ranks: What each rank said of itself, by its number.
        lines: Its steps.
        start: Of the launch, in seconds since 1970.
    """
    number = report["rank"]
    about_rank = ranks.get(number, {})
    device = about_rank.get("device")
    shares = [
        each["proportional_bytes"]
        for sample in samples
        for each in sample["ranks"]
        if each["rank"] == number and each.get("proportional_bytes") is not None
    ]
    memory = {**(report.get("memory") or {}), "host_share_peak_bytes": max(shares, default=None)}
    trace = report.get("trace") or {}
    return Rank(
        rank=number,
        local_rank=about_rank.get("local_rank"),
        node=about_rank.get("node", 0),
        device=device.get("name") if isinstance(device, dict) else None,
        cores=_cores(about_rank, ranks.values()),
        steps=_steps(lines, start, trace),
        memory=Memory.model_validate(memory),
        collectives=tuple(_collective(row) for row in report.get("collectives") or ()),
        operators=tuple(_operator(row, accelerator) for row in trace.get("operators") or ()),
    )


def _cores(about_rank: Mapping[str, Any], ranks: Iterable[Mapping[str, Any]]) -> Cores:
    said = about_rank.get("cores")
    if not said:
        return Cores()
    own = about_rank.get("node"), said["affinity"]
    sharers = sum((each.get("node"), (each.get("cores") or {}).get("affinity")) == own for each in ranks)
    asked = said["asked"] or ""
    shown = asked[:200] if asked.isprintable() else "?"
    return Cores(threads=said["threads"], asked=shown or None, cpus=said["cpus"], sharers=sharers)


def _steps(lines: Sequence[Mapping[str, Any]], start: float, trace: Mapping[str, Any]) -> Steps:
    """Columns of a rank's steps. A part that a step did not have (a checkpoint) took it no time."""
    if not lines:
        return Steps()
    parts = [name for name in _PARTS if any(name in line["parts"] for line in lines)]
    inside = {
        name: tuple(line["inside"].get(name, 0.0) for line in lines)
        for name in ("communication", "optimizer_kernel", "swap")
        if any(name in line["inside"] for line in lines)
    }
    moved = {}
    device = trace.get("device")
    if device:
        count = len(lines)
        # One trace is of all its steps: each has its share.
        inside |= {name: (seconds / count,) * count for name, seconds in device["seconds"].items()}
        moved = {name: (size // count,) * count for name, size in device["bytes"].items()}
    return Steps.model_validate(
        {
            "number": [line["number"] for line in lines],
            "at": [round(line["at"] - start, 6) for line in lines],
            "seconds": [line["seconds"] for line in lines],
            "parts": {name: [line["parts"].get(name, 0.0) for line in lines] for name in parts},
            "inside": inside,
            "cpu": _columns(lines, "cpu"),
            "moved": moved,
            "disk": _columns(lines, "disk"),
            "loss": _column(lines, "loss"),
            "gradient_norm": _column(lines, "gradient_norm"),
        }
    )


def _columns(lines: Sequence[Mapping[str, Any]], group: str) -> dict[str, list[Any]]:
    """The columns of a group that some of the lines have; what one lacks is not known of it."""
    names = sorted({name for line in lines for name in line.get(group) or ()})
    return {name: [(line.get(group) or {}).get(name) for line in lines] for name in names}


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    values = [line.get(name) for line in lines]
    return values if any(value is not None for value in values) else []


def _collective(row: Mapping[str, Any]) -> Collective:
    seconds, size = row["seconds"], row["group_size"]
    speed = bus_bandwidth(row["op"], row["bytes"] or 0, seconds or 0.0, size or 0)
    return Collective(
        op=row["op"], count=row["count"], bytes=row["bytes"], message_bytes=row["message_bytes"], group_size=size,
        seconds=seconds, time=None if seconds is None else "measured",
        bus_bandwidth=speed, bandwidth=None if speed is None else "computed",
    )  # fmt: skip


def _operator(row: Mapping[str, Any], accelerator: str) -> Operator:
    name = "".join(letter if letter.isprintable() else "?" for letter in row["name"])
    device = row["device_seconds"] if accelerator == "cuda" else None
    return Operator(name=name, count=row["count"], seconds=max(0.0, row["seconds"]), device_seconds=device)
