"""Where the functions of a shared object begin and end, and what they are called."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import BinaryIO

from envbuild.elf.sections import SHT_DYNSYM, SHT_SYMTAB, Section, Sections, read_at

_MAX_TABLE = 16 << 20  # bytes of symbols; the ops have some 20 KB
_STT_OBJECT = 1
_STT_FUNC = 2
_STT_GNU_IFUNC = 10
_IDENTIFIER = re.compile(r"_ZL?(\d+)")
# What __builtin_cpu_supports reads: filled from CPUID by libgcc's, and compiler-rt's, __cpu_indicator_init.
_CPU_DATA = ("__cpu_model", "__cpu_features2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Functions by address.

    Attributes:
        names: Raw symbol of each known start; empty where only the unwind table knows of a function.
        ends: First address after each function whose size is known.
        cpu_data: Address ranges of the data that holds what CPUID said.
    """

    names: dict[int, str]
    ends: dict[int, int]
    cpu_data: tuple[tuple[int, int], ...] = ()
    starts: tuple[int, ...] = field(default=(), repr=False)

    def within(self, first: int, last: int) -> list[tuple[int, int, str | None]]:
        """A range cut at every function: (first, after, name), name None for what belongs to no function."""
        low, high = bisect_right(self.starts, first - 1), bisect_right(self.starts, last - 1)
        pieces: list[tuple[int, int, str | None]] = []
        at = first
        for index in range(low, high):
            start = self.starts[index]
            following = self.starts[index + 1] if index + 1 < high else last
            if at < start:
                pieces.append((at, start, None))
            end = max(start, min(self.ends.get(start, following), following))
            pieces.append((start, end, self.names[start] or f"function at {start:#x}"))
            at = end
        if at < last:
            pieces.append((at, last, None))
        return pieces


def read_functions(file: BinaryIO, table: Sections) -> Functions:
    """Functions from ``.symtab``, ``.dynsym`` and, for those that have lost their name, ``.eh_frame_hdr``."""
    names: dict[int, str] = {}
    ends: dict[int, int] = {}
    cpu_data = []
    for section in table.of_kind(SHT_SYMTAB, SHT_DYNSYM):
        for name, kind, address, size in _symbols(file, table, section):
            if kind in (_STT_FUNC, _STT_GNU_IFUNC):
                names.setdefault(address, name)
                if size:
                    ends[address] = max(ends.get(address, 0), address + size)
            elif kind == _STT_OBJECT and name in _CPU_DATA:
                cpu_data.append((address, address + size))
    for section in table.named(".eh_frame_hdr"):
        for address in _unwind_starts(file, section):
            names.setdefault(address, "")
    return Functions(names=names, ends=ends, cpu_data=tuple(cpu_data), starts=tuple(sorted(names)))


def identifier(symbol: str) -> str:
    """The name that the source gives to a function: ``_Z3addii._omp_fn.0`` is add, ``PyInit_x`` is PyInit_x.

    Only functions of the global namespace are demangled; a name in a namespace or class stays as it is.
    """
    stem = symbol.partition(".")[0]
    found = _IDENTIFIER.match(stem)
    if not found:
        return stem
    length = int(found[1][:4])
    name = stem[found.end() : found.end() + length]
    return name if len(name) == length and length else stem


def _symbols(file: BinaryIO, table: Sections, section: Section) -> list[tuple[str, int, int, int]]:
    data = read_at(file, section.offset, min(section.size, _MAX_TABLE))
    texts = b""
    if section.link < len(table.sections):
        strings = table.sections[section.link]
        texts = read_at(file, strings.offset, min(strings.size, _MAX_TABLE))
    found = []
    for at in range(0, len(data) - 23, 24):
        name, info, _, home, address, size = struct.unpack_from("<IBBHQQ", data, at)
        if home and info & 15 in (_STT_OBJECT, _STT_FUNC, _STT_GNU_IFUNC):
            text = texts[name : name + 1000].partition(b"\0")[0].decode("ascii", "replace")
            found.append((text, info & 15, address, size))
    return found


def _unwind_starts(file: BinaryIO, section: Section) -> list[int]:
    """The table that every linker makes (LSB 5.0, 10.6.2): version 1, count in udata4, entries in datarel sdata4."""
    data = read_at(file, section.offset, min(section.size, _MAX_TABLE))
    if len(data) < 12 or data[0] != 1 or data[2] != 0x03 or data[3] != 0x3B:
        return []
    (count,) = struct.unpack_from("<I", data, 8)
    last = min(12 + 8 * count, len(data))
    return [section.address + struct.unpack_from("<i", data, at)[0] for at in range(12, last - 7, 8)]
