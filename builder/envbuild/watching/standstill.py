"""What ranks do while nothing goes on, and what that makes of a standstill. Pure.

Ranks that compute, move bytes or move on in their Python are slow or busy; a rank that is stopped, gone, or idle while
others wait for it in a collective hangs. Which rank: the one that has begun fewer collectives than the others, or fewer
steps, or whose Python is not where the others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.watching.types import Activity, Call, RankSeen, Tick, Where

# Share of one CPU; on a crowded host a rank that spins gets no more, and is found waiting for one (state R).
_BUSY = 0.2
_MOVING = 1 << 20  # bytes a second
_WORDS: Mapping[Activity, str] = {
    "gone": "is gone", "stopped": "is stopped (a signal, or a debugger)", "busy": "computes or spins",
    "moving": "reads or writes", "blocked": "is blocked by a disk or a file server",
    "children": "waits for child processes that compute", "idle": "waits without using a CPU",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a standstill is.

    Attributes:
        kind: ``busy``, ``slow`` and ``quiet`` may be over by themselves.
        ranks: Those that the others wait for, first the lowest; empty where none differs.
    """

    kind: Literal["hang", "mismatch", "busy", "slow", "quiet"]
    ranks: tuple[int, ...]
    reason: str


def judge(tick: Tick, before: Tick, where: Mapping[int, Where], going: Collection[int] = ()) -> Verdict:
    """What a standstill is, from two looks at it.

    Args:
        going: Ranks that were lately seen to get on with something of their own.
    """
    doing = activities(tick, before, where)
    for wanted, why in (("gone", "is gone"), ("stopped", "is stopped")):
        ranks = [rank for rank, does in doing.items() if does == wanted]
        if ranks and (wanted == "stopped" or len(ranks) < len(doing)):
            return _hang(ranks, f"{why}, and the others wait for it" if len(doing) > 1 else why)
    running = [rank for rank in tick.ranks if rank.rank in doing]
    if found := mismatched(running):
        return found
    behind, why = _behind(running, where)
    if behind:
        return _behind_ones(behind, why, tick, doing, where, going)
    waiting = doing and all(where.get(rank) == "waiting" for rank in doing) and len(doing) > 1
    if waiting and not any(rank in going for rank in doing):
        return Verdict(kind="hang", ranks=(), reason="every rank waits in a collective, and none of them is behind")
    if any(does in ("busy", "moving", "blocked", "children") or rank in going for rank, does in doing.items()):
        odd = _odd(doing)
        told = f"{_named(odd)} {_WORDS[doing[odd[0]]]}, unlike the others" if odd else "the ranks compute or spin"
        return Verdict(kind="slow", ranks=tuple(odd), reason=f"a step takes longer than all before: {told}")
    return Verdict(kind="quiet", ranks=(), reason="no rank does anything, and none is behind the others")


def _behind_ones(
    behind: list[int], why: str, tick: Tick, doing: Mapping[int, Activity], where: Mapping[int, Where],
    going: Collection[int],
) -> Verdict:  # fmt: skip
    """What it is that ranks do which the others wait for."""
    on = [rank for rank in behind if rank in going or doing[rank] in ("moving", "children")]
    if on:
        place = next((each.place for each in tick.ranks if each.rank == on[0]), "")
        does = doing[on[0]]
        own = f"is busy in code of its own{f', in {place},' if place else ''}"
        told = _WORDS[does] if does in ("moving", "children") else own
        return Verdict(
            kind="busy", ranks=tuple(on), reason=f"{_named(on)} {told} while the others wait for it: {why}"
        )  # fmt: skip
    away = where.get(behind[0]) == "away"
    told = "saves, sends or waits for another program" if away else _WORDS[doing[behind[0]]]
    reason = f"{told} while the others wait for it: {why}"
    if away or any(doing[rank] in ("busy", "blocked") for rank in behind):
        return Verdict(kind="slow", ranks=tuple(behind), reason=f"{_named(behind)} {reason}")
    return _hang(behind, reason)


def activities(tick: Tick, before: Tick, where: Mapping[int, Where]) -> dict[int, Activity]:
    """What each rank has done since the tick before."""
    seconds = max(1e-3, tick.at - before.at)
    earlier = {rank.rank: rank for rank in before.ranks}
    # One that has come to its end is waited for by nobody. Where its parent was quicker than we to ask how it ended, it
    # came to its end, too, unless another one is seen to wait: its step and collectives are those of an earlier look.
    waits = any(rank.state and where.get(rank.rank) == "waiting" for rank in tick.ranks)
    well = (0,) if waits else (0, None)
    running = (rank for rank in tick.ranks if rank.state or rank.exit_code not in well)
    return {rank.rank: _activity(rank, earlier.get(rank.rank), seconds) for rank in running}


def _activity(rank: RankSeen, earlier: RankSeen | None, seconds: float) -> Activity:
    if rank.state in ("", "Z", "X"):
        return "gone"
    if rank.state in ("T", "t"):
        return "stopped"
    if earlier is None or earlier.pid != rank.pid:
        return "busy"
    if (rank.moved - earlier.moved) / seconds >= _MOVING:
        return "moving"
    if rank.state == "D":
        return "blocked"
    if rank.state == "R" or (rank.cpu - earlier.cpu) / seconds >= _BUSY:
        return "busy"
    return "children" if (rank.children - earlier.children) / seconds >= _BUSY else "idle"


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


def evidence(tick: Tick, before: Tick, where: Mapping[int, Where]) -> list[str]:
    """What each rank does, in a line."""
    doing = activities(tick, before, where)
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
