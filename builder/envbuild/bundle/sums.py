"""``SHA256SUMS``: every file of a bundle and its SHA-256, as ``sha256sum -c`` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envbuild.bundle.words import MAX_FILES, PATH, SIGNATURE, SUMS
from envbuild.errors import BundleError
from envbuild.evidence.record import printable

MAX_BYTES = 64 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_PATH = re.compile(PATH)
_LONGEST = 400


def dump(sums: Mapping[str, str]) -> bytes:
    """The bytes of the file, from SHA-256 by path."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(sums.items())).encode("ascii")


def parse(data: bytes, place: str) -> dict[str, str]:
    """SHA-256 by path, of a file that is exactly as ``dump`` writes it.

    Args:
        data: Of a size that has been bounded.
        place: What messages call it.

    Raises:
        BundleError: A line is none, names a path that could lead out of the bundle, or is not where it belongs.
    """
    if not data.endswith(b"\n"):
        raise _wrong(place, "it is cut off")
    lines = data.decode("ascii", "replace").split("\n")[:-1]
    if len(lines) > MAX_FILES:
        raise _wrong(place, f"it has more than {MAX_FILES} lines")
    found: dict[str, str] = {}
    last = ""
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise _wrong(place, f"line {number} is no sum and path")
        path = match[2]
        if not is_path(path) or path in (SUMS, SIGNATURE):
            raise _wrong(place, f"line {number} names {path[:100]!r}, which no bundle has")
        if path <= last:
            raise _wrong(place, f"line {number} is not in order, or says something twice")
        found[path] = match[1]
        last = path
    return found


def is_path(text: str) -> bool:
    """Whether a text may be the path of a file in a bundle."""
    return len(text) <= _LONGEST and _PATH.match(text) is not None and not text.endswith("\n")


def _wrong(place: str, reason: str) -> BundleError:
    return BundleError(printable(f"{place}: {reason}"), hint="It is damaged: fetch the bundle again.")
