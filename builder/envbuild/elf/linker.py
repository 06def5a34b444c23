"""The dynamic linker of a root filesystem: which folders it searches by default, read from its own bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envbuild.collector.elf.linker import LEGACY, LEVELS, MAX_LINKER, search_of
from envbuild.elf.faults import ElfError
from envbuild.elf.file import ElfFile


class Root(Protocol):
    """A root filesystem: an image's, or a machine's own. Paths are absolute and slash-separated."""

    def resolve(self, path: str) -> str | None:
        """The path of the file behind all symbolic links; None when no regular file is there."""

    def read(self, path: str) -> ElfFile:
        """The ELF file at a resolved path; asked for often, so worth remembering.

        Raises:
            ElfError: It is not one (NotElf), or cannot be understood.
        """

    def data(self, path: str, limit: int) -> bytes:
        """At most the first ``limit`` bytes of the file at a resolved path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linker:
    """A glibc loader.

    Attributes:
        path: Where executables ask for it.
        machine: ``x86_64`` or ``aarch64``.
        folders: The default search path.
        lib: What ``$LIB`` stands for. It is the first default folder: ``lib64`` on Fedora,
            ``lib/x86_64-linux-gnu`` on Debian.
        hwcaps: It knows glibc-hwcaps folders (glibc 2.33 and later).
        legacy: It knows the hardware folders that went with glibc 2.37.
    """

    path: str
    machine: str
    folders: tuple[str, ...]
    lib: str
    hwcaps: bool
    legacy: bool

    def levels(self, cpu: str) -> tuple[str, ...]:
        """Names of glibc-hwcaps folders that a CPU may use, best first; ``cpu`` is a level such as ``x86-64-v3``."""
        if not self.hwcaps or cpu not in LEVELS:
            return ()
        return LEVELS[: LEVELS.index(cpu) + 1][::-1]

    def subfolders(self, cpu: str) -> tuple[str, ...]:
        """Folders that are searched inside every folder before it itself is."""
        named = tuple(f"glibc-hwcaps/{level}" for level in self.levels(cpu))
        return named + (tuple(folder.format(self.machine) for folder in LEGACY) if self.legacy else ())


def linker(root: Root, executable: ElfFile) -> Linker:
    """The loader that an executable asks for.

    Raises:
        ElfError: It asks for none, or for one that is not there or is not glibc's.
    """
    path = executable.interp
    if path is None:
        raise ElfError(f"{executable.name} asks for no loader: it is linked statically, or is a library")
    real = root.resolve(path)
    if real is None:
        raise ElfError(f"{executable.name} asks for the loader {path}, which is not there")
    own = root.read(real)
    found = search_of(root.data(real, MAX_LINKER), executable.machine)
    if found is None:
        raise ElfError(f"{path} ({own.machine}) is not glibc's loader for x86-64 or aarch64, the only ones known here")
    if not found.folders:
        raise ElfError(f"{path} does not say which folders it searches")
    return Linker(
        path=path,
        machine=executable.machine,
        folders=found.folders,
        lib=found.folders[0].lstrip("/"),
        hwcaps=found.hwcaps,
        legacy=found.legacy,
    )
