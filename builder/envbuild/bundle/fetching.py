"""Files of package indexes on their way: each once, by its hash, from where it broke off."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from envbuild import store
from envbuild.errors import BundleError
from envbuild.events import Event, Sink, StepDone, StepLine, StepStarted, discard
from envbuild.facts.upstream import RemoteFile
from envbuild.lock import local
from envbuild.net import Client, NetworkError, NoRanges
from envbuild.net.manners import shown
from envbuild.registry import Blobs
from envbuild.registry.blobs import disk_error
from envbuild.site import urls

# What is asked for at once: what a broken connection costs, and what lies in memory (bytes).
_PIECE = 8 << 20
_BLOCK = 1 << 20
_LARGEST = 16 << 30
_WHOLE_ATTEMPTS = 3
_REPORT_SECONDS = 2.0


class Stopped(Exception):
    """A transfer ends here, because the run does."""


class Fetcher:
    """Brings files here, into a cache that several runs share. May be used from several threads.

    Args:
        folder: The cache.
    """

    def __init__(self, client: Client, folder: Path, sink: Sink = discard) -> None:
        self._client = client
        self._cache = folder
        self._blobs = Blobs(folder / "wheels")
        self._sink = sink
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """End every transfer at its next piece."""
        self._stopped = True

    def get(self, file: RemoteFile, hashes: Collection[str]) -> tuple[Path, str]:
        """A file's path on this disk and its SHA-256, which is one of ``hashes`` (``sha256:...``).

        Raises:
            BundleError: It has another one.
            NetworkError: It does not come.
            EngineError: The disk.
        """
        path = urls.local_path(file.url)
        if path is not None:
            return path, self._held(local_digest(path, self._cache), file, hashes)
        # One that its index names no hash of is kept under its address, until it has one.
        name = file.sha256 or hashlib.sha256(file.url.encode()).hexdigest()
        began, status = time.monotonic(), "error"
        self._tell(StepStarted(key=name, name=file.filename))
        with self._blobs.alone(f"sha256:{name}", self._tell):
            try:
                whole = self._blobs.path(f"sha256:{name}")
                if whole.is_file():
                    digest, status = _digest(whole), "cached"
                    if f"sha256:{digest}" in hashes:
                        return whole, digest
                    store.remove(whole)
                digest = self._fetch(file, whole, hashes)
                status = "done"
                return whole, digest
            finally:
                self._tell(StepDone(key=name, name=file.filename, status=status, seconds=time.monotonic() - began))

    def _fetch(self, file: RemoteFile, whole: Path, hashes: Collection[str]) -> str:
        part = whole.with_name(f"{whole.name}.part")
        for final in (False, True):
            try:
                with part.open("a+b") as out:
                    self._complete(file, out, whole.name)
                    out.flush()
                    os.fsync(out.fileno())
                digest = _digest(part)
                if f"sha256:{digest}" in hashes or final:
                    self._held(f"sha256:{digest}", file, hashes)
                    part.replace(whole)
                    return digest
            except OSError as error:
                raise disk_error(part, error) from error
            except BundleError:
                store.remove(part)
                raise
            # What an earlier run has left may be what is damaged: once more, from the start.
            store.remove(part)
        raise AssertionError("the second round returns or raises")

    def _complete(self, file: RemoteFile, out: BinaryIO, key: str) -> None:
        """Append what is missing of it."""
        at = out.seek(0, os.SEEK_END)
        size, told = file.size or _LARGEST, time.monotonic()
        try:
            while at < size:
                if self._stopped:
                    raise Stopped
                data, size = self._client.part(file.url, at, at + _PIECE)
                if size > _LARGEST:
                    raise NetworkError(f"{shown(file.url)}: {size} bytes, which no package has")
                out.write(data)
                at += len(data)
                if time.monotonic() - told > _REPORT_SECONDS:
                    told = time.monotonic()
                    self._tell(StepLine(key=key, text=f"{at >> 20} of {size >> 20} MiB"))
        except NoRanges:
            self._whole(file, out)

    def _whole(self, file: RemoteFile, out: BinaryIO) -> None:
        """From a server that sends whole files only, and so from the start each time."""
        for attempt in range(_WHOLE_ATTEMPTS):
            out.seek(0)
            out.truncate(0)
            try:
                with self._client.stream(file.url, limit=_LARGEST) as blocks:
                    for block in self._unless_stopped(blocks):
                        out.write(block)
                return
            except NetworkError:
                if attempt == _WHOLE_ATTEMPTS - 1:
                    raise

    def _unless_stopped(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            if self._stopped:
                raise Stopped
            yield block

    def _held(self, digest: str, file: RemoteFile, hashes: Collection[str]) -> str:
        if digest not in hashes:
            raise BundleError(
                f"{shown(file.url)}: its SHA-256 is {digest[7:19]}..., which is not in the lock",
                hint="The index serves another file than when the row was locked. Nothing of it was used.",
            )
        return digest.removeprefix("sha256:")

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._sink(event)


def local_digest(path: Path, cache: Path) -> str:
    """``sha256:...`` of a file on this disk.

    Raises:
        BundleError: It cannot be read.
    """
    try:
        return local.sha256(path, cache)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


def _digest(path: Path) -> str:
    running = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                running.update(block)
    except OSError as error:
        raise disk_error(path, error) from error
    return running.hexdigest()
