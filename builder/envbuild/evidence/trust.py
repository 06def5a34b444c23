"""Whether a record may be believed: its signature, the key that made it, and that both files say the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EngineError
from envbuild.evidence import files, signing, statement
from envbuild.evidence.keys import PublicKey
from envbuild.evidence.record import MAX_BYTES, Evidence, printable, read_bounded
from envbuild.evidence.signing import Refused, State

# Base64 makes three bytes four; the statement around the record is small.
MAX_ENVELOPE = MAX_BYTES * 4 // 3 + 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What the signature of a record is worth.

    Attributes:
        reason: Why it is worth no more; empty when it is good.
        key: The trusted key that signed the record; None when none did.
        record: The record as it was signed; None unless ``state`` is ``signed``.
    """

    state: State
    reason: str = ""
    key: PublicKey | None = None
    record: Evidence | None = None

    @property
    def signed(self) -> bool:
        """Whether a trusted key signed exactly this record."""
        return self.state is State.SIGNED


def signed_by(path: Path, keys: Sequence[PublicKey]) -> Seal:
    """Check the signature of a record. Never raises for what is wrong with a file.

    Args:
        path: The record; its envelope lies beside it.
        keys: The public keys that are trusted.
    """
    envelope = files.envelope_of(path)
    if not os.path.lexists(envelope):
        return Seal(state=State.UNSIGNED, reason=f"nobody has signed it: there is no {envelope.name} beside the record")
    try:
        return _check(path, envelope, keys)
    except Refused as refused:
        # It may quote names out of the file: no escape sequence of theirs reaches a terminal.
        return Seal(state=refused.state, reason=printable(f"{envelope}: {refused.reason}"))


def _check(path: Path, envelope: Path, keys: Sequence[PublicKey]) -> Seal:
    try:
        data = read_bounded(envelope, MAX_ENVELOPE)
    except EngineError as error:
        raise Refused(State.UNKNOWN, error.message.removeprefix(f"{envelope}: ")) from error
    try:
        plain = read_bounded(path, MAX_BYTES)
    except EngineError:
        plain = b""
    return fitting(plain, data, keys, path.name)


def fitting(plain: bytes, envelope: bytes, keys: Sequence[PublicKey], name: str) -> Seal:
    """Check the signature of a record that is in memory.

    Args:
        plain: The record, of a size that has been bounded, as the envelope.
        name: What messages call the record.

    Raises:
        Refused: No trusted key signed it, or it says something else than what was signed.
    """
    payload, key = signing.unseal(envelope, keys)
    try:
        digest, predicate, record = statement.parse(payload)
    except statement.NotUnderstood as error:
        raise Refused(State.UNKNOWN, f"signed by key {key.id[:12]}, but {error}") from error
    if digest != record.image.config_digest:
        raise Refused(State.TAMPERED, "its subject is another image than the one in its record")
    # What envbuild reads every day is the plain record; it counts as signed when it says what was signed, and no more.
    try:
        same = statement.canonical(statement.decode(plain)) == statement.canonical(predicate)
    except ValueError:
        same = False
    if not same:
        raise Refused(State.TAMPERED, f"{name} says something else than what was signed")
    return Seal(state=State.SIGNED, key=key, record=record)
