"""The segments of an ELF file: what the loader maps, and what it finds there."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from envbuild.elf.faults import damaged

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

Tags = dict[str, list[int]]

# Bounds on what a file may ask of us. libtorch_cpu.so 2.13.0 has 14 program headers, 40 dynamic tags, 60 versions;
# the string table of its dynamic symbols is 5 MB.
_MAX_SEGMENTS = 1024
_MAX_TAGS = 8192
_MAX_VERSIONS = 16384
_MAX_STRING = 64 << 10
_MAX_STRINGS = 4 << 20
_MAX_SYMBOL_NAMES = 64 << 20
_CHUNK = 4 << 20
_WEAK = 0x2  # VER_FLG_WEAK (elf.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A symbol version that has to be provided by a library; without it a weak one is no error."""

    library: str
    version: str
    weak: bool = False


class View(io.RawIOBase):
    """A file without a section table, which the loader never looks at: a damaged one stands in nobody's way."""

    def __init__(self, stream: BinaryIO, head: bytes) -> None:
        super().__init__()
        self._stream = stream
        patched = bytearray(head)
        fields = ((0x28, 8), (0x3C, 4)) if head[4] == 2 else ((0x20, 4), (0x30, 4))  # e_shoff; e_shnum, e_shstrndx
        for offset, size in fields:
            patched[offset : offset + size] = bytes(size)
        self._head = bytes(patched)

    @classmethod
    def of(cls, stream: BinaryIO, head: bytes) -> BinaryIO:
        """The view of a stream whose first 64 bytes are ``head``."""
        return cast(BinaryIO, cls(stream, head))

    def read(self, size: int = -1) -> bytes:
        start = self._stream.tell()
        data = self._stream.read(size)
        return self._head[start : start + len(data)] + data[max(0, len(self._head) - start) :]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


class Segments:
    """The file as the loader maps it: everything behind the program headers is found by its address in memory."""

    def __init__(self, elf: ELFFile, name: str) -> None:
        self._elf, self._name = elf, name
        self._versions_left, self._strings_left = _MAX_VERSIONS, _MAX_STRINGS
        count = elf.header["e_phnum"]
        if count > _MAX_SEGMENTS:
            raise damaged(name, f"{count} program headers")
        if count and elf.header["e_phentsize"] != elf.structs.Elf_Phdr.sizeof():
            raise damaged(name, f"program headers of {elf.header['e_phentsize']} bytes")
        headers = [dict(elf.get_segment(n).header) for n in range(count)]
        self._loads = [header for header in headers if header["p_type"] == "PT_LOAD"]
        self._dynamic = next((header for header in headers if header["p_type"] == "PT_DYNAMIC"), None)
        self.interp = None
        for header in headers:
            if header["p_type"] == "PT_INTERP":
                self.interp = text(self._file(header["p_offset"], min(header["p_filesz"], 4096)))

    def _file(self, offset: int, size: int) -> bytes:
        if offset >= self._elf.stream_len:
            raise damaged(self._name, f"it has no byte {offset:#x}")
        self._elf.stream.seek(offset)
        return bytes(self._elf.stream.read(size))

    def _place(self, address: int) -> tuple[int, int]:
        """Offset in the file of an address, and how many bytes follow it in its segment."""
        for load in reversed(self._loads):  # a later mapping covers an earlier one
            inside = address - load["p_vaddr"]
            if 0 <= inside < load["p_filesz"]:
                return load["p_offset"] + inside, load["p_filesz"] - inside
        raise damaged(self._name, f"nothing is mapped at {address:#x}")

    def _memory(self, address: int, size: int) -> bytes:
        offset, rest = self._place(address)
        return self._file(offset, min(size, rest))

    def tags(self) -> Tags:
        """The values of every dynamic tag, in order; of most tags the loader takes the last."""
        tags: Tags = {}
        if self._dynamic is None:
            return tags
        entry = self._elf.structs.Elf_Dyn
        data = self._memory(self._dynamic["p_vaddr"], _MAX_TAGS * entry.sizeof())
        for start in range(0, len(data) - entry.sizeof() + 1, entry.sizeof()):
            parsed = entry.parse(data[start : start + entry.sizeof()])
            if parsed["d_tag"] == "DT_NULL":
                return tags
            tags.setdefault(str(parsed["d_tag"]), []).append(parsed["d_val"])
        raise damaged(self._name, "its dynamic section has no end")

    def string(self, tags: Tags, offset: int) -> str:
        """A string of the dynamic string table."""
        if "DT_STRTAB" not in tags:
            raise damaged(self._name, "it names things and has no string table")
        address = tags["DT_STRTAB"][-1] + offset
        data = self._memory(address, 256)
        if b"\0" not in data:
            data = self._memory(address, _MAX_STRING)
        if b"\0" not in data:
            raise damaged(self._name, f"a name of more than {len(data)} bytes")
        found = text(data)
        self._strings_left -= len(found)
        if self._strings_left < 0:
            raise damaged(self._name, f"more than {_MAX_STRINGS} bytes of names")
        return found

    def string_of(self, tags: Tags, tag: str) -> str | None:
        """The string that a tag points to; None without the tag."""
        return self.string(tags, tags[tag][-1]) if tag in tags else None

    def symbol_names(self, tags: Tags) -> Iterator[bytes]:
        """The dynamic string table in pieces; of more than 64 MiB, the beginning."""
        if "DT_STRTAB" not in tags or "DT_STRSZ" not in tags:
            return
        offset, rest = self._place(tags["DT_STRTAB"][-1])
        end = offset + min(rest, tags["DT_STRSZ"][-1], _MAX_SYMBOL_NAMES)
        while offset < end and (piece := self._file(offset, min(_CHUNK, end - offset))):
            yield piece
            offset = offset + len(piece) if offset + len(piece) < self._elf.stream_len else end

    def needs(self, tags: Tags) -> Iterator[Need]:
        """The version references, walked link by link as the loader does: it does not look at their number."""
        structs = self._elf.structs
        for entry, at in self._chain(tags, "DT_VERNEED", structs.Elf_Verneed, "vn"):
            library = self.string(tags, entry["vn_file"])
            for aux, _ in self._links(at + entry["vn_aux"], structs.Elf_Vernaux, "vna"):
                weak = bool(aux["vna_flags"] & _WEAK)
                yield Need(library=library, version=self.string(tags, aux["vna_name"]), weak=weak)

    def definitions(self, tags: Tags) -> Iterator[str]:
        """The versions it defines; only the first name of each counts, the others are its ancestors."""
        structs = self._elf.structs
        for entry, at in self._chain(tags, "DT_VERDEF", structs.Elf_Verdef, "vd"):
            aux, _ = next(self._links(at + entry["vd_aux"], structs.Elf_Verdaux, "vda"))
            yield self.string(tags, aux["vda_name"])

    def _chain(self, tags: Tags, tag: str, struct: Any, prefix: str) -> Iterator[tuple[Any, int]]:
        if tag not in tags:
            return
        for entry, at in self._links(tags[tag][-1], struct, prefix):
            if entry[f"{prefix}_version"] != 1:
                raise damaged(self._name, f"version {entry[f'{prefix}_version']} of the version records")
            yield entry, at

    def _links(self, at: int, struct: Any, prefix: str) -> Iterator[tuple[Any, int]]:
        while True:
            self._versions_left -= 1
            if self._versions_left < 0:
                raise damaged(self._name, f"more than {_MAX_VERSIONS} symbol versions")
            entry = struct.parse(self._memory(at, struct.sizeof()))
            yield entry, at
            if entry[f"{prefix}_next"] == 0:
                return
            at += entry[f"{prefix}_next"]


def text(data: bytes) -> str:
    """The C string at the beginning of ``data``; bytes that are not UTF-8 are spelled out."""
    return data.partition(b"\0")[0].decode("utf-8", "backslashreplace")
