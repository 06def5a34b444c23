"""What glibc's loader would load, from which file, and whether every symbol version it asks for is there.

The rules are those of glibc's elf/dl-load.c, elf/dl-deps.c and elf/dl-version.c, for x86-64 and aarch64, outside secure
mode (no set-uid). Not followed: LD_AUDIT, DT_FILTER and DT_AUXILIARY, /proc/sys settings, two hard links to one file
(taken for two files).
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass, replace

from envbuild.collector.elf.linker import preloads
from envbuild.elf.faults import ElfError, NotElf
from envbuild.elf.file import ElfFile
from envbuild.elf.linker import Linker, Root, linker
from envbuild.elf.search import Conditions, Loaded, Searcher, Why
from envbuild.elf.versions import highest, parse

_PRELOAD = "/etc/ld.so.preload"
_MAX_PRELOAD = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The loader's answer to one request for a library.

    Attributes:
        name: What was asked for.
        asker: Path of the object that needs it; empty for the executable, preloads and dlopen.
        path: The file that was chosen, as the loader names it; None when there is none.
        why: What made it this one.
        owner: Whose rpath or runpath it was, or by which path it had been loaded already.
        skipped: Files on the way that are for another machine.
        problem: Why nothing can be loaded; empty otherwise.
    """

    name: str
    asker: str
    path: str | None
    why: Why
    owner: str = ""
    skipped: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A symbol version that nobody provides.

    Attributes:
        asker: Path of the object that asks.
        library: The name by which it asks.
        version: What it wants.
        chosen: The file that the loader took for that name; None when no object of the process has it.
        best: The newest version of the same family in that file, where there is one.
    """

    asker: str
    library: str
    version: str
    chosen: str | None
    best: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What one start or one dlopen brings.

    Attributes:
        choices: One for every request, in the loader's order; each object's requests once.
        loaded: New objects of the process, in the loader's order.
        missing: Symbol versions that are not there.
    """

    choices: tuple[Choice, ...]
    loaded: tuple[Loaded, ...]
    missing: tuple[Missing, ...]

    @property
    def unresolved(self) -> tuple[Choice, ...]:
        """Requests that make it fail. A preload that cannot be had is only warned of, and not among them."""
        return tuple(choice for choice in self.choices if choice.problem and choice.why != "preload")

    @property
    def works(self) -> bool:
        """Whether the loader would go through with it."""
        return not self.unresolved and not self.missing


def load(root: Root, executable: str, conditions: Conditions, system: Linker | None = None) -> Process:
    """Start an executable: it, its preloads and everything they need.

    Args:
        system: Its loader, where that is known already; else it is read from the root.

    Raises:
        ElfError: There is no such executable, or none that a glibc loader starts. What is wrong with libraries is in
            ``Process.start``.
    """
    real = root.resolve(executable)
    if real is None:
        raise ElfError(f"{executable} is not there")
    return Process(root, Loaded(path=real, real=real, elf=root.read(real)), conditions, system)


class Process:
    """The objects of one process, in the one namespace that Python and torch use.

    Attributes:
        start: What came with the executable. Where it fails there is no process, and what dlopen says then rests on
            what could be loaded.
    """

    def __init__(self, root: Root, main: Loaded, conditions: Conditions, system: Linker | None = None) -> None:
        self._root, self._main, self._given = root, main, conditions.given
        system = system or linker(root, main.elf)
        self._searcher = Searcher(root, system, conditions)
        self._names: dict[str, Loaded] = {}
        self._files: dict[str, Loaded] = {}
        # The loader itself is there first; it goes by the name that the executable has for it.
        real = root.resolve(system.path) or system.path
        self._add(main, "")
        self._add(Loaded(path=system.path, real=real, elf=root.read(real)), system.path)
        choices = [Choice(name=main.path, asker="", path=main.path, why="start")]
        before = len(self._files)
        queue = deque([main])
        for name in self._preloads(conditions.preload):
            choice, object_ = self._request(name, main, keep_loader=True)
            choices.append(replace(choice, asker="", why="preload"))
            if object_ is not None and object_ not in queue:
                queue.append(object_)
        choices += self._needs(queue)
        new = (main, *list(self._files.values())[before:])
        self.start = Loading(choices=tuple(choices), loaded=new, missing=self._check(new, choices))

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """Every object of the process, in the order of loading; the loader itself is the second."""
        return tuple(self._files.values())

    def provider(self, name: str) -> Loaded | None:
        """The object that serves a name, such as ``libstdc++.so.6``; None when none does."""
        return self._names.get(name)

    def fork(self) -> Process:
        """The same process once more, to try something in."""
        other = copy(self)
        other._names, other._files = dict(self._names), dict(self._files)
        return other

    def dlopen(self, path: str, caller: str | None = None) -> Loading:
        """Load a library into the running process, as ``import`` and ``ctypes.CDLL`` do.

        When it fails nothing of it stays, as with the loader.

        Args:
            path: A path, or a bare name that is then searched for.
            caller: Path of the loaded object whose code calls dlopen, for the search of a bare name; the executable
                when not given.
        """
        names, files = dict(self._names), dict(self._files)
        asker = next((object_ for object_ in files.values() if caller in (object_.path, object_.real)), self._main)
        choice, object_ = self._request(path, asker, keep_loader=False)
        choices = [replace(choice, why="dlopen") if choice.why == "path" else choice]
        if object_ is not None and object_.real not in files:
            choices += self._needs(deque([object_]))
        new = tuple(object_ for real, object_ in self._files.items() if real not in files)
        result = Loading(choices=tuple(choices), loaded=new, missing=self._check(new, choices))
        if not result.works:
            self._names, self._files = names, files
        return result

    def _preloads(self, from_environment: str) -> list[str]:
        real = self._root.resolve(_PRELOAD)
        data = b"" if real is None else self._root.data(real, _MAX_PRELOAD)
        return preloads(from_environment, data.decode("utf-8", "backslashreplace"))

    def _needs(self, queue: deque[Loaded]) -> list[Choice]:
        """Breadth first: what every object in the queue needs, and what that needs."""
        choices = []
        seen = {object_.real for object_ in queue}
        known = set(self._files) - seen
        while queue:
            asker = queue.popleft()
            for name in asker.elf.needed:
                choice, object_ = self._request(self._expanded(name, asker), asker, keep_loader=True)
                choices.append(choice)
                # What was loaded by an earlier call has everything it needs.
                if object_ is not None and object_.real not in seen and object_.real not in known:
                    seen.add(object_.real)
                    queue.append(object_)
        return choices

    def _expanded(self, name: str, asker: Loaded) -> str:
        return self._searcher.expand(name, asker) if "$" in name else name

    def _request(self, name: str, asker: Loaded, *, keep_loader: bool) -> tuple[Choice, Loaded | None]:
        by = asker.path if keep_loader else ""
        found = self._names.get(name)
        if found is not None:
            return Choice(name=name, asker=by, path=found.path, why="loaded", owner=found.path), found
        skipped: list[str] = []
        machine, bits = self._main.elf.machine, self._main.elf.bits
        for candidate in self._searcher.candidates(name, asker, self._main):
            real = self._root.resolve(candidate.path)
            if real is None:
                continue
            if real in self._files:
                found = self._files[real]
                self._names.setdefault(name, found)
                return Choice(name=name, asker=by, path=found.path, why="loaded", owner=candidate.path), found
            elf, problem = self._read(real)
            if elf is not None and (elf.machine, elf.bits) != (machine, bits):
                skipped.append(candidate.path)
                continue
            if elf is not None and elf.kind != "shared":
                problem = f"{candidate.path} is not a library"
            choice = Choice(
                name=name, asker=by, path=None if problem else candidate.path, why=candidate.why,
                owner=candidate.owner, skipped=tuple(skipped), problem=problem,
            )  # fmt: skip
            if elf is None or problem:
                return choice, None  # the loader gives up here, it does not look further
            new = Loaded(path=candidate.path, real=real, elf=elf, loader=asker if keep_loader else None)
            self._add(new, name)
            return choice, new
        if name in self._given:
            return Choice(name=name, asker=by, path=None, why="given", skipped=tuple(skipped)), None
        problem = f"{name} is not found" + (f"; {', '.join(skipped)} is for another machine" if skipped else "")
        nowhere = Choice(name=name, asker=by, path=None, why="nowhere", skipped=tuple(skipped), problem=problem)
        return nowhere, None

    def _read(self, real: str) -> tuple[ElfFile | None, str]:
        try:
            return self._root.read(real), ""
        except NotElf as error:
            return None, f"{error.message}, and the loader looks no further"
        except ElfError as error:
            return None, error.message

    def _add(self, new: Loaded, name: str) -> None:
        self._files.setdefault(new.real, new)
        for known in (name, new.path, new.elf.soname):
            if known:
                self._names.setdefault(known, new)

    def _check(self, objects: tuple[Loaded, ...], choices: list[Choice]) -> tuple[Missing, ...]:
        absent = {choice.name for choice in choices if choice.path is None}
        missing = []
        for object_ in objects:
            for need in object_.elf.requires:
                chosen = self._names.get(need.library)
                if need.weak or (chosen is None and need.library in absent):
                    continue
                if chosen is not None and (not chosen.elf.versioned or need.version in chosen.elf.provides):
                    continue
                parsed = parse(need.version)
                best = highest(chosen.elf.provides, parsed[0]) if chosen is not None and parsed else None
                missing.append(
                    Missing(asker=object_.path, library=need.library, version=need.version,
                            chosen=None if chosen is None else chosen.path, best=best)
                )  # fmt: skip
        return tuple(missing)
