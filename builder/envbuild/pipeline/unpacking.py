"""A registry's image into the engine: only the layers that it has not, as an archive that is made while it is read.

Docker's own image store finds a layer by what lies below it and its content, and asks an archive for those layers only
that it does not have (moby, image/tarexport/load.go): an archive without the others is enough for it.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from envbuild.engines import Engine, ImageInfo
from envbuild.errors import EngineError
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.sizes import format_size
from envbuild.registry import Blobs, Descriptor, Manifest, Repository
from envbuild.registry.blobs import disk_error

_LINES = 4
_CHUNK = 1 << 20
# What a disk should keep free beside what is written to it.
_RESERVE = 64 << 20


def layers_there(engine: Engine, diff_ids: tuple[str, ...]) -> int:
    """How many of an image's layers, from the bottom, the engine has already."""
    if not engine.takes_sparse_archives:
        return 0
    best = 0
    for other in engine.every_image():
        same = 0
        for mine, theirs in zip(diff_ids, other.diff_ids, strict=False):
            if mine != theirs:
                break
            same += 1
        best = max(best, same)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """An image on its way into the engine.

    Attributes:
        config: The bytes of its config.
        skipped: So many of its layers, from the bottom, are the engine's already.
    """

    manifest: Manifest
    config: bytes = field(repr=False)
    skipped: int

    @property
    def wanted(self) -> list[tuple[str, Descriptor]]:
        """What has to be moved, each once, and what it is called."""
        layers, found = self.manifest.layers, dict[str, tuple[str, Descriptor]]()
        for number, layer in enumerate(layers, 1):
            if number > self.skipped:
                found.setdefault(layer.digest, (f"layer {number}/{len(layers)}", layer))
        return list(found.values())


def unpack(engine: Engine, incoming: Incoming, there: Repository, blobs: Blobs, mover: Mover) -> ImageInfo:
    """Move what is missing, several layers at a time, and give it to the engine while the rest is on its way.

    Raises:
        NetworkError: A layer does not come.
        EngineError: The disk, which is looked at first; or the engine, which does not take the image.
    """
    wanted = incoming.wanted
    need = sum(blob.size for _, blob in wanted if not blobs.has(blob))
    _room(blobs.folder, need)

    def one(name: str, blob: Descriptor) -> Path:
        here = blobs.has(blob)
        mover.start(blob, name)
        path = blobs.fetch(there, blob, moved=lambda count: mover.progress(blob, count), sink=mover.event)
        mover.done(blob, cached=here)
        return path

    with ThreadPoolExecutor(_LINES) as pool:
        coming = {blob.digest: pool.submit(one, name, blob) for name, blob in wanted}
        try:
            engine.load(_archive(incoming, coming, lambda blob: blobs.opened(there, blob)))
        except BaseException:
            # The pool waits for what runs: nobody else does.
            mover.stop()
            for each in coming.values():
                each.cancel()
            raise
    return _taken(engine, incoming)


def _taken(engine: Engine, incoming: Incoming) -> ImageInfo:
    """What the engine has made of it."""
    diff_ids = layers_of(incoming.config)
    digest = incoming.manifest.config.digest
    info = engine.image(digest) or _by_layers(engine, diff_ids)
    if info is None or info.diff_ids != diff_ids:
        raise EngineError(
            f"the engine did not take the image {digest[:19]}", hint="Its log says why. Nothing was tagged."
        )
    return info


def _by_layers(engine: Engine, diff_ids: tuple[str, ...]) -> ImageInfo | None:
    """The newest image of these layers: stores that call images by their manifest have no other name for it."""
    found = [info for info in engine.every_image() if info.diff_ids == diff_ids]
    return max(found, key=lambda info: info.created, default=None)


def _archive(
    incoming: Incoming, coming: Mapping[str, Future[Path]], opened: Callable[[Descriptor], BinaryIO]
) -> Iterator[bytes]:
    """An image as ``docker load`` takes it: manifest.json, config, layers as they are packed and as they come."""
    layers = incoming.manifest.layers
    name = f"{incoming.manifest.config.digest.removeprefix('sha256:')}.json"
    places = [f"{layer.digest.removeprefix('sha256:')}/layer.tar" for layer in layers]
    listing = json.dumps([{"Config": name, "RepoTags": None, "Layers": places}]).encode()
    yield from _member("manifest.json", listing)
    yield from _member(name, incoming.config)
    for _, layer in incoming.wanted:
        path = coming[layer.digest].result()
        try:
            with opened(layer) as file:
                yield _header(f"{layer.digest.removeprefix('sha256:')}/layer.tar", layer.size)
                while block := file.read(_CHUNK):
                    yield block
        except OSError as error:
            raise disk_error(path, error) from error
        yield _padding(layer.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data))
    yield data
    yield _padding(len(data))


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _room(folder: Path, need: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if need and free < need + _RESERVE:
        raise EngineError(
            f"{place}: {format_size(need)} are needed for the layers, and {format_size(free)} are free",
            hint="Free some space (envbuild prune), or set [paths] cache to a folder on another disk.",
        )


def layers_of(config: bytes) -> tuple[str, ...]:
    """The diff ids that a config states; none where it is no config."""
    try:
        return tuple(map(str, json.loads(config)["rootfs"]["diff_ids"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
