"""What an ELF file says to the loader, read through its segments, so that a stripped section table hides nothing."""

import struct
from typing import BinaryIO, Iterator, NamedTuple

from .faults import Damaged
from .layout import HEADER, Layout, layout_of, text
from .memory import Memory, read_at
from .sections import SHT_NOBITS, read_sections
from .strings import StringAbi

# Bounds; see memory.py.
_MAX_TAGS = 8192
_MAX_VERSIONS = 16384
_MAX_SYMBOL_NAMES = 64 << 20
_CHUNK = 4 << 20
_MAX_COMMENT = 64 << 10

# elf.h
_ET_EXEC, _ET_DYN = 2, 3
_NULL, _NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 0, 1, 5, 10, 14, 15, 29
_VERDEF, _VERNEED, _FLAGS_1 = 0x6FFFFFFC, 0x6FFFFFFE, 0x6FFFFFFB
_WEAK = 0x2  # VER_FLG_WEAK
_NODEFLIB, _PIE = 0x800, 0x08000000  # DF_1_NODEFLIB, DF_1_PIE
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "cuda"}

Need = NamedTuple("Need", [("library", str), ("version", str), ("weak", bool)])


class Elf(NamedTuple):
    """One file, as ``envbuild.elf.ElfFile`` describes it."""

    machine: "str"
    bits: "int"
    kind: "str"
    soname: "str | None"
    needed: "tuple[str, ...]"
    rpath: "tuple[str, ...] | None"
    runpath: "tuple[str, ...] | None"
    interp: "str | None"
    requires: "tuple[Need, ...]"
    provides: "tuple[str, ...]"
    versioned: "bool"
    no_default: "bool"
    comment: "tuple[str, ...]"
    cxx11_abi: "bool | None"


def read(stream: BinaryIO) -> Elf:
    """Read a file of any size; what is read of it is bounded, whatever it claims.

    Raises:
        NotElf: It is not an ELF file.
        Damaged: It is one, and damaged where the loader reads it.
        OSError: It cannot be read.
    """
    stream.seek(0)
    layout, header = layout_of(stream.read(HEADER))
    memory = Memory(stream, layout, header)
    dynamic = _Dynamic(memory, layout)
    flags = dynamic.last(_FLAGS_1) or 0
    strings = StringAbi()
    for piece in dynamic.symbol_names(stream):
        strings.feed(piece)
    return Elf(
        machine=_MACHINES.get(header.machine) or _machine(header.machine),
        bits=layout.bits,
        kind=_kind(header.type, flags),
        soname=dynamic.string_of(_SONAME),
        needed=tuple([dynamic.string(offset) for offset in dynamic.tags.get(_NEEDED, [])]),
        rpath=_folders(dynamic.string_of(_RPATH)),
        runpath=_folders(dynamic.string_of(_RUNPATH)),
        interp=memory.interp,
        requires=tuple(dynamic.needs()),
        provides=tuple(dynamic.definitions()),
        versioned=_VERDEF in dynamic.tags,
        no_default=bool(flags & _NODEFLIB),
        comment=_comment(stream),
        cxx11_abi=strings.cxx11,
    )


class _Dynamic:
    """The dynamic section: its tags, and what they point to."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self._memory, self._layout = memory, layout
        self._versions_left = _MAX_VERSIONS
        self.tags = {}  # type: dict[int, list[int]]
        if memory.dynamic is None:
            return
        entry = layout.tag
        data = memory.read(memory.dynamic, _MAX_TAGS * entry.size)
        for tag, value in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
            if tag == _NULL:
                return
            self.tags.setdefault(tag, []).append(value)
        raise Damaged("its dynamic section has no end")

    def last(self, tag: int) -> "int | None":
        """The value of a tag: of most of them the loader takes the last."""
        values = self.tags.get(tag)
        return values[-1] if values else None

    def string(self, offset: int) -> str:
        """A string of the dynamic string table."""
        table = self.last(_STRTAB)
        if table is None:
            raise Damaged("it names things and has no string table")
        return self._memory.string(table + offset)

    def string_of(self, tag: int) -> "str | None":
        """The string that a tag points to; None without the tag."""
        offset = self.last(tag)
        return None if offset is None else self.string(offset)

    def symbol_names(self, stream: BinaryIO) -> Iterator[bytes]:
        """The dynamic string table in pieces; of more than 64 MiB, the beginning."""
        table, size = self.last(_STRTAB), self.last(_STRSZ)
        if table is None or size is None:
            return
        offset, rest = self._memory.place(table)
        end = offset + min(rest, size, _MAX_SYMBOL_NAMES)
        while offset < end:
            wanted = min(_CHUNK, end - offset)
            piece = read_at(stream, offset, wanted)
            yield piece
            if len(piece) < wanted:
                return
            offset += len(piece)

    def needs(self) -> Iterator[Need]:
        """The version references, walked link by link as the loader does: it does not look at their number."""
        record, link = self._layout.verneed, self._layout.vernaux
        for version, _, file, first, at in self._chain("needs", self.last(_VERNEED), record):
            _first_of(version)
            library = self.string(file)
            for _, flags, _, name, _ in self._chain("versions", at + first, link):
                yield Need(library, self.string(name), bool(flags & _WEAK))

    def definitions(self) -> Iterator[str]:
        """The versions it defines; only the first name of each counts, the others are its ancestors."""
        link = self._layout.verdaux
        for version, _, _, _, _, first, at in self._chain("needs", self.last(_VERDEF), self._layout.verdef):
            _first_of(version)
            name, _ = link.unpack(self._memory.record("versions", at + first, link.size))
            yield self.string(name)

    def _chain(self, kind: str, at: "int | None", record: struct.Struct) -> "Iterator[tuple[int, ...]]":
        """The records of a chain; the last number of each is its address in place of the distance to the next."""
        while at is not None:
            self._versions_left -= 1
            if self._versions_left < 0:
                raise Damaged("more than {} symbol versions".format(_MAX_VERSIONS))
            values = record.unpack(self._memory.record(kind, at, record.size))
            yield (*values[:-1], at)
            at = at + values[-1] if values[-1] else None


def _first_of(version: int) -> None:
    if version != 1:
        raise Damaged("version {} of the version records".format(version))


def _machine(number: int) -> str:
    """The name of a machine that no loader here is for."""
    try:
        from elftools.elf.enums import ENUM_E_MACHINE
    except ImportError:
        return "machine {}".format(number)
    names = [name for name, value in ENUM_E_MACHINE.items() if value == number]
    return names[0][len("EM_") :].lower() if names else "machine {}".format(number)


def _kind(number: int, flags: int) -> str:
    if number == _ET_EXEC:
        return "executable"
    if number == _ET_DYN:
        # libc.so.6 and some others can be run too: they have an interpreter, and no DF_1_PIE.
        return "executable" if flags & _PIE else "shared"
    return "other"


def _folders(path: "str | None") -> "tuple[str, ...] | None":
    return None if path is None else tuple(path.split(":")) if path else ()


def _comment(stream: BinaryIO) -> "tuple[str, ...]":
    """The strings of .comment, each once; a section table that cannot be read has none: no loader needs it."""
    try:
        found = [section for section in read_sections(stream).sections if section.name == ".comment"]
        if not found or found[0].kind == SHT_NOBITS or not found[0].size:
            return ()
        data = read_at(stream, found[0].offset, min(found[0].size, _MAX_COMMENT))
    except Damaged:
        return ()
    return tuple(dict.fromkeys(text(part) for part in data.split(b"\0") if part))
