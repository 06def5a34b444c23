"""Blobs on their way into a registry: what is there already stays home, and what broke off goes on where it broke."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from envbuild import store
from envbuild.errors import EngineError
from envbuild.events import Sink, discard
from envbuild.net import NetworkError
from envbuild.net.manners import backoff
from envbuild.registry.blobs import IDLE_ATTEMPTS, Blobs, Effort, Progress
from envbuild.registry.manifests import Descriptor
from envbuild.registry.repository import Repository
from envbuild.registry.types import Access, Again, NoAccess

# How often in a row a registry may say no to the same bytes: its state may be another one than was thought.
_REFUSALS = 2
_BLOCK = 1 << 18
_RANGE = re.compile(r"(?:bytes[= ])?0-([0-9]{1,18})")
_WRITTEN = frozenset({200, 201, 202, 204})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How a blob came into the registry: ``there``, ``mounted`` from another repository, or ``sent``."""

    how: str


class _Stuck(NetworkError):
    """A registry answers that all is well, and takes nothing (exit 3)."""


class _Rest:
    """The rest of a file as a request's body: it has a length, gives no byte more, and tells what was read."""

    def __init__(self, path: Path, start: int, size: int, moved: Progress) -> None:
        self._path = path
        self._length = self._left = size - start
        self._moved = moved
        with _reading(path):
            self._file = path.open("rb")
            self._file.seek(start)

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        wanted = min(self._left, _BLOCK if size < 0 else size)
        with _reading(self._path):
            block = self._file.read(wanted)
        if wanted and not block:
            raise EngineError(f"{self._path}: ends {self._left} bytes too early", hint="Build or pull the image again.")
        self._left -= len(block)
        self._moved(len(block))
        return block

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    # Said here: among the errors of a connection it would pass for one of the network.
    try:
        yield
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror or error}") from error


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
    with blobs.alone(descriptor.digest, sink):
        # Asked only now: who held the lock may have sent it.
        if repository.has_blob(descriptor.digest):
            moved(descriptor.size)
            return Sent(how="there")
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
        effort = Effort(offset, self._blob.size)
        while True:
            self._count(offset)
            try:
                if offset < self._blob.size:
                    location, offset = self._send(location, offset)
                if offset == self._blob.size:
                    self._finish(location)
                    break
                if effort.idle(offset) >= IDLE_ATTEMPTS:
                    raise _Stuck(f"{self._repository.name}: takes no more than {offset} bytes of a blob")
            except (NoAccess, _Stuck):
                raise
            except NetworkError as error:
                self._session.heed(error)
                # What failed may be the answer alone.
                if self._there():
                    break
                # 416: it has more than it said, as long as it still reads what came over a connection that broke.
                again = isinstance(error, Again) or error.status == 416
                # Many a failure is only about how far it has come; the registry is asked. Not where all had come
                # and was refused: then the bytes that it has are not those of the blob.
                refused = not again and offset == self._blob.size
                left, known = location, None if refused else self._status(location)
                if known is None:
                    self._give_up(left)
                if effort.idle(known[1] if known else 0) >= (IDLE_ATTEMPTS if again else _REFUSALS):
                    raise
                location, offset = known or self._fresh()
            self._session.pause(backoff(effort.count))
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
        begun: tuple[str, int] | None = None
        for source in sources:
            if begun is not None:
                self._give_up(begun[0])  # each source that has it not has begun an upload
                begun = None
            access = Access(repository=self._repository.path, push=True, source=source)
            query = f"?mount={quote(self._blob.digest)}&from={quote(source, safe='')}"
            with contextlib.suppress(NetworkError):
                reply = self._session.ask(
                    "POST", self._repository.url(f"blobs/uploads/{query}"), access, ok=frozenset({201, 202})
                )
                if reply.status == 201:
                    return None
                # The source has it not, and an upload has begun instead.
                begun = self._noted(reply.url, reply.headers.get("location", "")), 0
        return begun or self._fresh()

    def _fresh(self) -> tuple[str, int]:
        reply = self._session.ask(
            "POST", self._repository.url("blobs/uploads/"), self._repository.writing, ok=frozenset({202})
        )
        return self._noted(reply.url, reply.headers.get("location", "")), 0

    def _give_up(self, location: str) -> None:
        """Tell the registry that nothing more comes, so that it need not keep what it has ("Cancel blob upload" in
        docs.docker.com/reference/api/registry, read 2026-11-30). One that cannot, keeps it until it cleans up."""
        with contextlib.suppress(NetworkError):
            self._session.ask("DELETE", location, self._repository.writing, ok=frozenset({200, 202, 204}), attempts=1)
        with contextlib.suppress(EngineError):
            store.remove(self._memory)

    def _noted(self, asked: str, location: str) -> str:
        if not location:
            raise NetworkError(f"{self._repository.name}: the registry does not say where to send a blob")
        there = self._session.lead(asked, location)
        with contextlib.suppress(EngineError, OSError):  # it only saves time
            # The URL may be all that it takes to write there.
            store.make_folder(self._memory.parent).chmod(0o700)
            store.write_atomic(self._memory, there)
        return there

    def _remembered(self) -> tuple[str, int] | None:
        try:
            location = self._memory.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return self._status(location) if location else None

    def _status(self, location: str) -> tuple[str, int] | None:
        """Where an upload goes on, as the registry says; None where it knows nothing of it.

        Raises:
            Again: It does not answer: what it has is not to be sent a second time for that.
        """
        try:
            reply = self._session.ask("GET", location, self._repository.writing, ok=frozenset({204, 200}))
        except Again:
            raise
        except NetworkError:
            return None
        taken = _taken(reply.headers)
        if taken is None or taken > self._blob.size:
            return None
        return self._noted(reply.url, reply.headers.get("location", "") or location), taken

    def _send(self, location: str, offset: int) -> tuple[str, int]:
        """Send the rest; the upload's URL after it, and the bytes that the registry has."""
        opened: list[_Rest] = []

        def rest() -> _Rest:
            self._count(offset)  # it may be asked for twice: once without, once with a new token
            opened.append(_Rest(self._path, offset, self._blob.size, self._read))
            return opened[-1]

        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{offset}-{self._blob.size - 1}",
        }
        try:
            reply = self._session.ask(
                "PATCH", location, self._repository.writing, headers=headers, data=rest, ok=_WRITTEN, attempts=1
            )
        finally:
            for each in opened:
                each.close()
        taken = _taken(reply.headers)
        there = self._noted(reply.url, reply.headers.get("location", "") or location)
        return there, self._blob.size if taken is None else min(taken, self._blob.size)

    def _finish(self, location: str) -> None:
        join = "&" if urlsplit(location).query else "?"
        self._session.ask(
            "PUT", f"{location}{join}digest={quote(self._blob.digest)}", self._repository.writing,
            headers={"Content-Type": "application/octet-stream"}, ok=frozenset({200, 201, 204}),
        )  # fmt: skip


def _taken(headers: Mapping[str, str]) -> int | None:
    """How many bytes a registry says that it has; None where it does not."""
    said = _RANGE.fullmatch(headers.get("range", ""))
    # "0-0" is one byte, and what registries say of none.
    return None if said is None or said[1] == "0" else int(said[1]) + 1
