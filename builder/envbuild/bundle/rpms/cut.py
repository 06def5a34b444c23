"""The entries of some packages out of large metadata, written anew in one form.

Most of a distribution's metadata is of packages that nobody asked for: it is passed over as bytes. What is kept is
parsed and written again, so that nothing gets into a bundle but elements that were understood.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from envbuild.errors import BundleError

COMMON, RPM = "http://linux.duke.edu/metadata/common", "http://linux.duke.edu/metadata/rpm"
FILELISTS, OTHER = "http://linux.duke.edu/metadata/filelists", "http://linux.duke.edu/metadata/other"
_XML_BASE = "{http://www.w3.org/XML/1998/namespace}base"
_ROOT = re.compile(rb"<(metadata|filelists|otherdata)(\s[^<>]*)?>")
_ENTRY = re.compile(rb"<package[\s>]")
_END = b"</package>"
_HEAD = 1 << 16
# One package's: of the largest, the file lists have some MB.
_LARGEST = 256 << 20
# Elements in one another: real entries have four.
_DEEPEST = 32
_OWN_ID = re.compile(rb"""<checksum\s[^<>]*\bpkgid\s*=\s*["']YES["'][^<>]*>\s*([0-9a-fA-F]{64,128})\s*<""")
_ATTRIBUTE_ID = re.compile(rb"""^<package\s[^<>]*?\bpkgid\s*=\s*["']([0-9a-fA-F]{64,128})["']""")


def cut(
    path: Path, wanted: Collection[str], change: Callable[[ElementTree.Element], None]
) -> Iterator[tuple[str, bytes]]:
    """The entries of ``wanted`` packages (by the hex digest of their files), each once, as they are met.

    Args:
        change: Gets each element before it is written.

    Raises:
        BundleError: The file is no metadata, or an entry is none.
    """
    left = set(wanted)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        root = _ROOT.search(data, 0, _HEAD)
        if root is None:
            raise BundleError(f"{path.name}: not metadata of a repository")
        start_tag, end_tag = root.group(0), b"</" + root.group(1) + b">"
        at = root.end()
        while left and (entry := _ENTRY.search(data, at)) is not None:
            end = data.find(_END, entry.start())
            if end < 0:
                raise BundleError(f"{path.name}: it ends in the middle of a package")
            at = end + len(_END)
            digest = _digest(data, entry.start(), at)
            if digest not in left:
                continue
            if at - entry.start() > _LARGEST:
                raise BundleError(f"{path.name}: {at - entry.start()} bytes of one package")
            left.discard(digest)
            yield digest, _written(start_tag + data[entry.start() : at] + end_tag, path.name, change)


def _digest(data: mmap.mmap, start: int, end: int) -> str:
    # The attribute of the entry itself (file lists, changelogs), or the element in it (primary).
    head = _ATTRIBUTE_ID.match(data[start : min(start + 512, end)])
    found = head or _OWN_ID.search(data, start, end)
    return found.group(1).decode().lower() if found else ""


def _written(document: bytes, name: str, change: Callable[[ElementTree.Element], None]) -> bytes:
    pieces: list[str] = []
    try:
        element = ElementTree.fromstring(document)[0]
        change(element)
        _write(element, pieces, _DEEPEST)
    except (ElementTree.ParseError, IndexError, ValueError) as error:
        raise BundleError(f"{name}: not the XML that was expected ({error})") from error
    return ("".join(pieces) + "\n").encode()


def _write(element: ElementTree.Element, pieces: list[str], left: int) -> None:
    if not left:
        raise ValueError("its elements are nested too deeply")
    name = _name(element.tag)
    if name is None:
        return
    pieces.append(f"<{name}")
    # Attributes of a foreign namespace mean nothing to dnf.
    pieces += (f" {key}={_quoted(value)}" for key, value in element.attrib.items() if not key.startswith("{"))
    text, children = (element.text or "").strip() if len(element) else element.text or "", list(element)
    if not text and not children:
        pieces.append("/>")
        return
    pieces.append(">" + escape(text))
    for child in children:
        _write(child, pieces, left - 1)
    pieces.append(f"</{name}>")


def _quoted(value: str) -> str:
    return quoteattr(value, {"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})


def _name(tag: object) -> str | None:
    if not isinstance(tag, str):
        return None
    namespace, _, name = tag.removeprefix("{").rpartition("}")
    if namespace == RPM:
        return f"rpm:{name}"
    return name if namespace in ("", COMMON, FILELISTS, OTHER) else None


def located(paths: Mapping[str, str]) -> Callable[[ElementTree.Element], None]:
    """Puts the file of a package where it lies in the bundle, by the digest of that file.

    Args:
        paths: Path below the repository, by digest.
    """

    def change(element: ElementTree.Element) -> None:
        digest = next(
            ("".join(child.itertext()).strip().lower() for child in element if child.tag == f"{{{COMMON}}}checksum"), ""
        )
        if digest not in paths:
            raise ValueError("it states two sums of a package")
        for child in element:
            if child.tag == f"{{{COMMON}}}location":
                child.attrib.pop(_XML_BASE, None)
                child.set("href", paths[digest])

    return change


def unchanged(element: ElementTree.Element) -> None:
    """Nothing."""
