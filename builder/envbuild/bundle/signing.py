"""The OpenPGP signature of a bundle: made by gpg, checked by gpgv, which every Enterprise Linux has.

RSA of 3072 bits or more over SHA-512: keys on elliptic curves are unknown to GnuPG 2.0 of CentOS 7, and refused by a
machine in FIPS mode. A signature's time is the bundle's own, so that the same bundle signed twice is the
same bytes (RSA signatures of OpenPGP have no random part: RFC 4880, 13.1.3, EMSA-PKCS1-v1_5).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import process, store
from envbuild.bundle import gnupg
from envbuild.errors import BundleError, EngineError, InputError

LEAST_BITS = 3072
_RSA = frozenset({"1", "3"})  # RFC 4880, 9.1: RSA; RSA, sign only
_DIGESTS = frozenset({"8", "9", "10"})  # RFC 4880, 9.4: SHA-256, SHA-384, SHA-512
_FINGERPRINT = re.compile(r"(0x)?[0-9A-Fa-f]{40}")
_SECRET = b"-----BEGIN PGP PRIVATE KEY BLOCK-----"
_PUBLIC = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
_MAX_KEY = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPgpKey:
    """Who signs.

    Attributes:
        fingerprint: Of the primary key, 40 upper-case hex digits: what administrators are told out of band.
        user: The name in the key.
        created: When it was made, in seconds since 1970: no signature of it can be older.
        public: Its public half in ASCII armour, without what others have signed.
    """

    fingerprint: str
    user: str
    created: int
    public: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A key that can be signed with, while its keyring is open."""

    key: OpenPgpKey
    home: Path | None
    passphrase: str | None = field(default=None, repr=False)

    def sign(self, data: bytes, created: str) -> bytes:
        """The detached signature of some bytes, in ASCII armour.

        Args:
            created: What it is dated, such as 2026-11-30T00:00:00Z; the key's own date where that is later.

        Raises:
            BundleError: gpg cannot sign with the key.
        """
        moment = datetime.datetime.fromisoformat(created.replace("Z", "+00:00"))
        seconds = max(int(moment.timestamp()), self.key.created)
        frozen = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y%m%dT%H%M%S!")
        with tempfile.TemporaryDirectory(prefix="envbuild-sign-") as folder:
            subject, out = Path(folder, "subject"), Path(folder, "subject.asc")
            subject.write_bytes(data)
            gnupg.gpg(
                self.home,
                ("--faked-system-time", frozen, "--digest-algo", "SHA512", "--local-user", f"{self.key.fingerprint}",
                 "--no-emit-version", "--no-comments", "--armor", "--output", str(out), "--detach-sign", str(subject)),
                f"cannot sign with {self.key.fingerprint}", self.passphrase,
            )  # fmt: skip
            return out.read_bytes()


@contextlib.contextmanager
def signer(wanted: str, passphrase: str | None = None) -> Iterator[Signer]:
    """Open the key to sign with: a file with a secret key in ASCII armour, or one of the user's own keyring.

    Args:
        wanted: A file's path, or whatever gpg finds a key by.
        passphrase: Of the key, where it has one and no agent knows it.

    Raises:
        InputError: There is no such key, or it cannot be used for this.
        BundleError: gpg is not there, or fails.
    """
    path = Path(wanted).expanduser()
    if not path.is_file():
        yield Signer(key=_look_up(None, wanted), home=None, passphrase=passphrase)
        return
    with gnupg.own_home() as home:
        _import(home, path, passphrase)
        keys = gnupg.secret_keys(home)
        if len(keys) != 1:
            raise InputError(f"{path}: {len(keys)} secret keys, and one was expected")
        yield Signer(key=_look_up(home, keys[0]), home=home, passphrase=passphrase)


def make(path: Path, user: str, passphrase: str | None = None) -> OpenPgpKey:
    """Make a key to sign bundles with: its secret half in ``path`` for the owner alone, its public half beside it.

    Args:
        path: A file that does not exist yet, such as ``bundle.asc``.
        user: The name in the key, such as ``Example Corp bundles <ops@example.com>``.

    Raises:
        InputError: The file exists, or the name is none.
        BundleError: gpg is not there, or fails.
        EngineError: The file cannot be written.
    """
    public = public_path(path)
    for each in (path, public):
        if os.path.lexists(each):
            raise InputError(f"{each} exists; a key is never overwritten")
    if not user.strip() or not user.isprintable() or user.startswith("-"):
        raise InputError(f"{user!r} cannot be the name in a key")
    with gnupg.own_home() as home:
        request = ("--quick-generate-key", user, f"rsa{LEAST_BITS}", "sign", "never")
        gnupg.gpg(home, request, "cannot make a key", passphrase or "")
        key = _look_up(home, gnupg.secret_keys(home)[0])
        done = gnupg.gpg(
            home, ("--armor", "--export-secret-keys", key.fingerprint), "cannot export it", passphrase or ""
        )
        try:
            store.make_folder(path.parent)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(done.stdout)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EngineError(f"cannot write {path}: {error.strerror}") from error
        store.write_atomic(public, key.public)
    return key


def public_path(path: Path) -> Path:
    """Where the public half of a secret key lies: ``bundle.pub.asc`` beside ``bundle.asc``."""
    return path.with_name(f"{path.name.removesuffix('.asc')}.pub.asc")


def fingerprints(path: Path) -> tuple[str, ...]:
    """Of the keys in a file in ASCII armour, public or secret.

    Raises:
        InputError: It holds none.
        BundleError: gpg is not there.
    """
    with gnupg.own_home() as home:
        try:
            found = gnupg.listed(home, "--show-keys", str(path.absolute()))
        except BundleError as error:
            raise InputError(f"{path}: no OpenPGP key", hint=error.message) from error
    kinds = [record[0] for record in found]
    # Of each key the fingerprint that comes first is its own; those of subkeys follow.
    starts = [number for number, kind in enumerate(kinds) if kind in ("pub", "sec")]
    return tuple(found[kinds.index("fpr", start)][9] for start in starts)


def fingerprint_of(text: str) -> str:
    """A fingerprint as people write it: with blanks, in any case, with or without 0x.

    Raises:
        InputError: It is none.
    """
    bare = re.sub(r"[\s:]", "", text)
    if not _FINGERPRINT.fullmatch(bare):
        raise InputError(
            f"{text[:80]!r} is no fingerprint of an OpenPGP key", hint="It has 40 hex digits; a short key id is none."
        )
    return bare[-40:].upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a signature is worth.

    Attributes:
        fingerprint: Of the primary key that made it; empty where it is no good.
        reason: Why it is no good; empty where it is good.
    """

    fingerprint: str = ""
    reason: str = ""


def check(data: bytes, signature: bytes, key: bytes) -> Seal:
    """Check a detached signature with nothing but a key. Raises for no content, whatever it is.

    Args:
        data: What is signed.
        signature: In ASCII armour.
        key: The one public key that may have made it, in ASCII armour.

    Raises:
        BundleError: There is no gpg and gpgv.
    """
    if not key.lstrip().startswith(_PUBLIC):
        return Seal(reason="its key is no public key in ASCII armour")
    gnupg.need("gpgv")
    with gnupg.own_home() as home:
        paths = {name: home / name for name in ("key.asc", "key.gpg", "subject", "subject.asc")}
        for name, content in (("key.asc", key), ("subject", data), ("subject.asc", signature)):
            paths[name].write_bytes(content)
        try:
            gnupg.gpg(
                home, ("--output", str(paths["key.gpg"]), "--dearmor", str(paths["key.asc"])), "its key is damaged"
            )
        except BundleError as error:
            return Seal(reason=error.message)
        # A machine without a network has the wrong time more often than others; that forges nothing.
        argv = ["gpgv", "--ignore-time-conflict", "--homedir", str(home), "--status-fd", "1"]
        argv += ("--keyring", str(paths["key.gpg"]), str(paths["subject.asc"]), str(paths["subject"]))
        done = process.run(argv, env=gnupg.LOCALE, timeout=gnupg.SECONDS)
    status = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    valid = [words for words in status if words[0] == "VALIDSIG"]
    good = [words for words in status if words[0] == "GOODSIG"]
    if done.returncode != 0 or len(valid) != 1 or len(good) != 1 or len(valid[0]) < 11:
        return Seal(reason=_why({words[0] for words in status if words}))
    if valid[0][8] not in _DIGESTS:
        return Seal(reason="it is over a weaker digest than SHA-256")
    return Seal(fingerprint=valid[0][10])


def _why(words: set[str]) -> str:
    for word, reason in (
        ("BADSIG", "it does not fit the content"),
        ("EXPSIG", "it has expired"),
        ("EXPKEYSIG", "its key has expired"),
        ("REVKEYSIG", "its key was revoked"),
        ("ERRSIG", "it was made by another key"),
    ):
        if word in words:
            return reason
    return "it is no signature"


def _import(home: Path, path: Path, passphrase: str | None) -> None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if _SECRET not in content or len(content) > _MAX_KEY:
        raise InputError(
            f"{path}: not an OpenPGP secret key in ASCII armour",
            hint="Export it: gpg --armor --export-secret-keys NAME. Or name a key of your keyring.",
        )
    copy = home / "secret.asc"
    copy.touch(mode=0o600)
    copy.write_bytes(content)
    gnupg.gpg(home, ("--import", str(copy)), f"{path}: cannot be imported", passphrase or "")
    copy.unlink()


def _look_up(home: Path | None, wanted: str) -> OpenPgpKey:
    """The one secret key that is meant, held to what the targets can check."""
    if wanted.startswith("-"):
        raise InputError(f"{wanted!r} names no key")
    try:
        found = gnupg.secret_keys(home, "--", wanted)
    except BundleError as error:
        if "No secret key" not in error.message:
            raise InputError(f"there is no secret key {wanted!r}: {error.message}", hint=error.hint) from error
        raise InputError(
            f"--gpg-key {wanted}: neither a file nor a secret key of your keyring",
            hint="gpg --list-secret-keys names those. To make one: envbuild key new --openpgp 'NAME <MAIL>' -o FILE",
        ) from error
    if len(found) != 1:
        raise InputError(f"{wanted!r} means {len(found)} keys: {', '.join(found)}", hint="Name one by its fingerprint.")
    fingerprint = found[0]
    records = gnupg.listed(home, "--list-keys", fingerprint)
    # A small letter is the key's own ability, a capital one of all its keys together.
    signing = [record for record in records if record[0] in ("pub", "sub") and "s" in record[11]]
    primary = next(record for record in records if record[0] == "pub")
    user = next((record[9] for record in records if record[0] == "uid"), "")
    if primary[1] in ("e", "r", "d", "i"):
        raise InputError(f"{fingerprint}: this key has expired, or was revoked or disabled")
    for record in signing:
        if record[3] not in _RSA or int(record[2]) < LEAST_BITS:
            raise InputError(
                f"{fingerprint}: a signing key of it is not RSA of {LEAST_BITS} bits or more",
                hint="Other kinds cannot be checked on CentOS 7 or in FIPS mode. Make a key for bundles.",
            )
    if not signing:
        raise InputError(f"{fingerprint}: this key cannot sign")
    export = ("--armor", "--no-emit-version", "--no-comments", "--export-options", "export-minimal", "--export")
    public = gnupg.gpg(home, (*export, fingerprint), "cannot export it")
    newest = max(int(record[5] or 0) for record in signing)
    return OpenPgpKey(fingerprint=fingerprint, user=user, created=newest, public=public.stdout.encode())
