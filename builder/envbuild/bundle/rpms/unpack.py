"""Packed metadata made plain: gzip, xz, zstd, bzip2 or plain, by its first bytes, with a limit on what comes out.

libsolv opens plain and gzip files only, and a few kilobytes of any format can stand for more than a disk holds.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from zlib_ng import zlib_ng

from envbuild import store
from envbuild.bundle.rpms.transport import disk_error, opened
from envbuild.errors import BundleError

_CHUNK = 1 << 18
_PIECE = 1 << 20
# What a stream may ask of the memory: xz -9 wants 65 MiB, and zstd --ultra 22 a window of 128 MiB.
_XZ_MEMORY, _ZSTD_WINDOW = 256 << 20, 128 << 20
_HEAD = 1 << 16
_ENCODING = re.compile(rb"""^<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_GZIP_ERROR: type[Exception] = zlib_ng.error  # type: ignore[assignment]
_KNOWN = frozenset({b"utf-8", b"us-ascii", b"ascii"})


class _Damaged(Exception):
    pass


def unpack(packed: Path, target: Path, *, checksum: tuple[str, str], limit: int, sync: bool) -> None:
    """Write what a file holds to ``target``, whole or not at all.

    Args:
        checksum: Algorithm and digest of ``packed``: what comes out of the right file is the right thing.
        limit: Bytes of what comes out after which it is refused.
        sync: Whether it has to outlive a power cut; not, where whoever finds it has something to hold it to.

    Raises:
        BundleError: It is damaged, another file, or too large.
        InputError: It cannot be read.
        EngineError: The disk.
    """
    total = hashlib.new(checksum[0])
    part = target.with_name(f"{target.name}.part")
    store.make_folder(target.parent)
    size = 0
    try:
        with opened(packed) as file, part.open("wb") as out:
            for block in _plain(file, total.update):
                size += len(block)
                if size > limit:
                    raise _Damaged(f"more than {limit} bytes come out of it")
                out.write(block)
            if sync:
                out.flush()
                os.fsync(out.fileno())
        if total.hexdigest() != checksum[1]:
            raise _Damaged(f"its {checksum[0]} is {total.hexdigest()[:16]}, and {checksum[1][:16]} was expected")
        part.replace(target)
    except _Damaged as error:
        store.remove(part)
        raise BundleError(
            f"{packed.name}: {error}", hint="Nothing of it was used; fetch it again, or from another mirror."
        ) from error
    except OSError as error:
        store.remove(part)
        raise disk_error(part, error) from error
    except BaseException:
        store.remove(part)
        raise


def _plain(file: BinaryIO, seen: Callable[[bytes], object]) -> Iterator[bytes]:
    """What a file holds; ``seen`` is told of every byte of the file itself."""
    head = file.read(_CHUNK)
    seen(head)

    def more() -> Iterator[bytes]:
        block = head
        while block:
            yield block
            block = file.read(_CHUNK)
            seen(block)

    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(more())
    for magic, make in _DECODERS.items():
        if head.startswith(magic):
            return _decoded(more(), make)
    return more()


_DECODERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib_ng.decompressobj(31),
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
    b"BZh": bz2.BZ2Decompressor,
}


def _decoded(blocks: Iterator[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """One stream, or several behind one another; a piece at a time, however much a block stands for."""
    decoder, fresh = make(), True
    try:
        for block in blocks:
            data = block
            while True:
                if decoder.eof:
                    # Some writers fill up with zeros behind the end.
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    decoder = make()
                fresh = False
                out = decoder.decompress(data, _PIECE)
                yield out
                data = decoder.unused_data if decoder.eof else getattr(decoder, "unconsumed_tail", b"")
                if not data and (decoder.eof or len(out) < _PIECE):
                    break
        if fresh or not decoder.eof:
            raise _Damaged("it ends in the middle")
    except (_GZIP_ERROR, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise _Damaged(f"it cannot be unpacked ({error})") from error


def _zstd(blocks: Iterator[bytes]) -> Iterator[bytes]:
    import zstandard

    class Reader:
        def __init__(self) -> None:
            self._rest = b""

        def read(self, count: int = -1, /) -> bytes:
            data = self._rest or next(blocks, b"")
            self._rest = data[count:]
            return data[:count]

    source: Any = Reader()
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(source, read_across_frames=True)
        while block := reader.read(_PIECE):
            yield block
    except zstandard.ZstdError as error:
        raise _Damaged(f"it cannot be unpacked ({error})") from error


def harmless(path: Path) -> None:
    """That an XML file is in UTF-8 and declares nothing: no document type, and so no entities.

    Raises:
        BundleError: It is otherwise.
        InputError: It cannot be read.
    """
    with opened(path) as file:
        head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf").lstrip()
    root = re.search(rb"<[A-Za-z]", head)
    named = _ENCODING.match(head)
    if root is None or b"<!DOCTYPE" in head[: root.start()]:
        raise BundleError(f"{path.name}: not metadata: it declares a document type, or begins with something else")
    if named is not None and named.group(1).lower() not in _KNOWN:
        raise BundleError(f"{path.name}: not metadata: its encoding is {named.group(1).decode()}")
