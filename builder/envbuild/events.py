"""What long work tells its audience, as values.

Core code emits events into a sink; only ``cli`` turns them into text. A sink must be cheap and
must not raise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_FLAGS = re.compile(r"^((?:\[[^\]]*\] )?RUN)(?: --\S+)+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A phase of the pipeline begins, such as ``build`` or ``smoke``."""

    phase: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDone:
    """A phase ended well after ``seconds``."""

    phase: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """One step inside a phase, such as a Dockerfile instruction; ``key`` is unique in the phase."""

    key: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One line of a step's output."""

    key: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step ended; ``status`` is ``done``, ``cached``, ``canceled`` or ``error``."""

    key: str
    name: str
    status: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user should know now; ``level`` is ``info`` or ``warning``."""

    message: str
    level: str = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """A work of several has ended, in whatever phase it was; ``detail`` says how, ``ok`` whether well."""

    detail: str
    seconds: float
    ok: bool


Event = PhaseStarted | PhaseDone | StepStarted | StepLine | StepDone | Note | WorkDone
Sink = Callable[[Event], None]


def step_text(name: str) -> str:
    """A step's name on one line, without the mounts and other flags of a RUN."""
    return _FLAGS.sub(r"\1 ", " ".join(name.split()))


def discard(event: Event) -> None:
    """The sink of callers that want silence."""
