"""Files of other tools, made into measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from envbuild.errors import InputError
from envbuild.profile import summary as figures
from envbuild.profile.document import Key, Measurement, Origins
from envbuild.profile.readers import log, logs, nsys, opened, trace
from envbuild.profile.readers.run import Run
from envbuild.profile.view import percent, rate, seconds, size

Kind = Literal["log", "comms", "trace", "nsys", "measurement"]
# log_summary's document of a thousand sizes is some 300 KB.
_LARGEST_SUMMARY = 64 * 1024 * 1024


def kind_of(path: Path) -> Kind:
    """What a file is, by how it begins.

    Raises:
        InputError: It cannot be opened.
    """
    start = opened.head(path)
    if start.startswith(b"SQLite format 3\0"):
        return "nsys"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{") and b'"envbuild.profile/1"' in start:
        return "measurement"
    if text.startswith(b"{") and b'"summary"' in start and b"total_latency_ms" in start:
        return "comms"
    trace_words = (b'"traceEvents"', b'"schemaVersion"', b'"ph"')
    if text[:1] in (b"{", b"[") and any(word in start for word in trace_words):
        return "trace"
    return "log"


def read(paths: Sequence[Path], *, deepspeed: str | None = None) -> Measurement:
    """The measurement that files of one kind make together.

    Args:
        deepspeed: Its version, where the files do not tell it.

    Raises:
        InputError: They are of several kinds, one is there twice, or one cannot be read.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path}: is given twice", hint="Give each file once.")
        seen.add(path.resolve())
    kinds = {kind_of(path): path for path in paths}
    if len(kinds) > 1:
        told = ", ".join(f"{path.name} is a {kind}" for kind, path in sorted(kinds.items()))
        raise InputError(f"files of several kinds: {told}", hint="Read each kind by itself.")
    kind = next(iter(kinds))
    try:
        return _read(kind, list(paths), deepspeed)
    except (ValueError, OverflowError) as error:
        # Nothing that a program wrote: a size of -1, a name of control letters, a number beyond all reason.
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{', '.join(map(str, paths))}: holds what no measurement can: {problem[:300]}") from error


def _read(kind: Kind, paths: list[Path], deepspeed: str | None) -> Measurement:
    if kind == "measurement":
        raise InputError(f"{paths[0]}: is a measurement already", hint=f"Such as: envbuild bottleneck {paths[0]}")
    if kind == "trace":
        return trace.read(paths)
    if kind == "nsys":
        return nsys.read(paths)
    return logs.read(paths, deepspeed=deepspeed) if kind == "log" else _summaries(paths, deepspeed)


def _summaries(paths: list[Path], deepspeed: str | None) -> Measurement:
    """What ``deepspeed.comm.log_summary(return_dict=True)`` returned, as JSON."""
    run = Run(version=log.parsed(deepspeed))
    worlds: set[int] = set()
    for place, path in enumerate(paths):
        text = opened.head(path, _LARGEST_SUMMARY)
        try:
            value = json.loads(text)
            about = value.get("metadata") or {}
            number = about.get("rank", place)
            number = number if isinstance(number, int) and number >= 0 else place
            if number in run.comms:
                raise InputError(f"{path}: a second summary of rank {number}", hint="Give one summary of each rank.")
            worlds |= {ranks} if (ranks := run.comm(number).document(value)) else set()
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not what log_summary(return_dict=True) returns: {error}") from error
    if len(worlds) > 1:
        raise InputError(
            f"summaries of several trainings: of {' and '.join(map(str, sorted(worlds)))} ranks",
            hint="Give those of one training.",
        )
    run.world = max(worlds, default=None)
    key = Key(world_size=run.world, deepspeed=deepspeed)
    names = tuple(log.printable(path.name) for path in paths)
    return Measurement(key=key, origin=Origins(kind="comms-log", files=names), launches=(run.launch(),))


def summary(measurement: Measurement) -> Iterator[str]:
    """What was read, for people."""
    steps = sum(len(rank.steps.number) for launch in measurement.launches for rank in launch.ranks)
    ranks = max(len(launch.ranks) for launch in measurement.launches)
    yield f"{measurement.origin.kind}: {len(measurement.launches)} run(s), {ranks} rank(s), {steps} step(s)"
    step = figures.step_median(measurement)
    if step is not None:
        yield f"step {seconds(step)}"
    for share in figures.shares(measurement):
        yield f"  {share.name}: {seconds(share.seconds)}" + (
            f", {percent(share.share)}" if share.share is not None else ""
        )
    for traffic in figures.traffic(measurement):
        each = traffic.sums
        words = [f"{each.count} x {traffic.op}"]
        if each.bytes is not None:
            words.append(size(each.bytes))
        if each.seconds is not None:
            words.append(seconds(each.seconds) + (" (corrected)" if each.time and "corrected" in each.time else ""))
        if each.bus_bandwidth is not None:
            words.append(f"bus {rate(each.bus_bandwidth)}")
        yield "  " + ", ".join(words)
    for note in measurement.notes:
        yield f"note: {note}"
    reasons: dict[str, list[str]] = {}
    for launch in measurement.launches:
        for missing in launch.unavailable:
            reasons.setdefault(missing.reason, []).append(missing.figure)
    for reason, names in reasons.items():
        yield f"not available: {', '.join(dict.fromkeys(names))}: {reason}"
