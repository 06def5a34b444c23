"""The loader's answer for one machine: Python starts, torch is imported, then every extension and op, in that order.

Nothing is run: the rules of ``elf`` are applied to what the collector recorded, under the environment it saw, or under
another one, so that a remedy can be tried before it is advised.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from envbuild import elf
from envbuild.collector.elf.linker import expand
from envbuild.doctor.collection import Collection, Libraries
from envbuild.doctor.root import RecordedRoot
from envbuild.elf import Choice, Conditions, Loaded, Loading, Missing

_NOTHING = Loading(choices=(), loaded=(), missing=())
# The driver's own: without one the machine has no GPU to use, which is not for the loader to say.
FROM_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What would be loaded into one Python process, and why.

    Attributes:
        conditions: LD_LIBRARY_PATH, LD_PRELOAD, CPU level and working directory that it holds for.
        start: What comes with the interpreter (and its preloads).
        loadings: By path, in order, what each seed (torch's libraries, extension modules, ops) brings when it is
            loaded after the ones before it. One that fails leaves nothing behind, as with the real loader.
        loaded: The objects of the process in the end.
        problem: Why there is no answer (no interpreter, a static one, another libc); empty where there is one.
    """

    conditions: Conditions
    start: Loading = _NOTHING
    loadings: Mapping[str, Loading] = field(default_factory=dict)
    loaded: tuple[Loaded, ...] = ()
    problem: str = ""
    _root: RecordedRoot = field(repr=False)
    _seeds: tuple[str, ...] = field(repr=False)
    _names: Mapping[str, Loaded] = field(default_factory=dict, repr=False)
    _process: elf.Process | None = field(default=None, repr=False)

    @property
    def all(self) -> tuple[Loading, ...]:
        """Start and loadings, in order."""
        return (self.start, *self.loadings.values())

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Symbol versions that nobody provides, each once: asker, version, the file chosen, its newest of the kind."""
        return tuple(dict.fromkeys(missing for loading in self.all for missing in loading.missing))

    @property
    def unresolved(self) -> tuple[Choice, ...]:
        """Libraries that are asked for and cannot be had, each once for each asker."""
        return tuple(dict.fromkeys(choice for loading in self.all for choice in loading.unresolved))

    def provider(self, name: str) -> Loaded | None:
        """The object that serves a name such as ``libstdc++.so.6`` in the end; None when none does.

        Where the only ones that asked for it failed, it is the one that they met.
        """
        return self._names.get(name)

    def choice(self, name_or_path: str) -> Choice | None:
        """The request that made the loader take the file that serves a name, or the file with a path."""
        found = self._names.get(name_or_path)
        path = name_or_path if found is None else found.path
        requests = [each for loading in self.all for each in loading.choices if each.path and each.why != "loaded"]
        real = self._root.resolve(path)
        named = (each for each in requests if each.path == path)
        return next(named, None) or next((each for each in requests if self._is(each.path, real)), None)

    def _is(self, path: str | None, real: str | None) -> bool:
        return path is not None and real is not None and self._root.resolve(path) == real

    def why(self, name_or_path: str) -> str:
        """What made the loader take it, in words: ``RUNPATH of /x/libtorch_cuda.so``; empty where it did not."""
        choice = self.choice(name_or_path)
        if choice is None:
            system = self._root.linker
            return "the loader itself" if system is not None and name_or_path == system.path else ""
        return self.because(choice)

    def because(self, choice: Choice) -> str:
        """What led to the file of a request, in words, also to one that cannot be loaded."""
        plain = {
            "start": "the interpreter itself",
            "dlopen": "loaded by its path",
            "preload": "LD_PRELOAD",
            "path": f"named by its path in {choice.asker}",
            "rpath": f"RPATH of {choice.owner}",
            "runpath": f"RUNPATH of {choice.owner}",
            "LD_LIBRARY_PATH": "LD_LIBRARY_PATH",
            "cache": "ld.so.cache",
            "default": "a default folder of the loader",
        }
        said = plain.get(choice.why, choice.why)
        if choice.why == "preload" and choice.name not in self.conditions.preload.replace(":", " ").split():
            said = "/etc/ld.so.preload"
        return said

    def bringer(self, name_or_path: str) -> str:
        """The seed (or the interpreter) whose loading brought a file into the process; empty where none did."""
        choice = self.choice(name_or_path)
        steps = (("the interpreter", self.start), *self.loadings.items())
        return next((path for path, loading in steps if choice is not None and choice in loading.choices), "")

    def read(self, path: str) -> elf.ElfFile | None:
        """The recorded ELF file behind a path, loaded or not; None where there is none that could be read."""
        real = self._root.resolve(path)
        try:
            return None if real is None else self._root.read(real)
        except elf.ElfError:
            return None

    def real(self, path: str) -> str:
        """The file behind all links; the path itself where it is not recorded."""
        return self._root.resolve(path) or path

    def knows(self, folder: str) -> bool:
        """Whether a folder was looked into. To ``what_if``, one that was not is empty: try no remedy with it."""
        return self._root.knows(folder)

    def find(self, name: str) -> Loaded | None:
        """What a dlopen of a name, such as ``libcuda.so.1``, would give in the end; None when it fails.

        The collector looked for libcuda, NVML, NCCL, libaio and what anything needs, and for no other names.
        """
        if self._process is None:
            return None
        process = self._process.fork()
        try:
            return process.provider(name) if process.dlopen(name).works else None
        except elf.ElfError:
            return None

    def opened(self, name: str) -> tuple[Choice, ...]:
        """Why a dlopen of a name would fail in the end, of all but what is merely not there."""
        try:
            loading = _NOTHING if self._process is None else self._process.fork().dlopen(name)
        except elf.ElfError:
            return ()
        return tuple(choice for choice in loading.unresolved if self.refused(choice) is not None)

    def refused(self, choice: Choice) -> str | None:
        """The real path of the file that the loader takes for a request and can make nothing of, where there is one."""
        return self._root.refused(choice.problem) if choice.path is None and choice.problem else None

    def leading(self, name: str, path: str) -> tuple[str, ...]:
        """The entries of LD_LIBRARY_PATH, as they are written, in which a name leads to a file."""
        system, real = self._root.linker, self.real(path)
        if system is None or not self.conditions.library_path:
            return ()
        origin = self.real(self._seeds[0]).rpartition("/")[0]
        subfolders = ("", *(f"/{sub}" for sub in system.subfolders(self.conditions.cpu)))
        found = []
        for entry in re.split("[:;]", self.conditions.library_path):
            place = expand(entry, origin, system.lib, system.machine).rstrip("/")
            if not entry.startswith("/") and not place.startswith("/"):
                place = f"{self.conditions.folder.rstrip('/')}/{place}".rstrip("/")
            if any(self._root.resolve(f"{place}{sub}/{name}") == real for sub in subfolders):
                found.append(entry)
        return tuple(found)

    def what_if(
        self,
        *,
        library_path: str | None = None,
        preload: str | None = None,
        first: Iterable[str] = (),
        without: str | None = None,
    ) -> Answers:
        """The same process under other conditions.

        Args:
            library_path: LD_LIBRARY_PATH; as it was when None, none when empty.
            preload: LD_PRELOAD; the same.
            first: Paths, or bare names, of libraries that are loaded before the seeds, as an import that comes first
                does.
            without: A file that /etc/ld.so.preload no longer names, or that is no longer there.
        """
        conditions = replace(
            self.conditions,
            library_path=self.conditions.library_path if library_path is None else library_path,
            preload=self.conditions.preload if preload is None else preload,
        )
        root = self._root if without is None else self._root.without(self.real(without))
        return _answer(root, self._seeds, conditions, tuple(first))


def answers(collection: Collection) -> Answers:
    """The answer for a machine as it was seen; worked out once for each collection."""
    return _answers(_Same(collection))


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A collection as a key: by identity, for its content is too much to hash."""

    collection: Collection

    def __hash__(self) -> int:
        return id(self.collection)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.collection is self.collection


@functools.lru_cache(maxsize=4)
def _answers(key: _Same) -> Answers:
    collection = key.collection
    libraries: Libraries = collection.libraries
    conditions = Conditions(
        library_path=collection.environment.get("LD_LIBRARY_PATH", ""),
        preload=collection.environment.get("LD_PRELOAD", ""),
        cpu=collection.machine.cpu.level or "x86-64-v1",
        given=FROM_DRIVER,
        folder=libraries.folder,
    )
    return _answer(RecordedRoot(libraries), libraries.seeds, conditions, ())


def _answer(root: RecordedRoot, seeds: tuple[str, ...], conditions: Conditions, first: tuple[str, ...]) -> Answers:
    nothing = Answers(conditions=conditions, _root=root, _seeds=seeds)
    if not seeds:
        return replace(nothing, problem="no interpreter was recorded")
    system = root.linker
    if system is None:
        return replace(nothing, problem="; ".join(root.errors) or f"the loader of {seeds[0]} is not known")
    try:
        process = elf.load(root, seeds[0], conditions, system)
    except elf.ElfError as error:
        return replace(nothing, problem=error.message)
    wheels = root.wheels()
    loadings: dict[str, Loading] = {}
    for path in (*first, *seeds[1:]):
        if path not in loadings and ("/" not in path or root.resolve(path) is not None):
            process = _open(process, path, wheels, loadings)
    names: dict[str, Loaded] = {}
    for loading in (process.start, *loadings.values()):
        by_path = {loaded.path: loaded for loaded in loading.loaded}
        for choice in loading.choices:
            found = process.provider(choice.name) or by_path.get(choice.path or "")
            if found is not None:
                names.setdefault(choice.name, found)
    return replace(
        nothing, start=process.start, loadings=loadings, loaded=process.loaded, _names=names, _process=process
    )


def _open(process: elf.Process, path: str, wheels: Mapping[str, str], loadings: dict[str, Loading]) -> elf.Process:
    """dlopen; a CUDA library that only its wheel has is loaded before, as torch does (``_preload_cuda_deps``)."""
    before = process.fork()
    try:
        loading = process.dlopen(path)
        for _ in wheels:
            wanted = {wheels[each.name] for each in loading.unresolved if each.name in wheels}
            helped = {wheel: found for wheel in sorted(wanted) if (found := process.dlopen(wheel)).works}
            if not helped:
                break
            loadings.update(helped)
            loading = process.dlopen(path)
    except elf.ElfError as error:  # a search without end, in the middle of it
        process = before
        loading = replace(
            _NOTHING, choices=(Choice(name=path, asker="", path=None, why="nowhere", problem=error.message),)
        )
    loadings[path] = loading
    return process
