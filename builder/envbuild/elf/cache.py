"""/etc/ld.so.cache: where ldconfig found which library.

Format: glibc's sysdeps/generic/dl-cache.h and elf/dl-cache.c (2.34), both the new format and the new one inside the
old one, which ldconfig wrote by default until 2.31.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_OLD_MAGIC = b"ld.so-1.7.0"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_NEW_HEADER, _NEW_ENTRY = 48, struct.Struct("<iIIIQ")
_EXTENSION_MAGIC = 0xEAA42174
_HWCAPS_TAG = 1
_ENDIAN = (0, 2)  # not said, or little
# Flags of an entry: its format and its machine (FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64).
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
_NAMED_BIT, _LEVEL_BITS = 1 << 30, (1 << 10) - 1  # of the upper half of hwcap
_MAX_NAME = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the cache.

    Attributes:
        path: The file.
        subfolder: The glibc-hwcaps folder it belongs to, such as ``x86-64-v3``; empty for every CPU.
    """

    path: str
    subfolder: str = ""


class Cache:
    """The entries of one cache, for one machine."""

    def __init__(self, entries: dict[str, list[Entry]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def lookup(self, name: str, subfolders: Sequence[str] = ()) -> str | None:
        """The one file that the loader would try, whether it is there or not.

        Args:
            name: What is asked for.
            subfolders: glibc-hwcaps folders that the CPU may use, best first.
        """
        found = self._entries.get(_key(name), [])
        usable = [entry for entry in found if entry.subfolder in subfolders]
        if usable:
            return min(usable, key=lambda entry: subfolders.index(entry.subfolder)).path
        return next((entry.path for entry in found if not entry.subfolder), None)


def parse(data: bytes, machine: str) -> Cache:
    """The cache in ``data``; an empty one when it is damaged, as the loader then does without."""
    if data.startswith(_OLD_MAGIC) and len(data) > _OLD_HEADER:
        (count,) = struct.unpack_from("<I", data, 12)
        start = -(-(_OLD_HEADER + count * _OLD_ENTRY) // 8) * 8
    else:
        start = 0
    table = data[start:]
    if not table.startswith(_NEW_MAGIC) or len(table) < _NEW_HEADER:
        return Cache({})
    count, flags, extension = struct.unpack_from("<I4xB3xI", table, len(_NEW_MAGIC))
    if flags & 3 not in _ENDIAN or (len(table) - _NEW_HEADER) // _NEW_ENTRY.size < count:
        return Cache({})
    folders = _subfolders(data, extension)
    wanted = _FLAGS.get(machine)
    entries: dict[str, list[Entry]] = {}
    for number in range(count):
        kind, key, value, _, hwcap = _NEW_ENTRY.unpack_from(table, _NEW_HEADER + number * _NEW_ENTRY.size)
        name, path = _string(table, key), _string(table, value)
        if kind != wanted or not name or not path:
            continue
        upper, index = hwcap >> 32, hwcap & 0xFFFFFFFF
        if upper & ~_LEVEL_BITS == _NAMED_BIT:
            if index < len(folders) and folders[index]:
                entries.setdefault(_key(name), []).append(Entry(path=path, subfolder=folders[index]))
        elif hwcap == 0:  # others belong to hardware folders of old loaders, which depend on the host's CPU
            entries.setdefault(_key(name), []).append(Entry(path=path))
    return Cache(entries)


def _key(name: str) -> str:
    """The loader compares runs of digits as numbers."""
    return re.sub(r"[0-9]+", lambda digits: digits[0].lstrip("0") or "0", name)


def _string(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + _MAX_NAME)
    return data[start:end].decode("utf-8", "backslashreplace") if end >= 0 else ""


def _subfolders(data: bytes, extension: int) -> list[str]:
    """The names of the glibc-hwcaps folders, by the index that entries have for them."""
    if not extension or extension + 8 > len(data):
        return []
    magic, count = struct.unpack_from("<II", data, extension)
    if magic != _EXTENSION_MAGIC:
        return []
    for number in range(min(count, 64, (len(data) - extension - 8) // 16)):
        tag, _, offset, size = struct.unpack_from("<IIII", data, extension + 8 + number * 16)
        if tag == _HWCAPS_TAG and offset + size <= len(data):
            names = struct.unpack_from(f"<{min(size // 4, 256)}I", data, offset)
            # Counted from the beginning of the file, as the loader does. In the layout with the old format in front
            # ldconfig 2.36 counts from the new table, and the loader then finds no folder: measured.
            return [_string(data, name) for name in names]
    return []
