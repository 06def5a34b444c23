"""Native code and a loader's cache, byte by byte: no compiler, and nothing that one would refuse to write."""

from __future__ import annotations

import struct

EXTRA = -1  # stands for the address of what follows the strings
NEEDED, RPATH, RUNPATH, STRTAB, STRSZ, VERNEED, VERDEF = 1, 15, 29, 5, 10, 0x6FFFFFFE, 0x6FFFFFFC


def made(*tags: tuple[int, int], strings: bytes = b"\0", extra: bytes = b"", strtab: bool = True) -> bytes:
    """The smallest file that the loader would map: one segment, a dynamic section in it, no sections."""
    at = 0x100
    table = at + 16 * (len(tags) + 2 * strtab + 1)
    entries = [*tags, *([(STRTAB, table), (STRSZ, len(strings))] if strtab else []), (0, 0)]
    dynamic = b"".join(
        struct.pack("<QQ", tag, table + len(strings) if value == EXTRA else value) for tag, value in entries
    )
    total = table + len(strings) + len(extra)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 1 << 60, 0, 64, 56, 2, 64, 7, 6)
    header += struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, total, total, 4096)
    # The loader finds the dynamic section by its address: what p_offset says is nothing to it.
    header += struct.pack("<IIQQQQQQ", 2, 6, 3, at, at, len(dynamic), len(dynamic), 8)
    return header.ljust(at, b"\0") + dynamic + strings + extra


def cache_of(*entries: tuple[str, str, int, int], folders: tuple[str, ...] = ()) -> bytes:
    """A cache in the new layout; an entry is name, path, flags and hwcap."""
    strings = b"\0".join(part.encode() for entry in entries for part in entry[:2]) + b"\0"
    strings += b"\0".join(map(str.encode, folders)) + b"\0"
    base = 48 + 24 * len(entries)
    table = b""
    for name, path, flags, hwcap in entries:
        key, value = (base + strings.index(text.encode() + b"\0") for text in (name, path))
        table += struct.pack("<iIIIQ", flags, key, value, 0, hwcap)
    extension = base + len(strings)
    section = extension + 24
    tail = struct.pack("<IIIIII", 0xEAA42174, 1, 1, 0, section, 4 * len(folders))
    tail += b"".join(struct.pack("<I", base + strings.rindex(folder.encode() + b"\0")) for folder in folders)
    header = b"glibc-ld.so.cache1.1" + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, extension)
    return header + table + strings + tail
