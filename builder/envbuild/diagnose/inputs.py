"""Logs as streams of bytes: files, standard input, folders, packed or not, in UTF-8 or UTF-16."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.diagnose.unpacking import Unpacked, packing_of
from envbuild.errors import InputError

STDIN = "-"
# Per-rank folders of large runs have thousands of files; more than this is no folder of logs of one run.
MOST_FILES = 20_000
_TEXT_NAMES = re.compile(
    r"(?:\.(?:log|txt|out|err|stdout|stderr|json|jsonl|text)|^(?:stdout|stderr|log|output|messages|syslog|nohup)[\w.-]*)"
    r"(?:\.\d+)?(?:\.(?:gz|zst|bz2|xz))?$",
    re.IGNORECASE,
)
_RANK_NAMES = re.compile(r"(?:rank|worker|proc|gpu|local_rank|task|node)[_.\-=]?(\d{1,5})(?!\d)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"/(\d{1,5})/(?:stdout|stderr|error)[^/]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One log to read.

    Attributes:
        name: As the user knows it.
        path: None is standard input.
        rank: The rank that its name tells.
    """

    name: str
    path: Path | None
    rank: int | None = None


def logs(named: Iterable[str]) -> tuple[list[Log], list[tuple[str, str]]]:
    """The logs that the arguments mean, and those that there are not, with the reason."""
    found: dict[str, Log] = {}
    wrong: list[tuple[str, str]] = []
    for name in named:
        if name == STDIN:
            found[name] = Log(name=name, path=None)
            continue
        path = Path(name)
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            wrong.append((name, getattr(error, "strerror", None) or "is no path"))
            continue
        if not stat.S_ISDIR(mode):
            found[name] = Log(name=name, path=path, rank=rank_of(path.name))
            continue
        inside, closed = _folder(path)
        wrong += closed
        for each in inside:
            found[str(each)] = Log(name=str(each), path=each, rank=rank_of(str(each)))
    return list(found.values()), wrong


def _folder(folder: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """The logs in a folder, and what of it cannot be read."""
    files: list[Path] = []
    wrong: list[tuple[str, str]] = []

    def closed(error: OSError) -> None:
        wrong.append((str(error.filename), error.strerror or str(error)))

    for root, folders, names in os.walk(folder, onerror=closed):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if _TEXT_NAMES.search(name):
                wanted = _is_file(path)
            else:
                wanted = (bool(_RANK_NAMES.search(name)) or "." not in name) and _is_file(path) and _is_text(path)
            if wanted and len(files) == MOST_FILES:
                wrong.append((str(folder), f"holds more than {MOST_FILES} logs: only the first {MOST_FILES} were read"))
                return files, wrong
            if wanted:
                files.append(path)
    if not files and not wrong:
        wrong.append((str(folder), "holds no logs"))
    return files, wrong


def _is_file(path: Path) -> bool:
    """Whether it can be read to an end: not so a pipe that nobody writes to, a socket, a link to nowhere."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _is_text(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return False
    return b"\0" not in start or bool(packing_of(start) or _wide(start))


def rank_of(name: str) -> int | None:
    """The rank that a file's name tells: ``rank_3.log``, ``worker-0.err``, ``attempt_0/3/stderr.log``."""
    found = _RANK_FOLDER.search(name) or _RANK_NAMES.search(name.rpartition("/")[2])
    return int(found[1]) if found else None


class Stream:
    """Bytes of one log, unpacked, in UTF-8; a broken archive ends early, and says so."""

    def __init__(self, log: Log) -> None:
        """Open it.

        Raises:
            InputError: It cannot be opened.
        """
        self.problem = ""
        self.packed_size = 0
        try:
            if log.path is None:
                if sys.stdin is None:
                    raise InputError(f"{log.name}: standard input is closed")
                self._raw: Any = sys.stdin.buffer
            else:
                if not (stat.S_ISREG(log.path.stat().st_mode) or stat.S_ISFIFO(log.path.stat().st_mode)):
                    raise InputError(f"{log.name}: is no file")
                self._raw = log.path.open("rb", buffering=0)
                self.packed_size = os.fstat(self._raw.fileno()).st_size
            start = _read_up_to(self._raw, 64)
        except OSError as error:
            raise InputError(f"{log.name}: {error.strerror or error}") from error
        self._reader: Any = _Joined(start, self._raw)
        packing = packing_of(start)
        if packing:
            self._reader = Unpacked(packing, self._reader)
        self._decoder: Any = None
        self._first = True

    @property
    def position(self) -> int:
        """Bytes of the file that have been read, packed as they are."""
        try:
            return int(self._raw.tell())
        except (OSError, ValueError, AttributeError):
            return 0

    def read_into(self, buffer: bytearray, at: int) -> int:
        """Fill the buffer from a place on; returns how many bytes there are, 0 at the end."""
        if self._decoder is None and not self._first:
            return self._plain(buffer, at)
        data = bytearray(max(4096, (len(buffer) - at) // 3))
        size = self._plain(data, 0)
        if self._first and size:
            self._first = False
            encoding = _wide(bytes(data[: min(size, 512)]))
            if not encoding:
                buffer[at : at + size] = data[:size]
                return size
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        if self._decoder is None:
            return 0
        text: str = self._decoder.decode(bytes(data[:size]), final=not size)
        made = text.encode("utf-8", "replace")
        while not made and size:
            size = self._plain(data, 0)
            made = self._decoder.decode(bytes(data[:size]), final=not size).encode("utf-8", "replace")
        buffer[at : at + len(made)] = made
        return len(made)

    def _plain(self, buffer: bytearray, at: int) -> int:
        if self.problem:
            return 0
        try:
            with memoryview(buffer) as view, view[at:] as free:
                size: int = self._reader.readinto(free) or 0
        except OSError as error:
            self.problem = error.strerror or str(error)
            return 0
        if not size:
            self.problem = getattr(self._reader, "problem", "")
        return size

    def close(self) -> None:
        """Let go of the file; standard input stays open."""
        if self._raw is not getattr(sys.stdin, "buffer", None):
            self._raw.close()


class _Joined:
    """A file whose start has been read already."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = start
        self._rest = rest

    def readinto(self, target: memoryview) -> int:
        if self._start:
            piece = self.read(len(target))
            target[: len(piece)] = piece
            return len(piece)
        return self._rest.readinto(target) or 0  # type: ignore[attr-defined]

    def read(self, size: int, /) -> bytes:
        if self._start:
            piece, self._start = self._start[:size], self._start[size:]
            return piece
        return self._rest.read(size) or b""


def _read_up_to(raw: Any, size: int) -> bytes:
    """The first bytes; a pipe may give them one by one."""
    made = b""
    while len(made) < size:
        piece = raw.read(size - len(made))
        if not piece:
            break
        made += piece
    return made


def _wide(start: bytes) -> str:
    """The name of an encoding of two or four bytes a letter, or nothing."""
    if start.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    pairs = start[: len(start) & ~1]
    if len(pairs) >= 16:
        even, odd = pairs[::2].count(0), pairs[1::2].count(0)
        if odd > 0.9 * len(pairs[1::2]) and even < 0.1 * len(pairs[::2]):
            return "utf-16-le"
        if even > 0.9 * len(pairs[::2]) and odd < 0.1 * len(pairs[1::2]):
            return "utf-16-be"
    return ""
