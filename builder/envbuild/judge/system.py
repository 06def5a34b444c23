"""Are the operating system's files as their packages brought them? Python's standard library runs before every probe.

dpkg writes down the MD5 of each file that it unpacks (dpkg-deb(5), ``md5sums``), of configuration files in its status,
and in ``list`` every path of a package. MD5 is what there is; against a forger it is as weak as a RECORD that lies in
the same image, against everything else it does. Families without dpkg are not looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envbuild.errors import EngineError
from envbuild.judge.archive import ImageArchive
from envbuild.judge.files import facts_of
from envbuild.model import Environment

_STATUS = "var/lib/dpkg/status"
_DIVERSIONS = "var/lib/dpkg/diversions"
_SUMS = re.compile(r"var/lib/dpkg/info/[^/]+\.md5sums")
_LISTS = re.compile(r"var/lib/dpkg/info/[^/]+\.list")
_LINE = re.compile(r"([0-9a-f]{32})\s+(\S.*)")
_CONFIG = re.compile(r"^ /(\S+) ([0-9a-f]{32})$", re.MULTILINE)
# Configuration that Python reads at every start; other configuration is there to be changed.
_READ_AT_START = re.compile(r"etc/python[\d.]*/")
_LIBRARY = re.compile(r"(?:usr/)?lib(?:32|64|x32)?/(?:.+/)?[^/]+\.so(?:\.[^/]+)?")
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemReport:
    """What became of the system's files since they were installed.

    Attributes:
        known: Whether there is a package database that can be read.
        files: How many files were compared.
        changed: Files that are not what their package brought.
        stray: Files in Python's own folder, and libraries in the system's, that no package owns.
        problems: What could not be read.
        more: How many beyond the ones that are named here.
    """

    known: bool
    files: int
    changed: tuple[str, ...]
    stray: tuple[str, ...]
    problems: tuple[str, ...]
    more: int = 0


def wanted(path: str) -> bool:
    """Whether the bytes of a file are needed."""
    return path == _DIVERSIONS or _SUMS.fullmatch(path) is not None or _LISTS.fullmatch(path) is not None


def system(image: ImageArchive, env: Environment) -> SystemReport:
    """Compare the system's files with what dpkg wrote down. Never raises.

    Args:
        image: Read with a visitor that hashes the system's files.
        env: The row, for its Python.
    """
    problems: list[str] = []
    texts = {path: _text(image, path, problems) for path in sorted(image.entries) if wanted(path) or path == _STATUS}
    known = {path: text for path, text in texts.items() if _SUMS.fullmatch(path)}
    if not known:
        return SystemReport(known=False, files=0, changed=(), stray=(), problems=tuple(problems[:_MOST]))
    moved = set(texts.get(_DIVERSIONS, "").splitlines())
    stated = dict(_stated(known.values(), texts.get(_STATUS, "")))
    compared, changed = 0, []
    for path, sum_ in stated.items():
        # A file that is not there was left out on purpose (documentation) or is missed by who needs it.
        real = path if path in image.entries else image.resolve(path)
        entry = image.entries.get(real) if real else None
        facts = facts_of(entry)
        if facts is None or facts.md5 is None or f"/{path}" in moved:
            continue
        compared += 1
        if facts.md5.hex() != sum_:
            changed.append(path)
    owned = {line.strip().lstrip("/") for path, text in texts.items() if _LISTS.fullmatch(path)
             for line in text.splitlines()}  # fmt: skip
    stray = list(_stray(image, env, owned))
    return SystemReport(
        known=True,
        files=compared,
        changed=tuple(sorted(changed)[:_MOST]),
        stray=tuple(sorted(stray)[:_MOST]),
        problems=tuple(problems[:_MOST]),
        more=max(0, len(changed) - _MOST) + max(0, len(stray) - _MOST),
    )


def _stated(sums: Iterable[str], status: str) -> Iterator[tuple[str, str]]:
    for text in sums:
        for line in text.splitlines():
            found = _LINE.fullmatch(line)
            if found:
                yield found[2].lstrip("/"), found[1]
    for path, sum_ in _CONFIG.findall(status):
        if _READ_AT_START.match(path):
            yield path, sum_


def _stray(image: ImageArchive, env: Environment, owned: set[str]) -> Iterator[str]:
    folder = f"usr/lib/python{env.python}/"
    for path, entry in image.entries.items():
        python = path.startswith(folder) and entry.kind != "folder" and "/__pycache__/" not in path
        library = entry.kind == "file" and _LIBRARY.fullmatch(path) is not None
        # Before the merge of /lib into /usr/lib a package's list may say the one and mean the other.
        if (python or library) and path not in owned and path.removeprefix("usr/") not in owned:
            yield path


def _text(image: ImageArchive, path: str, problems: list[str]) -> str:
    try:
        return (image.data(path) or b"").decode("utf-8", "replace")
    except EngineError as error:
        problems.append(error.message)
        return ""
