"""What the kernel says of a training's processes: who is a rank, what it does, and how much memory there is left.

Everything is read from /proc and the cgroup's files; nothing is attached to, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.watching.types import Memory

_TICKS = os.sysconf("SC_CLK_TCK")
# Who says which rank a process is: torchrun, DeepSpeed's and accelerate's launchers (which may have a RANK of their
# own, of their node, or a SLURM_PROCID, but no LOCAL_RANK); Open MPI; MPICH; Slurm.
_RANK_NAMES = (
    ("RANK", "LOCAL_RANK"), ("RANK",), ("OMPI_COMM_WORLD_RANK",), ("PMI_RANK",), ("SLURM_PROCID",),
)  # fmt: skip
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A line of /proc/PID/stat.

    Attributes:
        reaped: Seconds of CPU of its children that have ended.
    """

    pid: int
    parent: int
    name: str
    state: str
    cpu: float
    started: int
    exit_code: int | None
    reaped: float = 0.0


def stat(pid: int) -> Stat | None:
    """One process; None when it is gone."""
    text = _read(f"/proc/{pid}/stat")
    head, found, rest = text.rpartition(")")
    words = rest.split()
    if not found or len(words) < 20:
        return None
    status = int(words[49]) if len(words) > 49 and words[0] == "Z" else None
    # As wait(2) gives it: a signal in the low seven bits, else the exit code above them.
    code = None if status is None else -(status & 0x7F) if status & 0x7F else status >> 8
    return Stat(
        pid=pid, parent=int(words[1]), name=head.partition("(")[2], state=words[0],
        cpu=(int(words[11]) + int(words[12])) / _TICKS, started=int(words[19]), exit_code=code,
        reaped=(int(words[13]) + int(words[14])) / _TICKS,
    )  # fmt: skip


def tree(*roots: int) -> list[Stat]:
    """Processes and all their descendants that are there, parents first."""
    every = {found.pid: found for found in map(stat, _pids()) if found is not None}
    children: dict[int, list[int]] = {}
    for each in every.values():
        children.setdefault(each.parent, []).append(each.pid)
    found: dict[int, Stat] = {}
    todo = list(roots)
    while todo:
        pid = todo.pop(0)
        if pid in every and pid not in found:
            found[pid] = every[pid]
            todo += children.get(pid, [])
    return list(found.values())


def inner(pid: int) -> int:
    """The number that a process has for itself: another one in a container (NSpid of proc_pid_status(5))."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def having(variables: Mapping[str, str]) -> list[Stat]:
    """The processes that have these variables in their environment, as far as it can be seen."""
    found = []
    for pid in _pids():
        environment = _environment(pid)
        if all(environment.get(name) == value.encode() for name, value in variables.items()):
            found.append(stat(pid))
    return [each for each in found if each is not None]


def marked(variables: Mapping[str, str]) -> int | None:
    """The first process that has these variables in its environment; None where none can be seen."""
    there = having(variables)
    own = {each.pid for each in there}
    return next((each.pid for each in there if each.parent not in own), None)


def ranks(members: Sequence[Stat]) -> dict[int, Stat]:
    """Which of these processes is which rank, by its environment; of a wrapper and its program, the program."""
    every = [(member, _environment(member.pid)) for member in members]
    for names in _RANK_NAMES:
        found: dict[int, Stat] = {}
        for member, environment in every:
            value = environment.get(names[0], b"")
            if not value.isdigit() or len(value) > 6 or not all(name in environment for name in names):
                continue
            before = found.get(int(value))
            # Children of a rank (a data loader's workers) have its environment, too.
            # One that has worked more than this is no wrapper, but a rank that has given itself a title.
            program = member.name.startswith("python") and member.cpu >= (before.cpu if before else 0.0)
            if before is None or (program and not before.name.startswith("python")):
                found[int(value)] = member
        if found:
            return found
    return {}


def moved(pid: int) -> int:
    """Bytes that a process has read and written, in memory and on disks."""
    found = 0
    for line in _read(f"/proc/{pid}/io").splitlines():
        name, _, value = line.partition(": ")
        if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
            found += int(value)
    return found


def footprint(members: Sequence[Stat]) -> int:
    """Bytes of memory that processes have for themselves, and the largest share of what they have in common.

    The proportional share (PSS) would be exacter, but the kernel walks all pages for it, with the process's memory
    locked: seconds for a rank that has 100 GiB.
    """
    own, shared = 0, 0
    for member in members:
        for line in _read(f"/proc/{member.pid}/status").splitlines():
            if line.startswith("RssAnon:"):
                own += int(line.split()[1]) * 1024
            elif line.startswith("RssShmem:"):
                shared = max(shared, int(line.split()[1]) * 1024)
    return own + shared


def host_memory(used: int) -> Memory | None:
    """The host's memory: what nobody else has, and all of it."""
    found = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) * 1024
    if "MemAvailable" not in found:
        return None
    return Memory(name="host memory", used=used, left=found["MemAvailable"], limit=found["MemTotal"])


class Cgroup:
    """The memory cgroup of a process, of either version, and those around it: the one that has least left counts."""

    def __init__(self, pid: int, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._folders: list[Path] = []
        self._first = True
        for line in _read(str(proc / str(pid) / "cgroup")).splitlines():
            number, names, path = [*line.split(":", 2), "", ""][:3]
            first = number == "0" and not names
            if not first and "memory" not in names.split(","):
                continue
            base = root if first else root / "memory"
            name = "memory.max" if first else "memory.limit_in_bytes"
            folder = base / path.lstrip("/")
            # In a container the path may be the host's, and its own root is all that is there.
            for each in [folder, *folder.parents]:
                if 0 < _number(each / name) < _NO_LIMIT:
                    self._folders.append(each)
                if each == base:
                    break
            if self._folders:
                self._first = first
                return

    def memory(self, used: int) -> Memory | None:
        """What is left below the limit; files that were read and can be dropped are not counted."""
        found = [self._memory(folder, used) for folder in self._folders]
        return min(found, key=lambda memory: memory.left, default=None)

    def _memory(self, folder: Path, used: int) -> Memory:
        limit = _number(folder / ("memory.max" if self._first else "memory.limit_in_bytes"))
        usage = _number(folder / ("memory.current" if self._first else "memory.usage_in_bytes"))
        # A file that was read twice is active, and can be dropped as well.
        drops = tuple(f"{'' if self._first else 'total_'}{name}_file " for name in ("inactive", "active"))
        for line in _read(str(folder / "memory.stat")).splitlines():
            if line.startswith(drops):
                usage -= int(line.split()[1])
        return Memory(name="memory of the cgroup", used=used, left=max(0, limit - usage), limit=limit)

    def killed(self) -> int:
        """Processes that were killed for want of memory (oom_kill in memory.events or memory.oom_control)."""
        if not self._folders:
            return 0
        name = "memory.events" if self._first else "memory.oom_control"
        for line in _read(str(self._folders[0] / name)).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def waited() -> tuple[float, float] | None:
    """Seconds that the CPUs have waited for disks, and seconds in all."""
    words = _read("/proc/stat").partition("\n")[0].split()
    if len(words) < 9:
        return None
    return int(words[5]) / _TICKS, sum(map(int, words[1:9])) / _TICKS


def disk(folder: Path) -> Memory | None:
    """The file system of a folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return Memory(name=f"the disk of {folder}", used=size - free, left=free, limit=size)


def _environment(pid: int) -> dict[str, bytes]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in text.split(b"\0"))
    return {name.decode(errors="replace"): value for name, _, value in pairs}


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except (OSError, ValueError):
        return ""


def _number(path: Path) -> int:
    text = _read(str(path)).strip()
    return int(text) if text.isdigit() else 0
