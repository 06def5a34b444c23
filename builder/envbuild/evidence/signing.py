"""Signatures: DSSE envelopes (github.com/secure-systems-lab/dsse, protocol 1.0) by securesystemslib.

An envelope is hostile input until a trusted key has verified it: its size is bounded before it is read, and its payload
is not looked into before that.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from envbuild.evidence.keys import PublicKey, SigningKey
from envbuild.evidence.statement import PAYLOAD_TYPE, decode
from envbuild.model import Frozen

_MAX_SIGNATURES = 16


class State(str, Enum):
    """What the signature of a record is worth."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"
    TAMPERED = "tampered"
    UNKNOWN = "unknown"


class Refused(Exception):
    """An envelope that proves nothing: why, and which state that is."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


class _Signature(Frozen):
    keyid: Annotated[str, Field(max_length=200)]
    sig: Annotated[str, Field(max_length=20_000)]


class _Envelope(Frozen):
    payload: str
    payload_type: Annotated[str, Field(max_length=200)] = Field(alias="payloadType")
    signatures: Annotated[tuple[_Signature, ...], Field(min_length=1, max_length=_MAX_SIGNATURES)]


def seal(payload: bytes, key: SigningKey) -> dict[str, Any]:
    """Sign a statement; returns the envelope as JSON carries it."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner

    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(key.private))
    document: dict[str, Any] = envelope.to_dict()
    return document


def unseal(data: bytes, keys: Sequence[PublicKey]) -> tuple[bytes, PublicKey]:
    """Verify an envelope; returns its payload and the trusted key that signed it.

    A signature that names a trusted key and is not its own spoils the envelope, whoever else signed it. DSSE calls the
    key id a hint; here a trusted key's signature under another id is refused too: somebody has changed the file.

    Args:
        data: The envelope's file, of a size that has been bounded.
        keys: The public keys that are trusted.

    Raises:
        Refused: No trusted key signed this payload.
    """
    try:
        envelope = _Envelope.model_validate(decode(data))
        payload = _base64(envelope.payload)
        signatures = {each.keyid: _base64(each.sig) for each in envelope.signatures}
    except ValidationError as error:
        places = sorted({".".join(map(str, each["loc"]))[:100] or "the whole" for each in error.errors()})
        raise Refused(State.TAMPERED, f"this is no DSSE envelope (see {', '.join(places[:5])})") from error
    except ValueError as error:
        raise Refused(State.TAMPERED, f"this is no DSSE envelope: {error}") from error
    if len(signatures) != len(envelope.signatures):
        raise Refused(State.TAMPERED, "two of its signatures have the same key id")
    if not keys:
        raise Refused(State.UNTRUSTED, "no key is trusted, so no signature can be checked")
    accepted = None
    for key in keys:
        if key.id in signatures:
            if not _verifies(payload, envelope.payload_type, signatures[key.id], key):
                raise Refused(State.TAMPERED, f"the signature of key {key.id[:12]} does not fit the content")
            accepted = accepted or key
        elif any(_verifies(payload, envelope.payload_type, each, key) for each in signatures.values()):
            raise Refused(State.TAMPERED, f"a signature of key {key.id[:12]} stands under another key id")
    if accepted is None:
        signers = ", ".join(repr(keyid[:12]) for keyid in signatures)
        raise Refused(State.UNTRUSTED, f"no trusted key signed it; it says that it was signed by {signers}")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise Refused(State.UNKNOWN, f"what is signed is no in-toto statement but {envelope.payload_type!r}")
    return payload, accepted


def _verifies(payload: bytes, payload_type: str, signature: bytes, key: PublicKey) -> bool:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import Signature, SSlibKey

    own = SSlibKey.from_crypto(load_pem_public_key(key.pem.encode()))
    envelope = Envelope(payload, payload_type, {own.keyid: Signature(own.keyid, signature.hex())})
    try:
        return own.keyid in envelope.verify([own], 1)
    except (VerificationError, UnicodeEncodeError):
        return False


def _base64(text: str) -> bytes:
    """Standard or URL-safe base64, as DSSE wants both, in the one form that these bytes have.

    A last character carries bits that decode to nothing; with them a changed file would pass for the same one.
    """
    try:
        standard = text.replace("-", "+").replace("_", "/")
        data = base64.b64decode(standard, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("its base64 is damaged") from error
    if text not in (base64.standard_b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        raise ValueError("its base64 is damaged")
    return data
