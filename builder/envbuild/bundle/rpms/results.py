"""What was seen of packages, and what was written of them: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild.bundle.rpms.types import Package, Stream
from envbuild.model import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Who signed a package; the algorithms by their usual names."""

    key_id: str
    algorithm: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A package on this disk that was looked at.

    Attributes:
        path: Its file in the cache.
        signature: The one that counts: made by a key of its repository; None where there is none.
        module: ``name:stream:version:context`` that it says it belongs to; empty for most.
    """

    package: Package
    path: Path
    sha256: str
    signature: Signed | None
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that packages are signed with, as it goes into the bundle.

    Attributes:
        fingerprint: In upper-case hex.
        armored: The key in ASCII armor.
        ids: Key ids of it and of its subkeys.
        revoked: Whether its owner says that nothing it signs counts.
        weak: Whether nothing better than SHA-1 says whose it is: rpm of Enterprise Linux 9 does not import such a key.
    """

    fingerprint: str
    armored: bytes = field(repr=False)
    ids: tuple[str, ...]
    weak: bool = False
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Every package, and what is wrong with some of them. With a finding of severity error, nothing is written."""

    packages: tuple[Checked, ...]
    keys: tuple[PublicKey, ...]
    streams: tuple[Stream, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file in the bundle; ``path`` is relative to it."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A repository and its keys in a bundle.

    Attributes:
        files: Every file, sorted by its path.
        packages: Path of each package's file, by its name.
        keys: Path of each key, by fingerprint.
        repomd: What somebody who signs the metadata signs.
    """

    folder: Path
    files: tuple[WrittenFile, ...]
    packages: Mapping[str, str]
    keys: Mapping[str, str]
    repomd: str
