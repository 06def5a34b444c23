"""Packed logs as streams: all that stands before the place where one is cut off or damaged.

The libraries' own file objects lose what they had unpacked already when they meet the damage. That is the end of the
log, where the failure is. So it is unpacked in small pieces here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

# Text may begin with bzip2's three letters, so what stands behind them counts: a block, or the end of an empty file.
_BZIP2_NEXT = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes | None:
        """At most so many bytes; nothing at the end."""


def packing_of(start: bytes) -> str:
    """The name of the packing that a log begins with, or nothing."""
    if start.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if start.startswith(b"BZh") and start[4:10] in _BZIP2_NEXT:
        return "bzip2"
    if start.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    # pzstd begins with frames that are to be skipped (RFC 8878, 3.1.2).
    if start.startswith(b"\x28\xb5\x2f\xfd") or (start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5):
        return "zstd"
    return ""


def _gzip() -> Any:
    import zlib

    return zlib.decompressobj(wbits=31)


def _bzip2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma

    return lzma.LZMADecompressor()


def _zstd() -> Any:
    import zstandard

    # A window of 128 MiB is what zstd itself takes without being asked for more.
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()


# What unpacks one member (stream, frame) of an archive, and how many bytes it is given at once: what the densest
# archive makes of them stays below 40 MB (4 bytes of zstd may stand for 128 KiB, one of gzip for 1 KiB).
_UNPACKERS: dict[str, tuple[Callable[[], Any], int]] = {
    "gzip": (_gzip, 1 << 14), "bzip2": (_bzip2, 1 << 10), "xz": (_xz, 1 << 10), "zstd": (_zstd, 1 << 10),
}  # fmt: skip


class Unpacked:
    """A packed log, unpacked.

    Attributes:
        problem: What is wrong with the archive where it ended early; empty while it is sound.
    """

    def __init__(self, packing: str, source: Source) -> None:
        self.problem = ""
        self._packing = packing
        self._new, self._size = _UNPACKERS[packing]
        self._source = source
        self._one: Any = None
        self._behind_one = False
        self._left = b""
        self._made = memoryview(b"")

    def readinto(self, target: memoryview) -> int:
        """Fill the target; returns how many bytes there are, 0 at the end.

        Raises:
            OSError: The source cannot be read.
        """
        while not self._made:
            if self.problem or not self._step():
                return 0
        size = min(len(target), len(self._made))
        target[:size] = self._made[:size]
        self._made = self._made[size:]
        return size

    def _step(self) -> bool:
        """Unpack one piece; False at the end."""
        piece = self._left or self._source.read(self._size) or b""
        self._left = b""
        if self._one is None and self._behind_one:
            # Archives behind one another are one; zeros fill up the last block of a tape.
            piece = piece.lstrip(b"\0") or self._source.read(self._size) or b""
        if not piece:
            self.problem = f"{self._packing}: cut off" if self._one is not None else ""
            return False
        self._one = self._one or self._new()
        try:
            self._made = memoryview(self._one.decompress(piece))
        except Exception as error:
            # Each library has exceptions of its own.
            said = " ".join(str(error).split()) or type(error).__name__
            self.problem = f"{self._packing}: {'something else follows' if self._behind_one else 'damaged'} ({said})"
            return False
        if self._one.eof:
            self._left, self._one, self._behind_one = self._one.unused_data, None, True
        return True
