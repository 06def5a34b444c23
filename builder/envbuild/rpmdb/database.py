"""One RPM database, of whichever kind."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuild.rpmdb import bdb, header, sqlite
from envbuild.rpmdb.faults import RpmdbError
from envbuild.rpmdb.package import Package, package

# Where it lies: Fedora 36 and SUSE, Enterprise Linux (and Debian's rpm), rpm-ostree.
FOLDERS = ("usr/lib/sysimage/rpm", "var/lib/rpm", "usr/share/rpm")
# A full workstation has some 300 MB.
LARGEST = 768 << 20
_NAMES = ("rpmdb.sqlite", "Packages.db", "Packages")
_WANTED = re.compile(rf"(?:{'|'.join(FOLDERS)})/(?:{'|'.join(map(re.escape, _NAMES))}|rpmdb\.sqlite-wal)")
_NDB = b"RpmP"
_MAX_PACKAGES, _MAX_FILES = 50_000, 600_000
_MAX_CHARACTERS = 128 << 20  # of all paths together
_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """What a database holds.

    Attributes:
        packages: By name and version.
        problems: Headers that cannot be understood; at most some.
    """

    packages: tuple[Package, ...]
    problems: tuple[str, ...] = ()


def wanted(path: str) -> bool:
    """Whether a file (no leading slash) is a database, or the log that belongs to one."""
    return _WANTED.fullmatch(path) is not None


def read(main: BinaryIO, log: BinaryIO | None, scratch: Path) -> Database:
    """Read a database.

    Args:
        main: ``rpmdb.sqlite``, ``Packages`` or ``Packages.db``, seekable; it is told by its first bytes.
        log: ``rpmdb.sqlite-wal``, where there is one.
        scratch: A folder with room for both.

    Raises:
        RpmdbError: It is none, of a kind that is not known, or damaged.
    """
    found: list[Package] = []
    problems: list[str] = []
    files = characters = 0
    for number, blob in enumerate(_values(main, log, scratch)):
        if number >= _MAX_PACKAGES:
            raise RpmdbError(f"it has more than {_MAX_PACKAGES} packages")
        try:
            one = package(header.parse(blob))
        except RpmdbError as error:
            if len(problems) < _MAX_PROBLEMS:
                problems.append(f"one of its headers cannot be read: {error.message}")
            continue
        if one.problem and len(problems) < _MAX_PROBLEMS:
            problems.append(f"{one.label}: {one.problem}")
        files += len(one.files)
        characters += sum(len(file.path) for file in one.files)
        if files > _MAX_FILES or characters > _MAX_CHARACTERS:
            raise RpmdbError(f"its packages have {files} files and {characters} characters of paths, or more")
        found.append(one)
    found.sort(key=lambda one: (one.name, one.label, one.epoch or 0))
    return Database(packages=tuple(found), problems=tuple(problems))


def _values(main: BinaryIO, log: BinaryIO | None, scratch: Path) -> Iterator[bytes]:
    size = main.seek(0, 2)
    main.seek(0)
    head = main.read(16)
    if size > LARGEST:
        raise RpmdbError(f"it has {size} bytes, more than is read of a database")
    if head.startswith(_NDB):
        raise RpmdbError("it is of rpm's own kind (ndb, as on SUSE), which is not supported")
    if bdb.is_hash(head):
        yield from bdb.values(main, size, header.LARGEST)
        return
    if head != sqlite.MAGIC:
        raise RpmdbError("it is neither an SQLite nor a Berkeley DB file" if size else "it is empty")
    with tempfile.TemporaryDirectory(dir=scratch, prefix="rpmdb-") as folder:
        copy = Path(folder) / "rpmdb.sqlite"
        size = _copy(main, copy)
        if log is not None:
            size += _copy(log, copy.with_name("rpmdb.sqlite-wal"))
        yield from sqlite.values(copy, size, header.LARGEST, _MAX_PACKAGES)


def _copy(source: BinaryIO, target: Path) -> int:
    source.seek(0)
    try:
        with target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
            return out.tell()
    except OSError as error:
        raise RpmdbError(f"it cannot be looked at: {target.parent.parent}: {error.strerror}") from error
