"""A folder from somebody else: every entry of it, and its files opened without following anything.

Whoever made it may have put links, pipes and devices into it, and may still be at it while it is read: so every step of
a path is opened below the one before, and a link at any of them is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from envbuild.bundle.words import MAX_FILES
from envbuild.errors import BundleError

# Bundles are three folders deep.
_DEEPEST = 16
_BLOCK = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a pipe would wait for a writer for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unreadable(Exception):
    """A file that is not there, is no file, or cannot be read; the message says which."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing in a folder.

    Attributes:
        kind: ``file``, or what it is otherwise: ``link``, ``special``, ``unreadable``, ``too deep``.
        size: Bytes of a file.
    """

    path: str
    kind: str
    size: int = 0


class Tree:
    """A folder, held open: renaming or replacing it meanwhile changes nothing."""

    def __init__(self, folder: Path) -> None:
        """Open it; the way to it may lead over links, which are the user's own.

        Raises:
            BundleError: It is no folder, or cannot be read.
        """
        self.folder = folder
        try:
            self._root = os.open(folder, _FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            raise BundleError(f"{folder}: {error.strerror}", hint="Name the folder of a bundle.") from error

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._root)

    def entries(self) -> Iterator[Entry]:
        """Everything in it but its folders, in no order.

        Raises:
            BundleError: There is no end to it.
        """
        budget = 2 * MAX_FILES
        for entry in self._below(os.dup(self._root), "", 0):
            budget -= 1
            if budget < 0:
                raise BundleError(f"{self.folder}: more than {2 * MAX_FILES} files, which no bundle has")
            yield entry

    def _below(self, descriptor: int, prefix: str, depth: int) -> Iterator[Entry]:
        try:
            with os.scandir(descriptor) as found:
                for each in found:
                    path = f"{prefix}{each.name}"
                    if each.is_dir(follow_symlinks=False):
                        yield from self._folder(descriptor, each.name, path, depth)
                    elif each.is_file(follow_symlinks=False):
                        yield Entry(path=path, kind="file", size=each.stat(follow_symlinks=False).st_size)
                    else:
                        yield Entry(path=path, kind="link" if each.is_symlink() else "special")
        except OSError:
            yield Entry(path=prefix.rstrip("/") or ".", kind="unreadable")
        finally:
            os.close(descriptor)

    def _folder(self, parent: int, name: str, path: str, depth: int) -> Iterator[Entry]:
        if depth >= _DEEPEST:
            yield Entry(path=path, kind="too deep")
            return
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=parent)
        except OSError:
            yield Entry(path=path, kind="unreadable")
            return
        yield from self._below(descriptor, f"{path}/", depth + 1)

    def open(self, path: str) -> int:
        """The descriptor of a regular file, to be closed by the caller.

        Raises:
            Unreadable: It is not there, or something else, or something on the way to it is a link.
        """
        with contextlib.ExitStack() as stack:
            here = self._root
            *folders, name = path.split("/")
            if not {"", ".", ".."}.isdisjoint((*folders, name)):
                raise Unreadable("it is no path in a bundle")
            try:
                for folder in folders:
                    here = os.open(folder, _FOLDER, dir_fd=here)
                    stack.callback(os.close, here)
                descriptor = os.open(name, _FILE, dir_fd=here)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Unreadable("it is a link, or lies behind one") from error
                missing = error.errno == errno.ENOENT
                raise Unreadable("it is missing" if missing else str(error.strerror), missing=missing) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Unreadable("it is no file")
        return descriptor

    def read(self, path: str, limit: int) -> bytes:
        """A small file's bytes.

        Raises:
            Unreadable: As ``open``; or it has more than ``limit`` bytes.
        """
        with os.fdopen(self.open(path), "rb") as file:
            try:
                data = file.read(limit + 1)
            except OSError as error:
                raise Unreadable(str(error.strerror)) from error
        if len(data) > limit:
            raise Unreadable(f"it is larger than {limit >> 20} MiB")
        return data

    def digest(self, path: str, told: Callable[[int], None] = lambda count: None) -> tuple[str, int]:
        """SHA-256 and size of a file.

        Raises:
            Unreadable: As ``open``; or the disk fails.
        """
        running, size = hashlib.sha256(), 0
        buffer = memoryview(bytearray(_BLOCK))
        with os.fdopen(self.open(path), "rb", buffering=0) as file:
            try:
                while count := file.readinto(buffer):
                    running.update(buffer[:count])
                    size += count
                    told(count)
            except OSError as error:
                raise Unreadable(str(error.strerror)) from error
        return running.hexdigest(), size

    def digests(
        self, paths: Iterable[str], told: Callable[[int], None] = lambda count: None
    ) -> Mapping[str, tuple[str, int] | Unreadable]:
        """SHA-256 and size of many files, or why there is none, on every core."""

        def one(path: str) -> tuple[str, int] | Unreadable:
            try:
                return self.digest(path, told)
            except Unreadable as error:
                return error

        wanted = tuple(paths)
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            return dict(zip(wanted, pool.map(one, wanted), strict=True))
