"""Find package files in folders of wheels and in indexes that are folders (PEP 503 over ``file:``)."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envbuild import store
from envbuild.errors import EnvbuildError
from envbuild.site import urls
from envbuild.site.pip import PipSettings

_BLOCK = 1 << 20
# Below this a file is hashed faster than its entry is looked up.
_WORTH_REMEMBERING = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that may be a locked package.

    Attributes:
        path: The file itself, links followed.
        filename: The name that pip has to see.
        tags: What a wheel runs on; empty for a source archive.
    """

    path: Path
    filename: str
    name: str
    version: str
    tags: frozenset[Tag]


def candidates(pip: PipSettings, names: frozenset[str]) -> Iterator[Candidate]:
    """Every local file of the packages ``names``, in the order in which pip would look.

    Folders, broken links, unreadable files and names that are not a package's are left out, as pip leaves them out.
    """
    for link in pip.find_links:
        path = urls.local_path(link)
        if path is None:
            continue
        if path.is_dir():
            with contextlib.suppress(OSError):
                for entry in sorted(path.iterdir()):
                    yield from _candidate(entry, entry.name, names)
        elif path.suffix in (".html", ".htm"):
            yield from _linked(path, names)
    for index in pip.indexes:
        root = urls.local_path(index) if index.lower().startswith("file:") else None
        if root is not None:
            for name in sorted(names):
                yield from _linked(root / name / "index.html", names)


def runs_on(candidate: Candidate, python: str, platform: str) -> bool:
    """Whether a wheel may run under ``python`` (``3.11``) on ``platform``; a source archive may anywhere."""
    return not candidate.tags or not candidate.tags.isdisjoint(_supported(python, platform))


def sha256(path: Path, cache: Path) -> str:
    """``sha256:...`` of a file. Large ones are remembered by path, size, time and inode: a torch wheel takes a second.

    Raises:
        OSError: The file cannot be read.
    """
    seen = path.stat()
    if seen.st_size < _WORTH_REMEMBERING:
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    identity = f"{path}\0{seen.st_size}\0{seen.st_mtime_ns}\0{seen.st_ino}\0{seen.st_dev}"
    entry = cache / "sha256" / hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = entry.read_text()
        if re.fullmatch(r"sha256:[0-9a-f]{64}", known):
            return known
    running = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            running.update(block)
    digest = f"sha256:{running.hexdigest()}"
    # Only a saving of time: a cache that cannot be written is no reason to stop.
    with contextlib.suppress(EnvbuildError):
        store.write_atomic(entry, digest)
    return digest


def _candidate(path: Path, filename: str, names: frozenset[str]) -> Iterator[Candidate]:
    tags: frozenset[Tag] = frozenset()
    try:
        if filename.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return
    if name not in names:
        return
    with contextlib.suppress(OSError, RuntimeError):
        real = path.resolve(strict=True)
        if real.is_file():
            yield Candidate(path=real, filename=filename, name=name, version=str(version), tags=tags)


def _linked(page: Path, names: frozenset[str]) -> Iterator[Candidate]:
    """The local files that an HTML page links to."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    reader = _Links()
    reader.feed(text)
    base = urljoin(page.absolute().as_uri(), reader.base)
    for reference in reader.found:
        with contextlib.suppress(ValueError):
            target = urls.local_path(urldefrag(urljoin(base, reference)).url.partition("?")[0])
            if target is not None:
                yield from _candidate(target, target.name, names)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        reference = dict(attrs).get("href")
        if reference and tag == "base":
            self.base = self.base or reference
        elif reference and tag == "a":
            self.found.append(reference.strip())


def same_version(left: str, right: str) -> bool:
    """Whether two version texts mean the same version (``1.0`` and ``1.0.0``)."""
    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return left == right


def _supported(python: str, platform: str) -> frozenset[Tag]:
    major, minor = (int(part) for part in python.split("."))
    machine = "x86_64" if platform == "linux/amd64" else "aarch64"
    platforms = [f"manylinux_2_{level}_{machine}" for level in range(60, 4, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    interpreter = f"cp{major}{minor}"
    # Python up to 3.7 has an "m" in its ABI.
    abis = [interpreter] if (major, minor) >= (3, 8) else [f"{interpreter}m"]
    return frozenset(
        (
            *cpython_tags((major, minor), abis, platforms),
            *compatible_tags((major, minor), interpreter, platforms),
        )
    )
