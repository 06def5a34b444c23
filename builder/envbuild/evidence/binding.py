"""What a registry calls an image, signed: its manifest's digest, bound to the config's digest that evidence is about.

An image has a manifest only in a registry, and the same image packed twice has two; so evidence is about the config,
and whoever pushes says which manifest it was pushed as. The layout is that of the evidence (see ``statement``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.evidence.keys import PublicKey, SigningKey
from envbuild.evidence.signing import Refused, State, seal, unseal
from envbuild.evidence.statement import STATEMENT_TYPE, NotUnderstood, canonical, read_statement

BINDING_FAMILY = "urn:uuid:fda342c1-eb03-424c-bd71-48512c133769#envbuild-binding/"
BINDING_TYPE = f"{BINDING_FAMILY}v1"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A manifest and the config that it names; both are digests."""

    environment: str
    manifest: str
    config: str


def bind(binding: Binding, key: SigningKey) -> bytes:
    """The envelope that says it, signed."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": binding.environment, "digest": {"sha256": binding.manifest.removeprefix("sha256:")}},
        ],
        "predicateType": BINDING_TYPE,
        "predicate": {"config": binding.config},
    }
    return canonical(seal(canonical(statement), key))


def bound(envelope: bytes, keys: Sequence[PublicKey]) -> tuple[Binding, PublicKey]:
    """What an envelope binds, and the trusted key that says so.

    Args:
        envelope: Of a size that has been bounded.

    Raises:
        Refused: No trusted key signed it, or it says something else.
    """
    payload, key = unseal(envelope, keys)
    try:
        statement = read_statement(payload)
    except NotUnderstood as error:
        raise Refused(State.UNKNOWN, f"signed by key {key.id[:12]}, but {error}") from error
    subject, config = statement.subject[0], statement.predicate.get("config")
    manifest = f"sha256:{subject.digest.sha256}"
    if statement.predicate_type != BINDING_TYPE:
        raise Refused(State.UNKNOWN, f"its predicate is no binding: {statement.predicate_type[:200]!r}")
    if not (isinstance(config, str) and _DIGEST.fullmatch(config) and _DIGEST.fullmatch(manifest)):
        raise Refused(State.UNKNOWN, "it binds no manifest to a config")
    return Binding(environment=subject.name, manifest=manifest, config=config), key
