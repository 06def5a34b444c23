"""A rank that ended in the middle of a training: the first one is the story, the others follow it."""

from __future__ import annotations

import signal

from envbuild.watching.types import Alert, RankSeen, Tick

# How launchers and people end the ranks that are left.
_TOLD_TO = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)


class Deaths:
    """Hears every tick, and of every rank that has ended as soon as it is seen."""

    def __init__(self) -> None:
        self._told = False
        self._ooms = 0
        self._unexplained = 0
        self._unseen: list[tuple[float, RankSeen]] = []

    def died(
        self, rank: RankSeen, at: float, *, ooms: int = 0, kernel: str = "", sure: bool = True
    ) -> list[Alert]:  # fmt: skip
        """A rank has ended.

        Args:
            ooms: Processes of its cgroup that the kernel has killed for want of memory since watching began.
            kernel: What the kernel's log says of this process.
            sure: It is a rank, and not what only seems to be one: such a process may be ended by the training itself.
        """
        code = rank.exit_code
        if code is None or (not sure and code):
            # Whether that was an end in the middle is known when the command ends.
            self._unseen.append((at, rank))
            return []
        if self._told or code in (0, *_TOLD_TO):
            return []
        self._told = True
        evidence = [f"process {rank.pid}, step {rank.step}" if rank.step is not None else f"process {rank.pid}"]
        kind = "rank-died"
        if kernel:
            evidence.append(f"the kernel's log: {kernel}")
        if code == -signal.SIGKILL and (ooms > self._ooms or "Killed process" in kernel):
            kind, self._ooms = "rank-oom", ooms
            evidence.append("the kernel killed it for want of memory")
        return [
            Alert(kind=kind, severity="error", at=at, rank=rank.rank, message=f"rank {rank.rank} {ended(code)}",
                  evidence=tuple(evidence))
        ]  # fmt: skip

    def close(self, code: int | None, at: float) -> list[Alert]:
        """The command has ended, with this exit code; None where that cannot be seen."""
        if self._told or not code or not self._unseen:
            return []
        self._told = True
        first = self._unseen[0][0]
        # Those that one look found gone may have ended in any order.
        ranks = sorted(rank.rank for when, rank in self._unseen if when == first)
        rank = self._unseen[0][1]
        if len(ranks) > 1:
            named = f"one of the ranks {', '.join(map(str, ranks[:8]))} ended first"
            how = "which of them, and their exit codes, was not seen: their parent was quicker"
        elif rank.exit_code is None:
            named, how = f"rank {ranks[0]} ended first", "its exit code was not seen: its parent was quicker"
        else:
            named, how = f"rank {ranks[0]} {ended(rank.exit_code)}", f"process {rank.pid}"
        return [
            Alert(kind="rank-died", severity="error", at=at, rank=ranks[0] if len(ranks) == 1 else None,
                  message=f"{named}, and the command with exit code {code}",
                  evidence=(f"{at - first:.1f} s before the command's end was seen", how))
        ]  # fmt: skip

    def see(self, tick: Tick) -> list[Alert]:
        """One tick later: somebody else than a rank may have been killed.

        The kernel counts before the process is gone, so what no rank's end has explained by the next tick is told then.
        """
        before, self._unexplained = self._unexplained, tick.ooms - self._ooms
        count = min(before, self._unexplained)
        if count <= 0:
            return []
        self._ooms, self._unexplained = self._ooms + count, self._unexplained - count
        what = "a process" if count == 1 else f"{count} processes"
        return [Alert(kind="oom-kill", severity="error", at=tick.at,
                      message=f"the kernel has killed {what} of this cgroup for want of memory")]  # fmt: skip


def ended(code: int) -> str:
    """How a process ended, in words; negative is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "signal"
    return f"was ended by {name} ({-code})"
