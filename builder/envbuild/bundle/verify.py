"""``verify DIR``: whether a bundle is whole, is what it says, and comes from somebody who is trusted.

Everything that is wrong is found, not the first thing. Nothing of a bundle is believed before it was looked at, nothing
is followed that could lead out of it, and nothing is asked of any network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.bundle import consistency, manifest, proofs, provenance, signing, sums
from envbuild.bundle import volume as volumes
from envbuild.bundle.finding import about, several
from envbuild.bundle.manifest import Manifest
from envbuild.bundle.tree import Tree, Unreadable
from envbuild.bundle.words import AFTER, DROPPINGS, KEY, MANIFEST, MAX_MANIFEST, PROVENANCE, SIGNATURE, SUMS
from envbuild.errors import BundleError
from envbuild.evidence import PublicKey, Refused
from envbuild.model import Finding, Severity

_MAX_SMALL = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whom a bundle has to come from, and what it may stand on.

    Attributes:
        fingerprint: Of the OpenPGP key, as it was told on another way than the bundle came; None: not told.
        keys: Keys that may have signed the provenance, and what the image has proved.
        base: Folder of the bundle that a differential one stands on.
    """

    fingerprint: str | None = None
    keys: Sequence[PublicKey] = ()
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was seen.

    Attributes:
        manifest: None where it cannot be read.
        signer: Fingerprint of the OpenPGP key whose signature is good; empty without one.
        key: The trusted key that signed the provenance.
        shown: What the image's evidence is worth.
        files: How many files were read whole.
        bytes: What they add up to.
        volume: Where the folder is one of several volumes: which. Then the files of the others were not looked at.
    """

    folder: Path
    manifest: Manifest | None
    findings: tuple[Finding, ...]
    signer: str = ""
    key: PublicKey | None = None
    shown: proofs.Shown = field(default_factory=proofs.Shown)
    files: int = 0
    bytes: int = 0
    volume: volumes.Volume | None = None

    @property
    def good(self) -> bool:
        """Whether nothing speaks against it."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def verify(folder: Path, wanted: Wanted, told: Callable[[int], None] = lambda count: None) -> Verified:
    """Look at a bundle, whole.

    Args:
        told: Told of every piece that was read, in bytes.

    Raises:
        BundleError: It is no folder of a bundle, or gpgv is not there.
    """
    with Tree(folder) as tree:
        return _Inspection(tree, wanted, told).run()


class _Inspection:
    def __init__(self, tree: Tree, wanted: Wanted, told: Callable[[int], None]) -> None:
        self._tree = tree
        self._wanted = wanted
        self._told = told
        self._signer = ""
        self._key: PublicKey | None = None
        self._carried: frozenset[str] | None = None
        self._named = ""

    def run(self) -> Verified:
        folder = self._tree.folder
        try:
            listed = self._tree.read(SUMS, sums.MAX_BYTES)
        except Unreadable as error:
            raise BundleError(f"{folder}: {SUMS}: {error}", hint="Name the folder of a bundle.") from error
        try:
            known = sums.parse(listed, SUMS)
        except BundleError as error:
            return Verified(folder=folder, manifest=None, findings=(about("sums", SUMS, error.message, error.hint),))
        if (volume := volumes.read(self._tree)) is not None:
            return self._volume(volume, known, listed)
        findings = list(self._entries(known))
        wrong, data, found = self._manifest(known)
        findings += wrong
        self._carried = None if found is None or found.carried is None else frozenset(found.carried)
        self._named = found.base.sums_sha256 if found is not None and found.base is not None else ""
        files, size = self._contents(known, findings)
        if refused := self._provenance(known, data):
            findings.append(about("provenance", PROVENANCE, refused, "Whoever exported it has to sign it again."))
        findings += self._origin(listed)
        shown = proofs.Shown()
        if found is not None:
            findings += consistency.findings(self._tree, found, known)
            shown = proofs.look(self._tree, found.image, self._wanted.keys)
            findings += shown.findings
        findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)
        return Verified(
            folder=folder, manifest=found, findings=tuple(findings), signer=self._signer, key=self._key,
            shown=shown, files=files, bytes=size,
        )  # fmt: skip

    def _volume(self, volume: volumes.Volume, known: dict[str, str], listed: bytes) -> Verified:
        """One volume of several: what lies in it, and who signed the whole."""
        name = hashlib.sha256(listed).hexdigest()
        findings = [*volumes.findings(self._tree, volume, known, name, self._told), *self._origin(listed)]
        return Verified(
            folder=self._tree.folder, manifest=None, findings=tuple(findings), signer=self._signer, volume=volume,
            files=volume.files, bytes=volume.bytes,
        )  # fmt: skip

    def _entries(self, known: dict[str, str]) -> Iterator[Finding]:
        """Everything that lies there and does not belong there."""
        odd, stray = [], []
        for entry in self._tree.entries():
            if entry.path.split("/")[0] in DROPPINGS:
                continue
            if entry.kind != "file":
                odd.append(f"{entry.path}: {entry.kind}")
            elif entry.path not in known and entry.path not in (SUMS, SIGNATURE):
                stray.append(entry.path)
        yield from several("path", odd, "not a plain file", "A bundle has only files and folders: fetch it again.")
        yield from several(
            "stray", stray, "not part of the bundle", "Nobody vouches for it, and nothing reads it: remove it.",
            severity=Severity.WARNING,
        )  # fmt: skip

    def _manifest(self, known: dict[str, str]) -> tuple[list[Finding], bytes, Manifest | None]:
        try:
            data = self._tree.read(MANIFEST, MAX_MANIFEST)
            return [], data, manifest.parse(data, MANIFEST)
        except Unreadable as error:
            # A missing one is told with all that is missing.
            told = [] if error.missing and MANIFEST in known else [about("manifest", MANIFEST, f"{MANIFEST}: {error}")]
            return told, b"", None
        except BundleError as error:
            return [about("manifest", MANIFEST, error.message, error.hint)], b"", None

    def _contents(self, known: dict[str, str], findings: list[Finding]) -> tuple[int, int]:
        """Every file that is named, against its sum; how many there were, and their bytes."""
        answers = dict(self._tree.digests(known, self._told))
        absent = {path for path, answer in answers.items() if isinstance(answer, Unreadable) and answer.missing}
        elsewhere = set() if self._carried is None else {path for path in known if self._standing(path)}
        if elsewhere and elsewhere <= absent:
            findings += self._base(known, elsewhere, answers)
            absent -= elsewhere
        broken = [f"{path}: {answer}" for path, answer in answers.items()
                  if isinstance(answer, Unreadable) and not answer.missing]  # fmt: skip
        wrong = [path for path, answer in answers.items()
                 if not isinstance(answer, Unreadable) and answer[0] != known[path]]  # fmt: skip
        again = "It was damaged on the way: fetch it again, or run assemble.sh again over the volumes."
        findings += several("missing", sorted(absent), "missing", again)
        findings += several("checksum", wrong, "not what its sum says", again)
        findings += several("unreadable", broken, "cannot be read", again)
        read = [answer for answer in answers.values() if not isinstance(answer, Unreadable)]
        return len(read), sum(size for _, size in read)

    def _standing(self, path: str) -> bool:
        """Whether a differential bundle leaves a file to its base."""
        return path not in (self._carried or ()) and path not in AFTER

    def _base(
        self, known: dict[str, str], elsewhere: set[str], answers: dict[str, tuple[str, int] | Unreadable]
    ) -> Iterator[Finding]:
        """What is left to the base, looked at there."""
        if self._wanted.base is None:
            for path in elsewhere:
                del answers[path]
            yield about(
                "base", SUMS, f"a differential bundle: {len(elsewhere)} files are those of its base, and were not seen",
                "Name the base, or assemble both: sh assemble.sh", severity=Severity.WARNING,
            )  # fmt: skip
            return
        with Tree(self._wanted.base) as tree:
            theirs = dict(tree.digests(sorted(elsewhere), self._told))
            own = tree.digests([SUMS])[SUMS]
        answers.update(theirs)
        other = "It has to be the bundle that this one was exported with: see `envbuild bundle inspect`."
        if isinstance(own, Unreadable) or own[0] != self._named:
            yield about("base", SUMS, f"{self._wanted.base} is another bundle than the one that this stands on", other)
        lacking = [path for path, answer in theirs.items() if isinstance(answer, Unreadable) and answer.missing]
        yield from several("base", lacking, "missing in the base", other)

    def _origin(self, listed: bytes) -> Iterator[Finding]:
        """Who says that it is theirs."""
        wrong = self._signature(listed)
        wanted = self._wanted.fingerprint
        if wanted is not None and self._signer != wanted:
            said = wrong or f"it was signed by {self._signer}"
            yield about("signature", SIGNATURE, f"not signed by {wanted}: {said}",
                        "Take it from nobody else: ask whoever exported it for bundle and fingerprint.")  # fmt: skip
        elif wrong:
            severity = Severity.WARNING if self._key is not None and wrong == _UNSIGNED else Severity.ERROR
            yield about("signature", SIGNATURE, wrong, "Export it with --gpg-key; install.sh refuses it so.",
                        severity=severity)  # fmt: skip
        elif wanted is None and self._key is None:
            yield about(
                "origin", SIGNATURE, f"it was signed by {self._signer}; whose key that is nobody has said here",
                "The key in a bundle proves nothing: have its fingerprint told on another way, and say --fingerprint.",
                severity=Severity.WARNING,
            )  # fmt: skip

    def _signature(self, listed: bytes) -> str:
        """Why the signature is no good; empty where it is good."""
        try:
            signature = self._tree.read(SIGNATURE, _MAX_SMALL)
            key = self._tree.read(KEY, _MAX_SMALL)
        except Unreadable as error:
            return _UNSIGNED if error.missing else str(error)
        seal = signing.check(listed, signature, key)
        self._signer = seal.fingerprint
        return "" if seal.fingerprint else f"its signature is not good: {seal.reason}"

    def _provenance(self, known: dict[str, str], data: bytes) -> str:
        if not self._wanted.keys or PROVENANCE not in known:
            return ""
        try:
            envelope = self._tree.read(PROVENANCE, provenance.MAX_BYTES)
            self._key = provenance.check(envelope, data, self._wanted.keys)
        except Unreadable as error:
            return "" if error.missing else str(error)
        except Refused as refused:
            return refused.reason
        if known.get(MANIFEST) != hashlib.sha256(data).hexdigest():
            self._key = None
        return ""


_UNSIGNED = "it is not signed"
