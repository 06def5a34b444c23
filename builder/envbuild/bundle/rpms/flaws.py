"""What can be wrong with a package or a key, as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from envbuild.bundle.rpms.results import PublicKey, Signed
from envbuild.bundle.rpms.types import System
from envbuild.model import Finding, Severity

_FETCH = "Fetch it again, or from another mirror; nothing of it was used."
_NAME_IT = "Name the file with that key, if you trust it: --repo-key FILE, or [rpm] gpgkey in envbuild.toml."
_RPM = "the package's header"
_EL9 = "Red Hat Enterprise Linux 9: SHA-1 signatures are refused by the default crypto policy; rpm issue 1977"
_FIPS = "FIPS mode: MD5 is not there; rpm refuses what only MD5 describes"
# As rpm-rs names them, in upper case and without dashes.
WEAK = frozenset({"SHA1", "MD5", "RIPEMD160", "RIPEMD"})
# From this major release on, rpm refuses SHA-1.
_STRICT = 9


def _error(rule: str, name: str, message: str, fix: str, source: str = _RPM) -> Finding:
    return Finding(rule=rule, severity=Severity.ERROR, subject=name, message=message, fix=fix, source=source)


def unreadable(name: str, problem: str) -> Finding:
    """A file that is no package."""
    return _error("rpm.damaged", name, f"{name} cannot be read: {problem}", _FETCH)


def changed(name: str) -> Finding:
    """A file that is not what the repository says."""
    message = f"{name} is not the file that its repository describes: it changed since it was fetched"
    return _error("rpm.damaged", name, message, _FETCH, "primary metadata")


def another(name: str, own: str) -> Finding:
    """A file that holds another package."""
    message = f"{name}: the file says that it is {own[:120]}"
    return _error("rpm.other", name, message, "Tell who keeps the repository: its metadata is wrong.")


def unsigned(name: str, repository: str) -> Finding:
    """A package that nobody signed."""
    return _error(
        "rpm.unsigned", name, f"{name}, from {repository}, is not signed: the target would refuse it",
        "Sign it (rpmsign --addsign) with a key of your site, make the metadata anew, and name the key.",
    )  # fmt: skip


def keyless(repository: str, count: int) -> Finding:
    """A repository whose packages nobody could check."""
    message = f"no key is named for the repository {repository}, so none of its {count} packages can be taken"
    return _error("rpm.key", repository, message, _NAME_IT, "the site's configuration")


def stranger(name: str, repository: str, signature: tuple[Signed, str], *, known: bool) -> Finding:
    """A package that somebody signed whose key the repository does not name."""
    signed, reason = signature
    if not known:
        message = f"{name} is signed by {signed.key_id}, and no key is named for the repository {repository}"
    else:
        message = f"{name} is signed by {signed.key_id}, and not by a key of the repository {repository} ({reason})"
    return _error("rpm.key", name, message, _NAME_IT)


def tampered(name: str) -> Finding:
    """A package whose digests do not fit."""
    message = f"{name} was changed after it was signed: its own digests do not fit"
    return _error("rpm.tampered", name, message, "Do not use it. Fetch it from the distribution itself.")


def of_signature(name: str, good: Sequence[Signed], system: System) -> Iterator[Finding]:
    """A signature by an algorithm that a target may refuse."""
    for signed in good:
        algorithm = signed.hash.upper().replace("-", "")
        if algorithm not in WEAK:
            continue
        refused = system.major >= _STRICT or system.fips or algorithm != "SHA1"
        yield Finding(
            rule="rpm.sha1",
            severity=Severity.ERROR if refused else Severity.WARNING,
            subject=name,
            message=f"{name} is signed with {signed.hash}"
            + (": the target's rpm refuses that" if refused else ": enough for this release, and not for the next one"),
            fix="Take a newer build of it, or sign it again with SHA-256.",
            source=_EL9 if system.major >= _STRICT else _FIPS if system.fips else _RPM,
        )


def of_digests(name: str, system: System, *, payload: bool, files: bool) -> Iterator[Finding]:
    """A package of which MD5 alone says whether it is whole, for a target without MD5."""
    if not system.fips:
        return
    if not payload:
        fix = "Take a newer build of it: rpm writes a SHA-256 of the payload since 4.14."
        yield _error("rpm.md5", name, f"{name}: only MD5 says whether its payload is whole", fix, _FIPS)
    if not files:
        fix = "Take a newer build of it, or build it again with SHA-256 (_binary_filedigest_algorithm 8)."
        yield _error("rpm.md5", name, f"{name}: the digests of its files are MD5", fix, _FIPS)


def of_keys(keys: Iterable[PublicKey], system: System) -> Iterator[Finding]:
    """A key that a target's rpm does not import, or imports though nobody should."""
    for key in keys:
        if key.revoked:
            message = f"the key {key.fingerprint} was revoked by its owner: whoever has it may sign anything"
            fix = "Ask who keeps the repository for packages that another key signed."
            yield _error("rpm.key-revoked", key.fingerprint, message, fix, "the key itself; rpm 4.18 does not look")
        if key.weak and (system.major >= _STRICT or system.fips):
            message = f"the key {key.fingerprint} is certified with SHA-1 only: the target's rpm does not import it"
            fix = "Ask its owner for the key with a newer self-signature, and name that file."
            yield _error("rpm.key-sha1", key.fingerprint, message, fix, _EL9)
