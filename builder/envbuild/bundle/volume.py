"""One volume of a bundle, looked at by itself: what it holds, and whether that is what it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from envbuild.bundle.finding import about, several
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.words import CHUNK_FOLDER, CHUNKS, DROPPINGS, EVERYWHERE, SIGNATURE, SUMS, VOLUME
from envbuild.errors import BundleError
from envbuild.model import Finding, Severity

_MAX_VOLUME = 4096
_OWN = frozenset({VOLUME, CHUNKS, SUMS, SIGNATURE})
_MAX_CHUNKS = 4 << 20
_LINE = re.compile(r"([a-z_]+) ([0-9a-f]{1,64})")
_CHUNK = re.compile(rf"([0-9a-f]{{64}}) ([0-9]{{1,19}}) ({CHUNK_FOLDER}/[0-9a-f]{{64}}\.[0-9]{{3,6}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a volume says of itself: of which set it is (the SHA-256 of its sums), and what lies in it."""

    set: str
    number: int
    of: int
    files: int
    bytes: int


def read(tree: Tree) -> Volume | None:
    """The volume in a folder; None where it is none.

    Raises:
        BundleError: Its VOLUME cannot be read.
    """
    try:
        data = tree.read(VOLUME, _MAX_VOLUME)
    except Unreadable as error:
        if error.missing:
            return None
        raise BundleError(f"{tree.folder}: {VOLUME}: {error}") from error
    lines = data.decode("ascii", "replace").splitlines()
    fields = {match[1]: match[2] for line in lines if (match := _LINE.fullmatch(line))}
    try:
        if fields.pop("schema") != "1" or len(fields["set"]) != 64:
            raise ValueError
        numbers = {key: int(fields[key]) for key in ("number", "of", "files", "bytes")}
    except (KeyError, ValueError) as error:
        raise BundleError(
            f"{tree.folder}: {VOLUME} is not what one looks like", hint="Copy the volume again."
        ) from error
    return Volume(set=fields["set"], **numbers)


def findings(
    tree: Tree, volume: Volume, known: Mapping[str, str], listed: str, told: Callable[[int], None]
) -> Iterator[Finding]:
    """What is wrong with it.

    Args:
        known: The sums of the whole bundle.
        listed: SHA-256 of their file.
    """
    again = "Copy this volume again; the others need not be."
    if volume.set != listed:
        yield about("volume", SUMS, f"its {SUMS} is another one than its {VOLUME} names", again)
        return
    pieces = dict(_pieces(tree))
    here = [entry for entry in tree.entries() if entry.path not in _OWN and entry.path.split("/")[0] not in DROPPINGS]
    odd = [f"{entry.path}: {entry.kind}" for entry in here if entry.kind != "file"]
    yield from several("path", odd, "not a plain file", "A volume has only files and folders: copy it again.")
    payload = [entry.path for entry in here if entry.path in known or entry.path in pieces]
    stray = sorted({entry.path for entry in here if entry.kind == "file"}.difference(payload))
    yield from several(
        "stray", stray, "not part of the volume", "Nobody vouches for it, and nothing reads it: remove it.",
        severity=Severity.WARNING,
    )  # fmt: skip
    answers = tree.digests(payload, told)
    broken = [path for path, answer in answers.items()
              if isinstance(answer, Unreadable) or answer[0] != known.get(path, pieces.get(path))]  # fmt: skip
    yield from several("checksum", broken, "not what its sum says", again)
    count = len([path for path in payload if path not in EVERYWHERE])
    if count < volume.files:
        yield about("missing", VOLUME, f"{volume.files} files belong into it, and {count} are here", again)


def _pieces(tree: Tree) -> Iterator[tuple[str, str]]:
    try:
        data = tree.read(CHUNKS, _MAX_CHUNKS)
    except Unreadable:
        return
    for line in data.decode("ascii", "replace").splitlines():
        if match := _CHUNK.fullmatch(line):
            yield match[3], match[1]
