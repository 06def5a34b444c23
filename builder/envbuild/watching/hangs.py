"""A hang told from a slow step: no rank makes progress for longer than this training's own steps explain.

What ranks do meanwhile decides which of the two it is. Ranks that compute or move bytes are slow; a rank that is
stopped, gone, or idle while others wait for it in a collective hangs. Which rank: the one that has begun fewer
collectives than the others, or fewer steps, or whose Python is not where the others wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from envbuild.watching.types import Activity, Alert, Call, RankSeen, Tick, Where

# Share of one CPU; on a crowded host a rank that spins gets no more, and is found waiting for one (state R).
_BUSY = 0.2
_MOVING = 1 << 20  # bytes a second
# Steps that the training told of, and of each rank its step and how many collectives it has begun.
_Marks = tuple[int, dict[int, tuple["int | None", int]]]
_LATE = 2.4  # intervals without progress, at the least: with a third sample it is certain
_PACES, _GAPS, _KNOWN = 60, 720, 3  # signs of progress: kept (an hour's at the usual interval), and enough
_SURE = 12  # intervals
_WORDS: Mapping[Activity, str] = {
    "gone": "is gone", "stopped": "is stopped (a signal, or a debugger)", "busy": "computes or spins",
    "moving": "reads or writes", "idle": "waits without using a CPU",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long nothing may happen, in seconds, but ``factor``: of this training's median step."""

    interval: float = 5.0
    factor: float = 10.0
    first: float = 1800.0
    pause: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a standstill is.

    Attributes:
        kind: ``slow`` and ``quiet`` may be over by themselves.
        ranks: Those that the others wait for, first the lowest; empty where none differs.
    """

    kind: Literal["hang", "mismatch", "slow", "quiet"]
    ranks: tuple[int, ...]
    reason: str


@dataclass
class Hangs:
    """Hears every tick; says so when a training stands still, and when it goes on.

    Attributes:
        where: Set by whoever reads the ranks' stacks, after ``standing`` has become true.
    """

    patience: Patience = field(default_factory=Patience)
    where: Mapping[int, Where] = field(default_factory=dict)
    standing: bool = False

    def __post_init__(self) -> None:
        self._marks: _Marks | None = None
        self._since = 0.0
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._paces: deque[float] = deque(maxlen=_PACES)
        self._count = 0
        self._started = False
        self._before: Tick | None = None
        self._said: tuple[str, tuple[int, ...]] | None = None
        self._told = False

    def see(self, tick: Tick) -> list[Alert]:
        """One tick later."""
        marks = (tick.steps, {rank.rank: (rank.step, _begun(rank)) for rank in tick.ranks})
        count = max([tick.number or tick.steps, *(rank.step or 0 for rank in tick.ranks)])
        before, self._before = self._before, tick
        if self._marks is None or before is None:
            self._marks, self._since, self._count = marks, tick.at, count
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
        if any(does in ("gone", "stopped") for does in activities(tick, before).values()):
            # No step takes as long as this does.
            limit = min(limit, _LATE * self.patience.interval)
        elif self._started and len(self._gaps) < _KNOWN:
            # Between the first steps only a rank that is seen to be behind, and idle, is more than slow.
            limit = min(limit, _SURE * self.patience.interval)
        self.standing = tick.at - self._since >= limit / 2
        if tick.at - self._since < limit:
            return []
        return self._stands(tick, before)

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
        self._started = self._started or count > 0
        self._marks, self._since, self._count = marks, tick.at, count
        self.standing, self._told, self._said, self.where = False, False, None, {}
        if not over:
            return []
        return [Alert(kind="goes-on", severity="info", at=tick.at, message=f"it goes on after {gap:.0f} s")]

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

    def _stands(self, tick: Tick, before: Tick) -> list[Alert]:
        found = judge(tick, before, self.where)
        stood = tick.at - self._since
        if stood < self._limit(tick) and not (found.kind in ("hang", "mismatch") and found.ranks):
            return []
        if found.kind in ("slow", "quiet") and stood >= max(self.patience.pause, self._limit(tick)):
            found = Verdict(kind="hang", ranks=found.ranks, reason=found.reason)
        if found.kind == "quiet" and stood < _SURE * self.patience.interval:
            return []
        if found.kind == "slow" and not found.ranks and stood < 3 * self._limit(tick):
            # All of them compute, and nobody waits: a checkpoint or an evaluation that did not say so.
            return []
        said = (found.kind, found.ranks)
        if said == self._said:
            return []
        self._said, self._told = said, True
        usual = f"; its steps take {median(self._paces):.3g} s" if self._paces else ""
        evidence = [f"no progress for {stood:.0f} s{usual}", *_evidence(tick, before)]
        return [
            Alert(
                kind=found.kind, severity="error" if found.kind in ("hang", "mismatch") else "warning", at=tick.at,
                rank=found.ranks[0] if found.ranks else None, message=found.reason, evidence=tuple(evidence),
            )
        ]  # fmt: skip


def judge(tick: Tick, before: Tick, where: Mapping[int, Where]) -> Verdict:
    """What a standstill is, from two looks at it."""
    doing = activities(tick, before)
    for wanted, why in (("gone", "is gone"), ("stopped", "is stopped")):
        ranks = [rank for rank, does in doing.items() if does == wanted]
        if ranks and (wanted == "stopped" or len(ranks) < len(doing)):
            return _hang(ranks, f"{why}, and the others wait for it" if len(doing) > 1 else why)
    running = [rank for rank in tick.ranks if rank.rank in doing]
    if found := mismatched(running):
        return found
    behind, why = _behind(running, where)
    if behind:
        away = where.get(behind[0]) == "away"
        told = "saves, sends or waits for another program" if away else _WORDS[doing[behind[0]]]
        reason = f"{told} while the others wait for it: {why}"
        if away or any(doing[rank] in ("busy", "moving") for rank in behind):
            return Verdict(kind="slow", ranks=tuple(behind), reason=f"{_named(behind)} {reason}")
        return _hang(behind, reason)
    if doing and all(where.get(rank) == "waiting" for rank in doing) and len(doing) > 1:
        return Verdict(kind="hang", ranks=(), reason="every rank waits in a collective, and none of them is behind")
    if any(does in ("busy", "moving") for does in doing.values()):
        odd = _odd(doing)
        told = f"{_named(odd)} {_WORDS[doing[odd[0]]]}, unlike the others" if odd else "the ranks compute or spin"
        return Verdict(kind="slow", ranks=tuple(odd), reason=f"a step takes longer than all before: {told}")
    return Verdict(kind="quiet", ranks=(), reason="no rank does anything, and none is behind the others")


def activities(tick: Tick, before: Tick) -> dict[int, Activity]:
    """What each rank has done since the tick before."""
    seconds = max(1e-3, tick.at - before.at)
    earlier = {rank.rank: rank for rank in before.ranks}
    # One that has come to its end is waited for by nobody.
    running = (rank for rank in tick.ranks if rank.state or rank.exit_code != 0)
    return {rank.rank: _activity(rank, earlier.get(rank.rank), seconds) for rank in running}


def _activity(rank: RankSeen, earlier: RankSeen | None, seconds: float) -> Activity:
    if rank.state in ("", "Z", "X"):
        return "gone"
    if rank.state in ("T", "t"):
        return "stopped"
    if earlier is None or earlier.pid != rank.pid:
        return "busy"
    if (rank.moved - earlier.moved) / seconds >= _MOVING or rank.state == "D":
        return "moving"
    return "busy" if rank.state == "R" or (rank.cpu - earlier.cpu) / seconds >= _BUSY else "idle"


def mismatched(ranks: Sequence[RankSeen]) -> Verdict | None:
    """Ranks that are in collectives which do not belong together: they wait for one another for ever."""
    for group in sorted({name for rank in ranks for name in rank.calls}):
        calls = {rank.rank: rank.calls[group] for rank in ranks if group in rank.calls}
        if len({call.number for call in calls.values()}) != 1:
            continue
        for kind in ("name", "sizes"):
            said = {rank: getattr(call, kind) for rank, call in calls.items()}
            common, most = Counter(said.values()).most_common(1)[0]
            if most == len(said) or (kind == "sizes" and not _equal_sizes(calls)):
                continue
            odd = tuple(sorted(rank for rank, value in said.items() if value != common))
            other = next(rank for rank, value in said.items() if value == common)
            return Verdict(
                kind="mismatch", ranks=odd,
                reason=f"{_named(odd)} is in {_call(calls[odd[0]])} and rank {other} in {_call(calls[other])}: "
                "they do not belong together",
            )  # fmt: skip
    return None


def _equal_sizes(calls: Mapping[int, Call]) -> bool:
    """Whether every rank of these has to bring as much: not in a gather or a scatter."""
    return all(call.name.rpartition(":")[2] in ("all_reduce", "allreduce", "broadcast") for call in calls.values())


def _behind(ranks: Sequence[RankSeen], where: Mapping[int, Where]) -> tuple[list[int], str]:
    """The ranks that others wait for, and how that is known."""
    for group in sorted({name for rank in ranks for name in rank.calls}):
        calls = {rank.rank: rank.calls[group] for rank in ranks if group in rank.calls}
        first = max(calls.values(), key=lambda call: call.number)
        late = sorted(rank for rank, call in calls.items() if call.number < first.number)
        if late:
            return late, f"they are in collective {first.number}, {first.name}, which it has not begun"
    steps = {rank.rank: rank.step for rank in ranks if rank.step is not None}
    late = sorted(rank for rank, step in steps.items() if step < max(steps.values()))
    if late:
        return late, f"it is in step {steps[late[0]]}, and they are in step {max(steps.values())}"
    own = sorted(rank.rank for rank in ranks if where.get(rank.rank) in ("own", "away"))
    waiting = any(where.get(rank.rank) == "waiting" for rank in ranks)
    return (own, "their Python is in a collective, and its is not") if own and waiting else ([], "")


def _odd(doing: Mapping[int, Activity]) -> list[int]:
    common = Counter(doing.values()).most_common()
    if len(common) < 2 or common[0][1] == common[1][1]:
        return []
    return sorted(rank for rank, does in doing.items() if does != common[0][0])


def _hang(ranks: Sequence[int], reason: str) -> Verdict:
    return Verdict(kind="hang", ranks=tuple(sorted(ranks)), reason=f"{_named(sorted(ranks))} {reason}")


def _evidence(tick: Tick, before: Tick) -> list[str]:
    doing = activities(tick, before)
    lines = []
    for rank in tick.ranks:
        if rank.rank not in doing:
            continue
        words = [_WORDS[doing[rank.rank]]]
        if rank.step is not None:
            words.append(f"step {rank.step}")
        words += [f"{_call(call)}" for call in rank.calls.values()][:3]
        lines.append(f"rank {rank.rank} (process {rank.pid}): {', '.join(words)}")
    return [*lines[:16], f"and {len(lines) - 16} more ranks"] if len(lines) > 16 else lines


def _call(call: Call) -> str:
    return f"collective {call.number} ({call.name}{' ' + call.sizes if call.sizes else ''})"


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    many = f"ranks {', '.join(map(str, ranks[:8]))}{more} (the first is {ranks[0]})"
    return f"rank {ranks[0]}" if len(ranks) == 1 else many


def _begun(rank: RankSeen) -> int:
    return sum(call.number for call in rank.calls.values())


def _forward(before: _Marks, after: _Marks) -> bool:
    """Whether more has been done; ranks that are seen for the first time, or no more, have done nothing by that."""
    return before[0] != after[0] or any(
        rank in before[1] and before[1][rank] != mark for rank, mark in after[1].items()
    )
