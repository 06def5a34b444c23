"""What the collector recorded of a machine's native code, as a root filesystem for the loader's rules."""

from __future__ import annotations

import base64
import binascii
import re
import zlib

from envbuild.collector.elf.linker import preloads
from envbuild.doctor.collection import Libraries, Native
from envbuild.elf import ElfError, ElfFile, Linker, Need, NotElf

_CACHE, _PRELOAD = "/etc/ld.so.cache", "/etc/ld.so.preload"
_MAX_CACHE = 32 << 20
_DENIED = "no permission"  # and the loader then looks further
_WHEEL = re.compile(r"-packages/nvidia/[^/]+/lib/[^/]+$")
_MAX_PATH = 4096  # PATH_MAX: the kernel takes no longer one
_NOT_ELF = "not ELF"  # how a file in Libraries.broken begins that is none
_NO_LIBRARY = " is not a library"  # elf.Choice.problem of a program or an object file


class RecordedRoot:
    """Paths and files of one collection. What was not recorded is not there."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._files: dict[str, ElfFile] = {}
        self._refused: dict[str, str] = {}
        self._gone: frozenset[str] = frozenset()
        self._cache = _unpacked(libraries.cache)
        self._folders = _folders(libraries)

    def without(self, path: str) -> RecordedRoot:
        """The same machine, had a file been taken out of the loader's way: of its two lists, or of its folders."""
        preload = preloads("", self._libraries.preload)
        kept = "\n".join(name for name in preload if self.resolve(name) != path)
        other = RecordedRoot(self._libraries.model_copy(update={"preload": kept}))
        other._gone = self._gone if len(preload) > len(kept.split()) else self._gone | {path}
        return other

    @property
    def linker(self) -> Linker | None:
        """The loader of the interpreter; None where there is none that is known here."""
        loader = self._libraries.loader
        return None if loader is None else Linker(**loader.model_dump())

    @property
    def errors(self) -> tuple[str, ...]:
        """Why there is no loader, and where the search was cut short."""
        return self._libraries.errors

    def wheels(self) -> dict[str, str]:
        """CUDA libraries of NVIDIA's wheels, by file name."""
        found = (path for path in sorted(self._libraries.paths) if _WHEEL.search(path))
        return {path.rpartition("/")[2]: path for path in found}

    def knows(self, folder: str) -> bool:
        """Whether a folder was looked into: a library that is not recorded in such a folder is really not there."""
        return f"{(self._walk(folder) or '').rstrip('/')}/" in self._libraries.paths

    def resolve(self, path: str) -> str | None:
        """The path of the file behind all symbolic links; None when no file is recorded there."""
        if path in (_CACHE, _PRELOAD):
            return path if (self._cache if path == _CACHE else self._libraries.preload) else None
        real = self._walk(path)
        broken = self._libraries.broken.get(real or "")
        if real is None or real in self._gone or broken == _DENIED or (real in self._folders and broken is None):
            return None
        return real

    def read(self, path: str) -> ElfFile:
        """The ELF file at a resolved path.

        Raises:
            ElfError: It is not one (NotElf), or cannot be understood, or was not read.
        """
        if path not in self._files:
            native = self._libraries.files.get(path)
            if native is None:
                raise self._refusal(path)
            self._files[path] = elf_file(path, native)
        return self._files[path]

    def _refusal(self, path: str) -> ElfError:
        why = self._libraries.broken.get(path, "the collector did not read it")
        kind, _, more = why.partition(": ")
        if kind != _NOT_ELF:
            error = ElfError(f"{path}: {why}")
        else:
            error = NotElf(f"{path} is not an ELF file" + (f" ({more})" if more else ""))
        self._refused[error.message] = path
        return error

    def refused(self, problem: str) -> str | None:
        """The real path of the file that a request ended at, by what the loader's rules said of it; else None."""
        found = (path for message, path in self._refused.items() if problem.startswith(message))
        return next(found, None) or self.resolve(problem.removesuffix(_NO_LIBRARY))

    def data(self, path: str, limit: int) -> bytes:
        """At most the first ``limit`` bytes of the loader's two files; of others nothing is recorded."""
        if path == _CACHE:
            return self._cache[:limit]
        if path == _PRELOAD:
            return self._libraries.preload.encode("utf-8", "replace")[:limit]
        raise ElfError(f"the content of {path} is not recorded")

    def _walk(self, path: str) -> str | None:
        """Follow a path as the kernel does: ``..`` is the parent of the folder that is behind the links."""
        paths = self._libraries.paths
        here = ""
        if len(path) >= _MAX_PATH:
            return None
        for part in path.split("/"):
            if here not in self._folders:  # of a slash at the end, and of a dot, too
                return None
            if part in ("", "."):
                continue
            here = here.rpartition("/")[0] if part == ".." else f"{here}/{part}"
            here = paths.get(here, here).rstrip("/")
        known = here in self._folders or here in self._libraries.files or here in self._libraries.broken
        return here if known else paths.get(path)


def elf_file(path: str, native: Native) -> ElfFile:
    """A recorded file as the loader's rules know it."""
    return ElfFile(
        name=path,
        machine=native.machine,
        bits=native.bits,
        kind=native.kind,
        soname=native.soname,
        needed=native.needed,
        rpath=native.rpath,
        runpath=native.runpath,
        interp=native.interp,
        requires=tuple(Need(library=library, version=version, weak=weak) for library, version, weak in native.requires),
        provides=native.provides,
        versioned=native.versioned,
        no_default=native.no_default,
        comment=native.comment,
        cxx11_abi=native.cxx11_abi,
    )


def _unpacked(cache: str | None) -> bytes:
    """ld.so.cache; nothing where it is damaged, as the loader then does without."""
    if not cache:
        return b""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(cache, validate=True), _MAX_CACHE)
    except (binascii.Error, ValueError, zlib.error):
        return b""


def _folders(libraries: Libraries) -> frozenset[str]:
    """Every folder that is known to be there, "" for the root: what holds a file or a link, and what was searched."""
    files = {*libraries.files, *libraries.broken}
    folders = {real for path, real in libraries.paths.items() if path.endswith("/") or path == real} - files
    found = {"", *(folder.rstrip("/") for folder in folders)}
    for path in {*files, *libraries.paths, *libraries.paths.values()}:
        if len(path) >= _MAX_PATH:
            continue
        parent = path.rstrip("/").rpartition("/")[0]
        while parent not in found:
            found.add(parent)
            parent = parent.rpartition("/")[0]
    return frozenset(found)
