"""``provenance.dsse.json``: who made a bundle of what, as an in-toto statement about its manifest, signed.

The predicate is SLSA's provenance v1 (slsa.dev/spec/v1.0/provenance), so that other tools can read it. Its subject is
``manifest.json``, which has the SHA-256 of everything else. It says nothing that the manifest does not say: the same
bundle signed twice by one key is the same bytes (ed25519, RFC 8032, has no random part either).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from envbuild import store
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.words import MANIFEST
from envbuild.evidence import PublicKey, Refused, SigningKey, State
from envbuild.evidence.signing import seal, unseal
from envbuild.evidence.statement import STATEMENT_TYPE, NotUnderstood, canonical, read_statement

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# URIs that nobody else uses, and that need not lead anywhere; the fragment is for people.
_FAMILY = "urn:uuid:c6218449-413a-43b9-a70b-9d1061f62c73"
BUILD_TYPE = f"{_FAMILY}#envbuild-bundle/v1"
BUILDER = f"{_FAMILY}#envbuild"
MAX_BYTES = 4 << 20


def dump(manifest: Manifest, data: bytes, key: SigningKey) -> bytes:
    """The signed statement.

    Args:
        data: The bytes of the manifest's file.
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": MANIFEST, "digest": {"sha256": hashlib.sha256(data).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(manifest),
    }
    return store.encode_json(seal(canonical(statement), key)).encode()


def check(envelope: bytes, data: bytes, keys: Sequence[PublicKey]) -> PublicKey:
    """The trusted key that signed a bundle's manifest.

    Args:
        envelope: Of a size that has been bounded.
        data: The bytes of the manifest's file.

    Raises:
        Refused: None did, or it signed something else.
    """
    payload, key = unseal(envelope, keys)
    try:
        statement = read_statement(payload)
    except NotUnderstood as error:
        raise Refused(State.UNKNOWN, f"signed by key {key.id[:12]}, but {error}") from error
    if statement.predicate_type != PREDICATE_TYPE or not _ours(statement.predicate):
        raise Refused(State.UNKNOWN, f"signed by key {key.id[:12]}, but it is not the provenance of a bundle")
    if statement.subject[0].digest.sha256 != hashlib.sha256(data).hexdigest():
        raise Refused(State.TAMPERED, f"key {key.id[:12]} signed the provenance of another {MANIFEST}")
    return key


def _ours(predicate: dict[str, Any]) -> bool:
    definition = predicate.get("buildDefinition")
    return isinstance(definition, dict) and definition.get("buildType") == BUILD_TYPE


def _predicate(manifest: Manifest) -> dict[str, Any]:
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "name": manifest.name,
                "row": manifest.row,
                "target_id": manifest.target_id,
                "parts": list(manifest.parts),
                "target": manifest.target.model_dump(mode="json"),
                "roots": list(manifest.rpms.roots) if manifest.rpms else [],
                "created": manifest.created,
            },
            "resolvedDependencies": list(_dependencies(manifest)),
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"envbuild": manifest.envbuild}}},
    }


def _dependencies(manifest: Manifest) -> Iterator[dict[str, Any]]:
    if manifest.rpms is not None:
        for each in manifest.rpms.repositories:
            yield {"name": f"repository {each.id}", "digest": {"sha256": each.repomd_sha256}}
    if manifest.wheels is not None:
        for wheel in manifest.wheels.packages:
            yield {"uri": f"pkg:pypi/{wheel.name}@{wheel.version}", "digest": {"sha256": wheel.sha256}}
    if manifest.image is not None:
        digest = manifest.image.manifest_digest.removeprefix("sha256:")
        yield {"name": manifest.image.reference, "digest": {"sha256": digest}}
    if manifest.base is not None:
        yield {"name": f"bundle {manifest.base.name}", "digest": {"sha256": manifest.base.manifest_sha256}}
