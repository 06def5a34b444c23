"""From the lines that the profiler prints to the measurement document. Pure: nothing is asked of this host."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.pipeline.measured_parity import parity_of
from envbuild.pipeline.measured_samples import samples_of, unavailable_of
from envbuild.profile.document import (
    Communication,
    Hardware,
    Key,
    Launch,
    Made,
    Measurement,
    Node,
    Origins,
    StructuralCollective,
    Structure,
)
from envbuild.profile.figures import Collective, Memory, Operator, Rank, Steps

SCHEMA = "envbuild.probe.profile/1"
_PARTS = ("data_wait", "forward", "backward", "reduction", "optimizer", "checkpoint")
# What goes over the wires for each byte of the message (NCCL's tests, doc/PERFORMANCE.md): in a group of n ranks
# 2(n-1)/n of an all-reduce, (n-1)/n of these, and all of any other.
_REDUCED = frozenset({"all_reduce", "all_reduce_coalesced", "inference_all_reduce"})
_SPREAD = frozenset(
    {"all_gather", "all_gather_into_tensor", "all_gather_coalesced", "reduce_scatter", "reduce_scatter_tensor",
     "all_to_all", "all_to_all_single"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the lines do not say.

    Attributes:
        accelerator: ``cpu`` or ``cuda``.
        model: Name and size, as the key carries it.
        tokens: Of one sample; None where a user's own command trained.
        probe: Hash of the programs that measured.
        origin: ``probe`` or ``command``.
        made: With what it was started; None where a user's own command trained.
        nodes: The hosts of a training over several; its lines say which each is of.
    """

    accelerator: str
    hardware: Hardware
    probe: str
    envbuild: str
    image: str | None = None
    row: str | None = None
    model: str | None = None
    tokens: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    seed: int | None = None
    interval: int | None = None
    command: str | None = None
    made: Made | None = None
    nodes: tuple[Node, ...] = ()
    notes: tuple[str, ...] = ()


def read_lines(text: str) -> list[dict[str, Any]]:
    """The profiler's lines; what is none of them is left out."""
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("kind"), str):
            found.append(value)
    return found


def of_kind(lines: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """The lines of one kind."""
    return [line for line in lines if line["kind"] == kind]


def measurement_of(lines: Sequence[dict[str, Any]], about: About) -> Measurement:
    """The measurement that the lines of a whole run make."""
    passes: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in of_kind(lines, "pass"):
        passes[line["pass"]].append(line)
    ordered = sorted(passes.items(), key=lambda each: min(line["started"] for line in each[1]))
    starts = [min(line["started"] for line in reports) for _, reports in ordered]
    launches = tuple(
        _launch(name, reports, lines, about, start, until)
        for (name, reports), start, until in zip(ordered, starts, [*starts[1:], float("inf")], strict=True)
    )
    ranks = of_kind(lines, "rank")
    versions = ranks[0]["versions"] if ranks else {}
    config = next((line["config"] for _, reports in ordered for line in reports if line.get("config")), None)
    key = Key.model_validate(
        {
            "image": about.image, "row": about.row, "model": about.model, "probe": about.probe,
            "config": config_hash(config) if config else None, "hardware": about.hardware,
            "world_size": len(ranks) or None, "nodes": len(about.nodes) or 1, "accelerator": about.accelerator,
            "deepspeed": versions.get("deepspeed"), "torch": versions.get("torch"), "nccl": _nccl(ranks),
        }
    )  # fmt: skip
    origin = Origins(
        kind="command" if about.command else "probe", envbuild=about.envbuild, command=about.command, made=about.made,
    )  # fmt: skip
    return Measurement(key=key, origin=origin, config=config, launches=launches, notes=(*about.notes, *_threads(ranks)))


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a resolved ds_config: equal settings are equal hashes."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _threads(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many threads torch and the CPU's optimizer have, which the slowest rank's times depend on."""
    counts = sorted({rank["threads"] for rank in ranks if rank.get("threads")})
    return [f"OpenMP threads of a rank: {' or '.join(map(str, counts))}"] if counts else []


def _nccl(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    device = ranks[0].get("device") if ranks else None
    return device.get("nccl") if isinstance(device, dict) else None


def _launch(
    name: str, reports: Sequence[Mapping[str, Any]], lines: Sequence[dict[str, Any]], about: About, start: float,
    until: float,
) -> Launch:  # fmt: skip
    ranks = {line["rank"]: line for line in of_kind(lines, "rank")}
    steps: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in of_kind(lines, "step"):
        if line["pass"] == name:
            steps[line["rank"]].append(line)
    samples = [line for line in of_kind(lines, "sample") if start <= line["at"] < until]
    rows = tuple(
        _rank(report, ranks.get(report["rank"], {}), steps[report["rank"]], samples, start, about)
        for report in sorted(reports, key=lambda each: int(each["rank"]))
    )
    batch = None
    if about.micro_batch and about.accumulation:
        batch = about.micro_batch * about.accumulation * len(reports)
    end = next(iter(of_kind(lines, "end")), {})
    return Launch.model_validate(
        {
            "pass": name,
            "started": datetime.datetime.fromtimestamp(start, datetime.timezone.utc),
            "seed": about.seed,
            "warmup": next((report["warmup"] for report in reports if report.get("warmup") is not None), 0),
            "interval": about.interval,
            "samples_per_step": batch,
            "tokens_per_step": batch * about.tokens if batch and about.tokens else None,
            "nodes": about.nodes,
            "ranks": rows,
            "samples": samples_of(samples, start),
            "communication": _communication(list(ranks.values()), end),
            "structure": _structure(reports, name),
            "unavailable": unavailable_of(name, about.accelerator, samples, end),
        }
    )


def _rank(
    report: Mapping[str, Any], about_rank: Mapping[str, Any], lines: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]], start: float, about: About,
) -> Rank:  # fmt: skip
    number = report["rank"]
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
        steps=_steps(lines, start, trace),
        memory=Memory.model_validate(memory),
        collectives=tuple(_collective(row) for row in report.get("collectives") or ()),
        operators=tuple(_operator(row, about) for row in trace.get("operators") or ()),
    )


def _steps(lines: Sequence[Mapping[str, Any]], start: float, trace: Mapping[str, Any]) -> Steps:
    """Columns of a rank's steps. A part that a step did not have (a checkpoint) took it no time."""
    if not lines:
        return Steps()
    parts = [name for name in _PARTS if any(name in line["parts"] for line in lines)]
    inside = {
        name: tuple(line["inside"].get(name, 0.0) for line in lines)
        for name in ("communication", "optimizer_kernel")
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
            "moved": moved,
            "loss": _column(lines, "loss"),
            "gradient_norm": _column(lines, "gradient_norm"),
        }
    )


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    values = [line.get(name) for line in lines]
    return values if any(value is not None for value in values) else []


def _collective(row: Mapping[str, Any]) -> Collective:
    seconds, size = row["seconds"], row["group_size"]
    factor = _wires(row["op"], size) if size else None
    known = bool(seconds and factor and row["bytes"])
    return Collective(
        op=row["op"], count=row["count"], bytes=row["bytes"], message_bytes=row["message_bytes"], group_size=size,
        seconds=seconds, time=None if seconds is None else "measured",
        bus_bandwidth=factor * row["bytes"] / seconds if known and factor else None,
        bandwidth="computed" if known else None,
    )  # fmt: skip


def _wires(op: str, size: int) -> float:
    return (2 if op in _REDUCED else 1) * (size - 1) / size if op in _REDUCED | _SPREAD else 1.0


def _operator(row: Mapping[str, Any], about: About) -> Operator:
    name = "".join(letter if letter.isprintable() else "?" for letter in row["name"])
    device = row["device_seconds"] if about.accelerator == "cuda" else None
    return Operator(name=name, count=row["count"], seconds=max(0.0, row["seconds"]), device_seconds=device)


def _communication(ranks: Sequence[Mapping[str, Any]], end: Mapping[str, Any]) -> Communication:
    seconds = [rank["seconds"] for rank in ranks if rank.get("seconds")]
    started = [each["rendezvous"] + each["first_collective"] for each in seconds if "first_collective" in each]
    return Communication(
        backend=next((rank["backend"] for rank in ranks if rank.get("backend")), None),
        startup_seconds=max(started, default=None),
        import_seconds=max((each["import"] for each in seconds if "import" in each), default=None),
        transports=tuple(end.get("transports") or ()),
    )


def _structure(reports: Sequence[Mapping[str, Any]], name: str) -> Structure:
    if name == "parity":
        return Structure(parity=parity_of(reports))
    made = [report["structure"] for report in reports if report.get("structure")]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for report in reports:
        for row in report.get("collectives") or ():
            counts[row["op"]][0] += row["count"]
            counts[row["op"]][1] += row["bytes"]
    devices = dict(made[0]["devices"]) if made else {}
    return Structure(
        steps=next((report["steps"] for report in reports if report.get("steps")), None),
        collectives=tuple(
            StructuralCollective(op=op, count=count, bytes=size) for op, (count, size) in sorted(counts.items())
        ),
        parameters=made[0]["parameters"] if made else None,
        host_tensor_bytes=sum(each["host_tensor_bytes"] for each in made) if len(made) == len(reports) else None,
        checkpoint_bytes=next((each["checkpoint_bytes"] for each in reports if each.get("checkpoint_bytes")), None),
        devices={where: what for where, what in devices.items() if what},
    )
