"""Keys: ed25519 pairs in PEM files. A private one is the owner's alone, and never part of a matrix or an image.

The key id is the one that securesystemslib computes: SHA-256 of the canonical JSON of key type, scheme and public
bytes. It is a name for people and for looking a key up; what is trusted is the key itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuild.errors import EngineError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSPHRASE_VARIABLE = "ENVBUILD_KEY_PASSPHRASE"
_MAX_BYTES = 64 * 1024
_PRIVATE = "PRIVATE KEY-----"
_PUBLIC = "-----BEGIN PUBLIC KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """The half that is handed out.

    Attributes:
        id: The key id, 64 hex digits.
        pem: SubjectPublicKeyInfo, as openssl reads it.
        origin: The file it was read from, or ``inline``.
    """

    id: str
    pem: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """Both halves; the private one is never printed."""

    public: PublicKey
    private: Ed25519PrivateKey = field(repr=False)


def public_path(path: Path) -> Path:
    """Where the public half of a private key lies: ``key.pub`` beside ``key.pem``, else ``NAME.pub``."""
    return path.with_suffix(".pub") if path.suffix == ".pem" else path.with_name(f"{path.name}.pub")


def make(path: Path, *, passphrase: str | None = None) -> PublicKey:
    """Make a key pair: the private half in ``path`` with mode 0600, the public one beside it.

    Args:
        path: A file that does not exist yet.
        passphrase: Encrypts the private half, when given.

    Raises:
        InputError: One of the files exists; a key is never overwritten.
        EngineError: They cannot be written; then neither is there.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if path.suffix == ".pub":
        raise InputError(f"{path} is the name of a public key", hint="Name the private one, such as signing.pem.")
    other = public_path(path)
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else serialization.NoEncryption(),
    )
    public = _public(private.public_key(), origin=str(other))
    made: list[Path] = []
    try:
        _make_folder(path.parent)
        for target, content, mode in ((path, secret, 0o600), (other, public.pem.encode(), 0o644)):
            _create(target, content, mode, made)
    except BaseException as error:
        for each in made:
            with contextlib.suppress(OSError):
                each.unlink()
        if isinstance(error, OSError):
            raise EngineError(
                f"cannot write {error.filename or path}: {error.strerror}", hint="Choose another place with --out FILE."
            ) from error
        raise
    return public


def load_signing(path: Path, *, passphrase: str | None = None) -> SigningKey:
    """Read a private key.

    Raises:
        InputError: It is not there, is no ed25519 key, is readable by others, or needs another passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, mode = _read(path)
    if _PRIVATE not in content:
        raise InputError(f"{path}: not a private key in PEM", hint="Make one: envbuild key new")
    if mode & 0o077:
        raise InputError(
            f"{path}: this private key can be read or changed by others (mode {mode:04o})",
            hint=f"If nobody has used it, keep it for yourself: chmod 600 {path}. Else make another: envbuild key new",
        )
    encrypted = "ENCRYPTED" in content
    if encrypted and not passphrase:
        raise InputError(f"{path}: this key has a passphrase", hint=f"Give it in the variable {PASSPHRASE_VARIABLE}.")
    try:
        private = load_pem_private_key(content.encode(), passphrase.encode() if encrypted and passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "the passphrase is another one, or the file is damaged" if encrypted else "the file is damaged"
        raise InputError(f"{path}: this key cannot be read: {reason}", hint=_HINTS[encrypted]) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise InputError(f"{path}: not an ed25519 key", hint="Make one: envbuild key new")
    return SigningKey(public=_public(private.public_key(), origin=str(path)), private=private)


def load_public(source: Path | str) -> PublicKey:
    """Read a public key from a file, or from a text that is one.

    Raises:
        InputError: It is not there, or not one ed25519 public key in PEM.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content, origin = (_read(source)[0], str(source)) if isinstance(source, Path) else (source, "inline")
    if _PRIVATE in content:
        raise InputError(
            f"{origin}: this is a private key; what others trust is its public half",
            hint="Print it: envbuild key show FILE",
        )
    if content.count("-----BEGIN ") != 1 or _PUBLIC not in content:
        raise InputError(f"{origin}: not one public key in PEM", hint=f"It begins with {_PUBLIC}")
    try:
        key = load_pem_public_key(content.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{origin}: this public key cannot be read: it is damaged") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{origin}: not an ed25519 key", hint="Evidence is signed with ed25519 keys only.")
    return _public(key, origin=origin)


def load_trusted(sources: Sequence[Path | str]) -> tuple[PublicKey, ...]:
    """Read public keys, each once.

    Raises:
        InputError: Some of them cannot be used; it names each.
    """
    answers = [_attempt(source) for source in sources]
    problems = [answer for answer in answers if isinstance(answer, InputError)]
    if problems:
        raise InputError("\n".join(problem.message for problem in problems), hint=problems[0].hint)
    return tuple({answer.id: answer for answer in answers if isinstance(answer, PublicKey)}.values())


def _attempt(source: Path | str) -> PublicKey | InputError:
    try:
        return load_public(source)
    except InputError as error:
        return error


def is_private(path: Path) -> bool:
    """Whether a file holds a private key.

    Raises:
        InputError: It cannot be read.
    """
    return _PRIVATE in _read(path)[0]


_HINTS = {True: f"Correct the variable {PASSPHRASE_VARIABLE}.", False: "Restore it, or make another: envbuild key new"}


def _public(key: Any, *, origin: str) -> PublicKey:
    from cryptography.hazmat.primitives import serialization
    from securesystemslib.signer import SSlibKey

    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    return PublicKey(id=SSlibKey.from_crypto(key).keyid, pem=pem, origin=origin)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, mode=0o700)


def _create(path: Path, content: bytes, mode: int, made: list[Path]) -> None:
    """Write a file that must not be there, closed to others from its first moment and whatever the umask."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
    except FileExistsError as error:
        raise _taken(str(path)) from error
    made.append(path)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _read(path: Path) -> tuple[str, int]:
    """A key file's text and permission bits, both of the one file that was opened."""
    try:
        # Not blocking: a fifo would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path}: not a key: this is no file")
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such key", hint="Make one: envbuild key new --out FILE") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > _MAX_BYTES:
        raise InputError(f"{path}: not a key: larger than {_MAX_BYTES // 1024} KiB")
    return content.decode("ascii", "replace"), stat.S_IMODE(status.st_mode)


def _taken(name: str) -> InputError:
    return InputError(
        f"{name} exists; a key is never overwritten",
        hint="Name another file with --out, or move that one away. Evidence it signed needs its public half.",
    )
