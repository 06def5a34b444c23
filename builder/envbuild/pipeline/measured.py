"""From the lines that the profiler prints to the measurement document. Pure: nothing is asked of this host."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.collector import secrets
from envbuild.pipeline.measured_gpus import owners
from envbuild.pipeline.measured_parity import parity_of
from envbuild.pipeline.measured_ranks import rank_of
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
    config_hash,
)

SCHEMA = "envbuild.probe.profile/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the lines do not say.

    Attributes:
        accelerator: ``cpu`` or ``cuda``.
        model: Name and size, as the key carries it.
        tokens: Of one sample; None where a user's own command trained.
        seconds: From starting the container to its end; None where nobody took the time.
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
    seconds: float | None = None
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
    spans = [_span(reports) for _, reports in ordered]
    known = [span for span in spans if span is not None]
    outside = max(0.0, about.seconds - sum(known)) if about.seconds and len(known) == len(spans) else None
    launches = tuple(
        _launch(name, reports, lines, about, start, until).model_copy(update={"seconds": span, "outside": outside})
        for (name, reports), start, until, span in zip(ordered, starts, [*starts[1:], float("inf")], spans, strict=True)
    )
    ranks = of_kind(lines, "rank")
    versions = ranks[0]["versions"] if ranks else {}
    config = next((line["config"] for _, reports in ordered for line in reports if line.get("config")), None)
    config = secrets.config(config) if config else None
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


def _span(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """From the first rank's start of a pass to the last one's end."""
    ends = [line["ended"] for line in reports if line.get("ended") is not None]
    return max(0.0, max(ends) - min(line["started"] for line in reports)) if len(ends) == len(reports) else None


def _threads(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many threads torch and the CPU's optimizer have, which the slowest rank's times depend on."""
    counts = sorted({threads for rank in ranks if (threads := (rank.get("cores") or {}).get("threads"))})
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
    counted = max((report.get("steps") or 0 for report in reports), default=0)
    # Killed between two ranks' writing: counts of other steps than the launch's are nobody's figures.
    reports = [each if (each.get("steps") or 0) == counted else {**each, "collectives": None} for each in reports]
    rows = tuple(
        rank_of(report, ranks, steps[report["rank"]], samples, start, about.accelerator)
        for report in sorted(reports, key=lambda each: int(each["rank"]))
    )
    batch = None
    if about.micro_batch and about.accumulation:
        batch = about.micro_batch * about.accumulation * len(reports)
    end = next(iter(of_kind(lines, "end")), {})
    gpus = owners(samples, ranks, end.get("gpus"))
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
            "samples": samples_of(samples, start, gpus),
            "communication": _communication(list(ranks.values()), end),
            "structure": _structure(reports, name),
            "unavailable": unavailable_of(name, about.accelerator, samples, reports, gpus),
        }
    )


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
    whole = all((report.get("steps") or 0) == (reports[0].get("steps") or 0) for report in reports)
    for report in reports if whole else ():
        for row in report.get("collectives") or ():
            counts[row["op"]][0] += row["count"]
            counts[row["op"]][1] += row["bytes"]
    devices = dict(made[0]["devices"]) if made else {}
    return Structure(
        steps=max((report.get("steps") or 0 for report in reports), default=0) or None,
        collectives=tuple(
            StructuralCollective(op=op, count=count, bytes=size) for op, (count, size) in sorted(counts.items())
        ),
        parameters=made[0]["parameters"] if made else None,
        host_tensor_bytes=sum(each["host_tensor_bytes"] for each in made) if len(made) == len(reports) else None,
        checkpoint_bytes=next((each["checkpoint_bytes"] for each in reports if each.get("checkpoint_bytes")), None),
        devices={where: what for where, what in devices.items() if what},
    )
