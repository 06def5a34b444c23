"""A bundle in volumes for media: every file whole where it fits, so that a lost medium costs its own files only.

The largest files go first, each into the first volume that has room for it; only a file that is larger than a volume
is cut. Every volume carries the sums of the whole bundle, and the script that puts it together in any order.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import store
from envbuild.bundle import manifest, sums, volume
from envbuild.bundle.putting import disk_error
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.words import (
    AFTER,
    CHUNK_FOLDER,
    CHUNKS,
    EVERYWHERE,
    MANIFEST,
    MAX_MANIFEST,
    SIGNATURE,
    SUMS,
    VOLUME,
)
from envbuild.errors import BundleError, EngineError, InputError

# What a file takes up on a medium beyond its bytes: its last sector (ISO 9660: 2 KiB), and its place in a folder.
_SECTOR = 2048
_ENTRY = 512
_BLOCK = 1 << 20
_LEAST = 256 << 10
_MOST = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What lies in a volume under one path: a file, or a part of one.

    Attributes:
        path: In the volume.
        source: In the bundle.
        start: Where it begins there, in bytes.
    """

    path: str
    source: str
    start: int
    size: int
    whole: bool


@dataclass(slots=True)
class _Volume:
    room: int
    pieces: list[Piece] = field(default_factory=list)


def write(bundle: Path, limit: int) -> tuple[Path, ...]:
    """Cut a bundle into volumes beside it: ``NAME.vol01`` and so on. The same bundle and limit give the same volumes.

    Files that stay whole are linked, where the disk allows: they take no room of their own.

    Args:
        limit: How much a medium holds, in bytes.

    Raises:
        BundleError: The folder is no whole bundle, or something else lies where a volume belongs.
        InputError: The limit is too small, or so small that the volumes would be too many.
        EngineError: The disk.
    """
    bundle = bundle.absolute()
    with Tree(bundle) as tree:
        listed = _read(tree, SUMS, sums.MAX_BYTES)
        known = sums.parse(listed, f"{bundle}/{SUMS}")
        sizes = _sizes(tree, known)
    shared = {SUMS: len(listed), **{name: sizes[name] for name in (*EVERYWHERE, SIGNATURE) if name in sizes}}
    payload = {path: size for path, size in sizes.items() if path in known}
    volumes = plan(payload, known, limit, sum(map(_taken, shared.values())))
    chunks = _chunks(bundle, volumes, known)
    made = []
    for number, pieces in enumerate(volumes, 1):
        text = _text(hashlib.sha256(listed).hexdigest(), number, len(volumes), pieces)
        place = bundle.with_name(f"{bundle.name}.vol{number:02}")
        _write(bundle, place, pieces, shared, {VOLUME: text, CHUNKS: chunks})
        made.append(place)
    remove_foreign(bundle, len(volumes))
    return tuple(made)


def plan(sizes: Mapping[str, int], known: Mapping[str, str], limit: int, shared: int) -> tuple[tuple[Piece, ...], ...]:
    """What goes into which volume.

    Args:
        sizes: Bytes by path.
        known: SHA-256 by path: pieces are named after it.
        limit: Bytes of a medium.
        shared: What every volume has of it.

    Raises:
        InputError: The limit leaves no room, or makes too many volumes.
    """
    # Lines of CHUNKS have some 160 bytes; the rest is VOLUME, and folders.
    pieces_at_most = sum(sizes.values()) // max(1, limit - shared) + len(sizes)
    room = limit - shared - (64 << 10) - 160 * min(pieces_at_most, 10 * _MOST)
    if room < _LEAST:
        raise InputError(
            f"a volume of {limit} bytes leaves no room beside the {shared} bytes that each one has",
            hint="Say a larger --volume-size.",
        )
    volumes: list[_Volume] = []
    pieces = [piece for path, size in sizes.items() for piece in _cut(path, size, known[path], room)]
    for piece in sorted(pieces, key=lambda each: (-each.size, each.path)):
        need = _taken(piece.size)
        place = next((each for each in volumes if each.room >= need), None)
        if place is None:
            if len(volumes) == _MOST:
                raise InputError(f"more than {_MOST} volumes of {limit} bytes", hint="Say a larger --volume-size.")
            place = _Volume(room)
            volumes.append(place)
        place.pieces.append(piece)
        place.room -= need
    return tuple(tuple(sorted(place.pieces, key=lambda each: each.path)) for place in volumes)


def _cut(path: str, size: int, sha256: str, room: int) -> Iterator[Piece]:
    if _taken(size) <= room:
        yield Piece(path=path, source=path, start=0, size=size, whole=True)
        return
    length = (room - _taken(0)) // _SECTOR * _SECTOR
    count = -(-size // length)
    for number in range(count):
        start = number * length
        # As many digits as the last one has: the script sorts them as texts.
        name = f"{CHUNK_FOLDER}/{sha256}.{number + 1:0{max(3, len(str(count)))}}"
        yield Piece(path=name, source=path, start=start, size=min(length, size - start), whole=False)


def _taken(size: int) -> int:
    return -(-size // _SECTOR) * _SECTOR + _ENTRY


def _read(tree: Tree, path: str, limit: int) -> bytes:
    try:
        return tree.read(path, limit)
    except Unreadable as error:
        raise BundleError(f"{tree.folder}: {path}: {error}", hint="Name the folder of a bundle.") from error


def _sizes(tree: Tree, known: Mapping[str, str]) -> dict[str, int]:
    found = {entry.path: entry.size for entry in tree.entries() if entry.kind == "file"}
    # A differential bundle leaves the others to its base.
    carried = manifest.parse(_read(tree, MANIFEST, MAX_MANIFEST), f"{tree.folder}/{MANIFEST}").carried
    wanted = known.keys() if carried is None else known.keys() & {*carried, *AFTER}
    if absent := sorted(wanted - found.keys()):
        raise BundleError(f"{tree.folder}: {absent[0]} is missing: it is not whole")
    return {path: size for path, size in found.items() if path in known or path == SIGNATURE}


def _text(name: str, number: int, count: int, pieces: Sequence[Piece]) -> bytes:
    own = [piece.size for piece in pieces if piece.path not in EVERYWHERE]
    return f"schema 1\nset {name}\nnumber {number}\nof {count}\nfiles {len(own)}\nbytes {sum(own)}\n".encode()


def _chunks(bundle: Path, volumes: Sequence[Sequence[Piece]], known: Mapping[str, str]) -> bytes:
    """The list of the pieces of large files, in every volume the same."""
    pieces = sorted((piece for each in volumes for piece in each if not piece.whole), key=lambda each: each.path)
    lines: list[str] = []
    for source in dict.fromkeys(piece.source for piece in pieces):
        whole = hashlib.sha256()
        for piece in (each for each in pieces if each.source == source):
            own = hashlib.sha256()
            for block in _blocks(bundle, piece):
                own.update(block)
                whole.update(block)
            lines.append(f"{own.hexdigest()} {piece.size} {piece.path}\n")
        if whole.hexdigest() != known[source]:
            raise BundleError(f"{bundle}/{source} is not what its sum says", hint="Export it again.")
    return "".join(lines).encode()


def _blocks(bundle: Path, piece: Piece) -> Iterator[bytes]:
    left = piece.size
    try:
        with (bundle / piece.source).open("rb", buffering=0) as file:
            file.seek(piece.start)
            while left and (block := file.read(min(_BLOCK, left))):
                left -= len(block)
                yield block
    except OSError as error:
        raise EngineError(f"cannot read {bundle / piece.source}: {error.strerror}") from error
    if left:
        raise BundleError(f"{bundle / piece.source} became shorter while it was read")


def _write(
    bundle: Path, place: Path, pieces: Sequence[Piece], shared: Mapping[str, int], own: Mapping[str, bytes]
) -> None:
    work = place.with_name(f".{place.name}.part")
    _free(place)
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        for name in shared:
            if not any(piece.path == name for piece in pieces):
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(bundle / name, work / name)
        for name, data in own.items():
            (work / name).write_bytes(data)
        for piece in pieces:
            target = work / piece.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not piece.whole or not _linked(bundle / piece.source, target):
                with target.open("wb") as file:
                    file.writelines(_blocks(bundle, piece))
                    file.flush()
                    os.fsync(file.fileno())
        times = (bundle / SUMS).stat()
        for folder, _, names in os.walk(work, topdown=False):
            for each in (*(Path(folder, name) for name in names), Path(folder)):
                os.utime(each, ns=(times.st_mtime_ns, times.st_mtime_ns))
        shutil.rmtree(place, ignore_errors=True)
        work.replace(place)
        store.sync_folder(place.parent)
    except OSError as error:
        raise disk_error(Path(error.filename or place), error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _linked(source: Path, target: Path) -> bool:
    with contextlib.suppress(OSError):
        os.link(source, target, follow_symlinks=False)
        return True
    return False


def _free(place: Path) -> None:
    """That nothing but an earlier volume lies there."""
    if os.path.lexists(place) and (place.is_symlink() or not (place / VOLUME).is_file()):
        raise BundleError(f"{place} exists and is no volume", hint="Move it away, or export to another place.")


def remove_foreign(bundle: Path, count: int = 0) -> None:
    """Take away the volumes of earlier exports to this place: mixed with its own they would be foreign.

    Args:
        count: How many are its own; others of the same set stay where there are none.
    """
    bundle = bundle.absolute()
    with Tree(bundle) as tree:
        own = hashlib.sha256(_read(tree, SUMS, sums.MAX_BYTES)).hexdigest()
    for place in bundle.parent.iterdir():
        name, _, number = place.name.rpartition(".vol")
        if name != bundle.name or not number.isdecimal() or place.is_symlink() or not (place / VOLUME).is_file():
            continue
        if count < int(number) and (count or not _is_of(place, own)):
            shutil.rmtree(place, ignore_errors=True)


def _is_of(place: Path, own: str) -> bool:
    with contextlib.suppress(BundleError), Tree(place) as tree:
        found = volume.read(tree)
        return found is not None and found.set == own
    return False
