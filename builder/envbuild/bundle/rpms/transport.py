"""The way to one repository: small pages whole, large files into the cache, taken up where an earlier run left them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from envbuild import __version__, store
from envbuild.bundle.rpms.addresses import local, place, with_account
from envbuild.bundle.rpms.types import Source
from envbuild.errors import BundleError, EngineError, EnvbuildError, InputError
from envbuild.events import Note, Sink, discard
from envbuild.net import Broken, Client, NetworkError, Route, TooLong
from envbuild.net.manners import backoff
from envbuild.site import urls
from envbuild.site.sections import NetworkSection

CHUNK = 1 << 20
_AGAIN = "Run it again: what was transferred is kept."
# Checksums that say something about a file that a stranger may have changed.
STRONG = frozenset({"sha256", "sha384", "sha512"})
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A file by its content.

    Attributes:
        name: What messages call it.
        size: In bytes; None where nobody says it.
        limit: Bytes after which it is refused.
    """

    name: str
    checksum: tuple[str, str]
    size: int | None
    limit: int


class Way:
    """Reads from one repository. May be used from several threads."""

    def __init__(
        self,
        source: Source,
        network: NetworkSection,
        *,
        sink: Sink = discard,
        timeout: float = 30.0,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.source = source
        self._sink, self._pause = sink, pause
        known = (*source.baseurls, *((source.listing[1],) if source.listing else ()))
        remote = tuple(url for url in known if urls.is_remote(url))
        site = {"http": network.http_proxy, "https": network.https_proxy}
        proxies = site if source.proxy is None else {"http": source.proxy, "https": source.proxy}
        account, certificate = source.account, source.certificate
        route = Route(
            agent=f"envbuild/{__version__}",
            timeout=timeout,
            ca=source.ca or network.ca,
            proxies={scheme: proxy for scheme, proxy in proxies.items() if proxy},
            direct=lambda url: urls.is_loopback(url) or urls.bypasses(url, network.no_proxy),
            unverified=() if source.verify else tuple(urls.host(url) for url in remote),
            accounts=tuple(with_account(url, account) for url in remote) if account else (),
        )
        self._route = route
        # Whoever else is led to, by a list of mirrors or by metadata, is not shown who we are.
        entitled = {place(url) for url in remote} if certificate else set()
        self._others = Client(route, sink=sink, pause=pause)
        self._clients = {
            host: Client(replace(route, client=certificate, client_for=host), sink=sink, pause=pause)
            for host in entitled
        }

    def _client(self, url: str) -> Client:
        return self._clients.get(place(url), self._others)

    def proxy(self, url: str) -> str:
        """Through whom an address is reached, without credentials; empty: nobody."""
        said = self._route.proxies.get(url.partition(":")[0], "")
        return urls.mask(said) if urls.is_remote(url) and not self._route.direct(url) else ""

    def small(self, url: str, limit: int) -> bytes:
        """A small page.

        Raises:
            Missing: There is none.
            NetworkError: It does not come, or is longer than ``limit`` bytes.
            InputError: A file of this machine cannot be read.
        """
        path = local(url)
        if path is None:
            return self._client(url).get(url, limit=limit).body
        with opened(path) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooLong(f"{path}: more than the {limit} bytes that are sensible here")
        return data

    def fetch(
        self, addresses: Sequence[str], path: Path, wanted: Wanted, *, moved: Progress = lambda count: None
    ) -> Path:
        """Bring a file to ``path``: the rest of it, where a part is there already. A file of this machine is not
        copied: its own path is the answer.

        Args:
            addresses: Where it may be had; the next one is tried where one has it not, or has something else.
            moved: Told of every piece, in bytes; a negative count takes back what has to come again.

        Raises:
            NetworkError: It does not come from anywhere.
            BundleError: What comes is something else, or is said to be larger than ``limit``.
            EngineError: The disk.
        """
        if (wanted.size or 0) > wanted.limit:
            raise BundleError(
                f"{wanted.name}: {wanted.size} bytes, as the repository says, are more than any has",
                hint="Nothing of it was fetched. Tell who keeps the repository: its metadata is wrong.",
            )
        faults: list[EnvbuildError] = []
        # What lies on this machine is not written, so that nobody has to wait.
        here = all(local(address) is not None for address in addresses)
        lock = store.FileLock(path.with_name(f"{path.name}.lock"))
        with contextlib.nullcontext() if here else lock:
            for address in addresses:
                try:
                    return self._fetch_from(address, path, wanted, moved)
                except (NetworkError, BundleError, InputError) as error:  # noqa: PERF203
                    faults.append(error)
        for fault in faults[:-1]:
            self._sink(Note(message=fault.message, level="warning"))
        if not faults:
            raise BundleError(f"{wanted.name}: nobody says where it lies")
        raise faults[-1]

    def _fetch_from(self, address: str, path: Path, wanted: Wanted, moved: Progress) -> Path:
        here = local(address)
        if here is not None:
            if (found := digest_of(here, wanted, moved)) != wanted.checksum[1]:
                raise _other(wanted, urls.mask(address), found)
            return here
        try:
            size = path.stat().st_size if path.is_file() else -1
            if size >= 0 and wanted.size in (None, size) and digest_of(path, wanted, moved) == wanted.checksum[1]:
                return path
            part = path.with_name(f"{path.name}.part")
            store.make_folder(part.parent)
            with part.open("a+b") as file:
                growing = _Growing(file, wanted, moved)
                self._complete(address, growing)
                file.flush()
                os.fsync(file.fileno())
            if growing.digest != wanted.checksum[1]:
                moved(-growing.size)
                store.remove(part)
                raise _other(wanted, urls.mask(address), growing.digest)
            part.replace(path)
        except OSError as error:
            raise disk_error(path, error) from error
        except TooLong:
            store.remove(path.with_name(f"{path.name}.part"))
            raise
        return path

    def _complete(self, address: str, growing: _Growing) -> None:
        wanted = growing.wanted
        if wanted.size is not None and growing.size == wanted.size:
            return
        # Imported here: what a registry's client needs takes a tenth of a second, and local repositories need none.
        from envbuild.registry.blobs import IDLE_ATTEMPTS, Effort

        effort, client = Effort(growing.size, wanted.size or 0), self._client(address)
        while True:
            try:
                with client.rest(address, growing.size, limit=wanted.size or wanted.limit) as (start, blocks):
                    growing.begin(start)
                    for block in blocks:
                        growing.add(block)
                if wanted.size is None or growing.size == wanted.size:
                    return
                broken = Broken(urls.mask(address), "ended too early")
            except Broken as error:
                broken = error
            if effort.idle(growing.size) >= IDLE_ATTEMPTS:
                raise NetworkError(f"{broken.place}: {broken.reason}", hint=_AGAIN) from broken
            self._pause(backoff(effort.count))


class _Growing:
    """A file that grows, with the digest of what it has."""

    def __init__(self, file: BinaryIO, wanted: Wanted, moved: Progress) -> None:
        self._file, self.wanted, self._moved = file, wanted, moved
        self._sum, self.size = hashlib.new(wanted.checksum[0]), 0
        file.seek(0)
        # Of a file whose size nobody states, a part cannot be told from the whole.
        for block in _blocks(file) if wanted.size is not None else ():
            self._sum.update(block)
            self.size += len(block)
        moved(self.size)
        if wanted.size is None or self.size > wanted.size:
            self.begin(0)

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()

    def begin(self, start: int) -> None:
        """What comes next is the byte ``start``: this one's next, or the first."""
        if start == self.size and start:
            return
        self._file.truncate(0)
        self._moved(-self.size)
        self._sum, self.size = hashlib.new(self.wanted.checksum[0]), 0

    def add(self, block: bytes) -> None:
        self._file.write(block)
        self._sum.update(block)
        self.size += len(block)
        self._moved(len(block))


def disk_error(path: Path, error: OSError) -> EngineError:
    """What a full or closed disk is called."""
    return EngineError(
        f"cannot write {path}: {error.strerror or error}",
        hint="Free some space (envbuild prune), or choose a folder on another disk.",
    )


def opened(path: Path) -> BinaryIO:
    """A regular file, for reading; a pipe or a device with such a name is none.

    Raises:
        InputError: It cannot be read, or is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError(f"{path}: not a file")
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def digest_of(path: Path, wanted: Wanted, moved: Progress = lambda count: None) -> str:
    """The digest of a file, or words for why it cannot be the one that is wanted.

    Raises:
        InputError: It cannot be read.
    """
    total = hashlib.new(wanted.checksum[0])
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if wanted.size not in (None, size) or size > wanted.limit:
            return f"a file of {size} bytes"
        for block in _blocks(file):
            total.update(block)
            moved(len(block))
    return total.hexdigest()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(CHUNK):
        yield block


def _other(wanted: Wanted, place: str, found: str) -> BundleError:
    algorithm, digest = wanted.checksum
    return BundleError(
        f"{place}: {wanted.name} is not what the repository says: {algorithm} {digest[:16]} was expected, and it is "
        f"{found[:40]}",
        hint="The mirror is between two states, or damaged. Nothing of it was used; try again, or another mirror.",
    )
