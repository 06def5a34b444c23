"""What a command says, on its way through: a bounded queue of it, and a copy on a disk that may be full."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
from collections import deque
from pathlib import Path
from threading import Lock

_WAITING = 32 << 20
_HEAD, _TAIL, _PIECE = 4 << 20, 64 << 20, 1 << 20


class Queue:
    """What was said and is not read yet; of more than 32 MiB the oldest goes.

    Attributes:
        lost: Bytes that went.
    """

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._lock = Lock()
        self.lost = 0

    def put(self, number: int, data: bytes) -> None:
        """From any thread."""
        with self._lock:
            self._pieces.append((number, data))
            self._size += len(data)
            while self._size > _WAITING:
                self.lost += self._left()

    def take(self) -> tuple[int, bytes] | None:
        """The oldest piece; None where there is none."""
        with self._lock:
            if not self._pieces:
                return None
            first = self._pieces[0]
            self._left()
            return first

    def _left(self) -> int:
        gone = len(self._pieces.popleft()[1])
        self._size -= gone
        return gone


class Copy:
    """A copy in a file, appended to it; whatever is wrong with the disk, nobody but ``problem`` tells of it.

    Args:
        bounded: Only the beginning is kept, and the last 64 MiB: a week of words fills a disk that others need.
        head: Bytes of the beginning.
        tail: Bytes of the end.

    Attributes:
        problem: What was wrong, in words; empty where nothing was.
    """

    def __init__(self, path: Path, *, bounded: bool, head: int = _HEAD, tail: int = _TAIL) -> None:
        self._folder, self._bounded, self._head, self._tail = path.parent, bounded, head, tail
        self._lock = Lock()
        self._begun = self._past = 0
        self._file: io.FileIO | None = None
        self._ring: io.FileIO | None = None
        self.problem = ""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            self._failed(error)

    def take(self, data: bytes) -> None:
        """From any thread."""
        with self._lock:
            if self._file is None:
                return
            try:
                room = max(0, self._head - self._begun) if self._bounded else len(data)
                self._begun += min(room, len(data))
                _write(self._file, data[:room])
                self._turn(data[room:])
            except OSError as error:
                self._failed(error)

    def close(self) -> None:
        """Nothing comes any more: put the end behind the beginning."""
        with self._lock:
            file, ring, self._file, self._ring = self._file, self._ring, None, None
            try:
                if file is not None and ring is not None:
                    self._join(file, ring.fileno())
            except OSError as error:
                self._failed(error)
            for each in (file, ring):
                with contextlib.suppress(OSError):
                    if each is not None:
                        each.close()

    def _turn(self, data: bytes) -> None:
        """Write into the ring that holds the end."""
        if data and self._ring is None:
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            Path(name).unlink()
            self._ring = os.fdopen(descriptor, "r+b", buffering=0)
        while data and self._ring is not None:
            at = self._past % self._tail
            piece = data[: self._tail - at]
            # What cannot be written is counted all the same, so that what can be is in its place.
            self._past += len(piece)
            data = data[len(piece) :]
            os.pwrite(self._ring.fileno(), piece, at)

    def _join(self, file: io.FileIO, ring: int) -> None:
        turned = self._past > self._tail
        start = self._past % self._tail if turned else 0
        if turned:
            _write(file, b"\n[envbuild watch: %d bytes are left out here]\n" % (self._past - self._tail))
        for begin, end in ((start, min(self._past, self._tail)), (0, start)):
            while begin < end and (piece := os.pread(ring, min(_PIECE, end - begin), begin)):
                _write(file, piece)
                begin += len(piece)

    def _failed(self, error: OSError) -> None:
        self.problem = self.problem or error.strerror or str(error)


def _write(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        done = file.write(rest)
        if not done:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[done:]
