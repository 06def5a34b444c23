"""Files of others, packed or not, as bounded lines and pieces."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from envbuild.errors import InputError

# What is longer is no line of a timer, a table or a loss.
LONGEST_LINE = 16 * 1024
_PIECE = 4 * 1024 * 1024
_RANK = re.compile(r"(?:rank|worker|trace)[_.\-=]?(\d{1,5})(?!\d)", re.IGNORECASE)
_BROKEN = (EOFError, zlib.error, lzma.LZMAError)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked.

    Raises:
        InputError: It cannot be opened or read, or its packing is broken.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as raw:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path}: is no file")
            start = raw.read(6)
            raw.seek(0)
            yield _unpacked(raw, start)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except _BROKEN as error:
        raise InputError(f"{path}: its packing is broken or cut off: {error}") from error


def _unpacked(raw: IO[bytes], start: bytes) -> IO[bytes]:
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if start.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(raw)
    return raw


def head(path: Path, size: int = 65536) -> bytes:
    """How a file begins.

    Raises:
        InputError: As ``opened``.
    """
    with opened(path) as file:
        return file.read(size)


def lines(path: Path) -> Iterator[str]:
    """Lines without their ends; of a line without an end only its beginning.

    Raises:
        InputError: As ``opened``.
    """
    with opened(path) as file:
        rest = b""
        skipping = False
        while piece := file.read(_PIECE):
            # A progress bar returns the carriage without feeding the line.
            found = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            rest = found.pop()
            for each in found:
                if not skipping:
                    yield each[:LONGEST_LINE].decode("utf-8", "replace")
                skipping = False
            if len(rest) > LONGEST_LINE:
                if not skipping:
                    yield rest[:LONGEST_LINE].decode("utf-8", "replace")
                rest, skipping = b"", True
        if rest and not skipping:
            yield rest.decode("utf-8", "replace")


def pieces(path: Path) -> Iterator[str]:
    """Text in pieces of some megabytes, cut between characters.

    Raises:
        InputError: As ``opened``.
    """
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with opened(path) as file:
        while piece := file.read(_PIECE):
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)


def rank_in(name: str) -> int | None:
    """The rank that a file's name tells."""
    found = _RANK.search(name)
    return int(found[1]) if found else None
