"""Blobs on this disk, by their digest: what was transferred once is not transferred again, whoever asks for it.

``<folder>/sha256/<hex>`` is whole and was checked when it was written; ``<hex>.part`` beside it is a transfer that is
under way or broke off, and ``<hex>.lock`` says which.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from envbuild import store
from envbuild.errors import EngineError
from envbuild.events import Note, Sink, discard
from envbuild.net import Broken, NetworkError
from envbuild.net.manners import backoff
from envbuild.registry.manifests import Descriptor
from envbuild.registry.repository import Repository
from envbuild.registry.types import AGAIN_HINT

_CHUNK = 1 << 20
# In a row without one byte more: a connection that brings something may break as often as it likes.
_IDLE_ATTEMPTS = 5
Progress = Callable[[int], None]


class Blobs:
    """A folder of blobs. May be used from several threads and processes at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would."""
        return self.folder.joinpath(*digest.split(":", 1))

    def has(self, descriptor: Descriptor) -> bool:
        """Whether it is here, whole."""
        try:
            return self.path(descriptor.digest).stat().st_size == descriptor.size
        except OSError:
            return False

    def add(self, data: bytes, digest: str) -> Path:
        """Write a small blob.

        Raises:
            EngineError: The disk.
        """
        path = self.path(digest)
        if not path.is_file():
            store.write_atomic(path, data)
        return path

    def remove(self, digest: str) -> None:
        """Take a blob away; one that is not there is gone already.

        Raises:
            EngineError: The disk.
        """
        store.remove(self.path(digest))

    @contextlib.contextmanager
    def alone(self, digest: str, sink: Sink = discard) -> Iterator[None]:
        """Be the only one who writes a blob; whoever comes second waits, and finds it done.

        Raises:
            EngineError: The disk.
        """
        path = self.path(digest)
        lock = store.FileLock(path.with_name(f"{path.name}.lock"))
        lock.acquire(lambda: sink(Note(message=f"another run transfers {digest[:19]}; waiting for it")))
        try:
            yield
        finally:
            lock.release()

    def fetch(
        self,
        repository: Repository,
        descriptor: Descriptor,
        *,
        moved: Progress = lambda count: None,
        sink: Sink = discard,
    ) -> Path:
        """Bring a blob here: the rest of it, where a part is here already.

        Args:
            moved: Told of every piece, in bytes; a negative count takes back what turned out to be damaged.

        Raises:
            NetworkError: It does not come, or what comes is something else.
            EngineError: The disk.
        """
        path = self.path(descriptor.digest)
        with self.alone(descriptor.digest, sink):
            if self.has(descriptor):
                moved(descriptor.size)
                return path
            part = path.with_name(f"{path.name}.part")
            for final in (False, True):
                try:
                    with part.open("a+b") as file:
                        digest = self._complete(repository, descriptor, file, moved)
                        file.flush()
                        os.fsync(file.fileno())
                except OSError as error:
                    raise disk_error(part, error) from error
                if digest == descriptor.digest:
                    part.replace(path)
                    return path
                # It may be the old part of the file that is bad: once more, from the start.
                moved(-part.stat().st_size)
                store.remove(part)
                if final:
                    raise NetworkError(
                        f"{repository.name}: {descriptor.digest[:19]} came as {digest[:19]}, twice: the registry, or "
                        "something on the way, changes it",
                        hint="Nothing of it was used. Push the image again, or ask who keeps the registry.",
                    )
                sink(Note(message=f"{descriptor.digest[:19]} came damaged; once more", level="warning"))
        raise AssertionError("the second round returns or raises")

    def _complete(self, repository: Repository, descriptor: Descriptor, file: BinaryIO, moved: Progress) -> str:
        """Append what is missing; the digest of the whole file."""
        growing = _Growing(file, moved)
        growing.take_up(descriptor.size)
        idle, furthest = 0, growing.size
        while growing.size < descriptor.size:
            broken = growing.more(repository, descriptor)
            if broken is None:
                continue
            idle = 0 if growing.size > furthest else idle + 1
            furthest = max(growing.size, furthest)
            if idle >= _IDLE_ATTEMPTS:
                raise NetworkError(f"{broken.place}: {broken.reason}", hint=AGAIN_HINT) from broken
            repository.session.pause(backoff(idle))
        return f"sha256:{growing.sum.hexdigest()}"


class _Growing:
    """A file that a blob grows in, with the digest of what it has."""

    def __init__(self, file: BinaryIO, moved: Progress) -> None:
        self._file = file
        self._moved = moved
        self.size = 0
        self.sum = hashlib.sha256()

    def take_up(self, limit: int) -> None:
        """Read what an earlier run has left; more than ``limit`` bytes are none of this blob."""
        self._file.seek(0)
        while block := self._file.read(_CHUNK):
            self.sum.update(block)
            self.size += len(block)
        self._moved(self.size)
        if self.size > limit:
            self._restart()

    def more(self, repository: Repository, descriptor: Descriptor) -> Broken | None:
        """One request for the rest; what broke it off, if anything did."""
        try:
            for block in _from(repository, descriptor, self.size):
                self._file.write(block)
                self.sum.update(block)
                self.size += len(block)
                self._moved(len(block))
        except _Whole:
            # The server sends whole files only.
            self._restart()
            return Broken(repository.name, "sends no parts of blobs, and breaks off")
        except Broken as broken:
            return broken
        short = self.size < descriptor.size
        return Broken(f"{repository.name}: {descriptor.digest[:19]}", "ended too early") if short else None

    def _restart(self) -> None:
        self._file.truncate(0)
        self._moved(-self.size)
        self.size, self.sum = 0, hashlib.sha256()


class _Whole(Exception):
    """A part was asked for, and the whole comes."""


def _from(repository: Repository, descriptor: Descriptor, start: int) -> Iterator[bytes]:
    """The bytes of a blob from ``start`` on.

    Raises:
        Broken: The transfer broke off.
        NetworkError: It is refused, or longer than its descriptor says.
    """
    headers = {"Range": f"bytes={start}-"} if start else {}
    with repository.session.open(
        "GET", repository.url(f"blobs/{descriptor.digest}"), repository.reading, headers=headers,
        ok=frozenset({200, 206}),
    ) as response:  # fmt: skip
        if start and (response.status_code != 206 or not _starts_at(response.headers.get("Content-Range", ""), start)):
            raise _Whole
        yield from repository.session.blocks(response, descriptor.size - start)


def _starts_at(content_range: str, start: int) -> bool:
    return content_range.replace(" ", "").startswith(f"bytes{start}-")


def disk_error(path: Path, error: OSError) -> EngineError:
    """What a full or closed disk is called."""
    return EngineError(
        f"cannot write {path}: {error.strerror or error}",
        hint="Free some space (envbuild prune), or set [paths] cache to a folder on another disk.",
    )
