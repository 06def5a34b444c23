"""A wheel out of an image: what the ops stage compiled, put together again from the files that the proof was made with.

The wheel itself is gone when an image is built; but pip has left its RECORD, which has the hash of each of its files
(PyPA, "Recording installed projects"). Every file is held to it. What an installer adds or changes is undone: scripts
get their ``#!python`` back; wrappers of entry points, bytecode and the installer's notes are left out (PyPA, "Binary
distribution format"). The same image gives the same bytes.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from packaging.utils import canonicalize_name

from envbuild import elf
from envbuild.bundle.packed import Member, pack
from envbuild.bundle.wheels import Own
from envbuild.elf.faults import ElfError, NotElf
from envbuild.elf.versions import parse as parse_version
from envbuild.errors import BundleError
from envbuild.judge import archive
from envbuild.judge.archive import ImageArchive
from envbuild.judge.layers import Readable

# What an installer writes beside a wheel's own files (PEP 376, PEP 610).
_INSTALLERS = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"})
_INFO = re.compile(r"(?P<site>.+/(?:site|dist)-packages)/(?P<stem>[^/]+)\.dist-info/(RECORD|WHEEL|entry_points\.txt)")
_SUMS = "opt/envbuild/ops.sha256"
_LARGEST = 2 << 30
_BLOCK = 1 << 20

Open = Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A wheel that was put together again.

    Attributes:
        original: SHA-256 of the wheel that the image was made with, as the image says; empty where it does not.
        needs: What its native code asks of the C and C++ libraries, by the newest version: ``GLIBC_2.34``.
    """

    wheel: Own
    original: str
    needs: tuple[str, ...]

    def beyond(self, limits: Mapping[str, str]) -> tuple[str, ...]:
        """What of it a machine has not, whose newest versions are ``limits``: ``{"GLIBC": "2.28"}``."""
        found = []
        for need in self.needs:
            parsed = parse_version(need)
            if parsed is not None and parsed[0] in limits:
                limit = tuple(int(number) for number in limits[parsed[0]].split("."))
                if parsed[1] > limit:
                    found.append(need)
        return tuple(found)

    def note(self, image: str) -> str:
        """What the manifest says of where it comes from."""
        said = f", which was made with the wheel sha256:{self.original}" if self.original else ""
        return f"{self.wheel.filename} was put together again from the files of {image}, each held to its RECORD{said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    """One file: its name in the wheel, where it lies in the image, its hash, and whether it is a script."""

    name: str
    place: str
    digest: str
    script: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    path: Path
    digest: str


def rebuild(export: Open, name: str, folder: Path) -> Rebuilt:
    """Put a package's wheel together again.

    Args:
        export: Opens the image, as ``docker save`` gives it; it is read once, or twice where a file lies where none
            of the package was expected.
        name: The package's normalised name.
        folder: An empty folder with room for its files and the wheel.

    Raises:
        BundleError: The image has no such package, or not as it was installed.
        EngineError: The export cannot be read.
    """
    spool = _Spool(folder)
    with export() as stream:
        image = archive.read(
            stream, lambda path: path == _SUMS or _INFO.fullmatch(path) is not None,
            visit=lambda path, size, content: spool.keep(path, size, content) if _likely(path, name) else None,
        )  # fmt: skip
    site, stem = _find(image, name)
    info = f"{site}/{stem}.dist-info"
    record, metadata = _text(image, f"{info}/RECORD"), _text(image, f"{info}/WHEEL")
    entries = _text(image, f"{info}/entry_points.txt") if f"{info}/entry_points.txt" in image.entries else ""
    files = list(_files(record, site, stem, _wrappers(entries)))
    kept = _kept(image, {each.place for each in files})
    if elsewhere := {each.place for each in files} - kept.keys():
        with export() as stream:
            image = archive.read(
                stream, lambda path: path == _SUMS,
                visit=lambda path, size, content: spool.keep(path, size, content) if path in elsewhere else None,
            )  # fmt: skip
        kept |= _kept(image, elsewhere)
    for each in files:
        if each.place not in kept:
            raise _not_as_installed(name, f"/{each.place} is not there")
        if kept[each.place].digest != each.digest:
            raise _not_as_installed(name, f"/{each.place} was changed")
    filename = f"{stem}-{_tag(metadata, name)}.whl"
    path = folder / filename
    members = [Member(name=each.name, path=kept[each.place].path, script=each.script) for each in files]
    pack(path, members, f"{stem}.dist-info/RECORD")
    with path.open("rb") as file:
        sha256 = _sum(file)
    needs = {need for each in files for need in _needs(kept[each.place].path, each.name)}
    return Rebuilt(
        wheel=Own(path=path, filename=filename, sha256=sha256),
        original=_original(image, filename),
        needs=tuple(sorted(elf.by_family(needs).values())),
    )


def _find(image: ImageArchive, name: str) -> tuple[str, str]:
    found = set()
    for path in image.entries:
        match = _INFO.fullmatch(path)
        if match and path.endswith("/RECORD") and canonicalize_name(match["stem"].rpartition("-")[0]) == name:
            found.add((match["site"], match["stem"]))
    if len(found) != 1:
        raise BundleError(
            f"the image has {name} {len(found)} times, and once was expected",
            hint="Export it without the image: then it is compiled on the target.",
        )
    return found.pop()


def _text(image: ImageArchive, path: str) -> str:
    return (image.data(path) or b"").decode("utf-8", "replace")


def _wrappers(entry_points: str) -> frozenset[str]:
    """Scripts that an installer makes, and no wheel holds."""
    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(entry_points)
    except configparser.Error:
        return frozenset()
    sections = [section for section in ("console_scripts", "gui_scripts") if parser.has_section(section)]
    return frozenset(name for section in sections for name in parser.options(section))


def _files(record: str, site: str, stem: str, wrappers: frozenset[str]) -> Iterator[_Installed]:
    """What RECORD lists of the wheel's own files."""
    prefix = posixpath.normpath(f"{site}/../../..")
    for row in csv.reader(io.StringIO(record)):
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue  # bytecode, and RECORD itself
        place = posixpath.normpath(f"{site}/{row[0]}")
        digest = _hex(row[1].removeprefix("sha256="))
        inside = place.startswith(f"{site}/")
        name = posixpath.basename(place)
        if inside and place.startswith(f"{site}/{stem}.dist-info/"):
            if name not in _INSTALLERS:
                yield _Installed(name=place[len(site) + 1 :], place=place, digest=digest)
        elif inside:
            yield _Installed(name=place[len(site) + 1 :], place=place, digest=digest)
        elif place == f"{prefix}/bin/{name}":
            if name not in wrappers:
                yield _Installed(name=f"{stem}.data/scripts/{name}", place=place, digest=digest, script=True)
        elif place.startswith(f"{prefix}/"):
            yield _Installed(name=f"{stem}.data/data/{place[len(prefix) + 1 :]}", place=place, digest=digest)
        else:
            raise BundleError(f"its RECORD names /{place[:200]}, which is not below /{prefix}")


def _likely(path: str, name: str) -> bool:
    """Whether a file may be the package's, before it is known what is."""
    _, inside, rest = path.rpartition("-packages/")
    if inside:
        return canonicalize_name(re.split(r"[/.]|-[0-9]", rest, maxsplit=1)[0]) == name
    return posixpath.basename(posixpath.dirname(path)) == "bin"


class _Spool:
    """Files of an image on their way to the disk, each under a name of its own: theirs are somebody else's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def keep(self, path: str, size: int, content: Readable) -> _Kept | None:
        """Keep one; a larger one than any wheel holds is passed over."""
        if size > _LARGEST:
            return None
        self._count += 1
        target, running = self._folder / f"file{self._count}", hashlib.sha256()
        with target.open("wb") as file:
            while block := content.read(_BLOCK):
                file.write(block)
                running.update(block)
        return _Kept(path=target, digest=running.hexdigest())


def _kept(image: ImageArchive, places: set[str]) -> dict[str, _Kept]:
    """The files as the topmost layer that has them has them."""
    return {place: entry.seen for place in places if (entry := image.entries.get(place)) and entry.seen is not None}


def _tag(metadata: str, name: str) -> str:
    """The tags of the file's name, out of WHEEL."""
    lines = [line.partition(":")[::2] for line in metadata.splitlines()]
    tags = [value.strip().split("-") for key, value in lines if key == "Tag"]
    if not tags or any(len(each) != 3 for each in tags):
        raise _not_as_installed(name, "its WHEEL names no tag")
    build = next((value.strip() for key, value in lines if key == "Build"), "")
    parts = [".".join(sorted({each[position] for each in tags})) for position in range(3)]
    return "-".join([build, *parts] if build else parts)


def _needs(path: Path, name: str) -> Iterator[str]:
    """The newest version of each family that a file asks for, where it is native code."""
    try:
        found = elf.read(path, name)
    except (NotElf, ElfError):
        return
    yield from elf.by_family(need.version for need in found.requires if not need.weak).values()


def _original(image: ImageArchive, filename: str) -> str:
    for line in _text(image, _SUMS).splitlines():
        sha256, _, name = line.partition("  ")
        if name == filename:
            return sha256
    return ""


def _not_as_installed(name: str, why: str) -> BundleError:
    return BundleError(
        f"{name} is not in the image as it was installed: {why}",
        hint="Nothing that was changed after the build is shipped: build the row again, and prove it.",
    )


def _hex(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    except ValueError:
        return text


def _sum(file: BinaryIO) -> str:
    running = hashlib.sha256()
    while block := file.read(_BLOCK):
        running.update(block)
    return running.hexdigest()
