"""Files of a bundle onto the disk, hashed as they are written, with the same time and permissions whoever makes it."""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from envbuild import store
from envbuild.bundle.manifest import File
from envbuild.errors import BundleError, EngineError

FilePart = Literal["rpms", "wheels", "image", "doctor", "common"]
Told = Callable[[int], None]
_BLOCK = 1 << 20
_LARGE = 8 << 20
_PROGRAM = 0o755
_PLAIN = 0o644


def pieces(source: Path) -> Iterator[bytes]:
    """A file's bytes, a block at a time.

    Raises:
        EngineError: It cannot be read.
    """
    try:
        with source.open("rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise EngineError(f"cannot read {source}: {error.strerror}") from error


def written(place: Path, path: str, pieces: Iterable[bytes], part: FilePart, *, program: bool, told: Told) -> File:
    """Write a file that is not there yet; returns it with the sum of the very bytes.

    Raises:
        BundleError: It is there.
        EngineError: The disk.
    """
    running, size = hashlib.sha256(), 0
    mode = _PROGRAM if program else _PLAIN
    try:
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb", 0) as file:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
                running.update(piece)
                size += len(piece)
                told(len(piece))
            os.fchmod(file.fileno(), mode)
            # Of the small ones, which may be thousands, `settle_folders` takes care all at once.
            if size >= _LARGE:
                os.fsync(file.fileno())
    except FileExistsError as error:
        raise BundleError(f"{path} is written twice: two different files have this name") from error
    except OSError as error:
        raise disk_error(place, error) from error
    return File(path=path, bytes=size, sha256=running.hexdigest(), part=part)


def settle_folders(work: Path, created: str) -> None:
    """Give everything the same time and permissions, and bring it onto the disk.

    Raises:
        EngineError: The disk.
    """
    seconds = datetime.datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()
    try:
        for folder, _, names in os.walk(work, topdown=False):
            if not any(Path(folder).iterdir()):  # what would have lain there is the base's
                Path(folder).rmdir()
                continue
            for name in names:
                os.utime(Path(folder, name), (seconds, seconds))
            Path(folder).chmod(0o755)
            os.utime(folder, (seconds, seconds))
        store.sync_disk(work)
    except OSError as error:
        raise disk_error(work, error) from error


def disk_error(path: Path, error: OSError) -> EngineError:
    """What a full or closed disk is called."""
    return EngineError(
        f"cannot write {path}: {error.strerror or error}",
        hint="Free some space, or name a folder on another disk with -o. What was fetched is kept.",
    )
