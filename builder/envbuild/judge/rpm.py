"""RPM's database: versions, and every file as its package brought it. What ``rpm -V`` would compare, from the bytes.

Not told as missing: configuration, what the package itself calls optional or does not bring (%ghost), what was left out
at the installation (documentation, languages), and what the makers of base images delete (the kickstarts of Rocky and
AlmaLinux: locales, hardware tables, /boot, caches). Modes count where they close a file to others or open it to them.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from envbuild import rpmdb
from envbuild.judge.archive import ImageArchive
from envbuild.judge.dpkg import READ_AT_START
from envbuild.judge.files import facts_of
from envbuild.judge.installed import Installed, Places, Stated, Version

_MAIN = ("rpmdb.sqlite", "Packages.db", "Packages")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# What a process loads or runs, or the compiler reads.
_NEEDED = re.compile(
    r"(?:opt/rh/[^/]+/root/)?(?:(?:usr/)?(?:s?bin|lib64)/|usr/(?:libexec|include)/|usr/lib/(?:gcc|python[\d.]+)/)"
)
# Made again from what a site adds (update-ca-trust(8)).
_MADE = re.compile(r"etc/pki/(?:ca-trust/extracted|java)/")
_SPARE = re.compile(r"/__pycache__/|\.py[co]$")


def installed(image: ImageArchive, scratch: Path) -> Installed:
    """What RPM says of an image; nothing where it has no such database, or an empty one. Never raises.

    Args:
        image: Read with a visitor that keeps the database.
        scratch: A folder with room for a copy of it.
    """
    paths = {f"{folder}/{name}": None for folder in rpmdb.FOLDERS for name in _MAIN}
    there = [path for path in paths if (entry := image.entries.get(path)) is not None and entry.kind == "file"]
    found: list[tuple[str, rpmdb.Database]] = []
    problems: list[str] = []
    for path in there:
        try:
            database = _read(image, path, scratch)
        except rpmdb.RpmdbError as error:
            problems.append(f"the packages of the system cannot be read from /{path}: {error.message}")
            continue
        problems += (f"/{path}: {problem}" for problem in database.problems)
        if database.packages:
            found.append((path, database))
    if len(found) > 1:
        problems.append(
            f"there are {len(found)} RPM databases: {', '.join(f'/{path}' for path, _ in found)}; the first is read"
        )
    if not found:
        return Installed(problems=tuple(problems))
    path, database = found[0]
    places = Places(image)
    machine = _MACHINES.get(str(image.config.get("architecture")), "")
    # Of a package for two machines the image's own counts.
    packages = sorted(database.packages, key=lambda package: package.arch == machine)
    return Installed(
        versions={package.name: Version(value=package.version, place=f"/{path}") for package in packages},
        files=tuple(stated for package in packages for stated in _stated(package, places)),
        owned=frozenset(places.real(file.path) for package in packages for file in package.files),
        problems=tuple(problems),
    )


def _read(image: ImageArchive, path: str, scratch: Path) -> rpmdb.Database:
    main, log = (facts_of(image.entries.get(name)) for name in (path, f"{path}-wal"))
    if main is None or main.kept is None:
        raise rpmdb.RpmdbError((main.fault.message if main and main.fault else "") or "its content is not at hand")
    return rpmdb.read(main.kept, log.kept if log is not None else None, scratch)


def _stated(package: rpmdb.Package, places: Places) -> Iterator[Stated]:
    for file in package.files:
        link = stat.S_ISLNK(file.mode)
        if file.ghost or not file.installed or not (link or stat.S_ISREG(file.mode)):
            continue
        path = places.real(file.path)
        if (file.config and not READ_AT_START.match(path)) or _MADE.match(path):
            continue
        spare = file.doc or file.config or file.optional or _SPARE.search(path) is not None
        yield Stated(
            path=path,
            package=package.label,
            kind="symlink" if link else "file",
            algorithm=package.algorithm,
            digest=file.digest if "digest" in file.verify else b"",
            link=file.link if "link" in file.verify else "",
            mode=stat.S_IMODE(file.mode) if "mode" in file.verify and not link else None,
            needed=not spare and _NEEDED.match(path) is not None,
        )
