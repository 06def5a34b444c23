"""How much AVX-512 is in the machine code of an op, by a look at its bytes: nothing is disassembled.

In 64-bit code the byte 62 begins an EVEX instruction and hardly stands for anything else (Intel's manual, volume 2,
2.7: the prefix has fixed bits, and L'L = 10 means 512 bits). In code without any AVX-512, 0 to 4 places in
100,000 bytes look so by chance (libtorch_python.so of torch 2.13.0: 330 in 14.7 MB).
"""

import re

from .elf import read_sections

_X86_64, _EXECUTABLE = 62, 4  # EM_X86_64, SHF_EXECINSTR (elf.h)
_MOST = 64 << 20


def _bytes(wanted):
    return b"[" + b"".join(re.escape(bytes([each])) for each in range(256) if wanted(each)) + b"]"


_EVEX_512 = re.compile(
    b"\x62"
    + _bytes(lambda byte: not byte & 8 and byte & 7 in (1, 2, 3, 5, 6))
    + _bytes(lambda byte: byte & 4)
    + _bytes(lambda byte: byte >> 5 & 3 == 2),
    re.DOTALL,
)


def wide(stream):
    """Instructions that look like ones of 512 bits, for every 100,000 bytes of code; None without code of x86-64."""
    table = read_sections(stream)
    if table.machine != _X86_64:
        return None
    found = size = 0
    for section in table.sections:
        if section.flags & _EXECUTABLE and 0 < section.size <= _MOST - size:
            stream.seek(section.offset)
            code = stream.read(section.size)
            size += len(code)
            found += sum(1 for _ in _EVEX_512.finditer(code))
    return round(found * 100000.0 / size, 1) if size else None
