"""An exported image, read once: who it is, and what is in it.

The stream of ``docker save`` is read from its first byte to its last, never sought in and never stored. Both layouts
are understood: Docker's (``<hash>.json``, ``<id>/layer.tar``, ``manifest.json`` last; to Docker 24, and podman's) and
the OCI image layout (``blobs/sha256/*`` and ``index.json``; Docker 25 and later). Since neither promises an order,
every member is told by its first bytes, and the manifest says at the end what it was.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from envbuild.errors import EngineError
from envbuild.judge import tree
from envbuild.judge.layers import (
    BLOCK,
    Budget,
    Entry,
    Layer,
    Prefixed,
    Visitor,
    looks_like_tar,
    members,
    normal,
    read_layer,
)
from envbuild.model import ImageIdentity

__all__ = ["Entry", "ImageArchive", "read"]

_MAX_DOCUMENT = 8 * 1024 * 1024
_MAX_DOCUMENTS = 64 * 1024 * 1024
_PROGRESS_BYTES = 8 * 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEX = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError, RecursionError, MemoryError)
_HINT = "Save the image again; only the output of `docker save` or `podman save` with one image can be read."


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageArchive:
    """One image, as its exported bytes say.

    Attributes:
        identity: The config's digest and the layers' diff ids, each checked against the bytes that were read.
        config: The image config (OCI image specification), as decoded JSON.
        entries: The merged filesystem: every path without its leading slash.
        replaced: Files that more than one layer brings: the last one's content counts.
        tags: Names the archive gives the image; what a name means is the engine's business.
        size: Bytes of the archive.
    """

    identity: ImageIdentity
    config: Mapping[str, Any]
    entries: Mapping[str, Entry]
    replaced: frozenset[str] = frozenset()
    tags: tuple[str, ...] = ()
    size: int = 0

    @property
    def history(self) -> tuple[Mapping[str, Any], ...]:
        """The config's history entries, oldest first."""
        items = self.config.get("history")
        return tuple(item for item in items if isinstance(item, dict)) if isinstance(items, list) else ()

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of the image."""
        container = self.config.get("config")
        items = container.get("Env") if isinstance(container, dict) else None
        pairs = (item.partition("=") for item in items or () if isinstance(item, str))
        return {name: value for name, _, value in pairs}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the image."""
        container = self.config.get("config")
        labels = container.get("Labels") if isinstance(container, dict) else None
        pairs = labels.items() if isinstance(labels, dict) else ()
        return {name: value for name, value in pairs if isinstance(value, str)}

    def resolve(self, path: str) -> str | None:
        """The path behind all symbolic links, inside the image; None where it leads nowhere or round in circles."""
        return tree.resolve(self.entries, path)

    def data(self, path: str) -> bytes | None:
        """A wanted file's bytes, links followed; None where there is no file.

        Raises:
            EngineError: The file is there, and its bytes are not: too large, a hard link, or never wanted.
        """
        real = self.resolve(path)
        entry = None if real is None else self.entries[real] if real else None
        if entry is None or entry.kind != "file":
            return None
        if entry.data is None:
            raise EngineError(f"cannot read {path} of the image: {entry.missing or 'its content was not asked for'}")
        return entry.data


def read(
    stream: BinaryIO,
    wanted: Callable[[str], bool],
    progress: Callable[[int], None] | None = None,
    *,
    visit: Visitor | None = None,
) -> ImageArchive:
    """Read an exported image in one pass.

    Args:
        stream: The bytes of ``docker save`` for one image; only ``read`` is called.
        wanted: Says of a path (without leading slash) whether the file's bytes are kept.
        progress: Called now and then with the number of bytes read so far.
        visit: Looks at every file of every layer as it goes by, those that a later layer hides included.

    Raises:
        EngineError: The stream ends early, is damaged, is no image archive, holds several images, or its layers do
            not have the digests that its config states.
    """
    source = _Counting(stream, progress)
    parts = _Parts(Budget(wanted=wanted) if visit is None else Budget(wanted=wanted, visit=visit))
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK) as tar:  # type: ignore[call-overload]
            for member in members(tar):
                parts.take(tar, member)
        while source.read(BLOCK):  # to the end, so that the sender ends well too
            pass
        return _assemble(parts, source.count)
    except EngineError:
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise EngineError(
            f"the exported image cannot be read ({reason}, after {source.count} bytes)", hint=_HINT
        ) from error


class _Counting:
    def __init__(self, stream: BinaryIO, progress: Callable[[int], None] | None) -> None:
        self._stream = stream
        self._progress = progress
        self._told = 0
        self.count = 0

    def read(self, size: int, /) -> bytes:
        chunk = self._stream.read(size)
        self.count += len(chunk)
        if self._progress is not None and (self.count - self._told >= _PROGRESS_BYTES or not chunk):
            self._told = self.count
            self._progress(self.count)
        return chunk


class _Parts:
    """The members of the archive, each told by its first bytes, under its name."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._room = _MAX_DOCUMENTS
        self.documents: dict[str, bytes] = {}
        self.layers: dict[str, Layer] = {}
        self.links: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = normal(member.name)
        if member.issym():
            # Docker 20 writes a repeated layer as a link to the first one.
            self.links[name] = normal(posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname)))
        elif member.islnk():
            self.links[name] = normal(member.linkname)
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            return
        head = content.read(512)
        stream = Prefixed(head, content)
        if head.startswith(_GZIP):
            self.layers[name] = read_layer(stream, self._budget, compressed=True)
        elif head.startswith(_ZSTD):
            self.unreadable[name] = "it is compressed with zstd"
        elif looks_like_tar(head):
            self.layers[name] = read_layer(stream, self._budget, compressed=False)
        elif member.size <= min(_MAX_DOCUMENT, self._room):
            self._room -= member.size
            self.documents[name] = head + content.read()
        else:
            self.unreadable[name] = "it is neither a tar archive nor a small document"

    def document(self, name: str) -> bytes:
        data = self.documents.get(self.links.get(name, name))
        if data is None:
            raise EngineError(f"the exported image is incomplete: it has no {name}", hint=_HINT)
        return data

    def layer(self, name: str) -> Layer:
        real = self.links.get(name, name)
        if real in self.unreadable:
            raise EngineError(
                f"layer {name} of the exported image cannot be read: {self.unreadable[real]}",
                hint="Layers that are plain or compressed with gzip can be read. Build without zstd compression.",
            )
        if real not in self.layers:
            raise EngineError(f"the exported image is incomplete: it has no layer {name}", hint=_HINT)
        return self.layers[real]


def _assemble(parts: _Parts, size: int) -> ImageArchive:
    config_name, layer_names, tags = _manifest(parts)
    config_bytes = parts.document(config_name)
    digest = hashlib.sha256(config_bytes).hexdigest()
    stated = _HEX.fullmatch(posixpath.basename(config_name).removesuffix(".json"))
    if stated and stated[0] != digest:
        raise EngineError(f"the image's config is named {stated[0][:12]} and has the digest {digest[:12]}", hint=_HINT)
    config = _mapping(_decode(config_bytes, config_name), config_name)
    diff_ids = _strings(_mapping(config.get("rootfs"), "rootfs of the config").get("diff_ids"), "diff_ids")
    if len(diff_ids) != len(layer_names):
        raise EngineError(f"the image's config states {len(diff_ids)} layers, its manifest {len(layer_names)}")
    layers = [parts.layer(name) for name in layer_names]
    for number, (layer, diff_id) in enumerate(zip(layers, diff_ids, strict=True), start=1):
        if layer.diff_id != diff_id:
            raise EngineError(
                f"layer {number} of {len(layers)} is not what the image's config states: its content has the digest "
                f"{layer.diff_id[:19]}..., the config says {diff_id[:19]}...",
                hint="The export or the engine's store is damaged, or was changed. Build or pull the image again.",
            )
    identity = ImageIdentity(config_digest=f"sha256:{digest}", diff_ids=diff_ids)
    entries, replaced = tree.merge(layers)
    return ImageArchive(identity=identity, config=config, entries=entries, replaced=replaced, tags=tags, size=size)


def _manifest(parts: _Parts) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Names of the config and of the layers, and the tags."""
    if "manifest.json" in parts.documents:
        images = _decode(parts.document("manifest.json"), "manifest.json")
        image = _mapping(_single(images, "manifest.json"), "manifest.json")
        tags = image.get("RepoTags")
        return (
            normal(_string(image.get("Config"), "Config of manifest.json")),
            tuple(normal(name) for name in _strings(image.get("Layers"), "Layers of manifest.json")),
            _strings(tags, "RepoTags of manifest.json") if tags else (),
        )
    if "index.json" not in parts.documents:
        raise EngineError("this is no exported image: it has neither a manifest.json nor an index.json", hint=_HINT)
    name = "index.json"
    for _ in range(4):  # an index may point to an index; images in the wild nest once
        document = _mapping(_decode(parts.document(name), name), name)
        if "config" in document:
            config = _mapping(document["config"], f"config of {name}")
            layers = document.get("layers")
            if not isinstance(layers, list):
                raise EngineError(f"the exported image is damaged: {name} has no layers", hint=_HINT)
            return _blob(config), tuple(_blob(_mapping(layer, f"layer of {name}")) for layer in layers), ()
        name = _blob(_mapping(_single(_images(document.get("manifests")), name), name))
    raise EngineError("the exported image is damaged: its index never ends in an image", hint=_HINT)


def _images(manifests: Any) -> list[Any]:
    """Without attestations, which BuildKit puts beside an image under the same index."""
    if not isinstance(manifests, list):
        return []
    return [
        item
        for item in manifests
        if not (isinstance(item, dict) and "vnd.docker.reference.type" in (item.get("annotations") or {}))
    ]


def _single(items: Any, name: str) -> Any:
    if not isinstance(items, list) or len(items) != 1:
        count = len(items) if isinstance(items, list) else 0
        raise EngineError(f"the archive must hold exactly one image, and {name} names {count}", hint=_HINT)
    return items[0]


def _blob(descriptor: Mapping[str, Any]) -> str:
    digest = _string(descriptor.get("digest"), "digest of a descriptor")
    if not _DIGEST.fullmatch(digest):
        raise EngineError(f"the exported image is damaged: {digest[:80]!r} is no sha256 digest", hint=_HINT)
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _decode(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the exported image is damaged: {name} is not JSON ({error})", hint=_HINT) from error


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise EngineError(f"the exported image is damaged: {name} is not an object", hint=_HINT)
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise EngineError(f"the exported image is damaged: {name} is not a text", hint=_HINT)
    return value


def _strings(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise EngineError(f"the exported image is damaged: {name} is not a list", hint=_HINT)
    return tuple(_string(item, name) for item in value)
