"""The GPUs that a compiled op has code for.

The format of it is described in envbuild.elf.gpucode, with its sources; here only its headers are counted up.
"""

import struct

from .elf import read_sections

_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
_KINDS = {1: "compute", 2: "sm"}
_ENTRIES, _PADDING = 20000, 4096


def gpus(stream):
    """The architectures with code, oldest first: sm_80 is machine code, compute_80 PTX; none where none is read."""
    found = set()
    for section in read_sections(stream).sections:
        if section.name == ".nv_fatbin":
            _fatbins(stream, section, found)
    return [text for _, _, text in sorted(found)]


def _fatbins(stream, section, found):
    at, end = section.offset, section.offset + section.size
    budget = _ENTRIES
    while at < end:
        block = _at(stream, at, min(end - at, _PADDING))
        at += len(block) - len(block.lstrip(b"\0"))
        head = _at(stream, at, _CONTAINER.size)
        if len(head) < _CONTAINER.size:
            return
        magic, _, size, length = _CONTAINER.unpack(head)
        if magic != _MAGIC or size < _CONTAINER.size or size + length > end - at:
            return
        place, at = at + size, at + size + length
        while place < at:
            head = _at(stream, place, _ENTRY.size)
            budget -= 1
            if len(head) < _ENTRY.size or not budget:
                return
            kind, _, size, length, number, flags = _ENTRY.unpack(head)
            if size < _ENTRY.size or kind not in _KINDS or not 10 <= number < 1000:
                return
            suffix = "a" if flags & 1 << 20 else "f" if flags & 1 << 21 else ""
            found.add((number, kind == 1, "{}_{}{}".format(_KINDS[kind], number, suffix)))
            place += size + length


def _at(stream, offset, size):
    stream.seek(offset)
    return stream.read(size)
