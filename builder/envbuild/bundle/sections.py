"""What a bundle's manifest says of each of its parts, and for whom it is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from envbuild.bundle.words import Ascii, BundlePath, Bytes, Hex, Label, ModuleName, Remark, Sha256, Token
from envbuild.model import Digest, EnvName, Frozen, Level, Line, MajorMinor, Name


class Target(Frozen):
    """The machines that a bundle is for.

    Attributes:
        distro: ID of os-release(5), such as ``rhel``; machines that name it in ID_LIKE are meant too.
        major: The release's first number.
        releasever: The exact release, such as ``8.8``, where the packages were resolved for one.
        arch: As ``uname -m`` says it.
        fips: Whether every signature and digest was held to what FIPS mode admits.
    """

    distro: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=40)]
    major: Annotated[int, Field(ge=1, le=99, strict=True)]
    releasever: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=20)] | None = None
    arch: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=20)]
    fips: bool = False


class File(Frozen):
    """One file; ``part`` is ``common`` for what every bundle has."""

    path: BundlePath
    bytes: Bytes
    sha256: Sha256
    part: Literal["rpms", "wheels", "image", "doctor", "common"]


class Repository(Frozen):
    """Where packages came from; its address without credentials."""

    id: Token
    url_masked: Line
    revision: Line
    repomd_sha256: Sha256


class Signature(Frozen):
    """Who signed a package, by which algorithms."""

    key_id: Hex
    algorithm: Line
    hash: Line


class RpmPackage(Frozen):
    """One package; ``installed_bytes`` is what its files take up."""

    nevra: Token
    path: BundlePath
    sha256: Sha256
    bytes: Bytes
    installed_bytes: Bytes
    repository: Token
    signature: Signature | None = None


class Module(Frozen):
    """A module's stream, and how a target gets at its packages: by enabling it, or past modularity."""

    name: Label
    stream: Label
    how: Literal["enable", "hotfixes"]


class ResolvedTarget(Frozen):
    """A machine that the packages were resolved for.

    Attributes:
        source: ``empty``, or the SHA-256 of the manifest that was collected on it.
        installs: What is installed or updated on it, by NEVRA.
    """

    name: Label
    source: Literal["empty"] | Sha256
    releasever: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=20)] | None = None
    installs: tuple[Token, ...]


class Key(Frozen):
    """An OpenPGP key that signs packages."""

    fingerprint: Hex
    path: BundlePath


class Rpms(Frozen):
    """The RPM packages: what was asked for, where it was found, and for which machines it is whole."""

    roots: Annotated[tuple[Token, ...], Field(min_length=1)]
    repositories: tuple[Repository, ...]
    packages: tuple[RpmPackage, ...]
    modules: tuple[Module, ...] = ()
    targets: tuple[ResolvedTarget, ...]
    keys: tuple[Key, ...]


class Wheel(Frozen):
    """One wheel, or the source archive of what is compiled on the target."""

    name: Name
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.+!]+$", max_length=60)]
    file: BundlePath
    sha256: Sha256


class Wheels(Frozen):
    """The Python packages.

    Attributes:
        platform: Such as ``linux/amd64``.
        requirements: The file for ``pip install --no-index --require-hashes -r``. A source archive in it is compiled,
            after the wheels and with ``--no-build-isolation``: nothing could be fetched for a place of its own.
        deepspeed: ``image``: its wheel is the one that a proven image was made with; ``source``: its source archive is
            here and is compiled on the target by the toolset; None where it is not asked for.
        note: What somebody who installs these has to know.
        program: The interpreter that the RPM packages bring; None: whichever of this version is found.
        imports: Modules that have to be importable when they are installed; none: torch and DeepSpeed, where they are.
        env: Variables that what is installed here runs with.
    """

    python: MajorMinor
    platform: Literal["linux/amd64", "linux/arm64"]
    requirements: BundlePath
    packages: Annotated[tuple[Wheel, ...], Field(min_length=1)]
    deepspeed: Literal["image", "source"] | None = None
    note: Remark = ""
    program: Token | None = None
    imports: tuple[ModuleName, ...] = ()
    env: tuple[tuple[EnvName, Ascii], ...] = ()


class Image(Frozen):
    """The container image: one archive for every engine, and the proof that belongs to it.

    Attributes:
        reference: The name that it gets when it is loaded.
        manifest_digest: Of the OCI manifest in the archive.
        evidence: Files of records and their signatures.
        level: What the evidence proves; None without any.
    """

    path: BundlePath
    reference: Token
    manifest_digest: Digest
    config_digest: Digest
    diff_ids: Annotated[tuple[Digest, ...], Field(min_length=1)]
    evidence: tuple[BundlePath, ...] = ()
    level: Level | None = None


class Base(Frozen):
    """The bundle that a differential one stands on, by the digests of its manifest and of its sums."""

    name: Label
    manifest_sha256: Sha256
    sums_sha256: Sha256
