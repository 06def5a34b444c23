"""What travels with an image: its evidence, its manifest's binding, its lock, its bill of materials.

Each is an artifact that refers to it: an OCI manifest with an ``artifactType`` and a ``subject`` (OCI image
specification 1.1, "Guidelines for Artifact Usage"), so registries keep and copy it as they do an image, and other tools
show it (``oras discover``).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.evidence.record import MAX_BYTES
from envbuild.model import Level
from envbuild.net import Missing, TooLong
from envbuild.registry import Blobs, Damaged, Descriptor, Manifest, NotUnderstood, Repository, push_blob
from envbuild.registry.manifests import OCI_EMPTY, OCI_MANIFEST, digest_of, dump

EVIDENCE = "application/vnd.envbuild.evidence.v1+json"
COMPARED = "application/vnd.envbuild.performance.v1+json"
BINDING = "application/vnd.envbuild.binding.v1+json"
SBOM = "application/vnd.cyclonedx+json"
LOCK = "application/vnd.envbuild.lock.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
_EMPTY = Descriptor(media_type=OCI_EMPTY, digest=digest_of(b"{}"), size=2)
_TITLE = "org.opencontainers.image.title"
_PREFIX = "vnd.envbuild"
_CREATED = "org.opencontainers.image.created"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
# An image is seen again and again; more records than these are not looked through.
_MOST = 200
_MAX_ENVELOPE = MAX_BYTES * 4 // 3 + 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One thing that refers to an image.

    Attributes:
        kind: Its artifact type.
        files: Name, media type and bytes of each of its files.
        notes: Annotations.
    """

    kind: str
    files: tuple[tuple[str, str, bytes], ...] = field(repr=False)
    notes: Mapping[str, str] = field(default_factory=dict)


def of_record(path: Path) -> Artifact | None:
    """A record of the store, with its signature where it has one; None where it cannot be read."""
    with contextlib.suppress(Exception):
        data = evidence.read_bounded(path, MAX_BYTES)
        record = evidence.read(path)
        files = [("evidence.json", EVIDENCE, data)]
        envelope = evidence.envelope_of(path)
        if envelope.is_file():
            files.append(("evidence.dsse.json", ENVELOPE, evidence.read_bounded(envelope, _MAX_ENVELOPE)))
        return Artifact(
            kind=EVIDENCE,
            files=tuple(files),
            notes={
                f"{_PREFIX}.environment": record.environment,
                f"{_PREFIX}.level": record.level.value,
                f"{_PREFIX}.suite": record.suite,
                _CREATED: record.finished.astimezone(datetime.timezone.utc).strftime(_TIME),
            },
        )
    return None


def of_compared(path: Path) -> Artifact | None:
    """A comparison with a baseline, with its signature where it has one; None where it cannot be read."""
    with contextlib.suppress(Exception):
        record = evidence.read_compared(path)
        files = [("performance.json", COMPARED, evidence.read_bounded(path, evidence.MAX_COMPARED))]
        envelope = evidence.envelope_of(path)
        if envelope.is_file():
            data = evidence.read_bounded(envelope, 2 * evidence.MAX_COMPARED)
            files.append(("performance.dsse.json", ENVELOPE, data))
        when = record.finished.astimezone(datetime.timezone.utc).strftime(_TIME)
        return Artifact(
            kind=COMPARED, files=tuple(files), notes={f"{_PREFIX}.environment": record.environment, _CREATED: when}
        )
    return None


def of_binding(envelope: bytes) -> Artifact:
    """The signed binding of a manifest to its config."""
    return Artifact(kind=BINDING, files=(("binding.dsse.json", ENVELOPE, envelope),))


def of_lock(data: bytes) -> Artifact:
    """The lock that an image was built from."""
    return Artifact(kind=LOCK, files=(("lock.json", LOCK, data),))


def of_sbom(data: bytes) -> Artifact:
    """What the image is made of, as a CycloneDX document."""
    return Artifact(kind=SBOM, files=(("sbom.cdx.json", SBOM, data),))


def attach(repository: Repository, subject: Descriptor, artifacts: Sequence[Artifact], blobs: Blobs) -> None:
    """Write artifacts beside an image; what is there already is not written again.

    Raises:
        NetworkError: The registry does not take one.
    """
    known = {each.digest for each in repository.referrers(subject.digest)}
    for artifact in artifacts:
        described = [
            (name, Descriptor(media_type=kind, digest=digest_of(data), size=len(data)), data)
            for name, kind, data in artifact.files
        ]
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": artifact.kind,
            "config": _EMPTY.as_dict(),
            "layers": [{**blob.as_dict(), "annotations": {_TITLE: name}} for name, blob, _ in described],
            "subject": Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size).as_dict(),
        }
        if artifact.notes:
            manifest["annotations"] = dict(artifact.notes)
        if digest_of(dump(manifest)) in known:
            continue
        for _, blob, data in [("", _EMPTY, b"{}"), *described]:
            blobs.add(data, blob.digest)
            push_blob(repository, blob, blobs)
        repository.attach(manifest, subject.digest)


def attached(repository: Repository, subject: Descriptor, kinds: Sequence[str], blobs: Blobs) -> Iterator[Artifact]:
    """Everything of some kinds that refers to an image, newest first as the registry has it. Not one is believed yet.

    Raises:
        NetworkError: The registry does not answer.
    """
    count = 0
    for each in reversed(repository.referrers(subject.digest)):
        # A list that was made for an older registry may not say the kind; the manifest does.
        if each.artifact_type and each.artifact_type not in kinds:
            continue
        count += 1
        if count > _MOST:
            return
        try:
            manifest = repository.manifest(each.digest)
            if (
                isinstance(manifest, Manifest)
                and manifest.artifact_type in kinds
                and manifest.subject == subject.digest
                and sum(layer.size for layer in manifest.layers) <= MAX_BYTES + _MAX_ENVELOPE
                and len(manifest.layers) <= 8
            ):
                yield _read(repository, manifest, blobs)
        except (Missing, NotUnderstood, Damaged, TooLong):
            # Whoever may write there can put anything beside an image: one that is no evidence hides no other.
            continue


def _read(repository: Repository, manifest: Manifest, blobs: Blobs) -> Artifact:
    files = [
        (layer.annotations.get(_TITLE, ""), layer.media_type, blobs.read(repository, layer))
        for layer in manifest.layers
    ]
    return Artifact(kind=manifest.artifact_type, files=tuple(files), notes=manifest.annotations)


def file_of(artifact: Artifact, media_type: str) -> bytes | None:
    """The bytes of an artifact's file of a kind."""
    return next((data for _, kind, data in artifact.files if kind == media_type), None)


def told(notes: Mapping[str, str]) -> tuple[Level, str, datetime.datetime] | None:
    """Level, suite and time that the annotations of evidence say; None where they are of something else.

    Anybody who may write to the registry may have written them: they are for a list, and no proof.
    """
    try:
        level, suite = Level(notes[f"{_PREFIX}.level"]), notes[f"{_PREFIX}.suite"]
        when = datetime.datetime.strptime(notes[_CREATED], _TIME).replace(tzinfo=datetime.timezone.utc)
    except (KeyError, ValueError):
        return None
    return level, suite, when
