"""OpenPGP public keys, as far as they have to be told apart: armor, fingerprints, key ids. Nothing is verified here.

Format: RFC 9580, sections 4.2 (packets), 5.5.4 (fingerprints) and 6 (armor).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

from envbuild.bundle.rpms.results import PublicKey
from envbuild.errors import InputError

LARGEST = 1 << 20
_BLOCK = re.compile(
    # One blank line, not any number: each could be the last one of the headers, and a hostile file has a million.
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?P<headers>(?:[A-Za-z]+: [^\n]*\n)*)[ \t\r]*\n"
    rb"(?P<data>[A-Za-z0-9+/=\s]*?)(?:\n=[A-Za-z0-9+/]{4}\s*)?\n?-----END PGP PUBLIC KEY BLOCK-----"
)
_SIGNATURE, _KEY, _SUBKEY = 2, 6, 14
# MD5, SHA-1 and RIPEMD-160 (RFC 9580, section 9.5); certifications of a name, and a signature on the key itself.
_WEAK, _CERTIFICATIONS = frozenset({1, 2, 3}), frozenset({0x10, 0x11, 0x12, 0x13, 0x1F})
# That a key is not to be used any more (RFC 9580, section 5.2.1.11).
_REVOCATION = frozenset({0x20})


def keys(data: bytes, place: str) -> tuple[PublicKey, ...]:
    """Every key in a file in ASCII armor, each by itself; there may be several blocks, and several keys in one.

    Raises:
        InputError: There is none, or it is damaged.
    """
    found: list[PublicKey] = []
    for match in _BLOCK.finditer(data):
        try:
            packets = list(_packets(base64.b64decode(b"".join(match.group("data").split()), validate=True)))
        except (binascii.Error, ValueError, IndexError) as error:
            raise InputError(f"{place}: a damaged OpenPGP key ({error})") from error
        starts = [number for number, (tag, _, _) in enumerate(packets) if tag == _KEY]
        for start, end in zip(starts, [*starts[1:], len(packets)], strict=True):
            prints = [_fingerprint(body) for tag, body, _ in packets[start:end] if tag in (_KEY, _SUBKEY)]
            raw = b"".join(whole for _, _, whole in packets[start:end])
            signatures = [body for tag, body, _ in packets[start:end] if tag == _SIGNATURE]
            hashes = [body[3] for body in signatures if _is(body, _CERTIFICATIONS)]
            found.append(
                PublicKey(
                    fingerprint=prints[0],
                    armored=_armor(raw),
                    ids=tuple(map(_key_id, prints)),
                    weak=bool(hashes) and set(hashes) <= _WEAK,
                    revoked=any(_is(body, _REVOCATION) for body in signatures),
                )
            )
    if not found:
        raise InputError(
            f"{place} holds no public key in ASCII armor", hint="gpg --armor --export KEY > FILE writes one"
        )
    return tuple(found)


def binary(key: PublicKey) -> bytes:
    """A key as a keyring of gpgv has it."""
    match = _BLOCK.search(key.armored)
    assert match is not None
    return base64.b64decode(b"".join(match.group("data").split()))


def _packets(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, body and the whole bytes of each packet."""
    at = 0
    while at < len(data):
        start, head = at, data[at]
        if not head & 0x80:
            raise ValueError("no packet begins there")
        at += 1
        if head & 0x40:
            tag, first = head & 0x3F, data[at]
            if first < 192:
                size, at = first, at + 1
            elif first < 224:
                size, at = ((first - 192) << 8) + data[at + 1] + 192, at + 2
            elif first == 255:
                size, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
            else:
                raise ValueError("a key in pieces")
        else:
            tag, kind = (head >> 2) & 0xF, head & 3
            if kind == 3:
                raise ValueError("a packet without a length")
            size, at = int.from_bytes(data[at : at + (1 << kind)], "big"), at + (1 << kind)
        if at + size > len(data):
            raise ValueError("it ends in the middle")
        yield tag, data[at : at + size], data[start : at + size]
        at += size


def _fingerprint(body: bytes) -> str:
    if body[:1] == b"\x06":
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    if body[:1] != b"\x04":
        raise InputError(f"an OpenPGP key of version {body[0] if body else 0}: only 4 and 6 are of use")
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()


def _is(body: bytes, types: frozenset[int]) -> bool:
    """Whether a signature is of a type. Versions 4 and 6 begin with version, type, key and hash algorithm."""
    return len(body) > 3 and body[0] in (4, 6) and body[1] in types


def _key_id(fingerprint: str) -> str:
    return fingerprint[-16:] if len(fingerprint) == 40 else fingerprint[:16]


def _armor(raw: bytes) -> bytes:
    lines = base64.b64encode(raw)
    text = b"\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
    checksum = base64.b64encode(_crc24(raw).to_bytes(3, "big"))
    begin, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n", b"\n-----END PGP PUBLIC KEY BLOCK-----\n"
    return begin + text + b"\n=" + checksum + end


def _crc24(data: bytes) -> int:
    """EL7's rpm wants the checksum, which RFC 9580 made optional (RFC 4880, section 6.1)."""
    value = 0xB704CE
    for byte in data:
        value ^= byte << 16
        for _ in range(8):
            value <<= 1
            if value & 0x1000000:
                value ^= 0x1864CFB
    return value & 0xFFFFFF
