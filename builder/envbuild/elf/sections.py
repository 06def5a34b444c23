"""The section table of an ELF file, read with limits.

A file of an image may lie about every number in it. pyelftools believes them: a count of sections, the length of a
name, an entry size of zero. Where only the table is needed, it is small enough to be read here within bounds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

from envbuild.elf.faults import ElfError

X86_64 = 62
AARCH64 = 183
SHF_EXECINSTR = 4
SHT_SYMTAB = 2
SHT_NOBITS = 8
SHT_DYNSYM = 11

# Far above any real file: torch's libraries have some 40 sections.
_MAX_SECTIONS = 10_000
_MAX_NAMES = 1 << 20
_MACHINES = {X86_64: "x86-64", AARCH64: "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One entry of the section table; offset and size in bytes, cut to what the file has."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


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
    end = file.seek(0, 2)
    header = read_at(file, 0, 64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file")
    machine: int = struct.unpack_from("<H", header, 18)[0]
    (offset,) = struct.unpack_from("<Q", header, 40)
    size, count, names = struct.unpack_from("<3H", header, 58)
    if offset == 0:
        return Sections(machine=_machine(machine), sections=())
    if size != 64 or not 0 < count <= _MAX_SECTIONS or offset + 64 * count > end:
        raise ElfError("its section table is damaged")
    table = read_at(file, offset, 64 * count)
    raw = [struct.unpack_from("<IIQQQQII", table, 64 * index) for index in range(count)]
    texts = b""
    if names < count:
        texts = read_at(file, min(raw[names][4], end), min(raw[names][5], _MAX_NAMES))
    sections = []
    for name, kind, flags, address, start, length, link, _ in raw:
        start = min(start, end)
        length = 0 if kind == SHT_NOBITS else min(length, end - start)
        text = texts[name : name + 200].partition(b"\0")[0].decode("ascii", "replace")
        sections.append(
            Section(name=text, kind=kind, flags=flags, address=address, offset=start, size=length, link=link)
        )
    return Sections(machine=_machine(machine), sections=tuple(sections))


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes from an offset that lies within the file."""
    file.seek(offset)
    return file.read(size)


def _machine(number: int) -> str:
    return _MACHINES.get(number, f"machine {number}")
