"""The section table of 64-bit little-endian files, which is what holds the code of ops; read with limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from envbuild.collector.elf import Damaged, Section
from envbuild.collector.elf import read_sections as read_any
from envbuild.collector.elf.sections import SHF_EXECINSTR, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB
from envbuild.elf.faults import ElfError

__all__ = [
    "AARCH64", "SHF_EXECINSTR", "SHT_DYNSYM", "SHT_NOBITS", "SHT_SYMTAB", "X86_64",
    "Section", "Sections", "read_at", "read_sections",
]  # fmt: skip

X86_64 = 62
AARCH64 = 183
_MACHINES = {X86_64: "x86-64", AARCH64: "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """The section table, in its order, of a file for ``machine`` (``x86-64``, ``aarch64`` or ``machine N``)."""

    machine: str
    sections: tuple[Section, ...]

    def of_kind(self, *kinds: int) -> tuple[Section, ...]:
        """The sections of some kinds."""
        return tuple(section for section in self.sections if section.kind in kinds)

    def named(self, *names: str) -> tuple[Section, ...]:
        """The sections with some names."""
        return tuple(section for section in self.sections if section.name in names)


def read_sections(file: BinaryIO) -> Sections:
    """Read the section table of a 64-bit little-endian ELF file.

    Args:
        file: Open for reading, seekable.

    Raises:
        ElfError: It is no such file, or its table is damaged.
        OSError: The file cannot be read.
    """
    wrong = "not a 64-bit little-endian ELF file"
    file.seek(0)
    if file.read(6) != b"\x7fELF\x02\x01":
        raise ElfError(wrong)
    try:
        found = read_any(file)
    except Damaged as error:
        raise ElfError(str(error)) from error
    return Sections(machine=_MACHINES.get(found.machine, f"machine {found.machine}"), sections=found.sections)


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes from an offset that lies within the file."""
    file.seek(offset)
    return file.read(size)
