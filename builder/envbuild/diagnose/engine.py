"""The way from logs to a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envbuild import facts
from envbuild.diagnose import inputs, library
from envbuild.diagnose.inputs import Log, Stream
from envbuild.diagnose.ranking import rank
from envbuild.diagnose.stream import PIECE, Read, Readable, Reader
from envbuild.diagnose.text import evidence
from envbuild.diagnose.types import Diagnosis, Evidence
from envbuild.errors import InputError
from envbuild.events import PhaseDone, PhaseStarted, Sink, StepLine, discard
from envbuild.project import Project

# Smaller logs need no bar.
_LONG = 64 << 20


def diagnose(named: Iterable[str], project: Project, *, sink: Sink = discard) -> Diagnosis:
    """Read logs and say what made the program fail.

    Args:
        named: Files, folders, ``-`` for standard input.
        sink: Hears how far the reading is, where it takes long.

    Raises:
        InputError: None of the logs can be read, or a signature is wrong.
    """
    signatures = library.load(project.signatures)
    found, unread = inputs.logs(named)
    reads: list[Read] = []
    for log in found:
        try:
            stream = Stream(log)
        except InputError as error:
            unread.append((log.name, error.message.removeprefix(f"{log.name}: ")))
            continue
        try:
            told = _Told(log, stream, sink)
            read = Reader(signatures, len(reads), log.name, log.rank, told=told).read(stream)
            told.close()
        finally:
            stream.close()
        problem = "interrupted" if read.interrupted else stream.problem
        if problem and read.size:
            problem += f": only the first {read.size} bytes were read"
        if problem:
            unread.append((log.name, problem))
        if read.size or not problem:
            reads.append(read)
        if read.interrupted:
            unread += [(each.name, "not read") for each in found[found.index(log) + 1 :]]
            break
    if not reads:
        raise InputError(
            "\n".join(f"{name}: {reason}" for name, reason in unread) or "no log to read",
            hint="Name a log, a folder of logs, or - for standard input.",
        )
    return _diagnosis(reads, project, unread)


def diagnose_text(
    text: str | bytes | Iterable[bytes], project: Project, *, name: str = "log", piece: int = PIECE
) -> Diagnosis:
    """Say what made a program fail whose output is at hand.

    Args:
        text: The output, whole or in pieces cut anywhere.
        name: What the evidence calls it.
        piece: How many bytes are searched at once.
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    parts = [text] if isinstance(text, bytes) else text
    read = Reader(library.load(project.signatures), 0, name, piece=piece).read(_Pieces(parts))
    return _diagnosis([read], project, [])


def _diagnosis(reads: Sequence[Read], project: Project, unread: list[tuple[str, str]]) -> Diagnosis:
    causes = rank(reads, facts.load(project.facts))
    return Diagnosis(
        causes=causes,
        telling=() if causes else _telling(reads),
        unread=tuple(unread),
        bytes_read=sum(read.size for read in reads),
    )


# The most telling first.
_WORTH = (
    "Traceback (most recent call last)", "fatal error", "fatal:", "error:", "Segmentation fault", "SIGSEGV", "SIGKILL",
    "SIGABRT", "core dumped", "panic:", "FATAL", "Error:", "Exception:", "Killed", "Aborted",
)  # fmt: skip
_MOST_TELLING = 6


def _telling(reads: Sequence[Read]) -> tuple[Evidence, ...]:
    made: dict[tuple[str, int], Evidence] = {}
    for literal in _WORTH:
        for read in reads:
            places = read.telling.get(literal, [])
            # Of tracebacks the last one tells; of compilers' errors the first.
            for line, text in places[-1:] if literal.startswith("Traceback") else places[:1]:
                made.setdefault((read.name, line), evidence(read.name, line, text))
    chosen = list(made.values())[:_MOST_TELLING]
    for read in reads:
        if len(chosen) < _MOST_TELLING:
            chosen += [evidence(read.name, line, text) for line, text in read.end[-2:] if (read.name, line) not in made]
    return tuple(chosen[:_MOST_TELLING])


@dataclass
class _Pieces:
    """Bytes at hand as something to read from."""

    parts: Iterable[bytes]

    def __post_init__(self) -> None:
        self._parts = iter(self.parts)
        self._left = memoryview(b"")

    def read_into(self, buffer: bytearray, at: int) -> int:
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = memoryview(part)
        piece = self._left[: len(buffer) - at]
        buffer[at : at + len(piece)] = piece
        self._left = self._left[len(piece) :]
        return len(piece)


class _Told:
    """Tells how far the reading of a long log is, a few times a second at most."""

    def __init__(self, log: Log, stream: Stream, sink: Sink) -> None:
        self._log, self._stream, self._sink = log, stream, sink
        self._started = False
        self._began = time.monotonic()
        self._next = _LONG // 4

    def __call__(self, size: int) -> None:
        if size < self._next:
            return
        self._next = size + (_LONG // 4)
        if not self._started:
            self._started = True
            self._sink(PhaseStarted(phase="reading", detail=self._log.name))
        whole = self._stream.packed_size
        done = f"{self._stream.position * 100 // whole} %, " if whole else ""
        self._sink(StepLine(key="reading", text=f"{self._log.name}: {done}{size >> 20} MiB"))

    def close(self) -> None:
        if self._started:
            self._sink(PhaseDone(phase="reading", seconds=time.monotonic() - self._began, detail=self._log.name))


__all__ = ["Readable", "diagnose", "diagnose_text"]
