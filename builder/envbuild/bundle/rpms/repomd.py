"""What a repository says first: ``repomd.xml``, and the metalinks and lists of mirrors that lead to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from envbuild.bundle.rpms.transport import STRONG
from envbuild.errors import BundleError
from envbuild.site import urls

REPOMD = "repodata/repomd.xml"
# A repomd.xml has a few kilobytes, a metalink with every mirror of a distribution some hundred.
LARGEST = 4 << 20
_MIRRORS = 12
_DEPTH = 32
_HEX = re.compile(r"[0-9a-f]{64,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of metadata.

    Attributes:
        checksum: Algorithm and hex digest of the file; ``opened_as`` of what is in it.
        size: In bytes, of the file; ``open_size`` of what is in it.
    """

    type: str
    location: str
    checksum: tuple[str, str]
    opened_as: tuple[str, str] | None
    size: int | None
    open_size: int | None
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repomd:
    """An index of metadata."""

    revision: str
    entries: Mapping[str, Entry]

    @property
    def timestamp(self) -> int:
        """The newest one of its files, in seconds since the epoch."""
        return max((entry.timestamp for entry in self.entries.values()), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metalink:
    """Mirrors, best first, and what the ``repomd.xml`` of each may be: (algorithm, hex digest)."""

    mirrors: tuple[str, ...]
    sums: frozenset[tuple[str, str]]


@dataclass(slots=True)
class _Element:
    name: str
    attributes: dict[str, str]
    text: list[str] = field(default_factory=list)
    children: list[_Element] = field(default_factory=list)

    def first(self, name: str) -> _Element | None:
        return next((child for child in self.children if child.name == name), None)

    def said(self, name: str) -> str:
        child = self.first(name)
        return "".join(child.text).strip() if child is not None else ""


def tree(data: bytes, place: str) -> Any:
    """The elements of a small XML document, by their names without namespaces.

    Raises:
        BundleError: It is none, or declares a document type.
    """
    parser = expat.ParserCreate("utf-8", namespace_separator=" ")
    root = _Element("", {})
    stack = [root]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(stack) > _DEPTH:
            raise ValueError("its elements are nested too deeply")
        element = _Element(name.rpartition(" ")[2], {key.rpartition(" ")[2]: v for key, v in attributes.items()})
        stack[-1].children.append(element)
        stack.append(element)

    def end(name: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].text.append(data)

    def doctype(*given: object) -> None:
        raise ValueError("it declares a document type")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError) as error:
        raise BundleError(f"{place}: not the XML that was expected: {error}") from error
    return root.children[0]


def parse(data: bytes, place: str) -> Repomd:
    """A ``repomd.xml``.

    Raises:
        BundleError: It is none, or says too little of its files.
    """
    root = tree(data, place)
    if root.name != "repomd":
        raise BundleError(f"{place}: not a repomd.xml")
    entries = {}
    for element in root.children:
        kind = element.attributes.get("type", "")
        if element.name != "data" or kind not in ("primary", "filelists", "other", "modules"):
            continue
        location = element.first("location")
        checksum = _checksum(element, "checksum")
        if location is None or checksum is None or location.attributes.get("base"):
            raise BundleError(f"{place}: it does not say where {kind} lies, or has no SHA-256 of it")
        entries[kind] = Entry(
            type=kind,
            location=location.attributes.get("href", ""),
            checksum=checksum,
            opened_as=_checksum(element, "open-checksum"),
            size=_number(element.said("size")),
            open_size=_number(element.said("open-size")),
            # Some have fractions of seconds.
            timestamp=_number(element.said("timestamp").partition(".")[0]) or 0,
        )
    if "primary" not in entries:
        raise BundleError(f"{place}: it names no primary metadata")
    revision = re.sub(r"[^\x21-\x7e]+", " ", root.said("revision"))[:100].strip()
    return Repomd(revision=revision, entries=entries)


def metalink(data: bytes, place: str) -> Metalink:
    """A metalink for ``repomd.xml``.

    Raises:
        BundleError: It is none, or names no mirror or no checksum.
    """
    root = tree(data, place)
    mirrors: list[tuple[int, int, str]] = []
    sums: set[tuple[str, str]] = set()

    def walk(element: Any) -> None:
        for child in element.children:
            text = "".join(child.text).strip()
            if child.name == "hash":
                kind, digest = child.attributes.get("type", "").lower(), text.lower()
                # Alternates are what mirrors had before; dnf takes them, too.
                if kind in STRONG and _HEX.fullmatch(digest):
                    sums.add((kind, digest))
            elif child.name == "url" and text.endswith(f"/{REPOMD}") and urls.is_remote(text):
                preference = _number(child.attributes.get("preference", "")) or 0
                mirrors.append((-text.startswith("https:"), -preference, text.removesuffix(REPOMD)))
            walk(child)

    walk(root)
    if root.name != "metalink" or not mirrors or not sums:
        raise BundleError(f"{place}: not a metalink with mirrors and a SHA-256 of {REPOMD}")
    return Metalink(mirrors=tuple(url for _, _, url in sorted(mirrors)[:_MIRRORS]), sums=frozenset(sums))


def mirrorlist(data: bytes, place: str) -> tuple[str, ...]:
    """The addresses in a list of mirrors.

    Raises:
        BundleError: There are none.
    """
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    found = [line.rstrip("/") + "/" for line in lines if urls.is_remote(line) and not re.search(r"[\s\"'<>]", line)]
    if not found:
        raise BundleError(f"{place}: a list of mirrors without any mirror")
    return tuple(found[:_MIRRORS])


def _checksum(element: _Element, name: str) -> tuple[str, str] | None:
    child = element.first(name)
    if child is None:
        return None
    kind, digest = child.attributes.get("type", "").lower(), "".join(child.text).strip().lower()
    return (kind, digest) if kind in STRONG and _HEX.fullmatch(digest) else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None
