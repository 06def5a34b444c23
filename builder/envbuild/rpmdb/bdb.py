"""A Berkeley DB hash file, read from its pages: rpm's ``Packages`` of Enterprise Linux 6 to 8.

Layout: libdb 5.3, src/dbinc/db_page.h. Every page is looked at, not the chains of buckets: what is wanted is every
value, in no order, and a page belongs to one list only. Values longer than a page lie on a chain of overflow pages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from envbuild.rpmdb.faults import RpmdbError

_MAGIC = 0x061561
_VERSIONS = range(7, 11)  # from libdb 3.1 to 18: the pages that are read here are the same
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))
_META, _UNSORTED, _OVERFLOW, _SORTED, _INVALID = 8, 2, 7, 13, 0
_HEADER = 26
_KEYDATA, _OFFPAGE = 1, 3
_COUNTER = bytes(4)  # under this key rpm keeps the number that the next package gets


def is_hash(head: bytes) -> bool:
    """Whether a file's first bytes are those of such a file, in either byte order."""
    return head[12:16] in (struct.pack("<I", _MAGIC), struct.pack(">I", _MAGIC))


def values(stream: BinaryIO, size: int, largest: int) -> Iterator[bytes]:
    """Every value in the file but rpm's own counter. Each byte is read at most twice, whatever the pages say.

    Args:
        stream: The file, seekable.
        size: Its bytes.
        largest: Bytes of a value beyond which the file is refused.

    Raises:
        RpmdbError: It is no such file, or damaged.
    """
    yield from _File(stream, size, largest).values()


class _File:
    def __init__(self, stream: BinaryIO, size: int, largest: int) -> None:
        self._stream, self._size, self._largest = stream, size, largest
        stream.seek(0)
        head = stream.read(72)
        if len(head) < 72 or not is_hash(head):
            raise RpmdbError("it is no Berkeley DB hash file")
        self._order = "<" if head[12:16] == struct.pack("<I", _MAGIC) else ">"
        version, self._page_size = self._unpack("II", head, 16)
        if head[25] != _META or version not in _VERSIONS or self._page_size not in _PAGE_SIZES:
            raise RpmdbError(
                f"it is a Berkeley DB file of an unknown kind (version {version}, pages of {self._page_size} bytes)"
            )
        # Encrypted or with checksums: then pages have a longer head, and rpm makes no such file.
        if head[24] or head[26] & 1:
            raise RpmdbError("it is a Berkeley DB file with encryption or checksums, which rpm does not make")
        (self._last,) = self._unpack("I", head, 32)
        if (self._last + 1) * self._page_size > size:
            raise RpmdbError(f"it ends before its last page ({size} bytes, {self._last + 1} pages)")
        self._used: set[int] = set()

    def values(self) -> Iterator[bytes]:
        for number in range(1, self._last + 1):
            page = self._page(number)
            if page[25] not in (_SORTED, _UNSORTED):
                continue
            items = list(self._items(page, number))
            for key, value in zip(items[::2], items[1::2], strict=True):
                if key[:1] == bytes([_KEYDATA]) and key[1:] == _COUNTER:
                    continue
                yield self._value(value, number)

    def _items(self, page: bytes, number: int) -> Iterator[bytes]:
        """Keys and values in turn; they lie from the end of the page to its beginning."""
        (count,) = self._unpack("H", page, 20)
        if count % 2 or _HEADER + count * 2 > len(page):
            raise RpmdbError(f"page {number} says that it has {count} items")
        end = len(page)
        for start in self._unpack(f"{count}H", page, _HEADER):
            if not _HEADER + count * 2 <= start < end:
                raise RpmdbError(f"the items of page {number} overlap")
            yield page[start:end]
            end = start

    def _value(self, item: bytes, number: int) -> bytes:
        if item[0] == _KEYDATA:
            return item[1:]
        if item[0] != _OFFPAGE or len(item) != 12:
            raise RpmdbError(f"page {number} has an item of the unknown kind {item[0]}")
        first, total = self._unpack("II", item, 4)
        if total > min(self._largest, self._size):
            raise RpmdbError(f"page {number} has a value of {total} bytes")
        parts, left, at = [], total, first
        while left > 0:
            # Every page belongs to one value: a second visit is a circle, or bytes that count twice.
            if not 0 < at <= self._last or at in self._used:
                raise RpmdbError(f"the value of page {number} goes on at page {at}, which is none of its own")
            self._used.add(at)
            page = self._page(at)
            following, length = self._unpack("I", page, 16)[0], self._unpack("H", page, 22)[0]
            if page[25] != _OVERFLOW or not 0 < length <= min(left, len(page) - _HEADER):
                raise RpmdbError(f"page {at} should hold a part of a value and does not")
            parts.append(page[_HEADER : _HEADER + length])
            left -= length
            at = following
        return b"".join(parts)

    def _page(self, number: int) -> bytes:
        self._stream.seek(number * self._page_size)
        page = self._stream.read(self._page_size)
        if len(page) != self._page_size:
            raise RpmdbError(f"page {number} is not complete")
        return page

    def _unpack(self, form: str, data: bytes, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, data, at)
