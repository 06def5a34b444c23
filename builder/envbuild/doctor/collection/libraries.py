"""Native libraries, and everything that the loader's answer needs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.doctor.collection.base import Seen


class Native(Seen):
    """One ELF file, as envbuild.elf.ElfFile has it; ``requires`` as (library, version, weak)."""

    machine: str
    bits: int
    kind: Literal["shared", "executable", "other"]
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] | None = None
    runpath: tuple[str, ...] | None = None
    interp: str | None = None
    requires: tuple[tuple[str, str, bool], ...] = ()
    provides: tuple[str, ...] = ()
    versioned: bool = False
    no_default: bool = False
    comment: tuple[str, ...] = ()
    cxx11_abi: bool | None = None


class Loader(Seen):
    """The dynamic linker of the interpreter, as envbuild.elf.Linker has it."""

    path: str
    machine: str
    folders: tuple[str, ...]
    lib: str
    hwcaps: bool
    legacy: bool


class Libraries(Seen):
    """Everything that the loader's answer needs.

    Attributes:
        files: ELF files by their real path.
        broken: Real path -> why it could not be read; a file that is no ELF begins with "not ELF".
        paths: Every path that was tried and is there -> its real path: files, links and folders in real folders, so
            that any path can be walked as the kernel does. What is not in it is not there. With a slash at its end, a
            folder that was looked into for every library that anybody asks for.
        cache: /etc/ld.so.cache, zlib-compressed, base64.
        preload: /etc/ld.so.preload.
        seeds: What would be loaded into the process, in order: the interpreter first, then torch's libraries, ops.
        folder: The working directory, which empty entries of LD_LIBRARY_PATH mean.
        elsewhere: Copies of the libraries that matter in usual places, those that a search finds among them:
            soname -> real paths.
        lacks: Real path of a library -> symbols that are asked of it and that it has not: of a copy of libnccl.so.2 by
            torch's libraries, of one without symbol versions by whoever asks for versions of it.
        errors: Why there is no loader, and where the search was cut short.
    """

    loader: Loader | None = None
    files: dict[str, Native] = Field(default_factory=dict)
    broken: dict[str, str] = Field(default_factory=dict)
    paths: dict[str, str] = Field(default_factory=dict)
    cache: str | None = None
    preload: str = ""
    seeds: tuple[str, ...] = ()
    folder: str = "/"
    elsewhere: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    lacks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    errors: tuple[str, ...] = ()
