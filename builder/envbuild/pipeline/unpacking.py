"""A registry's image into the engine: only the layers that it has not."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuild.engines import Engine, ImageInfo
from envbuild.engines.incoming import Incoming
from envbuild.errors import EngineError
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.sizes import format_size
from envbuild.registry import Blobs, Descriptor, Repository

_LINES = 4
# What a disk should keep free beside what is written to it.
_RESERVE = 64 << 20


def layers_there(engine: Engine, diff_ids: tuple[str, ...]) -> int:
    """How many of an image's layers, from the bottom, the engine has already."""
    if not engine.skips_layers:
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

    def fetched(digest: str) -> Path:
        # Another run may have no use for it any more, and have taken it away meanwhile.
        path = coming[digest].result()
        return path if path.is_file() else blobs.fetch(there, known[digest], sink=mover.event)

    known = {blob.digest: blob for _, blob in wanted}
    with ThreadPoolExecutor(_LINES) as pool:
        coming = {blob.digest: pool.submit(one, name, blob) for name, blob in wanted}
        try:
            engine.take(incoming, fetched)
        except BaseException:
            # The pool waits for what runs: nobody else does.
            mover.stop()
            for each in coming.values():
                each.cancel()
            raise
    return _taken(engine, incoming)


def _taken(engine: Engine, incoming: Incoming) -> ImageInfo:
    """What the engine has made of it."""
    diff_ids = incoming.diff_ids
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


def _room(folder: Path, need: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if need and free < need + _RESERVE:
        raise EngineError(
            f"{place}: {format_size(need)} are needed for the layers, and {format_size(free)} are free",
            hint="Free some space (envbuild prune), or set [paths] cache to a folder on another disk.",
        )
