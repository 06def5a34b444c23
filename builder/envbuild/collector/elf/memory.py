"""An ELF file as the loader maps it: everything behind the program headers is found by its address in memory."""

from typing import BinaryIO

from .faults import Damaged
from .layout import Header, Layout, text

# Bounds on what a file may ask of us. libtorch_cpu.so 2.13.0 has 14 program headers, 40 dynamic tags, 60 versions;
# the string table of its dynamic symbols is 5 MB.
_MAX_SEGMENTS = 1024
_MAX_INTERP = 4096
_MAX_STRING = 64 << 10
_MAX_STRINGS = 4 << 20
_MAX_READ = 8 << 20  # bytes behind addresses; string tables are not counted
_WINDOW = 4 << 10
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3  # PT_LOAD, ...


class Memory:
    """The mapped parts of a file.

    Attributes:
        interp: The loader that it asks for.
        dynamic: Address of its dynamic section; None without one.
    """

    def __init__(self, stream: BinaryIO, layout: Layout, header: Header) -> None:
        self._stream = stream
        self._left, self._strings_left = _MAX_READ, _MAX_STRINGS
        self._windows = {}  # type: dict[str, tuple[int, bytes]]
        self._loads = []  # type: list[tuple[int, int, int]]
        self.interp = None  # type: str | None
        self.dynamic = None  # type: int | None
        count, size = header.segment_count, layout.segment_size
        if count > _MAX_SEGMENTS:
            raise Damaged("{} program headers".format(count))
        if count and header.segment_size != size:
            raise Damaged("program headers of {} bytes".format(header.segment_size))
        table = self._at(header.segments, count * size) if count else b""
        if len(table) < count * size:
            raise Damaged("it ends inside its program headers")
        for start in range(0, len(table), size):
            kind, offset, address, length = layout.segment(table, start)
            if kind == _LOAD:
                self._loads.append((address, offset, length))
            elif kind == _DYNAMIC and self.dynamic is None:
                self.dynamic = address
            elif kind == _INTERP:
                self.interp = text(self._at(offset, min(length, _MAX_INTERP)))
        self._loads.reverse()  # a later mapping covers an earlier one

    def place(self, address: int) -> "tuple[int, int]":
        """Offset in the file of an address, and how many bytes follow it in its segment."""
        for start, offset, length in self._loads:
            inside = address - start
            if 0 <= inside < length:
                return offset + inside, length - inside
        raise Damaged("nothing is mapped at {:#x}".format(address))

    def read(self, address: int, size: int) -> bytes:
        """At most ``size`` bytes at an address, fewer where its segment or the file ends."""
        offset, rest = self.place(address)
        return self._at(offset, min(size, rest))

    def record(self, kind: str, address: int, size: int) -> bytes:
        """All ``size`` bytes of a record; a window is kept for each kind, because they lie side by side."""
        start, window = self._windows.get(kind, (0, b""))
        if not start <= address <= start + len(window) - size:
            start, window = address, self.read(address, max(_WINDOW, size))
            self._windows[kind] = start, window
            if len(window) < size:
                raise Damaged("it ends inside a record at {:#x}".format(address))
        return window[address - start : address - start + size]

    def string(self, address: int) -> str:
        """The C string at an address."""
        start, window = self._windows.get("strings", (0, b""))
        if not start <= address < start + len(window):
            offset, rest = self.place(address)
            start, window = address, self._at(offset, min(_WINDOW, rest))
            self._windows["strings"] = start, window
        end = window.find(b"\0", address - start)
        data = window[address - start : end] if end >= 0 else self.read(address, _MAX_STRING)
        if end < 0 and b"\0" not in data:
            raise Damaged("a name of more than {} bytes".format(len(data)))
        found = text(data)
        self._strings_left -= len(found)
        if self._strings_left < 0:
            raise Damaged("more than {} bytes of names".format(_MAX_STRINGS))
        return found

    def _at(self, offset: int, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise Damaged("it is scattered over more than {} bytes".format(_MAX_READ))
        return read_at(self._stream, offset, size)


def read_at(stream: BinaryIO, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes at an offset, whatever it is."""
    if offset >= 1 << 63:
        raise Damaged("it has no byte {:#x}".format(offset))
    stream.seek(offset)
    data = stream.read(size)
    if not data and size:
        raise Damaged("it has no byte {:#x}".format(offset))
    return data
