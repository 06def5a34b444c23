"""An engine's image as the blobs of a registry: its config as it is, its layers packed.

An export says in several ways which of its members are layers; here every member is told by its content: a layer is
what has the digest that the image's config states, and the config is the document that states these layers.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import store
from envbuild.engines import Engine, ImageInfo
from envbuild.errors import EngineError
from envbuild.judge.layers import BLOCK, Prefixed, Readable, looks_like_tar, members
from envbuild.registry import Blobs, Descriptor
from envbuild.registry.blobs import disk_error
from envbuild.registry.gzip import compress
from envbuild.registry.manifests import OCI_CONFIG, OCI_LAYER, digest_of

_MAX_CONFIG = 8 << 20
_GZIP = b"\x1f\x8b"
_COPY = 1 << 20
_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error)
Done = Callable[[str, Descriptor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """What packed layers are called, by the digest of what is in them: remembered from run to run."""

    folder: Path

    def get(self, diff_id: str) -> Descriptor | None:
        """The packed form of a layer, as it was packed or fetched last; whether it still lies here is not said."""
        with suppress(Exception):
            said = json.loads(self._path(diff_id).read_bytes())
            return Descriptor(media_type=str(said["media_type"]), digest=str(said["digest"]), size=int(said["size"]))
        return None

    def remember(self, diff_id: str, packed: Descriptor) -> None:
        """Note it.

        Raises:
            EngineError: The disk.
        """
        said = {"media_type": packed.media_type, "digest": packed.digest, "size": packed.size}
        store.write_json(self._path(diff_id), said)

    def behind(self, member: str) -> str | None:
        """The diff id of what an export called so; None where it is not known.

        Docker to version 24 calls a layer by a hash of what lies below it, later ones and the OCI layout by its digest.
        """
        with suppress(OSError, UnicodeDecodeError):
            return self._named(member).read_text().strip() or None
        return None

    def name(self, member: str, diff_id: str) -> None:
        """Note what an export calls a layer: an image on the same layers need not read this one again.

        Raises:
            EngineError: The disk.
        """
        store.write_atomic(self._named(member), diff_id)

    def _named(self, member: str) -> Path:
        return self.folder / "layers" / "named" / hashlib.sha256(member.encode(errors="replace")).hexdigest()

    def _path(self, diff_id: str) -> Path:
        return self.folder / "layers" / f"{diff_id.removeprefix('sha256:')}.json"


@dataclass(slots=True, kw_only=True)
class Packing:
    """One image on its way out of the engine.

    Attributes:
        needed: Diff ids of the layers that are to be packed.
        done: Told of each layer that is packed, at once: it can be sent while the next one is packed.
        read: Told of the bytes of layers that were read.
    """

    engine: Engine
    info: ImageInfo
    needed: Collection[str]
    blobs: Blobs
    layers: Layers
    done: Done
    read: Callable[[int], None]

    def run(self) -> bytes:
        """Export the image, pack what is needed, and return its config.

        Raises:
            EngineError: The engine, the disk, or an export that does not hold what the engine said.
        """
        missing = set(self.needed)
        config = self._once(missing, remembering=True)
        if missing:
            # What an export calls a layer was remembered wrongly, or the memory is damaged.
            config = self._once(missing, remembering=False) or config
        if missing or not config:
            what = f"{len(missing)} layer(s) too few" if missing else "no config of its layers"
            raise EngineError(
                f"the export of {self.info.id[:19]} has {what}",
                hint="The engine's store is damaged, or was changed. Build or pull the image again.",
            )
        return config

    def _once(self, missing: set[str], *, remembering: bool) -> bytes:
        config = b""
        try:
            with (
                self.engine.save(self.info.id) as stream,
                tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as tar,
            ):
                for member in members(tar):
                    content = tar.extractfile(member) if member.isreg() else None
                    if content is None:
                        continue
                    head = content.read(512)
                    whole = Prefixed(head, content)
                    if head.startswith(_GZIP) or looks_like_tar(head):
                        known = self.layers.behind(member.name) if remembering else None
                        if missing and (known is None or known in missing):
                            self._take(member.name, whole, missing, compressed=head.startswith(_GZIP))
                    elif member.size <= _MAX_CONFIG and not config:
                        data = whole.read(512) + content.read()
                        config = data if _layers_of(data) == self.info.diff_ids else b""
        except _DAMAGE as error:
            reason = str(error) or type(error).__name__
            raise EngineError(f"the exported image {self.info.id[:19]} cannot be read: {reason}") from error
        return config

    def _take(self, name: str, stream: Readable, missing: set[str], *, compressed: bool) -> None:
        diff_id, packed = _layer(stream, missing, self.blobs, self.read, compressed=compressed)
        self.layers.name(name, diff_id)
        if packed is not None:
            missing.discard(diff_id)
            self.layers.remember(diff_id, packed)
            self.done(diff_id, packed)


def _layers_of(data: bytes) -> tuple[str, ...] | None:
    """The layers that a document states, where it is an image's config."""
    try:
        document: Any = json.loads(data)
        return tuple(map(str, document["rootfs"]["diff_ids"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class _Hashed:
    """A stream that is hashed as it is read."""

    def __init__(self, stream: Readable, read: Callable[[int], None]) -> None:
        self._stream = stream
        self._read = read
        self.sum = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, zlib.error) as error:
            # gzip's complaints are OSErrors too, and none of the disk that is written to.
            raise ValueError(str(error) or type(error).__name__) from error
        self.sum.update(data)
        self._read(len(data))
        return data


def _layer(
    stream: Readable, wanted: Collection[str], blobs: Blobs, read: Callable[[int], None], *, compressed: bool
) -> tuple[str, Descriptor | None]:
    """Pack one member; None where it is no layer that is wanted."""
    packed, size = hashlib.sha256(), 0
    raw = _Hashed(gzip.GzipFile(fileobj=stream, mode="rb") if compressed else stream, read)  # type: ignore[call-overload]
    store.make_folder(blobs.folder / "sha256")
    try:
        descriptor, name = tempfile.mkstemp(prefix=".packing.", suffix=".tmp", dir=blobs.folder / "sha256")
    except OSError as error:
        raise disk_error(blobs.folder, error) from error
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in compress(raw.read):
                file.write(piece)
                packed.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        diff_id = f"sha256:{raw.sum.hexdigest()}"
        if diff_id not in wanted:
            return diff_id, None
        made = Descriptor(media_type=OCI_LAYER, digest=f"sha256:{packed.hexdigest()}", size=size)
        path.chmod(0o644)
        path.replace(blobs.path(made.digest))
        return diff_id, made
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with suppress(OSError):
            path.unlink()


def config_descriptor(config: bytes) -> Descriptor:
    """An image's config as a manifest names it."""
    return Descriptor(media_type=OCI_CONFIG, digest=digest_of(config), size=len(config))
