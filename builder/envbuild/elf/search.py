"""Where the loader looks for a library, in its order (glibc's elf/dl-load.c, ``_dl_map_new_object``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from envbuild.collector.elf.linker import expand
from envbuild.elf.cache import Cache, parse
from envbuild.elf.faults import ElfError
from envbuild.elf.file import ElfFile
from envbuild.elf.linker import Linker, Root

Why = Literal[
    "start", "dlopen", "preload", "path", "rpath", "LD_LIBRARY_PATH", "runpath", "cache", "default",
    "loaded", "given", "nowhere",
]  # fmt: skip

_CACHE = "/etc/ld.so.cache"
_MAX_CACHE = 32 << 20
# Places that are looked at in the life of one process; importing all of torch looks at some thousand.
_MAX_PLACES = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a process starts under.

    Attributes:
        library_path: LD_LIBRARY_PATH.
        preload: LD_PRELOAD.
        cpu: The level of the CPU, for glibc-hwcaps folders: ``x86-64-v3``.
        given: Names of libraries that somebody else puts in place, such as the container runtime's ``libcuda.so.1``.
            Where the root has none, they are neither missing nor asked for versions.
        folder: The working directory.
    """

    library_path: str = ""
    preload: str = ""
    cpu: str = "x86-64-v1"
    given: frozenset[str] = field(default=frozenset())
    folder: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaded:
    """An object in a process.

    Attributes:
        path: As the loader names it; ``$ORIGIN`` is its folder.
        real: The file behind it: a process has every file once.
        elf: What the file says.
        loader: The object that needed it first; None for the executable and for what dlopen asked for.
    """

    path: str
    real: str
    elf: ElfFile
    loader: Loaded | None = None

    @property
    def rpath(self) -> tuple[str, ...]:
        """Its DT_RPATH, which counts only without a DT_RUNPATH."""
        return self.elf.rpath or () if self.elf.runpath is None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place to look at: a path, why it is looked at, and whose rpath or runpath names it."""

    path: str
    why: Why
    owner: str = ""


class Searcher:
    """The search of one root under one set of conditions."""

    def __init__(self, root: Root, linker: Linker, conditions: Conditions) -> None:
        self._linker, self._conditions = linker, conditions
        self._places_left = _MAX_PLACES
        self._subfolders = (*linker.subfolders(conditions.cpu), "")
        cache = root.resolve(_CACHE)
        self._cache = parse(root.data(cache, _MAX_CACHE), linker.machine) if cache else Cache({})

    def candidates(self, name: str, asker: Loaded | None, main: Loaded) -> Iterator[Candidate]:
        """Every place where a library of that name would be taken from, first come first served.

        Raises:
            ElfError: There is no end of places.
        """
        if "/" in name:
            path = self.expand(name, asker or main)
            if path:
                yield Candidate(path=self.absolute(path), why="path")
            return
        if asker is None or asker.elf.runpath is None:
            owner = asker
            while owner is not None:
                yield from self._in(owner.rpath, name, "rpath", owner)
                owner = owner.loader
            yield from self._in(main.rpath, name, "rpath", main)
        if self._conditions.library_path:
            folders = re.split("[:;]", self._conditions.library_path)
            for candidate in self._in(folders, name, "LD_LIBRARY_PATH", main):
                yield Candidate(path=candidate.path, why=candidate.why)
        if asker is not None:
            yield from self._in(asker.elf.runpath or (), name, "runpath", asker)
        no_default = (asker or main).elf.no_default
        cached = self._cache.lookup(name, self._linker.levels(self._conditions.cpu))
        if cached is not None and not (no_default and self._is_default(cached)):
            yield Candidate(path=cached, why="cache")
        if not no_default:
            for candidate in self._in(self._linker.folders, name, "default", main):
                yield Candidate(path=candidate.path, why=candidate.why)

    def expand(self, text: str, owner: Loaded) -> str:
        """``$ORIGIN``, ``$LIB`` and ``$PLATFORM`` replaced as in an object's own entries."""
        origin = self.absolute(owner.path).rpartition("/")[0] or "/"
        return expand(text, origin, self._linker.lib, self._linker.machine)

    def absolute(self, path: str) -> str:
        """A path as seen from the working directory."""
        return path if path.startswith("/") else f"{self._conditions.folder.rstrip('/')}/{path}"

    def _in(self, folders: Sequence[str], name: str, why: Why, owner: Loaded) -> Iterator[Candidate]:
        self._places_left -= 1 + len(folders) * len(self._subfolders)
        if self._places_left < 0:
            raise ElfError(
                f"the search for {name} has more than {_MAX_PLACES} places, most by the rpath of {owner.path}"
            )
        for folder in dict.fromkeys(self.expand(folder, owner) for folder in folders):
            place = folder.rstrip("/") + "/" if folder else ""  # an empty entry is the working directory
            for sub in self._subfolders:
                path = f"{place}{sub}/{name}" if sub else f"{place}{name}"
                yield Candidate(path=self.absolute(path), why=why, owner=owner.path)

    def _is_default(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self._linker.folders)
