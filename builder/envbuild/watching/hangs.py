"""A hang told from a slow step: no rank makes progress for longer than this training's own steps explain."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from envbuild.watching.standstill import Verdict, activities, evidence, judge
from envbuild.watching.types import Alert, RankSeen, Severity, Tick, Where

# Steps that the training told of, and of each rank its step and how many collectives it has begun, where that is known.
_Marks = tuple[int, dict[int, tuple["int | None", "int | None"]]]
_LATE = 2.4  # intervals without progress, at the least: with a third sample it is certain
_LOOKS = 1.5  # intervals before that: two looks at the ranks' Python tell whether it moves
_PACES, _GAPS, _KNOWN = 60, 720, 3  # signs of progress: kept (an hour's at the usual interval), and enough
_SURE = 12  # intervals
_FIRSTS = 3  # times as long as until the first step
HANGS = ("hang", "mismatch")
_SEVERITY: Mapping[str, Severity] = {"hang": "error", "mismatch": "error", "busy": "info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long nothing may happen, in seconds, but ``factor``: of this training's median step."""

    interval: float = 5.0
    factor: float = 10.0
    first: float = 1800.0
    pause: float = 1800.0


@dataclass
class Hangs:
    """Hears every tick; says so when a training stands still, and when it goes on.

    Attributes:
        where: Set by whoever reads the ranks' stacks, after ``standing`` has become true.
        stirred: Of these the ranks whose Python is elsewhere than at the look before.
    """

    patience: Patience = field(default_factory=Patience)
    where: Mapping[int, Where] = field(default_factory=dict)
    stirred: frozenset[int] = frozenset()
    standing: bool = False

    def __post_init__(self) -> None:
        self._marks: _Marks | None = None
        self._since = 0.0
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._paces: deque[float] = deque(maxlen=_PACES)
        self._count = 0
        self._started = False
        self._first: float | None = None
        self._sure = 0.0
        self._before: Tick | None = None
        self._said: set[tuple[str, tuple[int, ...]]] = set()
        self._went: dict[int, float] = {}  # when each rank was last seen to get on with something of its own
        self._told = self._hung = self._halted = False

    def see(self, tick: Tick) -> list[Alert]:
        """One tick later."""
        marks = (tick.steps, {rank.rank: (rank.step, _begun(rank)) for rank in tick.ranks})
        count = max([tick.number or tick.steps, *(rank.step or 0 for rank in tick.ranks)])
        before, self._before = self._before, tick
        if self._marks is None or before is None:
            self._marks, self._since, self._count, self._first = marks, tick.at, count, tick.at
            return []
        if tick.at - before.at > 4 * self.patience.interval:
            # Nobody looked (Ctrl-Z, a laptop's lid, a crowded host): that time counts for nothing.
            self._since += tick.at - before.at
        if marks != self._marks:
            # A rank that comes or goes is no step.
            if _forward(self._marks, marks):
                return self._progress(tick, marks, count)
            self._marks = marks
        limit = self._limit(tick)
        doing = activities(tick, before, self.where)
        self._notice(tick, [rank for rank, does in doing.items() if does in ("moving", "children")])
        self._halted = any(does in ("gone", "stopped") for does in doing.values())
        if self._halted:
            # No step takes as long as this does.
            limit = min(limit, _LATE * self.patience.interval)
        elif self._started and len(self._gaps) < _KNOWN:
            # Between the first steps only a rank that is seen to be behind, and idle, is more than slow.
            limit = min(limit, max(_SURE * self.patience.interval, self._sure))
        self.standing = tick.at - self._since >= limit - _LOOKS * self.patience.interval
        if tick.at - self._since < limit:
            return []
        return self._stands(tick, before, {rank for rank, at in self._went.items() if tick.at - at < limit})

    def _notice(self, tick: Tick, moving: list[int]) -> None:
        """Which ranks get on with something: their bytes or their children do, or their Python."""
        for rank in (*moving, *self.stirred):
            self._went[rank] = tick.at
        for seen in tick.ranks:
            if seen.went is not None:
                self._went[seen.rank] = max(seen.went, self._went.get(seen.rank, seen.went))

    def _progress(self, tick: Tick, marks: _Marks, count: int) -> list[Alert]:
        gap = tick.at - self._since
        if self._started and count > self._count:
            self._paces.append(gap / (count - self._count))
        if self._started:
            self._gaps.append(gap)
        over = self._told
        if over:
            # A pause that was no hang is how long this training may take again.
            self._gaps.append(gap)
        if not self._started and count > 0:
            # The first step has more to do than those behind it, and theirs may be as long.
            self._started, self._sure = True, _FIRSTS * (tick.at - (self._first or 0.0))
        self._marks, self._since, self._count = marks, tick.at, count
        self.standing, self._told, self._hung, self._said = False, False, False, set()
        self.where, self.stirred, self._went = {}, frozenset(), {}
        if not over:
            return []
        return [Alert(kind="goes-on", severity="info", at=tick.at, message=f"it goes on after {gap:.0f} s")]

    def certain(self, tick: Tick) -> bool:
        """Whether what hangs may be ended.

        Where a rank is gone or stopped it is; else not before it is known how long a step takes, or the first one has
        had its time.
        """
        known = len(self._gaps) >= _KNOWN or tick.at - self._since >= self.patience.first
        return self._hung and (self._halted or known)

    def _limit(self, tick: Tick) -> float:
        patience = self.patience
        least = _LATE * patience.interval
        if len(self._gaps) < _KNOWN:
            # How often progress can be seen is not known yet.
            return max(least, patience.first)
        if tick.quiet:
            return max(least, patience.pause)
        longest = max(self._gaps, default=0.0)
        return max(
            least,
            patience.factor * median(self._paces) if self._paces else 0.0,
            # Where progress is seen only now and then, the time between two of its signs is no standstill.
            2 * longest if longest > 2 * patience.interval else 0.0,
        )

    def _stands(self, tick: Tick, before: Tick, going: set[int]) -> list[Alert]:
        found = judge(tick, before, self.where, going)
        stood = tick.at - self._since
        if stood < self._limit(tick) and not (found.kind in HANGS and found.ranks):
            return []
        if found.kind in ("busy", "slow", "quiet") and stood >= max(self.patience.pause, self._limit(tick)):
            found = Verdict(kind="hang", ranks=found.ranks, reason=found.reason)
        self._hung = found.kind in HANGS
        if found.kind == "quiet" and stood < _SURE * self.patience.interval:
            return []
        if found.kind == "slow" and not found.ranks and stood < 3 * self._limit(tick):
            # All of them compute, and nobody waits: a checkpoint or an evaluation that did not say so.
            return []
        said = (found.kind, found.ranks)
        if said in self._said:
            return []
        self._said.add(said)
        self._told = True
        usual = f"; its steps take {median(self._paces):.3g} s" if self._paces else ""
        told = (f"no progress for {stood:.0f} s{usual}", *evidence(tick, before, self.where))
        return [
            Alert(
                kind=found.kind, severity=_SEVERITY.get(found.kind, "warning"), at=tick.at,
                rank=found.ranks[0] if found.ranks else None, message=found.reason, evidence=told,
            )
        ]  # fmt: skip


def _begun(rank: RankSeen) -> int | None:
    return sum(call.number for call in rank.calls.values()) if rank.calls else None


def _forward(before: _Marks, after: _Marks) -> bool:
    """Whether more has been done; what is seen for the first time, or no more, has done nothing by that."""
    if before[0] != after[0]:
        return True
    for rank, (step, begun) in after[1].items():
        earlier = before[1].get(rank)
        if earlier is not None and (step != earlier[0] or (None not in (begun, earlier[1]) and begun != earlier[1])):
            return True
    return False
