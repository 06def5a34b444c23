"""The description of a host that a bundle is for, as ``collect-target.sh`` writes it: lines of words between tabs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import InputError

SCHEMA = "1"
# A host with 3,000 packages has a description of 25 MB.
LARGEST = 256 << 20
_LONGEST = 16 << 10
# rpm's bits for a comparison (lib/rpmds.h: RPMSENSE_LESS, _GREATER, _EQUAL); other bits say why something is required.
_SENSES = {0: "", 2: "<", 4: ">", 8: "=", 10: "<=", 12: ">="}
_RELATIONS = ("provides", "requires", "conflicts", "obsoletes")
_SINGLE = (
    "name", "os_id", "os_like", "os_version", "os_name", "platform", "arch", "kernel", "glibc", "rpm", "fips",
    "selinux", "fapolicyd",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9._+~^:@{}-]+")
_HINT = "Make it anew on that host: sh collect-target.sh -o FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What a package provides or needs: a name (or a rich dependency), and a comparison where there is one.

    Attributes:
        sense: ``<``, ``<=``, ``=``, ``>=``, ``>``, or empty.
        evr: Epoch, version and release as rpm writes them; empty where there is no comparison.
    """

    name: str
    sense: str = ""
    evr: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.sense} {self.evr}" if self.sense else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """A package of the host, with as much as a solver has to know of it.

    Attributes:
        files: Only those that repositories tell in their first metadata: below /etc, in folders of programs.
    """

    name: str
    epoch: int
    version: str
    release: str
    arch: str
    provides: tuple[Relation, ...] = ()
    requires: tuple[Relation, ...] = ()
    conflicts: tuple[Relation, ...] = ()
    obsoletes: tuple[Relation, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def evr(self) -> str:
        """``[EPOCH:]VERSION-RELEASE``."""
        return f"{self.epoch}:{self.version}-{self.release}" if self.epoch else f"{self.version}-{self.release}"

    @property
    def nevra(self) -> str:
        """``NAME-[EPOCH:]VERSION-RELEASE.ARCH``."""
        return f"{self.name}-{self.evr}.{self.arch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStream:
    """A stream that the host has chosen; ``state`` is ``enabled`` or ``disabled``."""

    name: str
    stream: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A host that a bundle is for.

    Attributes:
        name: What it is called: as it says itself, else by its file.
        sha256: Of the file: what the bundle's manifest names it by.
        os_version: With the minor release, where the host tells it.
        platform: What modules call it, such as ``platform:el8``; empty on Enterprise Linux 7.
        pythons: Versions and programs.
        keys: Short ids of the keys that its rpm trusts.
    """

    name: str
    sha256: str
    os_id: str
    os_like: tuple[str, ...]
    os_version: str
    os_name: str
    platform: str
    arch: str
    kernel: str
    glibc: str
    rpm: str
    fips: bool
    selinux: str
    fapolicyd: str
    pythons: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    modules: tuple[ModuleStream, ...]
    packages: tuple[InstalledPackage, ...]

    @property
    def major(self) -> str:
        """The major release, such as ``8``."""
        return self.os_version.partition(".")[0]


def read(path: Path) -> Target:
    """Read the description of a host.

    Raises:
        InputError: It cannot be read, is cut short, or is nothing that ``collect-target.sh`` writes; with the line.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path} is larger than {LARGEST >> 20} MiB: no description of a host", hint=_HINT)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return parse(data, str(path), path.name.partition(".")[0])


def parse(data: bytes, place: str, name: str) -> Target:
    """Parse the description of a host; ``place`` is what messages call it, ``name`` counts where it has none.

    Raises:
        InputError: As ``read``.
    """
    reader = _Reader(place, name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: byte {error.start} is no text", hint=_HINT) from error
    for number, line in _lines(text, place):
        reader.line(number, line)
    return reader.target(hashlib.sha256(data).hexdigest())


def _lines(text: str, place: str) -> Iterator[tuple[int, list[str]]]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines or lines[0] != f"envbuild-target\t{SCHEMA}":
        raise InputError(f"{place}:1: no description of a host in form {SCHEMA}", hint=_HINT)
    if lines[-1] != f"end\t{len(lines) - 1}":
        raise InputError(f"{place}:{len(lines)}: the description is cut short, or was changed", hint=_HINT)
    for number, line in enumerate(lines[1:-1], start=2):
        if len(line) > _LONGEST:
            raise InputError(f"{place}:{number}: a line of {len(line)} characters", hint=_HINT)
        yield number, line.split("\t")


class _Reader:
    """Takes the lines one by one."""

    def __init__(self, place: str, name: str) -> None:
        self._place = place
        self._single: dict[str, str] = {"name": name}
        self._seen: set[str] = set()
        self._pythons: list[tuple[str, str]] = []
        self._keys: list[str] = []
        self._modules: list[ModuleStream] = []
        self._packages: list[InstalledPackage] = []
        self._current: tuple[int, list[str]] | None = None
        self._parts: dict[str, list[Relation]] = {}
        self._files: list[str] = []
        self._many: dict[str, Callable[[list[str]], None]] = {
            "python": lambda words: self._pythons.append((_word(words[0]), words[1])),
            "key": lambda words: self._keys.append(_word(words[0])),
            "module": lambda words: self._modules.append(
                ModuleStream(name=_word(words[0]), stream=_word(words[1]), state=words[2])
            ),
            "file": lambda words: self._files.append(words[0]),
        }

    def line(self, number: int, words: list[str]) -> None:
        try:
            self._take(number, words[0], words[1:])
        except (ValueError, IndexError) as error:
            raise InputError(f"{self._place}:{number}: not understood: {words[0][:40]!r}", hint=_HINT) from error

    def _take(self, number: int, key: str, rest: list[str]) -> None:
        if key == "package":
            self._close()
            self._current = (number, [_word(rest[0]), str(int(rest[1])), *(_word(each) for each in rest[2:5])])
            if len(rest) != 5:
                raise ValueError(key)
        elif key in _RELATIONS or key == "file":
            if self._current is None:
                raise ValueError(key)
            if key == "file":
                self._files.append(rest[0])
            else:
                flags, evr, name = rest
                sense = _SENSES[int(flags) & 14] if evr else ""
                self._parts.setdefault(key, []).append(Relation(name=name, sense=sense, evr=evr if sense else ""))
        elif key in _SINGLE and key not in self._seen:
            # It is told to people.
            if not rest[0].isprintable():
                raise ValueError(key)
            self._seen.add(key)
            self._single[key] = rest[0]
        elif key in self._many:
            self._many[key](rest)
        else:
            raise ValueError(key)

    def _close(self) -> None:
        if self._current is None:
            return
        name, epoch, version, release, arch = self._current[1]
        self._packages.append(
            InstalledPackage(
                name=name,
                epoch=int(epoch),
                version=version,
                release=release,
                arch=arch,
                provides=tuple(self._parts.get("provides", ())),
                requires=tuple(self._parts.get("requires", ())),
                conflicts=tuple(self._parts.get("conflicts", ())),
                obsoletes=tuple(self._parts.get("obsoletes", ())),
                files=tuple(self._files),
            )
        )
        self._current, self._parts, self._files = None, {}, []

    def target(self, sha256: str) -> Target:
        self._close()
        single = self._single
        for key in ("os_id", "os_version", "arch"):
            if not _WORD.fullmatch(single.get(key, "")):
                raise InputError(f"{self._place}: it does not say its {key}", hint=_HINT)
        return Target(
            sha256=sha256,
            fips=single.get("fips") == "yes",
            os_like=tuple(single.get("os_like", "").split()),
            pythons=tuple(self._pythons),
            keys=tuple(self._keys),
            modules=tuple(self._modules),
            packages=tuple(sorted(self._packages, key=lambda each: (each.name, each.arch, each.evr))),
            **{key: single.get(key, "") for key in _SINGLE if key not in ("fips", "os_like")},
        )


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(text)
    return text
