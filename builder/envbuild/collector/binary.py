"""What else is read of a compiled op: symbols that others have to give, and the GPUs it has code for.

The format of GPU code is described in envbuild.elf.gpucode, with its sources; here only its headers are counted up.
"""

import re
import struct

from .elf import read_sections

_SYMTAB_BYTES, _STRTAB_BYTES = 8 << 20, 32 << 20
_SYMBOLS = 300
_DYNSYM = 11  # SHT_DYNSYM (elf.h)
# Whose symbols: torch's C++ namespaces and C functions, CUDA's libraries, NCCL, libaio. Itanium mangling puts a
# namespace as its length and name: c10 is 3c10, at is 2at.
_INTEREST = re.compile(
    r"_ZN?K?(?:[A-Z]+)?(?:St\d*)?(?:3c10|2at|5torch|4c10d|8caffe2|5pybind)|.*(?:3c10|N2at|5torch)|"
    r"THP|c10_|aoti_|cuda|cu[A-Z]|__cuda|cublas|curand|cusparse|cusolver|cufft|cudnn|cufile|nvrtc|nvtx|nvml|nccl|io_[a-z]+\Z|"
    r".*GLIBCXX"
)
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
_KINDS = {1: "compute", 2: "sm"}
_ENTRIES, _PADDING = 20000, 4096


def undefined(stream):
    """Undefined dynamic symbols that torch, CUDA or NCCL have to give; sorted, at most some hundred."""
    table = read_sections(stream)
    symbols = [section for section in table.sections if section.kind == _DYNSYM][:1]
    if not symbols or not 0 < symbols[0].link < len(table.sections):
        return []
    strings = table.sections[symbols[0].link]
    names = _at(stream, strings.offset, min(strings.size, _STRTAB_BYTES))
    order = "<" if table.little else ">"
    # Elf64_Sym: name, info, other, section, value, size; Elf32_Sym: name, value, size, info, other, section.
    entry = struct.Struct(order + ("IBBHQQ" if table.bits == 64 else "IIIBBH"))
    index = 3 if table.bits == 64 else 5
    data = _at(stream, symbols[0].offset, min(symbols[0].size, _SYMTAB_BYTES))
    found = set()
    for fields in entry.iter_unpack(data[: len(data) // entry.size * entry.size]):
        if fields[index] == 0 and 0 < fields[0] < len(names):
            name = names[fields[0] : names.find(b"\0", fields[0])].decode("ascii", "replace")
            if _INTEREST.match(name):
                found.add(name)
    return sorted(found)[:_SYMBOLS]


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
