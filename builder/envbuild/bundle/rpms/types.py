"""What is asked of a set of RPM packages, and what repositories and targets are: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# 32-bit architectures that a 64-bit machine also takes.
SMALL_ARCHES: Mapping[str, frozenset[str]] = {
    "x86_64": frozenset({"i386", "i486", "i586", "i686", "athlon", "geode"}),
    "aarch64": frozenset({"armv7hl", "armv7hnl", "armv8hl"}),
}
# As `uname -m` says it, where a distribution may be installed on it.
ARCHES = ("x86_64", "aarch64", "ppc64le", "s390x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nevra:
    """One package's full name. Its text is dnf's: an epoch of 0 is not written."""

    name: str
    epoch: str
    version: str
    release: str
    arch: str

    def __str__(self) -> str:
        epoch = "" if self.epoch in ("", "0") else f"{self.epoch}:"
        return f"{self.name}-{epoch}{self.version}-{self.release}.{self.arch}"

    @property
    def evr(self) -> str:
        """Epoch, version and release, as libsolv writes them."""
        epoch = "" if self.epoch in ("", "0") else f"{self.epoch}:"
        return f"{epoch}{self.version}-{self.release}"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The machines that packages are taken for.

    Attributes:
        distro: ID of os-release(5).
        major: The release's first number.
        releasever: What ``$releasever`` stands for: the exact release, such as ``8.8``, or the major one.
        arch: As ``uname -m`` says it.
        fips: Whether only what FIPS mode admits is good enough.
    """

    distro: str
    major: int
    arch: str = "x86_64"
    releasever: str | None = None
    fips: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What dnf's variables stand for in an address."""
        return {
            "releasever": self.releasever or str(self.major),
            "releasever_major": str(self.major),
            "basearch": self.arch,
            "arch": self.arch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A package that a target has, with all that can matter for others. Dependencies as rpm writes them."""

    nevra: Nevra
    provides: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    obsoletes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine that the packages have to be installable on.

    Attributes:
        source: ``empty``, or the SHA-256 of the manifest that was collected on it.
        streams: The module streams that it has enabled.
        system: What the manifest says of it; None for an empty one.
    """

    name: str
    source: str = "empty"
    installed: tuple[Installed, ...] = ()
    streams: Mapping[str, str] = field(default_factory=dict)
    system: System | None = None

    @property
    def empty(self) -> bool:
        """Whether it has no packages yet."""
        return self.source == "empty"


EMPTY = Target(name="empty")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Source:
    """A repository, as its configuration says it, with every variable filled in.

    Attributes:
        baseurls: Where it lies, in the order in which they are tried: ``https:``, ``http:``, ``file:``.
        listing: A metalink or a list of mirrors that says where it lies, and which of the two.
        keys: Files or addresses of the keys that its packages are signed with.
        signed: Whether its ``repomd.xml`` has to be signed; where it is signed, that is looked at in any case.
        priority: As in dnf: the lower one wins.
        hotfixes: Whether its packages count whatever streams are enabled.
        certificate: Client certificate and key (PEM files) for its server.
        account: User and password for its server.
        proxy: In place of the site's; empty for none.
    """

    id: str
    baseurls: tuple[str, ...] = ()
    listing: tuple[Literal["metalink", "mirrorlist"], str] | None = None
    keys: tuple[str, ...] = ()
    signed: bool = False
    priority: int = 99
    excludes: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    hotfixes: bool = False
    certificate: tuple[Path, Path] | None = None
    ca: Path | None = None
    verify: bool = True
    account: tuple[str, str] | None = None
    proxy: str | None = None

    def __repr__(self) -> str:
        return f"Source({self.id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a bundle should hold.

    Attributes:
        roots: Names of packages, or what they provide, as ``dnf install`` takes them.
        targets: What the packages have to be installable on; each has its own closure, and the bundle has their union.
        streams: Module streams to enable, by module.
        multilib: Whether 32-bit packages are taken beside 64-bit ones.
    """

    roots: tuple[str, ...]
    sources: tuple[Source, ...]
    system: System
    targets: tuple[Target, ...] = (EMPTY,)
    streams: Mapping[str, str] = field(default_factory=dict)
    multilib: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of a repository.

    Attributes:
        repository: Id of its source.
        checksum: Algorithm and hex digest of its file, as the repository states it.
        location: Where its file lies below the repository, and the other address where it lies elsewhere.
        bytes: Size of its file; ``installed_bytes`` of what is in it.
        licence: As its packager states it.
        source_rpm: File name of the source package that it was built from.
        built: Seconds since the epoch.
    """

    nevra: Nevra
    repository: str
    checksum: tuple[str, str]
    location: tuple[str, str | None]
    bytes: int
    installed_bytes: int
    licence: str = ""
    source_rpm: str = ""
    vendor: str = ""
    summary: str = ""
    built: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositorySeen:
    """A repository as it was when it was read.

    Attributes:
        url: Where it was read, without credentials.
        key: Fingerprint of the key that its ``repomd.xml`` is signed with; empty where nobody looked.
        timestamp: The newest one of its metadata, in seconds since the epoch.
    """

    id: str
    url: str
    revision: str
    repomd_sha256: str
    packages: int
    timestamp: int
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A module's stream that some of the packages belong to, and how a target gets at them: by enabling it, or, where
    nothing describes it, past modularity."""

    name: str
    stream: str
    how: Literal["enable", "hotfixes"] = "enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """What would change on one target.

    Attributes:
        installs: What would be installed or updated.
        replaces: Installed packages that would go because another one obsoletes them.
        streams: The module streams that are active for it, of those that matter.
    """

    target: Target
    installs: tuple[Package, ...]
    replaces: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = ()
