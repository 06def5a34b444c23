"""How the records of an ELF file lie, for 32 and 64 bits and either order of bytes (elf.h; System V ABI, chapter 4)."""

import struct
from typing import NamedTuple

from .faults import Damaged, NotElf


class Header(NamedTuple):
    """What the first bytes say; offsets and sizes in bytes."""

    type: int
    machine: int
    segments: int
    segment_size: int
    segment_count: int
    sections: int
    section_size: int
    section_count: int
    section_names: int


class Layout:
    """The records of one class and order of bytes."""

    def __init__(self, bits: int, order: str) -> None:
        wide = bits == 64
        self.bits = bits
        self.header = struct.Struct(order + ("16x HH 4x 8x QQ 4x 2x HHHHH" if wide else "16x HH 4x 4x II 4x 2x HHHHH"))
        self._segment = struct.Struct(order + ("IIQQQQQQ" if wide else "8I"))
        # The flags stand second in the wide one and seventh in the other.
        self._picks = (0, 2, 3, 5) if wide else (0, 1, 2, 4)
        self.section = struct.Struct(order + ("IIQQQQII 16x" if wide else "IIIIIIII 8x"))
        self.tag = struct.Struct(order + ("qQ" if wide else "iI"))
        self.symbol = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
        self.verneed = struct.Struct(order + "HHIII")
        self.vernaux = struct.Struct(order + "IHHII")
        self.verdef = struct.Struct(order + "HHHHIII")
        self.verdaux = struct.Struct(order + "II")

    @property
    def segment_size(self) -> int:
        """Bytes of a program header."""
        return self._segment.size

    def segment(self, data: bytes, at: int) -> "tuple[int, int, int, int]":
        """Type, offset, address and size in the file of a program header."""
        record = self._segment.unpack_from(data, at)
        kind, offset, address, size = (record[pick] for pick in self._picks)
        return kind, offset, address, size


_LAYOUTS = {(bits, order): Layout(32 * bits, "<" if order == 1 else ">") for bits in (1, 2) for order in (1, 2)}
HEADER = 64


def layout_of(head: bytes) -> "tuple[Layout, Header]":
    """How a file is laid out, and its header.

    Args:
        head: Its first 64 bytes.

    Raises:
        NotElf: It is not an ELF file.
        Damaged: It is one of no known class or order of bytes, or ends inside its header.
    """
    if head[:4] != b"\x7fELF":
        raise NotElf("not an ELF file")
    found = _LAYOUTS.get((head[4], head[5])) if len(head) > 5 else None
    if found is None and len(head) >= 16:
        raise Damaged("its class is {} and its order of bytes {}".format(head[4], head[5]))
    if found is None or len(head) < found.header.size:
        raise Damaged("it ends inside its header")
    kind, machine, segments, sections, segment_size, segment_count, size, count, names = found.header.unpack_from(head)
    return found, Header(kind, machine, segments, segment_size, segment_count, sections, size, count, names)


def text(data: bytes) -> str:
    """The C string at the beginning of ``data``; bytes that are not UTF-8 are spelled out."""
    return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")
