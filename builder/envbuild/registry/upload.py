"""Blobs on their way into a registry: what is there already stays home, and what broke off goes on where it broke."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from envbuild import store
from envbuild.errors import EngineError
from envbuild.events import Sink, discard
from envbuild.net import Missing, NetworkError
from envbuild.net.manners import backoff
from envbuild.registry.blobs import Blobs, Progress, disk_error
from envbuild.registry.manifests import Descriptor
from envbuild.registry.repository import Repository
from envbuild.registry.types import Access, Again, NoAccess

# In a row without one byte more.
_IDLE_ATTEMPTS = 5
_RANGE = re.compile(r"(?:bytes[= ])?0-([0-9]+)")
_WRITTEN = frozenset({200, 201, 202, 204})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How a blob came into the registry: ``there``, ``mounted`` from another repository, or ``sent``."""

    how: str


class _Rest:
    """The rest of a file as a request's body: it has a length, and tells what was read."""

    def __init__(self, path: Path, start: int, size: int, moved: Progress) -> None:
        self._file = path.open("rb")
        self._file.seek(start)
        self._left = size - start
        self._moved = moved

    def __len__(self) -> int:
        return self._left

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(min(size, 1 << 18) if size >= 0 else -1)
        self._moved(len(block))
        return block

    def close(self) -> None:
        self._file.close()


def push_blob(
    repository: Repository,
    descriptor: Descriptor,
    blobs: Blobs,
    *,
    sources: tuple[str, ...] = (),
    moved: Progress = lambda count: None,
    sink: Sink = discard,
) -> Sent:
    """See to it that the repository has a blob.

    Args:
        blobs: Where it lies on this disk.
        sources: Repositories of the same registry that may have it: the registry then takes it from there.
        moved: Told of every piece, in bytes; a negative count takes back what has to be sent again.

    Raises:
        NetworkError: The registry does not take it.
        EngineError: It cannot be read.
    """
    if repository.has_blob(descriptor.digest):
        moved(descriptor.size)
        return Sent(how="there")
    with blobs.alone(descriptor.digest, sink):
        transfer = _Transfer(repository, descriptor, blobs, moved)
        return transfer.run(sources)


class _Transfer:
    """One blob's way into one repository."""

    def __init__(self, repository: Repository, descriptor: Descriptor, blobs: Blobs, moved: Progress) -> None:
        self._repository = repository
        self._session = repository.session
        self._blob = descriptor
        self._path = blobs.path(descriptor.digest)
        self._moved = moved
        name = hashlib.sha256(f"{repository.name}@{descriptor.digest}".encode()).hexdigest()
        # Where a killed run had got to: the registry's own URL of the upload.
        self._memory = blobs.folder / "uploads" / name
        self._counted = 0

    def run(self, sources: tuple[str, ...]) -> Sent:
        begun = self._remembered()
        if begun is None:
            begun = self._begin(sources)
        if begun is None:
            self._moved(self._blob.size)
            return Sent(how="mounted")
        location, offset = begun
        idle, furthest = 0, offset
        while True:
            self._count(offset)
            try:
                location = self._send(location, offset)
                self._finish(location)
                break
            except NoAccess:
                raise
            except NetworkError as error:
                # Many a failure is only about how far it has come; the registry is asked.
                if self._there():
                    break
                status = self._status(location)
                location, offset = status or self._fresh()
                idle = 0 if offset > furthest else idle + 1
                furthest = max(offset, furthest)
                if idle >= _IDLE_ATTEMPTS or not (isinstance(error, Again) or idle < 2):
                    raise
                self._session.pause(backoff(idle))
        with contextlib.suppress(EngineError):
            store.remove(self._memory)
        self._count(self._blob.size)
        return Sent(how="sent")

    def _count(self, offset: int) -> None:
        if offset != self._counted:
            self._moved(offset - self._counted)
            self._counted = offset

    def _read(self, count: int) -> None:
        self._counted += count
        self._moved(count)

    def _there(self) -> bool:
        try:
            return self._repository.has_blob(self._blob.digest)
        except NetworkError:
            return False

    def _begin(self, sources: tuple[str, ...]) -> tuple[str, int] | None:
        """Begin an upload; None where the registry has taken the blob from another repository."""
        for source in sources:
            access = Access(repository=self._repository.path, push=True, source=source)
            query = f"?mount={quote(self._blob.digest)}&from={quote(source, safe='')}"
            with contextlib.suppress(NetworkError):
                reply = self._session.ask(
                    "POST", self._repository.url(f"blobs/uploads/{query}"), access, ok=frozenset({201, 202})
                )
                if reply.status == 201:
                    return None
                return self._noted(reply.url, reply.headers.get("location", "")), 0
        return self._fresh()

    def _fresh(self) -> tuple[str, int]:
        reply = self._session.ask(
            "POST", self._repository.url("blobs/uploads/"), self._repository.writing, ok=frozenset({202})
        )
        return self._noted(reply.url, reply.headers.get("location", "")), 0

    def _noted(self, asked: str, location: str) -> str:
        if not location:
            raise NetworkError(f"{self._repository.name}: the registry does not say where to send a blob")
        there = urljoin(asked, location)
        if urlsplit(asked).scheme == "https" and urlsplit(there).scheme != "https":
            raise NetworkError(f"{self._repository.name}: the registry wants a blob over plain HTTP")
        with contextlib.suppress(EngineError):  # it only saves time
            store.write_atomic(self._memory, there)
        return there

    def _remembered(self) -> tuple[str, int] | None:
        try:
            location = self._memory.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return self._status(location) if location else None

    def _status(self, location: str) -> tuple[str, int] | None:
        """Where an upload goes on, as the registry says; None where it knows nothing of it."""
        try:
            reply = self._session.ask("GET", location, self._repository.writing, ok=frozenset({204, 200}))
        except (Missing, NetworkError):
            return None
        said = _RANGE.fullmatch(reply.headers.get("range", ""))
        # "0-0" is one byte, and what registries say of none.
        if said is None or said[1] == "0" or int(said[1]) >= self._blob.size:
            return None
        return self._noted(reply.url, reply.headers.get("location", "") or location), int(said[1]) + 1

    def _send(self, location: str, offset: int) -> str:
        """Send the rest; the upload's URL after it."""
        opened: list[_Rest] = []

        def rest() -> _Rest:
            try:
                opened.append(_Rest(self._path, offset, self._blob.size, self._read))
            except OSError as error:
                raise disk_error(self._path, error) from error
            return opened[-1]

        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{offset}-{self._blob.size - 1}",
        }
        if offset == self._blob.size:
            return location
        try:
            with self._session.open(
                "PATCH", location, self._repository.writing, headers=headers, data=rest, ok=_WRITTEN, attempts=1
            ) as response:
                return self._noted(response.url, response.headers.get("Location", "") or location)
        finally:
            for each in opened:
                each.close()

    def _finish(self, location: str) -> None:
        join = "&" if urlsplit(location).query else "?"
        self._session.ask(
            "PUT", f"{location}{join}digest={quote(self._blob.digest)}", self._repository.writing,
            headers={"Content-Type": "application/octet-stream"}, ok=frozenset({200, 201, 204}),
        )  # fmt: skip
