"""A folder as a root filesystem: the machine's own (``/``), or an unpacked image."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from envbuild.elf.faults import ElfError
from envbuild.elf.file import ElfFile, read

_MAX_LINKS = 40  # as the kernel counts them (MAXSYMLINKS)


class FolderRoot:
    """The files below a folder; links are followed inside it. It is taken to stay as it is."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder).rstrip("/")
        self._resolved: dict[str, str | None] = {}
        self._files: dict[str, ElfFile | ElfError] = {}

    def resolve(self, path: str) -> str | None:
        """The path of the file behind all symbolic links; None when no regular file is there."""
        if path not in self._resolved:
            self._resolved[path] = self._walk(path)
        return self._resolved[path]

    def read(self, path: str) -> ElfFile:
        """The ELF file at a resolved path.

        Raises:
            ElfError: It is not one (NotElf), or cannot be understood.
        """
        if path not in self._files:
            try:
                self._files[path] = read(Path(self._folder + path), path)
            except ElfError as error:
                self._files[path] = error
        found = self._files[path]
        if isinstance(found, ElfError):
            raise found
        return found

    def data(self, path: str, limit: int) -> bytes:
        """At most the first ``limit`` bytes of the file at a resolved path.

        Raises:
            ElfError: It cannot be read.
        """
        try:
            with Path(self._folder + path).open("rb") as stream:
                return stream.read(limit)
        except OSError as error:
            raise ElfError(f"{path} cannot be read: {error.strerror or error}") from error

    def _walk(self, path: str) -> str | None:
        pending = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        mode = stat.S_IFDIR
        while pending:
            part = pending.pop()
            if not stat.S_ISDIR(mode):
                return None
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            here = "/".join([self._folder, *done, part])
            try:
                mode = os.lstat(here).st_mode
                if stat.S_ISLNK(mode):
                    links += 1
                    if links > _MAX_LINKS:
                        return None
                    target = str(Path(here).readlink())
                    if target.startswith("/"):
                        done.clear()
                    pending.extend(target.split("/")[::-1])
                    mode = stat.S_IFDIR
                else:
                    done.append(part)
            except (OSError, ValueError):  # not there, not ours to see, a name with a NUL
                return None
        return "/" + "/".join(done) if stat.S_ISREG(mode) else None
