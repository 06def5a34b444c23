"""Traces of torch's profiler (``export_chrome_trace``), one file for each rank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuild.errors import InputError
from envbuild.profile.bandwidth import message_size
from envbuild.profile.document import Communication, Key, Launch, Measurement, Origins, Unavailable
from envbuild.profile.figures import Memory, Rank
from envbuild.profile.readers.device import Device
from envbuild.profile.readers.intervals import Stretches
from envbuild.profile.readers.log import printable
from envbuild.profile.readers.opened import rank_in
from envbuild.profile.readers.rows import MOST_STEPS
from envbuild.profile.readers.stream import events

_STEP = re.compile(r"ProfilerStep#(\d+)")
_WAIT = re.compile(r"enumerate\(DataLoader\)#")
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Int": 4, "Float": 4, "Long": 8,
    "Double": 8,
}  # fmt: skip
# What torch calls its own all_gather_into_tensor and reduce_scatter_tensor there (ProcessGroupNCCL.cpp).
_TENSORS = {"_allgather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
_GLOO = re.compile(r"^(gloo|mpi|ucc):(\w+)$")


class Trace:
    """One rank's trace while it is being read."""

    def __init__(self) -> None:
        self.device = Device()
        self.steps: list[tuple[int, float, float]] = []
        self.waits = Stretches()
        self.optimizer = Stretches()
        self.peak: int | None = None
        self.reserved: int | None = None
        self.backend: str | None = None
        self.seen = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """One event; what is malformed is none."""
        name, category = event.get("name"), event.get("cat")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if name == "[memory]":
            self._memory(args)
            return
        span = _span(event)
        if not isinstance(name, str) or not isinstance(category, str) or span is None:
            return
        self.seen += 1
        begin, end = span
        if category == "kernel":
            self._kernel(name, begin, end, args)
        elif category.lower() in ("gpu_memcpy", "memcpy"):
            size = _whole(args.get("bytes"))
            if "HtoD" in name:
                self.device.copy("h2d", begin, end, size)
            elif "DtoH" in name:
                self.device.copy("d2h", begin, end, size)
        elif category in ("user_annotation", "cpu_op"):
            self._annotation(name, category, begin, end, args)

    def _kernel(self, name: str, begin: float, end: float, args: Mapping[str, Any]) -> None:
        op = self.device.kernel(name, begin, end)
        if op is not None:
            self.backend = "nccl"
            said = args.get("Collective name")
            op = _op(said) if isinstance(said, str) and said else op
            self.device.collective(
                op, end - begin, _size(op, args), _whole(args.get("Group size")) or None
            )  # fmt: skip

    def _annotation(self, name: str, category: str, begin: float, end: float, args: Mapping[str, Any]) -> None:
        if found := _STEP.match(name):
            if len(self.steps) >= MOST_STEPS:
                return
            self.steps.append((int(found[1][:9]), begin, end))
        elif _WAIT.match(name):
            self.waits.add(begin, end)
        elif _OPTIMIZER.match(name):
            self.optimizer.add(begin, end)
        elif found := _GLOO.match(name):
            # On a CPU the collective itself has an event of its own.
            self.backend = found[1]
            op = _op(found[2])
            self.device.collective(op, end - begin, _size(op, args), None)
            self.device.communication.add(begin, end)

    def _memory(self, args: Mapping[str, Any]) -> None:
        if args.get("Device Type") != 1:
            return
        for name, figure in (("Total Allocated", "peak"), ("Total Reserved", "reserved")):
            value = _whole(args.get(name))
            if value is not None:
                setattr(self, figure, max(getattr(self, figure) or 0, value))


def read(paths: list[Path]) -> Measurement:
    """One measurement of the traces of one training's ranks.

    Raises:
        InputError: One is no such trace, or two are of one rank.
    """
    ranks: dict[int, Rank] = {}
    worlds: set[int] = set()
    backends: set[str] = set()
    missing: dict[str, Unavailable] = {}
    gpus: set[str] = set()
    for place, path in enumerate(paths):
        trace = Trace()
        head: dict[str, Any] = {}
        for event in events(path, head):
            trace.take(event)
        if not trace.seen:
            raise InputError(
                f"{path}: a trace without events", hint="Export it with torch.profiler's export_chrome_trace."
            )
        about = head.get("distributedInfo")
        about = about if isinstance(about, dict) else {}
        number = _whole(about.get("rank"))
        if number is None:
            named = rank_in(path.name)
            number = place if named is None else named
        if number in ranks:
            raise InputError(f"{path}: a second trace of rank {number}", hint="Give one trace of each rank.")
        if world := _whole(about.get("world_size")):
            worlds.add(world)
        backends.update(each for each in (trace.backend, about.get("backend")) if isinstance(each, str) and each)
        devices = head.get("deviceProperties")
        gpus.update(
            printable(str(each.get("name"))) for each in devices or () if isinstance(each, dict) and "name" in each
        )
        ranks[number] = _rank(number, trace, missing)
    launch = Launch(
        pass_="trace", ranks=tuple(ranks[number] for number in sorted(ranks)),  # type: ignore[call-arg]
        communication=Communication(backend=_word(_backend(backends))),
        unavailable=tuple(missing.values()),
    )  # fmt: skip
    return Measurement(
        key=Key(world_size=worlds.pop() if len(worlds) == 1 else None, hardware={"gpus": tuple(sorted(gpus))}),  # type: ignore[arg-type]
        origin=Origins(kind="trace", files=tuple(printable(path.name) for path in paths)),
        launches=(launch,),
        notes=("torch's profiler slows a step down: compare its times with those of a trace only",),
    )


def _rank(number: int, trace: Trace, missing: dict[str, Unavailable]) -> Rank:
    steps = sorted(trace.steps, key=lambda each: each[1])
    if not steps:
        why = "the trace has no steps: call profiler.step() behind each"
        missing["steps"] = Unavailable(figure="steps", reason=why)
    if not trace.device.used:
        why = "the trace has no events of a GPU"
        for figure in ("compute", "h2d", "d2h"):
            missing[figure] = Unavailable(figure=figure, reason=why)
    if trace.peak is None:
        why = "the trace has no memory events of a GPU: profile_memory=True"
        missing["memory"] = Unavailable(figure="gpu_peak_bytes", reason=why)
    unique: dict[int, tuple[int, float, float]] = {}
    for each in steps:
        unique.setdefault(each[0], each)
    return Rank(
        rank=number, steps=trace.device.steps(list(unique.values()), trace.waits, trace.optimizer) if unique else {},  # type: ignore[arg-type]
        memory=Memory(gpu_peak_bytes=trace.peak, gpu_reserved_peak_bytes=trace.reserved),
        collectives=trace.device.rows(),
    )  # fmt: skip


def _span(event: Mapping[str, Any]) -> tuple[float, float] | None:
    """Begin and end in seconds."""
    begin, length = event.get("ts"), event.get("dur")
    try:
        start, long = float(begin) / 1e6, float(length) / 1e6  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return (start, start + long) if math.isfinite(start) and math.isfinite(long) and long >= 0 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _size(op: str, args: Mapping[str, Any]) -> int | None:
    """Bytes of the message, from the elements that a rank puts in."""
    elements, width = _whole(args.get("In msg nelems")), _BYTES.get(str(args.get("dtype")))
    if elements is None or not width:
        return None
    return message_size(op, elements * width, _whole(args.get("Group size")))


def _backend(names: set[str]) -> str:
    """Of several the GPU's: the CPU's carries what is small."""
    return "nccl" if "nccl" in names else min(names, default="")


def _op(name: str) -> str:
    """One spelling for ``allgather_into_tensor_coalesced``, ``reduce_scatter_tensor_coalesced``, ..."""
    if name in _TENSORS:
        return _TENSORS[name]
    flat = name.lower().replace("_", "")
    for piece, op in (
        ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"), ("allreduce", "all_reduce"),
        ("alltoall", "all_to_all"), ("broadcast", "broadcast"),
    ):  # fmt: skip
        if piece in flat:
            return op
    return _word(name) or "collective"


def _word(text: str) -> str | None:
    word = re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).lstrip("_.+-")[:100]
    return word or None
