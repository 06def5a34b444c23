"""Where a rank's Python is: by py-spy, from outside and without stopping it, or by the rank's own beacon."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild import process
from envbuild.errors import EngineError
from envbuild.watching.types import Where

_SECONDS = 20.0
_MOST = 16 << 20
_FRAMES, _DEEP = 8, 40
# Of a frame in py-spy's text and in Python's own: where it waits for the other ranks, or for the GPU.
_WAITS = re.compile(
    r"distributed_c10d|torch/distributed/_functional_collectives|deepspeed/comm/|synchronize \(torch/cuda|"
    r"in synchronize\b"
)
_FRAME = re.compile(r"\((?P<spy>[^()]+):\d+\)$|File \"(?P<own>[^\"]+)\", line \d+")
# Of those that neither the program nor its own packages have written: py-spy leaves out what is before a package.
_LIBRARY = re.compile(r"^(?:torch|deepspeed)/|(?:site|dist)-packages/(?:torch|deepspeed)/|^<")
_STDLIB = re.compile(r"/lib/python3\.\d+/(?!(?:site|dist)-packages/)")
# Where a rank does by itself what takes long: checkpoints, uploads, other programs.
_AWAY = re.compile(
    r"save_checkpoint|save_pretrained|save_model|torch/serialization\.py|ssl\.py|http/client\.py|socket\.py|urllib3/|"
    r"requests/|huggingface_hub/|botocore/|google/cloud/|fsspec/|wandb/|subprocess\.py"
)
_BACKWARD = "_engine_run_backward"
_THREAD = re.compile(r"^Thread .*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One rank's Python.

    Attributes:
        text: All threads; empty where they cannot be read.
        problem: Why they cannot.
        source: Who has read them.
    """

    text: str = ""
    problem: str = ""
    source: str = "py-spy"

    @property
    def where(self) -> Where | None:
        """Whether it waits for others, or is away; None where nothing is known."""
        if not self.text:
            return None
        # What other threads do, such as one that saves a checkpoint, is not what the rank waits for: but those of a
        # backward pass, in which autograd has a thread of its own for each GPU, and hooks for the gradients.
        main = self.lines(_DEEP)
        others = self._threads()[1:] if main and _BACKWARD in main[0] else []
        if any(map(_waits, [main, *others])):
            return "waiting"
        return "away" if _AWAY.search("\n".join(main)) else "own"

    def elsewhere(self, before: Stack) -> bool:
        """Whether its main thread has moved since an earlier look; False where that is not known."""
        known = self.text and before.text and self.source == before.source
        return bool(known) and self.lines(_DEEP) != before.lines(_DEEP)

    def lines(self, most: int = _FRAMES) -> tuple[str, ...]:
        """The main thread's innermost frames."""
        return tuple(self._threads()[0][:most])

    def _threads(self) -> list[list[str]]:
        """The frames of each thread, the main one's first."""
        heads = _THREAD.findall(self.text)
        bodies = [[line.strip() for line in part.splitlines() if line.strip()] for part in _THREAD.split(self.text)[1:]]
        main = next((number for number, head in enumerate(heads) if "MainThread" in head), None)
        if main is None:
            return [[line for body in bodies for line in body]]
        return [bodies[main], *bodies[:main], *bodies[main + 1 :]]


def _waits(frames: Sequence[str]) -> bool:
    for line in frames:
        if _WAITS.search(line):
            return True
        # Who has called code of its own from there, such as a hook, is in that.
        if _is_own(line):
            return False
    return False


def _is_own(line: str) -> bool:
    """Whether it is a frame of the program, and neither of Python's nor of what trains."""
    found = _FRAME.search(line)
    if found is None or _LIBRARY.search(path := found["spy"] or found["own"]) or _STDLIB.search(path):
        return False
    return not (found["spy"] and path.removesuffix(".py").split("/")[0] in sys.stdlib_module_names)


def spy() -> str | None:
    """py-spy on PATH, or beside this interpreter (``pipx inject envbuild py-spy``)."""
    beside = Path(sys.executable).with_name("py-spy")
    return process.which("py-spy") or (str(beside) if beside.is_file() else None)


def read(pid: int, rank: int, folder: Path | None) -> Stack:
    """Read a rank's stack, as well as that can be done here.

    Args:
        folder: Where the rank's beacon writes, if it has one.
    """
    own = folder / f"stack-{rank}.txt" if folder is not None else None
    program = spy()
    if program is None:
        problem = "py-spy is not installed: pipx inject envbuild py-spy"
    else:
        try:
            done = process.run(
                [program, "dump", "--nonblocking", "--pid", str(pid)], timeout=_SECONDS, most=_MOST
            )  # fmt: skip
        except EngineError as error:
            problem = error.message
        else:
            if done.returncode == 0 and "Thread" in done.stdout:
                return Stack(text=done.stdout)
            problem = _problem(done.stderr)
    if own is not None and own.is_file():
        return Stack(text=own.read_text(errors="replace"), source="the rank itself")
    return Stack(problem=problem)


def _problem(said: str) -> str:
    words = process.last_words(said, 300)
    if "ermission" in words or "EPERM" in words or "not permitted" in words:
        return (
            "this user may not read the process's memory: it needs the same user, and CAP_SYS_PTRACE in a container "
            "(docker run --cap-add SYS_PTRACE) or where kernel.yama.ptrace_scope is not 0"
        )
    return f"py-spy: {words}" if words else "py-spy found no Python in it"
