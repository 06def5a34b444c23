"""The image of a bundle: one archive that is an OCI image layout, with docker's ``manifest.json`` over the same blobs.

Every engine loads it: podman and skopeo by the layout, Docker by the listing (to Docker 24 it knows nothing else).
``docker save`` would lose the manifest's digest, so both digests are here and in the bundle's manifest, and whoever
loads it can compare.

Sources: OCI image specification 1.1 (image-layout.md, annotations.md); Docker's "Image Specification v1.2", "Combined
Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from envbuild.bundle.manifest import Image
from envbuild.errors import BundleError, EngineError
from envbuild.evidence.record import printable
from envbuild.judge.layers import members
from envbuild.model import Level
from envbuild.net import NetworkError
from envbuild.registry import Blobs, Descriptor, Manifest, parse
from envbuild.registry.manifests import OCI_MANIFEST, digest_of, dump
from envbuild.registry.manifests import parse as parse_manifest

_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
_REF_NAME = "org.opencontainers.image.ref.name"
# What containerd, and Docker since 25, take for the whole name; the annotation above is only its tag.
_FULL_NAME = "io.containerd.image.name"
_BLOCK = 1 << 20
_MAX_DOCUMENT = 8 << 20
_MAX_MEMBERS = 2000
# Members that name the next one (POSIX pax, GNU tar), and what these have at most (bytes).
_NAMES = frozenset({
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
})  # fmt: skip
_MAX_NAMES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A proven image, as blobs on this disk.

    Attributes:
        manifest: Its bytes: an OCI or Docker manifest, as a registry has it or as a push would write it.
        config: The bytes of its config.
        blobs: Where its layers lie, packed.
        reference: The name that it gets when it is loaded, such as ``envbuild/cpu:validated``.
        level: What its evidence proves.
    """

    manifest: bytes = field(repr=False)
    config: bytes = field(repr=False)
    blobs: Blobs
    reference: str
    level: Level | None = None

    def parsed(self) -> Manifest:
        """The manifest.

        Raises:
            BundleError: It is none, or of another config.
        """
        found = _parsed(self.manifest, self.reference)
        if found.config.digest != digest_of(self.config):
            raise BundleError(f"{self.reference}: its manifest is of another config")
        return found


def described(source: Source, path: str, evidence: tuple[str, ...] = ()) -> Image:
    """What the bundle's manifest says of it.

    Args:
        path: Of its archive in the bundle.
        evidence: Paths of the records and signatures beside it.

    Raises:
        BundleError: The manifest and the config are not those of an image.
    """
    manifest = source.parsed()
    diff_ids = diff_ids_of(source.config)
    if len(diff_ids) != len(manifest.layers):
        raise BundleError(f"{source.reference}: {len(manifest.layers)} layers, and its config states {len(diff_ids)}")
    return Image(
        path=path, reference=source.reference, manifest_digest=manifest.descriptor.digest,
        config_digest=manifest.config.digest, diff_ids=diff_ids, evidence=evidence, level=source.level,
    )  # fmt: skip


def archive(source: Source) -> Iterator[bytes]:
    """The bytes of the archive. The same image under the same name is the same bytes: sorted, no times, no owners.

    Raises:
        BundleError: The manifest is none of an image, or a layer is not what it says.
        EngineError: A layer cannot be read.
    """
    manifest = source.parsed()
    reference = parse(source.reference)
    entry: dict[str, Any] = {
        **manifest.descriptor.as_dict(),
        "annotations": {_FULL_NAME: source.reference, _REF_NAME: reference.wanted},
    }
    index = {"schemaVersion": 2, "manifests": [entry]}
    listing = [{
        "Config": _blob(manifest.config.digest),
        "RepoTags": [source.reference],
        "Layers": [_blob(layer.digest) for layer in manifest.layers],
    }]  # fmt: skip
    yield from _folder("blobs")
    yield from _folder("blobs/sha256")
    small = {manifest.descriptor.digest: source.manifest, manifest.config.digest: source.config}
    layers = {layer.digest: layer for layer in manifest.layers}
    for digest in sorted({*small, *layers}):
        if digest in small:
            yield from _member(_blob(digest), small[digest])
        else:
            yield from _layer(layers[digest], source.blobs.path(digest))
    yield from _member("index.json", dump(index))
    yield from _member("manifest.json", json.dumps(listing, sort_keys=True, separators=(",", ":")).encode())
    yield from _member("oci-layout", _LAYOUT)
    yield bytes(2 * tarfile.BLOCKSIZE)


def diff_ids_of(config: bytes) -> tuple[str, ...]:
    """The layers that a config states; none where it is no config."""
    try:
        return tuple(map(str, json.loads(config)["rootfs"]["diff_ids"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def contradictions(file: BinaryIO, image: Image) -> Iterator[str]:
    """What an archive says otherwise than the bundle's manifest, or one of its two views otherwise than the other.

    Docker loads by the listing and the others by the index: an archive could hold one image for each.

    Args:
        file: The archive, open and seekable; the content of its layers is not read.
    """
    try:
        documents, sizes = _documents(file)
        yield from _compared(documents, sizes, image)
    except (tarfile.TarError, OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, RecursionError,
            IndexError, NetworkError, BundleError) as error:  # fmt: skip
        reason = error.message if isinstance(error, EngineError | BundleError) else str(error)
        yield printable(f"it is no archive of an image that can be read ({reason or type(error).__name__})"[:300])


class _Bounded(tarfile.TarInfo):
    """A member whose names are no larger than names are: tarfile reads them whole, however large they say they are."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _NAMES and self.size > _MAX_NAMES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def _documents(file: BinaryIO) -> tuple[dict[str, bytes], dict[str, int]]:
    """Its small members and the sizes of all."""
    documents, sizes = dict[str, bytes](), dict[str, int]()
    room = _MAX_DOCUMENT
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_Bounded) as tar:
        for member in members(tar):
            if member.isdir():
                continue
            # A sparse one (GNU) holds what each reader puts together by itself.
            plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
            if not plain or member.name in sizes or len(sizes) >= _MAX_MEMBERS:
                raise ValueError(f"{member.name[:80]!r} is no file, or comes twice, or is one too many")
            sizes[member.name] = member.size
            content = tar.extractfile(member) if member.size <= room else None
            # Layers are packed; what may be a document begins as one.
            if content is not None and content.read(1) in (b"{", b"["):
                content.seek(0)
                documents[member.name] = content.read()
                room -= member.size
    return documents, sizes


def _compared(documents: Mapping[str, bytes], sizes: Mapping[str, int], image: Image) -> Iterator[str]:
    entries = json.loads(documents["index.json"])["manifests"]
    if [each["digest"] for each in entries] != [image.manifest_digest]:
        yield "its index names another image"
        return
    raw = documents[_blob(image.manifest_digest)]
    manifest = _parsed(raw, image.path)
    if manifest.descriptor.digest != image.manifest_digest:
        yield "its manifest has another digest than its name says"
        return
    config = documents[_blob(manifest.config.digest)]
    if manifest.config.digest != image.config_digest or digest_of(config) != image.config_digest:
        yield "its config is another one"
    if diff_ids_of(config) != image.diff_ids:
        yield "its config states other layers"
    for layer in manifest.layers:
        if sizes.get(_blob(layer.digest)) != layer.size:
            yield f"layer {layer.digest[:19]} is missing or has another size"
    listing = json.loads(documents["manifest.json"])
    layers = [_blob(layer.digest) for layer in manifest.layers]
    said = [(each["Config"], each["Layers"], each["RepoTags"]) for each in listing]
    if said != [(_blob(image.config_digest), layers, [image.reference])]:
        yield "its listing for Docker is of another image than its index"
    known = {_blob(digest) for digest in (image.manifest_digest, image.config_digest)} | set(layers)
    for name in sorted(sizes.keys() - known - {"index.json", "manifest.json", "oci-layout"})[:5]:
        yield f"it holds {name[:100]!r}, which is none of its image"


def _parsed(raw: bytes, place: str) -> Manifest:
    try:
        found = parse_manifest(raw, OCI_MANIFEST, place)
    except NetworkError as error:
        raise BundleError(error.message) from error
    if not isinstance(found, Manifest):
        raise BundleError(f"{place}: a list of images, and one was expected")
    return found


def _blob(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def _layer(layer: Descriptor, path: Path) -> Iterator[bytes]:
    # Hashed again: a cache that was damaged since it was filled would be found out on a machine that can fetch nothing.
    yield _header(_blob(layer.digest), layer.size)
    running, size = hashlib.sha256(), 0
    try:
        with path.open("rb", buffering=0) as file:
            while size <= layer.size and (block := file.read(_BLOCK)):
                size += len(block)
                running.update(block)
                yield block
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror}") from error
    if size != layer.size or f"sha256:{running.hexdigest()}" != layer.digest:
        raise BundleError(
            f"{path} is not {layer.digest[:19]}, as its name says",
            hint="It was damaged after it was fetched: remove it and export again.",
        )
    yield bytes(-size % tarfile.BLOCKSIZE)


def _member(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data))
    yield data
    yield bytes(-len(data) % tarfile.BLOCKSIZE)


def _folder(name: str) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    yield info.tobuf(tarfile.GNU_FORMAT)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)
