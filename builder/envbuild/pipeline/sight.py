"""Looks at a training: its processes, its memories, what its ranks' beacons say."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.watching import proc
from envbuild.watching.lines import Words
from envbuild.watching.proc import Stat
from envbuild.watching.types import Call, Memory, RankSeen, Tick

_LOG = Path("/dev/kmsg")


class Sight:
    """Everything that can be seen of a process and its descendants.

    Args:
        root: The process.
        folder: Where the ranks' beacons write; None where there are none.
        words: What reads the training's own words.
    """

    def __init__(self, root: int, folder: Path | None, words: Iterable[Words]) -> None:
        self._folder, self._words = folder, tuple(words)
        self._waited = proc.waited()
        self._quiet: int | None = None
        self._gpus = Gpus()
        self.told = False
        self.follow(root)

    def follow(self, root: int) -> None:
        """Look at another process and its descendants."""
        self._root = root
        self._cgroup = proc.Cgroup(root)
        self._ooms = self._cgroup.killed()
        self._known: dict[int, tuple[int, int]] = {}  # of each rank its process, and when that began
        self._ended: dict[int, RankSeen] = {}
        self._last: dict[int, RankSeen] = {}
        self.guessed = False

    def look(self, at: float) -> Tick:
        """One look."""
        members = proc.tree(self._root)
        told = self._beacons(at)
        self.told = self.told or bool(told)
        self._find(members, told)
        ranks = tuple(self._rank(rank, pid, members, told.get(rank)) for rank, (pid, _) in sorted(self._known.items()))
        used = proc.footprint(members)
        memories = [self._cgroup.memory(used), proc.host_memory(used), *self._gpus.memories()]
        waited, before = proc.waited(), self._waited
        self._waited = waited
        share = None
        if waited and before and waited[1] > before[1]:
            share = max(0.0, (waited[0] - before[0]) / (waited[1] - before[1]))
        return Tick(
            at=at, ranks=ranks, steps=sum(words.steps for words in self._words),
            number=max((words.number for words in self._words if words.number is not None), default=None),
            memories=tuple(memory for memory in memories if memory is not None), ooms=self.ooms(), iowait=share,
            gpu_percent=self._gpus.busy(), quiet=self._is_quiet(ranks),
        )  # fmt: skip

    def _is_quiet(self, ranks: tuple[RankSeen, ...]) -> bool:
        """Whether something that takes long was announced, and engines have made no steps since."""
        if not any(words.quiet for words in self._words):
            self._quiet = None
            return False
        step = max((rank.step for rank in ranks if rank.step is not None), default=0)
        self._quiet = step if self._quiet is None else self._quiet
        if step > self._quiet + 1:
            for words in self._words:
                words.quiet = False
        return step <= self._quiet + 1

    def ooms(self) -> int:
        """Processes of the cgroup that the kernel has killed since the first look."""
        return max(0, self._cgroup.killed() - self._ooms)

    def ended(self) -> list[RankSeen]:
        """Ranks that have ended since this was last asked; cheap, so that it can be asked often.

        How a process ended can be read as long as its parent has not asked.
        """
        found = []
        for rank, (pid, started) in self._known.items():
            if rank in self._ended:
                continue
            now = proc.stat(pid)
            if now is not None and now.started == started and now.state not in ("Z", "X"):
                continue
            before = self._last.get(rank, RankSeen(rank=rank, pid=pid, state=""))
            code = now.exit_code if now is not None and now.started == started else None
            self._ended[rank] = replace(before, state="", exit_code=code)
            found.append(self._ended[rank])
        return found

    def kernel(self, pid: int) -> str:
        """What the kernel's log says of a process that it killed; empty where it may not be read."""
        try:
            # Each read gives one record, and the last one would wait for the next.
            descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return ""
        found = ""
        try:
            for _ in range(100_000):
                record = os.read(descriptor, 8192).decode(errors="replace")
                if f"Killed process {pid} " in record:
                    found = record.partition(";")[2].splitlines()[0]
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return found

    def _find(self, members: list[Stat], told: dict[int, dict[str, Any]]) -> None:
        here = {member.pid: member for member in members}
        found = proc.ranks(members)
        # A rank knows itself by its number in its container.
        inside = {proc.inner(member.pid): member for member in members} if told else {}
        for rank, figures in told.items():
            if figures["pid"] in inside:
                found[rank] = inside[figures["pid"]]
        if found and self.guessed:
            self._known, self.guessed = {}, False
        if not found and members and (self.guessed or not self._known):
            # No launcher: the process that has worked most is the training.
            self.guessed = True
            most = max(members, key=lambda member: member.cpu)
            own = here.get(self._known.get(0, (0, 0))[0])
            if own is None or most.cpu > 2 * own.cpu + 1:
                found = {0: most}
                self._known = {}
        for rank, member in found.items():
            mark = (member.pid, member.started)
            if self._known.get(rank) != mark and (rank not in self._known or rank in self._ended or rank in told):
                self._known[rank] = mark
                self._ended.pop(rank, None)

    def _rank(self, rank: int, pid: int, members: list[Stat], told: dict[str, Any] | None) -> RankSeen:
        if rank in self._ended:
            return self._ended[rank]
        own = next((member for member in members if member.pid == pid), None)
        if own is None:
            return replace(self._last.get(rank, RankSeen(rank=rank, pid=pid, state="")), state="")
        below = _descendants(pid, members)
        children = [each for each in members if each.pid in below and each.pid != pid]
        told = told or {}
        seen = RankSeen(
            rank=rank, pid=pid, state=own.state, cpu=own.cpu, moved=sum(proc.moved(each) for each in below),
            children=own.reaped + sum(each.cpu + each.reaped for each in children), went=told.get("went"),
            place=str(told.get("place") or "")[:120], step=told.get("step"), calls=_calls(told.get("calls")),
        )  # fmt: skip
        self._last[rank] = seen
        return seen

    def _beacons(self, at: float) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        now = time.time()
        for path in sorted(self._folder.glob("beacon-*.json")) if self._folder is not None else ():
            try:
                figures = json.loads(path.read_text())
                rank, told = int(figures["rank"]), float(figures["at"])
                int(figures["pid"])
                # A rank's clock is this host's, and a tick has one of its own.
                figures["went"] = at - max(0.0, now - float(figures["went"])) if figures.get("went") else None
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if rank not in found or told > found[rank]["at"]:
                found[rank] = figures
        return found


class Gpus:
    """The GPUs of this host by NVML; none where there is no driver."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(each) for each in range(pynvml.nvmlDeviceGetCount())]
        except Exception:  # the library's own classes; without a driver there is nothing to be seen
            return

    def memories(self) -> list[Memory]:
        """The memory of each."""
        found = []
        for number, handle in enumerate(self._handles):
            try:
                each = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except self._nvml.NVMLError:
                continue
            found.append(Memory(name=f"memory of GPU {number}", used=int(each.used), left=int(each.free),
                                limit=int(each.total), filled=True))  # fmt: skip
        return found

    def busy(self) -> tuple[float, ...]:
        """The utilisation of each in percent."""
        found: list[float] = []
        for handle in self._handles:
            # One that the driver does not tell of is left out.
            with contextlib.suppress(self._nvml.NVMLError):
                found.append(float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        return tuple(found)


def _descendants(pid: int, members: list[Stat]) -> list[int]:
    found = [pid]
    for member in members:  # parents come first
        if member.parent in found:
            found.append(member.pid)
    return found


def _calls(told: Any) -> dict[str, Call]:
    found = {}
    for group, call in told.items() if isinstance(told, dict) else ():
        if isinstance(call, dict) and isinstance(call.get("number"), int):
            found[str(group)] = Call(number=call["number"], name=str(call.get("name", "")),
                                     sizes=str(call.get("sizes", ""))[:80])  # fmt: skip
    return found
