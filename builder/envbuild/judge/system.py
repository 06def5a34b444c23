"""Are the operating system's files as their packages brought them? Python's standard library runs before every probe.

Who says how they were is ``dpkg.py`` and ``rpm.py``. A system of another kind is not looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.judge import dpkg, python, rpm
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import FileFacts, facts_of, is_system
from envbuild.judge.installed import Installed, Stated, joined
from envbuild.judge.layers import Entry
from envbuild.model import Environment
from envbuild.plan import PREFIX

_LIBRARY = re.compile(r"(?:opt/rh/[^/]+/root/)?(?:usr/)?lib(?:32|64|x32)?/(?:.+/)?[^/]+\.so(?:\.[^/]+)?")
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Differs:
    """One file that is not as its package brought it.

    Attributes:
        path: Without a leading slash.
        package: Whose it is; empty where nobody says.
        how: What differs, where it is not the content.
    """

    path: str
    package: str
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """What became of the system's files since they were installed.

    Attributes:
        known: Whether there is a package database that can be read.
        files: How many files were compared.
        changed: Files that are not what their package brought.
        missing: Files that a package brought, that something needs, and that are gone.
        stray: Python itself, files in its own folder, and libraries in the system's, that no package owns.
        problems: What could not be read.
        more: Of each kind, how many beyond the ones that are named here.
    """

    known: bool
    files: int
    changed: tuple[Differs, ...] = ()
    missing: tuple[Differs, ...] = ()
    stray: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict)


def installed(image: ImageArchive, scratch: Path) -> Installed:
    """What the packages of an image say of themselves. Never raises.

    Args:
        image: Read with a visitor that keeps an RPM database.
        scratch: A folder with room for a copy of it.
    """
    return joined((dpkg.installed(image), rpm.installed(image, scratch)))


def interpreter(image: ImageArchive) -> str | None:
    """The file behind the environment's ``python``, all links followed."""
    return image.resolve(f"{PREFIX.strip('/')}/bin/python")


def system(image: ImageArchive, env: Environment, said: Installed) -> SystemReport:
    """Compare the system's files with what their packages say. Never raises.

    Args:
        image: Read with a visitor that hashes the system's files.
        env: The row, for its Python.
        said: What the packages say.
    """
    known, compared = bool(said.files), 0
    changed: list[Differs] = []
    missing: list[Differs] = []
    unread: set[str] = set()
    for stated in said.files:
        path = stated.path
        entry = image.entries.get(path)
        if entry is None and (real := image.resolve(path)) is not None:
            path, entry = real, image.entries.get(real)
        if entry is None:
            if stated.needed:
                missing.append(Differs(path=path, package=stated.package))
            continue
        facts = facts_of(entry)
        if not is_system(path) or (entry.kind == "file" and facts is None):
            continue
        compared += 1
        how = _difference(stated, entry, facts, unread)
        if how is not None:
            changed.append(Differs(path=path, package=stated.package, how=how))
    stray = sorted(_stray(image, env, said.owned)) if known else []
    problems = [*said.problems, *(f"digests are not compared: {name}" for name in sorted(unread))]
    found = {"changed": len(changed), "missing": len(missing), "stray": len(stray)}
    return SystemReport(
        known=known,
        files=compared,
        changed=tuple(sorted(changed, key=lambda each: each.path)[:_MOST]),
        missing=tuple(sorted(missing, key=lambda each: each.path)[:_MOST]),
        stray=tuple(stray[:_MOST]),
        problems=tuple(problems[:_MOST]),
        more={kind: count - _MOST for kind, count in found.items() if count > _MOST},
    )


def _difference(stated: Stated, entry: Entry, facts: FileFacts | None, unread: set[str]) -> str | None:
    """What differs, in words; empty for the content, None for nothing."""
    if entry.kind != stated.kind:
        return f"it is a {entry.kind}, not a {stated.kind}"
    if entry.kind == "symlink":
        return f"it leads to {entry.target}, not to {stated.link}" if stated.link not in ("", entry.target) else None
    if stated.digest:
        seen = {"md5": facts.md5, "sha256": facts.sha256}.get(stated.algorithm) if facts else None
        if seen is None:
            unread.add(stated.algorithm)
        elif seen != stated.digest:
            return ""
    if stated.mode is not None and _weighs(stated.mode, entry.mode):
        return f"its mode is {entry.mode:04o}, not {stated.mode:04o}"
    return None


def _weighs(stated: int, mode: int) -> bool:
    """Whether a file was closed to others, or opened to them: written by all, or run with its owner's rights."""
    return bool(stated & ~mode & 0o555 or mode & ~stated & 0o6022)


def _stray(image: ImageArchive, env: Environment, owned: frozenset[str]) -> Iterator[str]:
    program = interpreter(image)
    if program is not None and python.is_distributions(program, env.python) and program not in owned:
        yield program
    folders = tuple(f"{folder}/" for folder in python.library_folders(program, env.python))
    for path, entry in image.entries.items():
        own = path.startswith(folders) and entry.kind != "folder" and "/__pycache__/" not in path
        library = entry.kind == "file" and _LIBRARY.fullmatch(path) is not None
        if (own or library) and path not in owned:
            yield path
