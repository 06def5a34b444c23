"""Which file the loader takes for the names that matter, and why, as rows to read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from envbuild.doctor.collection import Collection
from envbuild.doctor.loading import FROM_DRIVER, Answers
from envbuild.doctor.loading import answers as loading
from envbuild.doctor.view import normalised
from envbuild.elf import ElfFile, highest
from envbuild.elf.versions import parse

# In the order in which people ask; of each name only what a process asks for is shown.
_MATTER = tuple(
    re.compile(name)
    for name in (
        r"libstdc\+\+\.so\.6", r"libc\.so\.6", r"libgcc_s\.so\.1", r"libcuda\.so\.1", r"libcudart\.so\.[\d.]+",
        r"libnccl\.so\.2", r"lib(cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvJitLink)\.so\.[\d.]+",
        r"lib(aio|numa|gomp|cufile)\.so\.\d+", r"lib(torch|c10)\w*\.so",
    )
)  # fmt: skip
# Those that break trainings, one line each even when all is well.
_ALWAYS = re.compile(r"libstdc\+\+\.so\.6|libc\.so\.6|libcuda\.so\.1|libcudart\.so\.[\d.]+|libnccl\.so\.2")
# Whose versions are symbol versions, and of which family.
_FAMILIES = {"libstdc++.so.6": "GLIBCXX", "libc.so.6": "GLIBC", "libgcc_s.so.1": "GCC"}
# An environment that puts a library in front of the one that a wheel or the system would give.
_FORCED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "/etc/ld.so.preload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The loader's answer for one name.

    Attributes:
        name: What is asked for, such as libstdc++.so.6.
        path: The file it takes, behind all links; None where it finds none.
        why: What made it this one, in words.
        version: What the file is, such as GLIBCXX_3.4.30; empty where nothing says so.
        needed: The newest version that anything of the process asks of it; empty where nothing does.
        better: A copy elsewhere that has what this one lacks, with its version.
        enough: Whether it has what is needed.
        telling: Worth a line even for a reader in a hurry.
    """

    name: str
    path: str | None
    why: str
    version: str = ""
    needed: str = ""
    better: str = ""
    enough: bool = True
    telling: bool = True

    @property
    def because(self) -> str:
        """``why`` as the end of a sentence: by LD_LIBRARY_PATH, from a default folder of the loader."""
        before = "from " if self.why.startswith(("a default", "ld.so.cache")) else "by "
        return (
            f"{before}{self.why}" if re.match(r"R(UN)?PATH|LD_|/etc/|a default|ld\.so\.cache", self.why) else self.why
        )


def answers(collection: Collection) -> tuple[Answer, ...]:
    """The answers, in the order in which people ask: C++ and C first, then NVIDIA's; none where none was recorded."""
    found = loading(collection)
    if found.problem:
        return ()
    asked = dict.fromkeys(choice.name for loading in found.all for choice in loading.choices)
    rows = []
    for pattern in _MATTER:
        rows += [_answer(found, collection, name) for name in sorted(asked) if pattern.fullmatch(name)]
    return tuple(rows)


def trouble(collection: Collection) -> str:
    """Why there is no answer; empty where there is one."""
    return loading(collection).problem


def _answer(found: Answers, collection: Collection, name: str) -> Answer:
    provider = found.provider(name)
    family = _FAMILIES.get(name, "")
    needed = _needed(found, name, family)
    if provider is None:
        why = "comes with NVIDIA's driver" if name in FROM_DRIVER else "found nowhere"
        ended = (found.refused(choice) for choice in found.unresolved if choice.name == name)
        if refused := next(filter(None, ended), None):
            return Answer(name=name, path=None, why=f"{refused} is taken, and no library", needed=needed, enough=False)
        return Answer(name=name, path=None, why=why, needed=needed, enough=name in FROM_DRIVER)
    has = highest(provider.elf.provides, family) if family else None
    why = found.why(name) or found.why(provider.path)
    enough = not (needed and has and _newer(needed, has))
    enough = enough and (provider.elf.versioned or not collection.libraries.lacks.get(provider.real))
    return Answer(
        name=name,
        path=provider.real,
        why=why,
        version=has or _version(provider.real, collection),
        needed=needed,
        better="" if enough else _better(found, collection, name, family, needed),
        enough=enough,
        telling=not enough or _ALWAYS.fullmatch(name) is not None or why.startswith(_FORCED),
    )


def _needed(found: Answers, name: str, family: str) -> str:
    """The newest version of a family that anything asks of a library, what failed to load included."""
    if not family:
        return ""
    return highest(
        (need.version for file in _files(found) for need in file.requires if need.library == name and not need.weak),
        family,
    ) or ""  # fmt: skip


def _files(found: Answers) -> Iterable[ElfFile]:
    yield from (loaded.elf for loaded in found.loaded)
    failed = (path for path, loading in found.loadings.items() if not loading.works)
    yield from (file for path in failed if (file := found.read(path)) is not None)


def _better(found: Answers, collection: Collection, name: str, family: str, needed: str) -> str:
    for path in collection.libraries.elsewhere.get(name, ()):
        file = found.read(path)
        has = highest(file.provides, family) if file is not None else None
        if has is not None and not _newer(needed, has):
            return f"{path} ({has})"
    return ""


def _newer(one: str, other: str) -> bool:
    left, right = parse(one), parse(other)
    return left is not None and right is not None and left[1] > right[1]


def _version(path: str, collection: Collection) -> str:
    """What the name of the file says, else the wheel that it came with."""
    if path in collection.gpu.libcuda:
        return collection.gpu.libcuda[path]
    said = re.search(r"\.so\.(\d+(?:\.\d+){1,4})$", path)
    if said is not None:
        return said[1]
    wheel = re.search(r"/nvidia/([a-z0-9_]+)/lib", path)
    packages = collection.interpreter.packages if collection.interpreter is not None and wheel is not None else ()
    names = re.compile(rf"nvidia-{re.escape(normalised(wheel[1]))}(-cu\d+)?") if wheel is not None else None
    fitting = [each for each in packages if names is not None and names.fullmatch(normalised(each.name))]
    # Two wheels that share a folder: which of them wrote the file is for a check to say.
    return f"{fitting[0].name} {fitting[0].version}" if len(fitting) == 1 else ""
