"""One run in a log, while it is being read: what its ranks tell, and what is known of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envbuild.profile.document import Communication, Launch, Unavailable
from envbuild.profile.figures import Memory, Rank
from envbuild.profile.readers.comms import Comms
from envbuild.profile.readers.rows import Process

MOST_RANKS = 4096
# So many single operations are more than those of a start: another start is another run.
_STARTED = 8


@dataclass(slots=True)
class Run:
    """One start of a training, as its log tells it."""

    processes: dict[int, Process] = field(default_factory=dict)
    comms: dict[int, Comms] = field(default_factory=dict)
    version: tuple[int, ...] | None = None
    world: int | None = None
    accelerator: str | None = None
    nccl: str | None = None
    config: dict[str, object] | None = None
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

    @property
    def stepped(self) -> bool:
        """Whether a step was told."""
        return any(each.rows for each in self.processes.values())

    @property
    def begun(self) -> bool:
        """Whether it is behind its start."""
        return self.stepped or any(each.count > _STARTED or each.table for each in self.comms.values())

    def over(self, version: tuple[int, ...]) -> bool:
        """Whether a start of this version is another run, and not the same start told by another rank."""
        other = self.version is not None and self.version != version
        return self.begun or (other and any(self.comms.values()))

    def tell(self, name: str, value: Any) -> None:
        """Something that a line has told of the run."""
        if name == "transports":
            self.transports.add(value)
        elif name == "world":
            # A line may tell the size of a smaller group.
            self.world = max(value, self.world or 0) or None
        elif name != "config" or self.config is None:
            setattr(self, name, value)

    @property
    def ranks(self) -> set[int]:
        """Those that told something."""
        told = {rank for rank, each in self.processes.items() if each.rows or each.peak is not None}
        return told | {rank for rank, each in self.comms.items() if each}

    def join(self, other: Run) -> None:
        """Other ranks of the same run."""
        for rank in other.ranks:
            if rank in other.processes:
                self.processes[rank] = other.processes[rank]
            if other.comms.get(rank):
                self.comms[rank] = other.comms[rank]
        for name in ("version", "accelerator", "nccl", "config", "backend"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))
        self.world = max(self.world or 0, other.world or 0) or None
        self.transports |= other.transports
        self.timed, self.stamped = self.timed or other.timed, self.stamped or other.stamped

    def launch(self) -> Launch:
        """The run as a launch."""
        missing: list[Unavailable] = []
        made = []
        on_cpu, start = self.accelerator == "cpu", self._start()
        for number in sorted({*self.processes, *(rank for rank, each in self.comms.items() if each)}):
            process = self.processes.get(number, Process())
            rows, why = self.comms[number].collectives(self.version, self.world) if self.comms.get(number) else ([], [])
            missing += why
            memory = Memory(host_peak_bytes=process.peak) if on_cpu else Memory(gpu_peak_bytes=process.peak)
            made.append(Rank(rank=number, steps=process.steps(start), memory=memory, collectives=tuple(rows)))
        missing += self._missing(made)
        return Launch(
            ranks=tuple(made),
            communication=Communication(backend=self.backend, transports=tuple(sorted(self.transports))),
            unavailable=tuple({(each.figure, each.reason): each for each in missing}.values()),
            pass_="timing" if any(rank.steps.number for rank in made) else "comms",  # type: ignore[call-arg]
        )  # fmt: skip

    def _start(self) -> float:
        """When its first step began."""
        rows = (row for each in self.processes.values() for row in each.rows)
        return min((row.figures["at"] for row in rows if "at" in row.figures), default=0.0)

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
