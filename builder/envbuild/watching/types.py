"""What is seen of a training at one moment, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "info"]
# What a process does: it is gone, was stopped by a signal, computes (or spins), moves bytes, is blocked by a disk, has
# children that compute, or waits.
Activity = Literal["gone", "stopped", "busy", "moving", "blocked", "children", "idle"]
# Where a rank's Python is: in a collective or waiting for the GPU; away, saving or sending something or waiting for
# another program; or in code of its own.
Where = Literal["waiting", "away", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that is wrong, said once until it is over.

    Attributes:
        at: Seconds since watching began.
        rank: The rank that it is about; None where it is about all of them.
    """

    kind: str
    severity: Severity
    message: str
    at: float
    rank: int | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The collective that a rank began last in one process group."""

    number: int
    name: str
    sizes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """One rank at one moment.

    Attributes:
        state: The kernel's letter for what the process does (proc(5)); empty when it is gone.
        cpu: Seconds of CPU that the process has used.
        moved: Bytes that it and its children have read and written.
        children: Seconds of CPU that its children have used.
        went: When its Python was last seen to move on, on the clock of the tick; None where nobody looks.
        place: Where in code of its own its Python is, where that is known.
        step: The engine's own count; None where it cannot be seen.
        calls: By process group.
        exit_code: How it ended, where that could be seen: negative is a signal.
    """

    rank: int
    pid: int
    state: str
    cpu: float = 0.0
    moved: int = 0
    children: float = 0.0
    went: float | None = None
    place: str = ""
    step: int | None = None
    calls: Mapping[str, Call] = field(default_factory=dict)
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the training has of one memory, and what is left of it for it.

    Attributes:
        filled: It is filled on purpose, as torch's allocator does with a GPU's: only growth tells something.
    """

    name: str
    used: int
    left: int
    limit: int
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Everything that was seen at one moment.

    Attributes:
        steps: How often the training's own words have told of a step so far.
        number: The highest number of a step in them.
        ooms: Processes that the kernel has killed for want of memory, in the training's cgroup.
        iowait: Share of the CPUs' time since the tick before that they waited for a disk, 0 to 1.
        quiet: The last words were of something that takes long: a checkpoint, an evaluation, an upload.
    """

    at: float
    ranks: tuple[RankSeen, ...]
    steps: int = 0
    number: int | None = None
    memories: tuple[Memory, ...] = ()
    ooms: int = 0
    iowait: float | None = None
    gpu_percent: tuple[float, ...] = ()
    quiet: bool = False


def as_dict(alert: Alert) -> dict[str, object]:
    """An alert for ``--json``."""
    return {
        "kind": alert.kind, "severity": alert.severity, "message": alert.message, "rank": alert.rank,
        "at": round(alert.at, 3), "evidence": list(alert.evidence),
    }  # fmt: skip


def counted(alerts: Iterable[Alert]) -> dict[str, int]:
    """How many alerts of each kind there were; a notice is none."""
    return dict(sorted(Counter(alert.kind for alert in alerts if alert.severity != "info").items()))
