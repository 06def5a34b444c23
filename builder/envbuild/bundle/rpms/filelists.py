"""The few files that dependencies name, out of file lists that name millions.

Primary metadata lists the files in /etc and in folders of programs; any other file on which something depends is in the
file lists only. Solved without those, a package that needs such a file is passed over in silence where an older one
will do. Solved with all of them, a distribution takes a gigabyte of memory. So what is asked for is looked up first.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from xml.sax.saxutils import escape, unescape

from envbuild import store
from envbuild.bundle.rpms.cut import FILELISTS
from envbuild.errors import BundleError

# Files that primary metadata has of every package (createrepo_c, cr_is_primary).
_IN_PRIMARY = re.compile(r"/etc/|.*bin/|/usr/lib/sendmail$")
# A dependency that is a path, or a rich one with a path in it.
_ENTRY = re.compile(rb' name="(/[^"]*|\([^"]*/[^"]*)"')
_FILE = re.compile(rb">(/[^<]*)<")
_WORD = re.compile(r"[\s()]+")
# A piece of this size is passed over at once, mostly (bytes); one without a file in it at most so much more.
_CHUNK, _LONGEST = 1 << 16, 1 << 20
# Files that are asked for, and packages that have them: of a whole distribution some thousands.
_MOST = 200_000
_HEAD = re.compile(rb"<package\s[^<>]*>")
_EITHER = re.compile(rb"<package\s[^<>]*>|>(/[^<]*)(?=<)")


def asked(primary: Path) -> frozenset[str]:
    """The files that dependencies in primary metadata name and that it does not list itself.

    Raises:
        BundleError: There are more than any repository has.
    """
    raw: set[bytes] = set()
    with primary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _ENTRY.finditer(data):
            raw.add(match.group(1))
            _bounded(len(raw), primary)
    return beyond(_text(each) for each in raw)


def beyond(dependencies: Iterable[str]) -> frozenset[str]:
    """The files in dependencies, rich ones too, that primary metadata does not list."""
    words = (word for each in dependencies for word in (_WORD.split(each) if each[:1] == "(" else (each,)))
    return frozenset(word for word in words if word[:1] == "/" and not _IN_PRIMARY.match(word))


def reduce(filelists: Path, wanted: Collection[str], target: Path) -> None:
    """Write file lists with nothing but ``wanted`` files in them.

    Raises:
        BundleError: More packages have them than any repository has.
        EngineError: The disk.
    """
    raw = {form: path for path in wanted for form in _forms(path)}
    found: dict[bytes, dict[str, None]] = {}
    with filelists.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start, size = 0, len(data)
        # The package that a piece begins in, and where it is known up to: nothing is looked through twice.
        head, known = b"", 0
        while start < size:
            end = data.find(b"<file", start + _CHUNK, start + _CHUNK + _LONGEST)
            end = min(size, start + _CHUNK + _LONGEST) if end < 0 else end
            if not raw.keys().isdisjoint(_FILE.findall(data, start, end)):
                before = _HEAD.match(data, max(0, data.rfind(b"<package", known, start)))
                head, known = before.group(0) if before is not None else head, end
                for match in _EITHER.finditer(data, start, end):
                    form = match.group(1)
                    if form is None:
                        head = match.group(0)
                    elif head and form in raw:
                        found.setdefault(head.rstrip(b"/>"), {})[raw[form]] = None
                        _bounded(len(found), filelists)
            start = end
    entries = [
        head + b">" + "".join(f"<file>{escape(path)}</file>" for path in paths).encode() + b"</package>\n"
        for head, paths in found.items()
    ]
    begin = f'<?xml version="1.0" encoding="UTF-8"?>\n<filelists xmlns="{FILELISTS}" packages="{len(entries)}">\n'
    store.write_atomic(target, begin.encode() + b"".join(entries) + b"</filelists>\n")


def _bounded(count: int, path: Path) -> None:
    if count > _MOST:
        raise BundleError(
            f"{path.name}: more than {_MOST} packages with one of a few files, or as many files that are asked for",
            hint="Tell who keeps the repository: its metadata is wrong, or made to fill the memory.",
        )


def _forms(path: str) -> set[bytes]:
    """How XML may write a path."""
    quoted = escape(path, {'"': "&quot;"}), escape(path, {'"': "&quot;", "'": "&apos;"})
    return {text.encode("utf-8", "surrogateescape") for text in (escape(path), *quoted)}


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return unescape(text, {"&quot;": '"', "&apos;": "'"}) if "&" in text else text
