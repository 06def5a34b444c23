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
from typing import TYPE_CHECKING, BinaryIO

from envbuild import store
from envbuild.errors import EngineError
from envbuild.events import Note, Sink, discard
from envbuild.net import TRICKLE, Broken, TooLong
from envbuild.net.manners import backoff
from envbuild.registry.manifests import Descriptor
from envbuild.registry.repository import Repository
from envbuild.registry.types import AGAIN_HINT, Again, Damaged

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 20
# In a row that bring next to nothing: a connection that brings something may break as often as it likes.
IDLE_ATTEMPTS = 5
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
                # It is of use again: what clears away what is old leaves it alone.
                with contextlib.suppress(OSError):
                    os.utime(path)
                moved(descriptor.size)
                return path
            part = path.with_name(f"{path.name}.part")
            for final in (False, True):
                try:
                    with part.open("a+b") as file:
                        digest = self._complete(repository, descriptor, file, moved)
                        file.flush()
                        os.fsync(file.fileno())
                    if digest == descriptor.digest:
                        part.replace(path)
                        return path
                except OSError as error:
                    raise disk_error(part, error) from error
                except TooLong:
                    store.remove(part)
                    raise
                # It may be the old part of the file that is bad: once more, from the start.
                moved(-descriptor.size)
                store.remove(part)
                if final:
                    raise Damaged(
                        f"{repository.name}: {descriptor.digest[:19]} came as {digest[:19]}, twice: the registry, or "
                        "something on the way, changes it",
                        hint="Nothing of it was used. Push the image again, or ask who keeps the registry.",
                    )
                sink(Note(message=f"{descriptor.digest[:19]} came damaged; once more", level="warning"))
        raise AssertionError("the second round returns or raises")

    def opened(self, repository: Repository, descriptor: Descriptor) -> BinaryIO:
        """A blob to be read, fetched where it is not here: another run may have no use for it any more, and take it
        away, between the two.

        Raises:
            NetworkError: It does not come, or what comes is something else.
            EngineError: The disk.
        """
        for final in (False, False, True):
            path = self.fetch(repository, descriptor)
            try:
                return path.open("rb")
            except FileNotFoundError as error:
                if final:
                    raise disk_error(path, error) from error
            except OSError as error:
                raise disk_error(path, error) from error
        raise AssertionError("the last round returns or raises")

    def read(self, repository: Repository, descriptor: Descriptor) -> bytes:
        """A small blob's bytes; raises as ``opened``."""
        try:
            with self.opened(repository, descriptor) as file:
                return file.read()
        except OSError as error:
            raise disk_error(self.path(descriptor.digest), error) from error

    def _complete(self, repository: Repository, descriptor: Descriptor, file: BinaryIO, moved: Progress) -> str:
        """Append what is missing; the digest of the whole file."""
        growing = _Growing(file, moved)
        growing.take_up(descriptor.size)
        effort = Effort(growing.size, descriptor.size)
        while growing.size < descriptor.size:
            broken = growing.more(repository, descriptor)
            if broken is None:
                continue
            if effort.idle(growing.size) >= IDLE_ATTEMPTS:
                raise Again(f"{broken.place}: {broken.reason}", hint=AGAIN_HINT) from broken
            repository.session.pause(backoff(effort.count))
        return f"sha256:{growing.sum.hexdigest()}"


class Effort:
    """How often in a row a transfer broke off and was no further than before."""

    def __init__(self, start: int, size: int) -> None:
        self._furthest = start
        self._size = size
        self.count = 0

    def idle(self, at: int) -> int:
        """Count a transfer that broke off at this byte. A few bytes more are none: it would never end."""
        further = at - self._furthest
        self.count = 0 if further >= TRICKLE or (further > 0 and at == self._size) else self.count + 1
        self._furthest = max(self._furthest, at)
        return self.count


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
        """One request for the rest; what broke it off, if anything did.

        Raises:
            NetworkError: It is refused, or longer than its descriptor says.
        """
        session, place = repository.session, f"{repository.name}: {descriptor.digest[:19]}"
        headers = {"Range": f"bytes={self.size}-"} if self.size else {}
        try:
            with session.open(
                "GET", repository.url(f"blobs/{descriptor.digest}"), repository.reading, headers=headers,
                ok=frozenset({200, 206, 416}),
            ) as response:  # fmt: skip
                if self.size and response.status_code == 200:
                    self._restart()  # the server sends whole files only
                if not self._continues(response):
                    self._restart()
                    return Broken(place, "another part of it came than was asked for")
                for block in session.blocks(response, descriptor.size - self.size):
                    self._file.write(block)
                    self.sum.update(block)
                    self.size += len(block)
                    self._moved(len(block))
        except Broken as broken:
            return broken
        return Broken(place, "ended too early") if self.size < descriptor.size else None

    def _continues(self, response: requests.Response) -> bool:
        """Whether an answer's body is what comes next."""
        if response.status_code == 200:
            return True
        said = response.headers.get("Content-Range", "").replace(" ", "")
        return response.status_code == 206 and said.startswith(f"bytes{self.size}-")

    def _restart(self) -> None:
        self._file.truncate(0)
        self._moved(-self.size)
        self.size, self.sum = 0, hashlib.sha256()


def disk_error(path: Path, error: OSError) -> EngineError:
    """What a full or closed disk is called."""
    return EngineError(
        f"cannot write {path}: {error.strerror or error}",
        hint="Free some space (envbuild prune), or set [paths] cache to a folder on another disk.",
    )
