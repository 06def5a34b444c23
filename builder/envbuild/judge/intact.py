"""Are the packages as they were installed? Every file against its wheel's RECORD, every need against what is there.

RECORD is what the installer wrote down (PyPA, "Recording installed projects"): path, SHA-256 and size of each file. It
lies in the image as well, so whoever mends it too is not seen here; what such a change does to training is seen by
the smoke, and what it does to compiled code by ``native.py``.
"""

from __future__ import annotations

import base64
import csv
import io
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuild.errors import EngineError
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import facts_of
from envbuild.model import Environment

# What a report keeps of each kind; a wheel that was swapped file by file would fill pages.
_MOST = 20
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# `python -m venv` puts these beside the packages; a wheel's installer never lists bytecode.
_UNLISTED = re.compile(r"(?:^|/)__pycache__/[^/]+\.pyc$|(?:^|/)[^/]+\.dist-info/(?:RECORD|INSTALLER|REQUESTED)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntactReport:
    """What became of the packages' files since they were installed.

    Attributes:
        packages: How many packages were looked at.
        files: How many files were compared with what their RECORD says of them.
        unrecorded: Packages without a RECORD that can be read.
        changed: Files that are not what RECORD says.
        missing: Files that RECORD names and that are not there.
        stray: Files beside the packages that no package owns.
        bytecode: Compiled files that a later layer replaced without their source.
        closed: Files and folders that not everybody may read: an ordinary user would get something else than root.
        broken: What ``pip check`` would say: needs that are not met.
        problems: What could not be read.
        more: Of each kind, how many beyond the ones that are named here.
    """

    packages: int
    files: int
    unrecorded: tuple[str, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    stray: tuple[str, ...]
    bytecode: tuple[str, ...]
    closed: tuple[str, ...]
    broken: tuple[str, ...]
    problems: tuple[str, ...]
    more: dict[str, int]


def intact(image: ImageArchive, env: Environment, site: str, system: Sequence[str]) -> IntactReport:
    """Compare a folder of packages with what its installer wrote down. Never raises.

    Args:
        image: Read with a visitor that hashes what lies in the environment.
        env: The row, for the Python that markers are evaluated for.
        site: The packages' folder, without a leading slash.
        system: The folders of Python's own library.
    """
    look = _Look(image, site)
    for folder in look.infos:
        look.package(folder)
    found = {
        "unrecorded": look.unrecorded,
        "changed": look.changed,
        "missing": look.missing,
        "stray": look.stray(),
        "bytecode": [path for folder in (site, *system) for path in _bytecode(image, folder)],
        "closed": list(_closed(image, site)),
        "broken": list(_broken(look.metadata, env, image)),
    }
    return IntactReport(
        packages=len(look.infos),
        files=look.compared,
        **{kind: tuple(sorted(names)[:_MOST]) for kind, names in found.items()},
        problems=tuple(look.problems[:_MOST]),
        more={kind: len(names) - _MOST for kind, names in found.items() if len(names) > _MOST},
    )


class _Look:
    def __init__(self, image: ImageArchive, site: str) -> None:
        self.image = image
        self.site = site
        info = re.compile(rf"{re.escape(site)}/[^/]+\.dist-info")
        self.infos = sorted(path for path in image.entries if info.fullmatch(path))
        self.owned: set[str] = set()
        self.unrecorded: list[str] = []
        self.changed: list[str] = []
        self.missing: list[str] = []
        self.problems: list[str] = []
        self.metadata: dict[str, dict[str, list[str]]] = {}
        self.compared = 0

    def package(self, folder: str) -> None:
        name = folder.rpartition("/")[2]
        self.metadata[name] = self._fields(f"{folder}/METADATA")
        text = self._text(f"{folder}/RECORD")
        if not text:
            self.unrecorded.append(name)
            return
        try:
            for row in csv.reader(io.StringIO(text)):
                if row:
                    self._file(row[0], row[1] if len(row) > 1 else "")
        except csv.Error as error:
            self.problems.append(f"{name}/RECORD is no CSV: {error}")

    def _file(self, name: str, stated: str) -> None:
        path = posixpath.normpath(posixpath.join(self.site, name) if not name.startswith("/") else name).lstrip("/")
        self.owned.add(path)
        entry = self.image.entries.get(path)
        if entry is None or entry.kind != "file":
            if not _UNLISTED.search(path):
                self.missing.append(path)
            return
        if not stated:
            if not _UNLISTED.search(path):
                self.problems.append(f"RECORD states no hash for {path}")
            return
        algorithm, _, value = stated.partition("=")
        facts = facts_of(entry)
        if algorithm != "sha256" or facts is None or facts.sha256 is None:
            self.problems.append(f"{path} has no SHA-256 to compare")
            return
        self.compared += 1
        if base64.urlsafe_b64encode(facts.sha256).rstrip(b"=").decode() != value:
            self.changed.append(path)

    def stray(self) -> list[str]:
        inside = f"{self.site}/"
        return [
            path
            for path, entry in self.image.entries.items()
            if path.startswith(inside)
            and entry.kind != "folder"
            and path not in self.owned
            and not _UNLISTED.search(path)
        ]

    def _text(self, path: str) -> str:
        try:
            return (self.image.data(path) or b"").decode("utf-8", "replace")
        except EngineError as error:
            self.problems.append(error.message)
            return ""

    def _fields(self, path: str) -> dict[str, list[str]]:
        raw, _ = parse_email(self._text(path))
        return {
            "name": [raw.get("name") or ""],
            "version": [raw.get("version") or ""],
            "requires": list(raw.get("requires_dist") or ()),
        }


def _bytecode(image: ImageArchive, site: str) -> list[str]:
    """Python takes a compiled file whose header names its source's time and size, whatever is in it."""
    compiled = re.compile(rf"({re.escape(site)}/(?:.+/)?)__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc")
    found = []
    for path in image.replaced:
        match = compiled.fullmatch(path)
        source = f"{match[1]}{match[2]}.py" if match else ""
        if match and path in image.entries and source in image.entries and source not in image.replaced:
            found.append(path)
    return found


def _closed(image: ImageArchive, site: str) -> Iterator[str]:
    for path, entry in image.entries.items():
        needed = 0o555 if entry.kind == "folder" else 0o444
        if path.startswith(f"{site}/") and entry.kind != "symlink" and entry.mode & needed != needed:
            yield path


def _broken(packages: dict[str, dict[str, list[str]]], env: Environment, image: ImageArchive) -> Iterator[str]:
    """Needs of installed packages that nothing installed meets, for the image's Python and machine."""
    versions = {canonicalize_name(fields["name"][0]): fields["version"][0] for fields in packages.values()}
    machine = _MACHINES.get(str(image.config.get("architecture")), "")
    python = env.python
    environment = {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }
    for fields in packages.values():
        who = f"{fields['name'][0]} {fields['version'][0]}"
        for text in fields["requires"]:
            try:
                need = Requirement(text)
                if need.marker is not None and not need.marker.evaluate(environment):
                    continue
                version = versions.get(canonicalize_name(need.name))
                if version is None:
                    yield f"{who} needs {need.name}, which is not installed"
                elif not need.specifier.contains(version, prereleases=True):
                    yield f"{who} needs {need.name}{need.specifier}, installed is {version}"
            except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName, ValueError) as error:
                yield f"{who} has a need that cannot be read: {text[:100]} ({error})"
