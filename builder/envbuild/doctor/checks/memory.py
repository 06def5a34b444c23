"""Host memory against what ZeRO-3 with CPU offload holds in it."""

from __future__ import annotations

from collections.abc import Iterator

from envbuild.doctor.checks.launcher import nodes
from envbuild.doctor.found import ranks, sources
from envbuild.doctor.sizes import amount, number
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

_WHY = "The kernel kills the rank that asks for too much (exit code -9), with no word from Python."


def look(view: View) -> Iterator[Finding]:
    """The need of the model that was named, else how large a model has room; and what was killed before."""
    memory = view.collection.machine.memory
    if memory.oom_kills:
        yield Finding(
            rule="memory.killed", severity=Severity.WARNING, subject="cgroup",
            message=f"the kernel has killed {memory.oom_kills} process(es) of this cgroup for want of memory",
            why=_WHY, fix="raise the limit (--memory, or the job's), or take a smaller model or fewer ranks",
            source="memory.events of the cgroup",
        )  # fmt: skip
    if memory.total is None:
        return
    limited = memory.limit is not None and memory.limit < memory.total
    room = memory.limit if limited and memory.limit is not None else memory.total
    whose = f"the cgroup's limit of {amount(room)} (the host has {amount(memory.total)})" if limited else amount(room)
    if view.params:
        yield from _need(view, view.params, room, whose)
    elif view.collection.image is None:
        least = view.facts.deepspeed.host_bytes.bf16
        yield Finding(
            rule="memory.room", severity=Severity.INFO, subject="host memory",
            message=f"{whose} has room for the offloaded states of {number(room / least)} parameters at the very most "
            f"({least} bytes each in bf16, on one node; half as many where all is pinned and rounded up at its worst)",
            fix="say how large the model is: --params 7b",
            source=sources((view.facts.deepspeed.host_bytes,)),
        )  # fmt: skip


def _need(view: View, params: int, room: int, whose: str) -> Iterator[Finding]:
    fact = view.facts.deepspeed.host_bytes
    count, swaps = nodes(view), bool(view.collection.nvme)
    params = -(-params // count)
    least, most = params * fact.bf16, params * fact.fp32
    free = _free(view, room)
    evidence = (
        f"bf16: {fact.bf16} bytes a parameter, {amount(least)}",
        f"bf16 with fp32 accumulation: {fact.bf16_fp32_accumulation} bytes, "
        f"{amount(params * fact.bf16_fp32_accumulation)}",
        f"fp32: {fact.fp32} bytes, {amount(most)}",
        "pinned blocks are rounded up to powers of two: up to twice as much of what is pinned",
        f"sums over the {ranks(view)} rank(s) of this node"
        + (f", which holds one part in {count}" if count > 1 else "; several nodes would share it"),
    )
    part = f" (one part in {count} of the model)" if count > 1 else ""
    told = f"{number(params)} parameters{part} hold {amount(least)} (bf16) to {amount(most)} (fp32) in host memory"
    fix = "offload the optimizer to NVMe (device: nvme), take more nodes, or a smaller model"
    if least > room:
        # Where a folder to swap to was named, the optimizer is not meant to lie in memory.
        severity = Severity.WARNING if swaps else Severity.ERROR
        told = f"{told}, and this node has {whose}" + (": the optimizer has to go to NVMe" if swaps else "")
    elif free is not None and least > free:
        severity, told = Severity.WARNING, f"{told}, and {amount(free)} of {whose} is free now"
        fix = f"end what uses the rest, or {fix}"
    elif 2 * least > room:
        severity = Severity.WARNING
        told += f"; this node has {whose}, which pinned memory's rounding may go beyond"
        fix = f"set pin_memory to false if it does, or {fix}"
    else:
        severity, told, fix = Severity.INFO, f"{told}; this node has {whose}", "nothing to do"
    yield Finding(
        rule="memory.need", severity=severity, subject="host memory", message=told, fix=fix, evidence=evidence,
        why=_WHY if severity is not Severity.INFO else "", source=sources((fact,)),
    )  # fmt: skip


def _free(view: View, room: int) -> int | None:
    memory = view.collection.machine.memory
    left = [] if memory.available is None else [memory.available]
    if memory.limit is not None and memory.used is not None and memory.limit == room:
        # Its page cache counts as used, and is given back: what the host has available says no less.
        left.append(max(room - memory.used, 0))
    return min(left, default=None)


CHECK = Check(
    name="memory",
    title="host memory, and the cgroup's limit, hold the offloaded states",
    look=look,
)
