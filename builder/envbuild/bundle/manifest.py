"""``manifest.json``: what a bundle is, for whom, and every file of it.

A manifest lists every file but those that can only be made after it (``AFTER``): itself, what is generated from it,
the statement about it and the sums of everything. It holds no time of its own making and no path of the machine that
it was made on: the same inputs are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from envbuild import store
from envbuild.bundle.words import (
    AFTER,
    MAX_FILES,
    PARTS,
    BundlePath,
    Bytes,
    Hex,
    Instant,
    Label,
    Part,
    Sha256,
    Token,
)
from envbuild.errors import BundleError
from envbuild.evidence.record import printable
from envbuild.evidence.statement import decode
from envbuild.model import Digest, Frozen, Level, Line, MajorMinor, Name

SCHEMA = "envbuild.bundle/1"


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
        requirements: The file for ``pip install --no-index --require-hashes -r``: wheels alone.
        sources: The same for what is compiled on the target, after the others and with ``--no-build-isolation``; None
            where nothing is.
        deepspeed: ``image``: its wheel is the one that a proven image was made with; ``source``: its source archive is
            here and is compiled on the target by the toolset; None where it is not asked for.
        note: What somebody who installs these has to know.
    """

    python: MajorMinor
    platform: Literal["linux/amd64", "linux/arm64"]
    requirements: BundlePath
    sources: BundlePath | None = None
    packages: Annotated[tuple[Wheel, ...], Field(min_length=1)]
    deepspeed: Literal["image", "source"] | None = None
    note: Line = ""


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


class Manifest(Frozen):
    """A bundle.

    Attributes:
        name: The row, or what it was called.
        created: The newest of what went into it, or what SOURCE_DATE_EPOCH says.
        envbuild: The version that made it.
        files: Every file of the whole bundle, sorted; in a differential one also those that its base carries.
        carried: Of a differential bundle, the files that it carries itself.
    """

    schema_: Literal["envbuild.bundle/1"] = Field("envbuild.bundle/1", alias="schema")
    name: Label
    created: Instant
    envbuild: Line
    row: Name | None = None
    target_id: Sha256 | None = None
    accelerator: Literal["cpu", "cuda"] | None = None
    target: Target
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    files: Annotated[tuple[File, ...], Field(max_length=MAX_FILES)]
    rpms: Rpms | None = None
    wheels: Wheels | None = None
    image: Image | None = None
    base: Base | None = None
    carried: tuple[BundlePath, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Manifest:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            raise ValueError("its files are not sorted, or not each once")
        if wrong := sorted(AFTER.intersection(paths)):
            raise ValueError(f"its files name {wrong[0]}, which is made after it")
        _tree(paths)
        if tuple(part for part in PARTS if part in self.parts) != self.parts:
            raise ValueError(f"its parts are not some of {', '.join(PARTS)}, in this order")
        for part, section in (("rpms", self.rpms), ("wheels", self.wheels), ("image", self.image)):
            if (part in self.parts) != (section is not None):
                raise ValueError(f"{part} is not both a part and described")
        known = {file.path: file for file in self.files}
        for path, sha256 in self._named():
            if path not in known:
                raise ValueError(f"it speaks of {path}, which is none of its files")
            if sha256 is not None and known[path].sha256 != sha256:
                raise ValueError(f"it states two sums of {path}")
        if (self.base is None) != (self.carried is None):
            raise ValueError("a differential bundle names both its base and what it carries")
        if not set(self.carried or ()) <= set(paths):
            raise ValueError("it carries what is none of its files")
        return self

    def _named(self) -> Iterator[tuple[str, str | None]]:
        """Every file that a section speaks of, with the sum that it states."""
        if self.rpms is not None:
            yield from ((each.path, each.sha256) for each in self.rpms.packages)
            yield from ((each.path, None) for each in self.rpms.keys)
        if self.wheels is not None:
            yield from ((path, None) for path in (self.wheels.requirements, self.wheels.sources) if path)
            yield from ((each.file, each.sha256) for each in self.wheels.packages)
        if self.image is not None:
            yield self.image.path, None
            yield from ((path, None) for path in self.image.evidence)

    def of(self, part: str) -> tuple[File, ...]:
        """The files of one part."""
        return tuple(file for file in self.files if file.part == part)


def _tree(paths: list[str]) -> None:
    """That no file is a folder of another one.

    Raises:
        ValueError: One is.
    """
    folders = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
    if clash := sorted(folders.intersection(paths)):
        raise ValueError(f"{clash[0]} is both a file and a folder")


def dump(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``: equal manifests are equal bytes."""
    return store.encode_json(manifest.model_dump(mode="json", by_alias=True)).encode()


def parse(data: bytes, place: str) -> Manifest:
    """A manifest out of a bundle, held to what it has to be. Whether its files are so is not looked at.

    Args:
        data: Of a size that has been bounded.
        place: What messages call it.

    Raises:
        BundleError: It is none, or of another version.
    """
    try:
        document = decode(data)
        if isinstance(document, dict) and document.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {str(document.get('schema'))[:60]}, and {SCHEMA} was expected")
        return Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, what = ".".join(map(str, first["loc"]))[:200], first["msg"].removeprefix("Value error, ")
        reason = f"{where}: {what}" if where else what
    except ValueError as error:
        reason = str(error)
    raise BundleError(
        printable(f"{place}: not a manifest of a bundle: {reason}"[:600]),
        hint="It is damaged, or of another version of envbuild: fetch the bundle again.",
    )
