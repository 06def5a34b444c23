"""The section table of an ELF file, read with limits: a file may lie about every number in it."""

from typing import BinaryIO, NamedTuple

from .faults import Damaged
from .layout import HEADER, layout_of
from .memory import read_at

SHF_EXECINSTR = 4
SHT_SYMTAB = 2
SHT_NOBITS = 8
SHT_DYNSYM = 11

# Far above any real file: torch's libraries have some 40 sections.
_MAX_SECTIONS = 10000
_MAX_NAMES = 1 << 20
_MAX_NAME = 200


class Section(NamedTuple):
    """One entry of the section table; offset and size in bytes, cut to what the file has."""

    name: "str"
    kind: "int"
    flags: "int"
    address: "int"
    offset: "int"
    size: "int"
    link: "int"


class Sections(NamedTuple):
    """The section table, in its order; ``machine`` is the number of elf.h (EM_X86_64 is 62)."""

    machine: "int"
    bits: "int"
    little: "bool"
    sections: "tuple[Section, ...]"


def read_sections(stream: BinaryIO) -> Sections:
    """Read the section table; a file may have none.

    Raises:
        NotElf: It is not an ELF file.
        Damaged: Its table is damaged.
        OSError: It cannot be read.
    """
    end = stream.seek(0, 2)
    stream.seek(0)
    head = stream.read(HEADER)
    layout, header = layout_of(head)
    start, count, entry = header.sections, header.section_count, layout.section
    if start == 0:
        return Sections(header.machine, layout.bits, head[5] == 1, ())
    if header.section_size != entry.size or not 0 < count <= _MAX_SECTIONS or start + entry.size * count > end:
        raise Damaged("its section table is damaged")
    raw = list(entry.iter_unpack(read_at(stream, start, entry.size * count)))
    names = b""
    if header.section_names < count:
        _, _, _, _, offset, size, _, _ = raw[header.section_names]
        if offset < end and size:
            names = read_at(stream, offset, min(size, _MAX_NAMES))
    sections = []
    for name, kind, flags, address, offset, size, link, _ in raw:
        offset = min(offset, end)
        size = 0 if kind == SHT_NOBITS else min(size, end - offset)
        text = names[name : name + _MAX_NAME].partition(b"\0")[0].decode("ascii", "replace")
        sections.append(Section(text, kind, flags, address, offset, size, link))
    return Sections(header.machine, layout.bits, head[5] == 1, tuple(sections))
