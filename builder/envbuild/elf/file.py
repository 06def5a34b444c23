"""One ELF file, read as the loader reads it: through its segments, so that a stripped section table hides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from envbuild.elf.faults import ElfError, NotElf, damaged
from envbuild.elf.segments import Need, Segments, View, text
from envbuild.elf.strings import StringAbi

Kind = Literal["shared", "executable", "other"]

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i386", "EM_ARM": "arm", "EM_CUDA": "cuda"}
_MAX_SECTIONS = 4096
_MAX_COMMENT = 64 << 10
_NODEFLIB, _PIE = 0x800, 0x08000000  # DF_1_NODEFLIB, DF_1_PIE (elf.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """What an ELF file says to the loader.

    Attributes:
        name: What the reader was told to call it, usually its path.
        machine: ``x86_64``, ``aarch64``, ...
        bits: 32 or 64.
        kind: ``other`` for what no loader loads: object files, core dumps, GPU code.
        soname: The name under which others ask for it.
        needed: Libraries it asks for, in order.
        rpath: Folders of DT_RPATH as they are written; None without the tag. It has no effect next to a runpath.
        runpath: The same of DT_RUNPATH. An empty one still switches the rpath off.
        interp: The loader that an executable asks for.
        requires: Symbol versions it asks for.
        provides: Symbol versions it defines, its base version (its own name) among them.
        versioned: Whether it defines versions at all; the loader takes a library that does not for any version.
        no_default: It forbids the default folders (DF_1_NODEFLIB).
        comment: Compilers that made it, such as ``GCC: (Debian 12.2.0-14) 12.2.0``; from its sections, so that a
            stripped file has none.
        cxx11_abi: Whether its C++ strings are those of the new ABI; None: none in its symbols, or both.
    """

    name: str
    machine: str
    bits: int
    kind: Kind
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] | None = None
    runpath: tuple[str, ...] | None = None
    interp: str | None = None
    requires: tuple[Need, ...] = ()
    provides: tuple[str, ...] = ()
    versioned: bool = False
    no_default: bool = False
    comment: tuple[str, ...] = ()
    cxx11_abi: bool | None = None


def read(source: BinaryIO | Path, name: str) -> ElfFile:
    """Read a file of any size; what is read of it is bounded, whatever it claims.

    Args:
        source: The file, or a seekable stream of it.
        name: What to call it in messages.

    Raises:
        NotElf: It is not an ELF file.
        ElfError: It is one, and damaged where the loader reads it, or it cannot be read.
    """
    try:
        if isinstance(source, Path):
            with source.open("rb") as stream:
                return _read(stream, name)
        return _read(source, name)
    except ElfError:
        raise
    except OSError as error:
        raise ElfError(f"{name} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # pyelftools raises whatever its parsing of nonsense ends in
        raise damaged(name, str(error) or type(error).__name__) from error


def _read(stream: BinaryIO, name: str) -> ElfFile:
    stream.seek(0)
    head = stream.read(64)
    if head[:4] != b"\x7fELF":
        raise NotElf(f"{name} is not an ELF file")
    if len(head) < 52:
        raise damaged(name, "it ends inside its header")
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(View.of(stream, head))
    machine = elf.header["e_machine"]
    segments = Segments(elf, name)
    tags = segments.tags()
    flags = next(iter(tags.get("DT_FLAGS_1", [])[-1:]), 0)
    strings = StringAbi()
    for chunk in segments.symbol_names(tags):
        strings.feed(chunk)
    return ElfFile(
        name=name,
        machine=_MACHINES.get(machine, str(machine).removeprefix("EM_").lower()),
        bits=elf.elfclass,
        kind=_kind(elf.header["e_type"], flags),
        soname=segments.string_of(tags, "DT_SONAME"),
        needed=tuple(segments.string(tags, offset) for offset in tags.get("DT_NEEDED", [])),
        rpath=_folders(segments.string_of(tags, "DT_RPATH")),
        runpath=_folders(segments.string_of(tags, "DT_RUNPATH")),
        interp=segments.interp,
        requires=tuple(segments.needs(tags)),
        provides=tuple(segments.definitions(tags)),
        versioned="DT_VERDEF" in tags,
        no_default=bool(flags & _NODEFLIB),
        comment=_comment(stream),
        cxx11_abi=strings.cxx11,
    )


def _kind(e_type: str | int, flags: int) -> Kind:
    if e_type == "ET_EXEC":
        return "executable"
    if e_type == "ET_DYN":
        # libc.so.6 and some others can be run too: they have an interpreter, and no DF_1_PIE.
        return "executable" if flags & _PIE else "shared"
    return "other"


def _folders(path: str | None) -> tuple[str, ...] | None:
    return None if path is None else tuple(path.split(":")) if path else ()


def _comment(stream: BinaryIO) -> tuple[str, ...]:
    """The strings of .comment, each once; a section table that cannot be read has none."""
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(stream)
        if elf.num_sections() > _MAX_SECTIONS:
            return ()
        section = elf.get_section_by_name(".comment")
        if section is None or section["sh_type"] == "SHT_NOBITS" or section["sh_offset"] >= elf.stream_len:
            return ()
        stream.seek(section["sh_offset"])
        data = stream.read(min(section["sh_size"], _MAX_COMMENT))
    except Exception:  # as above; nothing of this is needed to load the file
        return ()
    return tuple(dict.fromkeys(text(part) for part in data.split(b"\0") if part))
