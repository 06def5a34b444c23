"""One RPM header: an index of tags over a store of data.

Format: rpm's docs/manual/format_header.md and lib/header.c. In a database there is no magic in front: two big-endian
counts, the index (tag, type, offset, count; 16 bytes each) and the data. A header that was installed has more entries
behind the immutable ones; of a tag that is there twice the later one counts, as in rpm.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envbuild.rpmdb.faults import RpmdbError

# Of a header as rpm itself refuses more (HEADER_TAGS_MAX), of one tag what no package comes near.
_MAX_ENTRIES, _MAX_COUNT = 0xFFFF, 250_000
# The largest header of a kernel's sources has some 4 MB.
LARGEST = 64 << 20
_COUNTS, _ENTRY = struct.Struct(">II"), struct.Struct(">IIiI")
_STRING, _STRING_ARRAY, _I18N = 6, 8, 9
_TEXTS = (_STRING, _STRING_ARRAY, _I18N)
_NUMBERS = {1: "B", 2: "B", 3: "H", 4: "I", 5: "Q"}  # CHAR, INT8, INT16, INT32, INT64


@dataclass(frozen=True, slots=True)
class _Entry:
    type: int
    offset: int
    count: int


class Header:
    """The tags of one package. What is not there reads as empty; what is there and no sense raises ``RpmdbError``."""

    def __init__(self, entries: dict[int, _Entry], data: bytes) -> None:
        self._entries, self._data = entries, data

    def __contains__(self, tag: int) -> bool:
        return tag in self._entries

    def texts(self, tag: int) -> tuple[str, ...]:
        """The strings of a tag; bytes that are no UTF-8 as in the names of a tar archive.

        Raises:
            RpmdbError: It holds no strings, or they lie outside the header.
        """
        entry = self._entries.get(tag)
        if entry is None:
            return ()
        if entry.type not in _TEXTS or (entry.type == _STRING and entry.count != 1):
            raise RpmdbError(f"tag {tag} should hold text and has the type {entry.type}")
        found, at = [], entry.offset
        for _ in range(entry.count):
            end = self._data.find(b"\0", at)
            if end < 0:
                raise RpmdbError(f"tag {tag} ends outside of its header")
            found.append(self._data[at:end].decode("utf-8", "surrogateescape"))
            at = end + 1
        return tuple(found)

    def text(self, tag: int) -> str:
        """The first string of a tag; empty without one.

        Raises:
            RpmdbError: As ``texts``.
        """
        return next(iter(self.texts(tag)), "")

    def numbers(self, tag: int) -> tuple[int, ...]:
        """The numbers of a tag, unsigned.

        Raises:
            RpmdbError: It holds no numbers, or they lie outside the header.
        """
        entry = self._entries.get(tag)
        if entry is None:
            return ()
        if entry.type not in _NUMBERS:
            raise RpmdbError(f"tag {tag} should hold numbers and has the type {entry.type}")
        form = f">{entry.count}{_NUMBERS[entry.type]}"
        if entry.offset + struct.calcsize(form) > len(self._data):
            raise RpmdbError(f"tag {tag} ends outside of its header")
        return struct.unpack_from(form, self._data, entry.offset)


def parse(blob: bytes) -> Header:
    """The header in a blob of the database.

    Raises:
        RpmdbError: It is none.
    """
    if len(blob) < _COUNTS.size or len(blob) > LARGEST:
        raise RpmdbError(f"a header of {len(blob)} bytes is none")
    count, size = _COUNTS.unpack_from(blob)
    start = _COUNTS.size + count * _ENTRY.size
    if not 0 < count <= _MAX_ENTRIES or start + size != len(blob):
        raise RpmdbError(f"a header of {len(blob)} bytes says that it has {count} tags and {size} bytes of data")
    data = blob[start:]
    entries = {}
    for tag, kind, offset, number in _ENTRY.iter_unpack(blob[_COUNTS.size : start]):
        if number > _MAX_COUNT and kind != 7:  # a binary tag counts bytes
            raise RpmdbError(f"tag {tag} has {number} values")
        if not 0 <= offset <= size:
            raise RpmdbError(f"tag {tag} begins outside of its header")
        entries[tag] = _Entry(kind, offset, number)
    return Header(entries, data)
