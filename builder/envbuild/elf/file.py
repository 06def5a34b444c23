"""One ELF file, read as the loader reads it: through its segments, so that a stripped section table hides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from envbuild.collector import elf as reader
from envbuild.elf.faults import ElfError, NotElf, damaged

Kind = Literal["shared", "executable", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A symbol version that has to be provided by a library; without it a weak one is no error."""

    library: str
    version: str
    weak: bool = False


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
                found = reader.read(stream)
        else:
            found = reader.read(source)
    except reader.NotElf as error:
        raise NotElf(f"{name} is not an ELF file") from error
    except reader.Damaged as error:
        raise damaged(name, str(error)) from error
    except OSError as error:
        raise ElfError(f"{name} cannot be read: {error.strerror or error}") from error
    says = found._asdict()
    says["requires"] = tuple(Need(**need._asdict()) for need in found.requires)
    return ElfFile(name=name, **says)
