"""One run in a log, while it is being read: rows of steps for each rank, and what is known of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

from envbuild.profile.document import Communication, Launch, Unavailable
from envbuild.profile.figures import Inside, Memory, Part, Rank, Steps
from envbuild.profile.readers.comms import Comms

# Far more steps than a comparison needs; a log of more is cut, and that is said.
MOST_STEPS = 200_000
MOST_RANKS = 4096


@dataclass(slots=True)
class Row:
    """One step."""

    number: int
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Process:
    """What one rank's lines tell."""

    rows: list[Row] = field(default_factory=list)
    pending: dict[str, float] = field(default_factory=dict)
    loss: tuple[str, float] | None = None
    peak: int | None = None
    number: int = -1
    cut: bool = False

    def end_step(self, figures: dict[str, float]) -> None:
        """A step is over: its figures, and those that were told before its end."""
        self.number += 1
        if len(self.rows) >= MOST_STEPS:
            self.cut = True
            return
        self.rows.append(Row(number=self.number, figures={**self.pending, **figures}))
        self.pending = {}

    def named(self, number: int) -> Row | None:
        """The row of a step that a line names, made where there is none; None beyond the limit."""
        if self.rows and self.rows[-1].number == number:
            return self.rows[-1]
        if self.rows and self.rows[-1].number > number:
            return next((row for row in reversed(self.rows[-64:]) if row.number == number), None)
        if len(self.rows) >= MOST_STEPS:
            self.cut = True
            return None
        self.number = number
        self.rows.append(Row(number=number))
        return self.rows[-1]

    @property
    def steps(self) -> Steps:
        """The columns."""
        groups: dict[str, Any] = {"parts": {}, "inside": {}}
        for group, names in (("parts", get_args(Part)), ("inside", get_args(Inside))):
            for name in names:
                column = self._column(name)
                if column:
                    groups[group][name] = column
        return Steps(
            number=tuple(row.number for row in self.rows), at=self._column("at"), seconds=self._column("seconds"),
            loss=self._column("loss"), gradient_norm=self._column("gradient_norm"), **groups,
        )  # fmt: skip

    def _column(self, name: str) -> tuple[float | None, ...]:
        values = tuple(_known(name, row.figures.get(name)) for row in self.rows)
        return values if any(value is not None for value in values) else ()


def _known(name: str, value: float | None) -> float | None:
    """A loss may be infinite; a time that is, was no time."""
    return value if value is None or name in ("loss", "gradient_norm") or math.isfinite(value) else None


@dataclass(slots=True)
class Run:
    """One start of a training, as its log tells it."""

    processes: dict[int, Process] = field(default_factory=dict)
    comms: dict[int, Comms] = field(default_factory=dict)
    backend: str | None = None
    transports: set[str] = field(default_factory=set)
    timed: bool = False
    stamped: bool = False

    def process(self, rank: int) -> Process:
        """Of a rank; a log that names thousands of ranks is read for the first of them."""
        if rank not in self.processes and len(self.processes) >= MOST_RANKS:
            rank = next(iter(self.processes))
        return self.processes.setdefault(rank, Process())

    @property
    def tabled(self) -> bool:
        """Whether a table of collectives is being read."""
        return any(each.in_table for each in self.comms.values())

    def comm(self, rank: int) -> Comms:
        """Its collectives."""
        return self.comms.setdefault(rank, Comms())

    @property
    def empty(self) -> bool:
        """Whether nothing was told."""
        return not any(each.rows for each in self.processes.values()) and not any(self.comms.values())

    def launch(self, version: tuple[int, ...] | None, ranks: int | None, *, on_cpu: bool) -> Launch:
        """The run as a launch."""
        missing: list[Unavailable] = []
        made = []
        for number in sorted({*self.processes, *(rank for rank, each in self.comms.items() if each)}):
            process = self.processes.get(number, Process())
            rows, why = self.comms[number].collectives(version, ranks) if self.comms.get(number) else ([], [])
            missing += why
            memory = Memory(host_peak_bytes=process.peak) if on_cpu else Memory(gpu_peak_bytes=process.peak)
            made.append(Rank(rank=number, steps=process.steps, memory=memory, collectives=tuple(rows)))
        missing += self._missing(made)
        return Launch(
            ranks=tuple(made),
            communication=Communication(backend=self.backend, transports=tuple(sorted(self.transports))),
            unavailable=tuple({(each.figure, each.reason): each for each in missing}.values()),
            pass_="timing" if any(rank.steps.number for rank in made) else "comms",  # type: ignore[call-arg]
        )  # fmt: skip

    def _missing(self, made: list[Rank]) -> list[Unavailable]:
        found = [
            Unavailable(figure="data_wait", reason="DeepSpeed has no timer of waiting for data"),
            Unavailable(figure="gpu_percent", reason="a log has no samples of utilisation"),
        ]
        if not self.timed:
            why = "no timer lines: set wall_clock_breakdown to true in the ds_config"
            found.append(Unavailable(figure="parts", reason=why))
        if not any(rank.collectives for rank in made):
            why = "no lines of comms_logger: enable it in the ds_config"
            found.append(Unavailable(figure="collectives", reason=why))
        if not any(rank.steps.seconds for rank in made):
            why = "no line has a time of day or a step's whole time"
            found.append(Unavailable(figure="seconds", reason=why))
        return found
