"""What an index says of a project: its pages as HTML (PEP 503) and as JSON (PEP 691).

A page that is not what these say is an error that names the page and what was expected; it is never taken for a project
without files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envbuild.errors import EngineError
from envbuild.net.manners import shown

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = frozenset({"application/vnd.pypi.simple.v1+html", "text/html", ""})
_SHA256 = re.compile(r"[0-9a-f]{64}$")


class Shape(EngineError):
    """A page or a file from upstream is not what its standard says (exit 3)."""

    code = "shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One wheel or source archive.

    Attributes:
        url: Where it lies: http, https or file.
        version: With its local part, as in ``2.1.0+cu118``.
        tags: What a wheel runs on; empty for a source archive.
        size: Bytes; None where the page does not say.
        sha256: Hex digits; None where the page does not say.
        metadata: Whether its METADATA lies beside it (PEP 658), and the SHA-256 of that (empty: not said).
        from_pypi: Whether the page was PyPI's own.
    """

    url: str
    filename: str
    name: str
    version: Version
    tags: frozenset[Tag] = frozenset()
    size: int | None = None
    sha256: str | None = None
    metadata: str | None = None
    yanked: bool = False
    from_pypi: bool = False

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel, and not a source archive."""
        return self.filename.endswith(".whl")


def parse(body: bytes, kind: str, url: str, project: str, *, strict: bool = True) -> tuple[RemoteFile, ...]:
    """The wheels and source archives of ``project`` on a page, in its order.

    Args:
        kind: Its Content-Type.
        url: Where it was found in the end: relative links start there.
        strict: Whether the page is the project's own, which has files of it. A page of links need not.

    Raises:
        Shape: The page is not an index page of that project.
    """
    media = kind.partition(";")[0].strip().lower()
    if media == _JSON:
        return _from_json(body, url, project)
    if media in _HTML:
        return _from_html(body, url, project, strict=strict)
    raise Shape(f"{shown(url)}: expected a page of an index, in HTML (PEP 503) or JSON (PEP 691), and got {media}")


def file_of(url: str, filename: str, project: str) -> RemoteFile | None:
    """A file by its name; None when it is no wheel or source archive of ``project``."""
    tags: frozenset[Tag] = frozenset()
    try:
        if filename.endswith(".whl"):
            name, version, _, tags = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    if name != canonicalize_name(project):
        return None
    return RemoteFile(url=url, filename=filename, name=name, version=version, tags=tags)


def _from_json(body: bytes, url: str, project: str) -> tuple[RemoteFile, ...]:
    def fail(what: str) -> Shape:
        return Shape(f"{shown(url)}: not a JSON page of an index (PEP 691): expected {what}", hint=_CHANGED)

    try:
        page = json.loads(body)
    except (ValueError, RecursionError):
        raise fail("JSON") from None
    meta = page.get("meta") if isinstance(page, dict) else None
    version = meta.get("api-version") if isinstance(meta, dict) else None
    if not isinstance(version, str) or not version.startswith("1."):
        raise fail('"meta": {"api-version": "1.x"}')
    files = page.get("files")
    if not isinstance(files, list) or not files:
        raise fail('"files", a list that is not empty')
    found: list[RemoteFile] = []
    for number, entry in enumerate(files):
        place = f'"files"[{number}]'
        if not isinstance(entry, dict):
            raise fail(f"{place} to be an object")
        name, target = entry.get("filename"), entry.get("url")
        if not isinstance(name, str) or not isinstance(target, str):
            raise fail(f'"filename" and "url" in {place}')
        hashes = entry.get("hashes")
        if not isinstance(hashes, dict):
            raise fail(f'"hashes" in {place}')
        known = file_of(_joined(url, target), name, project)
        if known is None:
            continue
        beside = entry.get("core-metadata", entry.get("dist-info-metadata"))
        size = entry.get("size")
        found.append(
            _with(
                known,
                sha256=_digest(hashes.get("sha256")),
                metadata=_beside_json(beside),
                size=size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None,
                yanked=entry.get("yanked", False) not in (False, None),
            )
        )
    if not found:
        raise fail(f"file names of {project}, in one of {len(files)} files")
    return tuple(found)


def _from_html(body: bytes, url: str, project: str, *, strict: bool) -> tuple[RemoteFile, ...]:
    reader = _Links()
    reader.feed(body.decode("utf-8", errors="replace"))
    if reader.repository is not None and not reader.repository.startswith("1."):
        raise Shape(f"{shown(url)}: expected pypi:repository-version 1.x, and got {reader.repository}", hint=_CHANGED)
    base = _joined(url, reader.base) if reader.base else url
    found: list[RemoteFile] = []
    for attributes in reader.links:
        target, fragment = urldefrag(_joined(base, attributes["href"] or ""))
        known = file_of(target, unquote(urlsplit(target).path.rpartition("/")[2]), project)
        if known is None:
            continue
        algorithm, _, digest = fragment.partition("=")
        beside = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
        found.append(
            _with(
                known,
                sha256=_digest(digest) if algorithm == "sha256" else None,
                metadata=_beside_html(beside),
                size=None,
                yanked="data-yanked" in attributes,
            )
        )
    if strict and not found:
        raise Shape(
            f"{shown(url)}: not a page of an index (PEP 503): expected links to files of {project}, and none of its "
            f"{len(reader.links)} links is one",
            hint=_CHANGED,
        )
    return tuple(found)


_CHANGED = "the page has changed its shape, or something else answers in the index's place"


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.repository: str | None = None
        self.links: list[Mapping[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "base":
            self.base = self.base or values.get("href") or ""
        elif tag == "meta" and values.get("name") == "pypi:repository-version":
            self.repository = values.get("content") or ""
        elif tag == "a" and values.get("href"):
            self.links.append(values)


def _joined(base: str, target: str) -> str:
    try:
        return urljoin(base, target.strip())
    except ValueError:
        return base


def _with(known: RemoteFile, *, sha256: str | None, metadata: str | None, size: int | None, yanked: bool) -> RemoteFile:
    return RemoteFile(
        url=known.url, filename=known.filename, name=known.name, version=known.version, tags=known.tags,
        size=size, sha256=sha256, metadata=metadata, yanked=yanked,
    )  # fmt: skip


def _digest(value: object) -> str | None:
    return value if isinstance(value, str) and _SHA256.match(value) else None


def _beside_json(value: object) -> str | None:
    if isinstance(value, dict):
        return _digest(value.get("sha256")) or ""
    return "" if value is True else None


def _beside_html(value: str | None) -> str | None:
    if value is None or value == "false":
        return None
    algorithm, _, digest = value.partition("=")
    return _digest(digest) or "" if algorithm == "sha256" else ""
