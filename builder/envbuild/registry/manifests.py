"""Manifests and indexes: what a registry has under a name, held to the specification before it is believed.

Sources: OCI image specification 1.1 (manifest.md, image-index.md, descriptor.md) and Docker's
"Image Manifest V 2, Schema 2", read 2026-11-30.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.net import NetworkError
from envbuild.registry.reference import DIGEST

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
ACCEPT = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
_MAX_ENTRIES = 10_000
# What the specification's implementations count sizes in (int64).
_MAX_SIZE = (1 << 63) - 1


class NotUnderstood(NetworkError):
    """A registry answers with something that is no manifest, or another one than was asked for (exit 3)."""

    code = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A content-addressed thing: its kind, digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    platform: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As a manifest writes it."""
        out: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            out["artifactType"] = self.artifact_type
        if self.annotations:
            out["annotations"] = dict(sorted(self.annotations.items()))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One image, or one artifact.

    Attributes:
        raw: Its bytes: the digest is theirs.
        subject: The digest that it refers to; empty where it refers to none.
    """

    descriptor: Descriptor
    raw: bytes = field(repr=False)
    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str = ""
    subject: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Several manifests under one name."""

    descriptor: Descriptor
    raw: bytes = field(repr=False)
    manifests: tuple[Descriptor, ...]


def digest_of(data: bytes) -> str:
    """``sha256:...`` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def dump(document: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest of ours: the same document is the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse(raw: bytes, media_type: str, place: str) -> Manifest | Index:
    """Take a manifest or an index apart.

    Args:
        raw: Its bytes.
        media_type: What the registry called it; what it says of itself goes first.
        place: What messages call it.

    Raises:
        NotUnderstood: It is none, or of a kind that nothing here can use.
    """
    try:
        document = json.loads(raw)
        if not isinstance(document, dict) or document.get("schemaVersion") != 2:
            raise NotUnderstood(f"{place}: no manifest of a known kind")
        kind = document.get("mediaType") or media_type.partition(";")[0].strip()
        if "manifests" in document and ("layers" in document or "config" in document):
            # Which of the two it is would depend on who reads it (CVE-2021-41190).
            raise NotUnderstood(f"{place}: an image and an index in one manifest")
        own = Descriptor(media_type=str(kind), digest=digest_of(raw), size=len(raw))
        if kind in INDEXES:
            return Index(descriptor=own, raw=raw, manifests=_descriptors(document["manifests"]))
        if kind in MANIFESTS:
            subject = document.get("subject")
            return Manifest(
                descriptor=own,
                raw=raw,
                config=_descriptor(document["config"]),
                layers=_descriptors(document["layers"]),
                artifact_type=_text(document.get("artifactType")),
                subject=_descriptor(subject).digest if subject else "",
                annotations=_texts(document.get("annotations")),
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotUnderstood(f"{place}: not a manifest as the specification has it") from error
    raise NotUnderstood(f"{place}: a manifest of another kind ({str(kind)[:100]!r})")


def _descriptors(items: Any) -> tuple[Descriptor, ...]:
    if not isinstance(items, list) or len(items) > _MAX_ENTRIES:
        raise ValueError("not a list of descriptors")
    return tuple(map(_descriptor, items))


def _descriptor(item: Any) -> Descriptor:
    size, digest = item["size"], item["digest"]
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or not 0 <= size <= _MAX_SIZE
        or not DIGEST.fullmatch(digest)
    ):
        raise ValueError("not a descriptor")
    platform = item.get("platform") or {}
    return Descriptor(
        media_type=_text(item["mediaType"]),
        digest=digest,
        size=size,
        artifact_type=_text(item.get("artifactType")),
        platform="/".join(filter(None, (_text(platform.get(key)) for key in ("os", "architecture", "variant")))),
        annotations=_texts(item.get("annotations")),
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("not a text")
    value.encode()  # half a character, from an escape: it could neither be printed nor written again
    return value


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(each) for name, each in value.items()} if value else {}
