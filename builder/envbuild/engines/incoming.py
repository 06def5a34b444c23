"""A registry's image on its way into an engine: without the layers that the engine has, in the form that it takes.

Docker's own image store finds a layer by what lies below it and its content, and asks an archive for those layers only
that it does not have (moby, image/tarexport/load.go): an archive without the others is enough for it.

Podman asks an archive of that form for every layer. A folder (transport ``dir:`` of containers/image) it asks for a
layer only after its own store, where it knows a layer that is not packed by its diff id: layers that it has are called
so in the manifest, and none of their bytes are needed. Nothing is copied on the way, and the image gets no name.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.errors import EngineError
from envbuild.registry import Descriptor, Manifest
from envbuild.registry.blobs import disk_error
from envbuild.registry.manifests import DOCKER_MANIFEST, dump

_CHUNK = 1 << 20
# What a layer that is not packed is called in either kind of manifest.
_PLAIN = {True: "application/vnd.docker.image.rootfs.diff.tar", False: "application/vnd.oci.image.layer.v1.tar"}
Fetched = Callable[[str], Path]


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

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Its layers, by what is in them."""
        return layers_of(self.config)


def layers_of(config: bytes) -> tuple[str, ...]:
    """The diff ids that a config states; none where it is no config."""
    try:
        return tuple(map(str, json.loads(config)["rootfs"]["diff_ids"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def archive(incoming: Incoming, fetched: Fetched) -> Iterator[bytes]:
    """The image as ``docker load`` takes it: manifest.json, config, layers as they are packed and as they come.

    Args:
        fetched: Where a layer lies, by its digest; waits for it, and has it brought again where it is gone.

    Raises:
        EngineError: The disk; and whatever ``fetched`` raises.
    """
    layers = incoming.manifest.layers
    name = f"{_hex(incoming.manifest.config.digest)}.json"
    places = [f"{_hex(layer.digest)}/layer.tar" for layer in layers]
    listing = json.dumps([{"Config": name, "RepoTags": None, "Layers": places}]).encode()
    yield from _member("manifest.json", listing)
    yield from _member(name, incoming.config)
    for _, layer in incoming.wanted:
        with _opened(layer.digest, fetched) as file:
            yield _header(f"{_hex(layer.digest)}/layer.tar", layer.size)
            try:
                while block := file.read(_CHUNK):
                    yield block
            except OSError as error:
                raise disk_error(Path(file.name), error) from error
        yield _padding(layer.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _opened(digest: str, fetched: Fetched) -> BinaryIO:
    """A layer to be read; it is asked for again where it has gone between the two."""
    for final in (False, False, True):
        path = fetched(digest)
        try:
            return path.open("rb")
        except OSError as error:
            if final or not isinstance(error, FileNotFoundError):
                raise disk_error(path, error) from error
    raise AssertionError("the last round returns or raises")


def fill(folder: Path, incoming: Incoming, fetched: Fetched) -> None:
    """Write the image into an empty folder as ``podman pull dir:`` takes it; its layers are links to where they lie.

    Raises:
        EngineError: The disk; and whatever ``fetched`` raises.
    """
    try:
        (folder / "version").write_text("Directory Transport Version: 1.1\n", encoding="ascii")
        (folder / "manifest.json").write_bytes(_without_skipped(incoming))
        (folder / _hex(incoming.manifest.config.digest)).write_bytes(incoming.config)
        for _, layer in incoming.wanted:
            (folder / _hex(layer.digest)).symlink_to(fetched(layer.digest).absolute())
    except OSError as error:
        raise disk_error(folder, error) from error


def _without_skipped(incoming: Incoming) -> bytes:
    """The manifest; layers that the engine has are called by their diff ids."""
    if not incoming.skipped:
        return incoming.manifest.raw
    document: dict[str, Any] = json.loads(incoming.manifest.raw)
    kind = _PLAIN[incoming.manifest.descriptor.media_type == DOCKER_MANIFEST]
    diff_ids = incoming.diff_ids
    if len(diff_ids) != len(document["layers"]):
        raise EngineError(f"the manifest {incoming.manifest.descriptor.digest[:19]} and its config differ in layers")
    for number in range(incoming.skipped):
        document["layers"][number] = {"mediaType": kind, "digest": diff_ids[number], "size": 0}
    return dump(document)


def _hex(digest: str) -> str:
    return digest.rpartition(":")[2]


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
