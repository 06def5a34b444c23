"""Packages of the RPM world, from whichever database an image has."""

from __future__ import annotations

from pathlib import Path

from envbuild import rpmdb
from envbuild.judge.files import facts_of
from envbuild.sbom.part import Part, Purl
from envbuild.sbom.texts import Release, Texts

_NAMES = ("rpmdb.sqlite", "Packages.db", "Packages")


def parts(texts: Texts, release: Release, scratch: Path) -> list[Part]:
    """Every package of the first database that has any.

    Args:
        texts: Of an image that was read with a visitor which keeps its databases.
        release: Whose packages they are.
        scratch: A folder with room for a copy of the database.
    """
    for path in (f"{folder}/{name}" for folder in rpmdb.FOLDERS for name in _NAMES):
        entry = texts.image.entries.get(path)
        if entry is None or entry.kind != "file":
            continue
        main, log = (facts_of(texts.image.entries.get(name)) for name in (path, f"{path}-wal"))
        try:
            if main is None or main.kept is None:
                raise rpmdb.RpmdbError("its content is not at hand")
            database = rpmdb.read(main.kept, log.kept if log is not None else None, scratch)
        except rpmdb.RpmdbError as error:
            texts.problems.append(f"/{path}: {error.message}")
            continue
        texts.problems += (f"/{path}: {problem}" for problem in database.problems)
        if database.packages:
            return [_part(package, release) for package in database.packages]
    return []


def _part(package: rpmdb.Package, release: Release) -> Part:
    version = f"{package.version}-{package.release}" if package.release else package.version
    epoch = "" if package.epoch is None else str(package.epoch)
    # Advisories name source packages; scanners look for this qualifier.
    qualifiers = {"arch": package.arch, "distro": release.label, "epoch": epoch, "upstream": package.source}
    return Part(
        ref=f"rpm:{package.label}" + (f":{epoch}" if epoch else ""),
        name=package.name,
        version=f"{epoch}:{version}" if package.epoch else version,
        purl=Purl(type="rpm", namespace=release.id, name=package.name, version=version, qualifiers=qualifiers),
        publisher=package.vendor,
        licences=(package.licence,) if package.licence else (),
        properties=tuple(
            (name, value)
            for name, value in (("rpm:architecture", package.arch), ("rpm:source", package.source))
            if value
        ),
    )
