"""Single members of wheels and source archives that lie on a server. Both are read as hostile input.

A wheel is a zip: its directory is at the end, and ranged requests fetch that and then single members. A source archive
is a compressed stream, read from the start and only as far as needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from envbuild.facts.upstream.page import RemoteFile, Shape
from envbuild.net import Client
from envbuild.net.manners import shown
from envbuild.site import urls

# A central directory of a torch wheel is 1 to 2 MB; one request for most of it.
_AHEAD = 1 << 20
_MEMBERS = 200_000
_SDIST_LIMIT = 256 << 20
_BAD = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, tarfile.TarError, struct.error, EOFError,
    NotImplementedError, RuntimeError, UnicodeDecodeError, ValueError, OverflowError, OSError,
)  # fmt: skip


class Whole(Shape):
    """A wheel can only be downloaded whole, and that was not asked for."""

    code = "whole"


class Ranged(io.RawIOBase):
    """A file on a server, read in parts."""

    def __init__(self, client: Client, url: str, size: int | None) -> None:
        self._client = client
        self._url = url
        self._at = 0
        self.parts = 0
        if size is None:
            # The last byte comes with the size of all.
            _, size = client.part(url, -1, 0)
        self._size = size

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; returns the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the bytes from here on.

        Raises:
            NetworkError: The server does not send them.
        """
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data, size = self._client.part(self._url, self._at, end)
        if size != self._size:
            raise Shape(f"{shown(self._url)}: is {size} bytes long, and the index says {self._size}")
        self.parts += 1
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def wheel(client: Client, file: RemoteFile) -> Iterator[zipfile.ZipFile]:
    """A wheel's members.

    Raises:
        NoRanges: Its server sends whole files only.
        NetworkError: It cannot be reached.
        Shape: It is no whole zip file.
    """
    place = shown(file.url)
    with named(place, "a wheel that can be read"), contextlib.ExitStack() as stack:
        path = urls.local_path(file.url)
        opened: IO[bytes] = (
            stack.enter_context(path.open("rb"))
            if path is not None
            else stack.enter_context(io.BufferedReader(Ranged(client, file.url, file.size), _AHEAD))
        )
        archive = stack.enter_context(zipfile.ZipFile(opened))
        if len(archive.filelist) > _MEMBERS:
            raise Shape(f"{place}: {len(archive.filelist)} members are more than a wheel has")
        yield archive


@contextlib.contextmanager
def downloaded(client: Client, file: RemoteFile, folder: Path, limit: int) -> Iterator[zipfile.ZipFile]:
    """A wheel's members, after a download of the whole of it into ``folder``; its SHA-256 is checked.

    Raises:
        NetworkError: It cannot be reached.
        Shape: It is another file than the index says, or no whole zip file.
    """
    place = shown(file.url)
    path = folder / "wheel"
    running = hashlib.sha256()
    with path.open("wb") as out, client.stream(file.url, limit=limit) as blocks:
        for block in blocks:
            running.update(block)
            out.write(block)
    if file.sha256 is not None and running.hexdigest() != file.sha256:
        raise Shape(f"{place}: its SHA-256 is not the one that the index names")
    with named(place, "a wheel that can be read"), zipfile.ZipFile(path) as archive:
        yield archive


def member(archive: zipfile.ZipFile, name: str, place: str, limit: int) -> bytes:
    """One member of a wheel.

    Raises:
        Shape: There is none of that name, or it is larger than ``limit`` bytes, whatever its header says.
    """
    try:
        with archive.open(name) as opened:
            data = opened.read(limit + 1)
    except KeyError:
        raise Shape(f"{place}: expected a member {name}") from None
    if len(data) > limit:
        raise Shape(f"{place}: its member {name} is larger than {limit} bytes")
    return data


def sdist(
    client: Client, file: RemoteFile, wanted: Callable[[str], bool], enough: Callable[[dict[str, bytes]], bool],
    limit: int,
) -> dict[str, bytes]:  # fmt: skip
    """Members of a source archive, by their path below its top folder.

    Args:
        wanted: Which paths to keep.
        enough: Whether what was found is all that is needed; the rest is then not downloaded. When it never is, the
            archive's SHA-256 is checked as well.
        limit: Bytes of one member.

    Raises:
        NetworkError: It cannot be reached, or breaks off.
        Shape: It is no whole archive, or another one than the index says.
    """
    place = shown(file.url)
    found: dict[str, bytes] = {}
    with contextlib.ExitStack() as stack, named(place, "a source archive that can be read"):
        path = urls.local_path(file.url)
        if path is not None:
            local = stack.enter_context(path.open("rb"))
            blocks = iter(lambda: local.read(1 << 16), b"")
        else:
            blocks = stack.enter_context(client.stream(file.url, limit=_SDIST_LIMIT))
        pipe = Pipe(blocks)
        with tarfile.open(fileobj=cast(IO[bytes], pipe), mode="r|*") as archive:
            for number, entry in enumerate(archive):
                below = entry.name.partition("/")[2]
                if number > _MEMBERS:
                    raise Shape(f"{place}: more members than a source archive has")
                if not (entry.isreg() and wanted(below)):
                    continue
                opened = archive.extractfile(entry)
                data = opened.read(limit + 1) if opened is not None else b""
                if len(data) > limit:
                    raise Shape(f"{place}: its member {below} is larger than {limit} bytes")
                if len(data) != entry.size:
                    raise Shape(f"{place}: its member {below} breaks off")
                found[below] = data
                if enough(found):
                    return found
        for _ in iter(lambda: pipe.read(1 << 16), b""):
            pass
        if file.sha256 is not None and pipe.digest != file.sha256:
            raise Shape(f"{place}: its SHA-256 is not the one that the index names")
    return found


class Pipe:
    """Blocks of bytes as something that can be read, once, with the SHA-256 of all that went through."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""
        self._running = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of what was read so far, in hex digits."""
        return self._running.hexdigest()

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer at the end."""
        while len(self._rest) < size:
            block = next(self._blocks, b"")
            if not block:
                break
            self._rest += block
        data, self._rest = self._rest[:size], self._rest[size:]
        self._running.update(data)
        return data


@contextlib.contextmanager
def named(place: str, expected: str) -> Iterator[None]:
    """Turn what the standard library raises on bad archives into one error that names the archive."""
    try:
        yield
    except _BAD as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise Shape(f"{place}: expected {expected}: {said}") from error
