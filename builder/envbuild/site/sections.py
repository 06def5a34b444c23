"""The tables of ``envbuild.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from envbuild.model import Line
from envbuild.site.cluster import ExecutorSection, KubernetesSection, SlurmSection
from envbuild.site.section import Section


def _url(value: str, *schemes: str) -> str:
    # These go into pip's and apt's configuration files: one word, with nothing that ends a quoted string there.
    if not re.fullmatch(r"[A-Za-z]+://[^\s\"\\;{}]+", value) or value.split(":", 1)[0].lower() not in schemes:
        raise ValueError(f"has to be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    return value


def _proxy(value: str) -> str:
    return _url(value if "://" in value else f"http://{value}", "http", "https", "socks5", "socks5h")


def _word(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:\[\]*-]+", value):
        raise ValueError("has to be a host, or host:port")
    return value


def _registry(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+([._:/-]{1,2}[a-z0-9_]+)*", value):
        raise ValueError("has to be a registry, such as registry.example.com:5000 or registry.example.com/team")
    return value


def _no_private_key(value: Path | str) -> Path | str:
    # The message must not repeat the value, and it does not: pydantic's own would.
    if "PRIVATE KEY" in str(value):
        raise ValueError("has to name a file: a private key has no place in a configuration")
    return value


Http = Annotated[Line, AfterValidator(lambda value: _url(value, "http", "https"))]
Index = Annotated[Line, AfterValidator(lambda value: _url(value, "http", "https", "file"))]
Proxy = Annotated[Line, AfterValidator(_proxy)]
Host = Annotated[Line, AfterValidator(_word)]
Registry = Annotated[Line, AfterValidator(_registry)]
RepositoryId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
RpmFamily = Literal["centos7", "rhel8", "rhel9", "rocky8"]
GpgKey = Annotated[
    Line, AfterValidator(lambda value: _url(value, "http", "https", "file") if "://" in value else value)
]
KeyFile = Annotated[Path, AfterValidator(_no_private_key)]
# A public key itself, or the file that holds it.
TrustedKey = Annotated[
    Annotated[str, StringConstraints(pattern=r"^\s*-----BEGIN PUBLIC KEY-----", max_length=10_000)] | Path,
    AfterValidator(_no_private_key),
]


class AptSection(Section):
    """Where Debian's and Ubuntu's packages come from."""

    mirror: Http | None = None
    security_mirror: Http | None = None
    proxy: Proxy | None = None


class RpmSection(Section):
    """Where Enterprise Linux's packages come from."""

    repositories: dict[RepositoryId, Http] = Field(
        default_factory=dict, description="The id of a repository, and its address. Replaces every repository."
    )
    families: dict[RpmFamily, dict[RepositoryId, Http]] = Field(
        default_factory=dict, description="The same for one family, in place of ``repositories``."
    )
    repo_file: Path | None = Field(default=None, description="A .repo file, where a repository needs more than that.")
    gpgkey: tuple[GpgKey, ...] = Field(
        default=(), description="Files with the keys of these; file:///PATH is a file of the base. Else the base's own."
    )
    proxy: Proxy | None = None
    client_cert: Path | None = Field(
        default=None, description="PEM file with the certificate that an export shows to repositories (entitlement)."
    )
    client_key: Path | None = Field(default=None, description="PEM file with its key, where that is another file.")


class PipSection(Section):
    """Where wheels come from. In a file, this section replaces the host's own pip configuration."""

    index: Index | None = None
    extra_index: tuple[Index, ...] = ()
    find_links: tuple[Line, ...] = Field(default=(), description="Folders of wheels, or URLs of pages that list them.")
    trusted_hosts: tuple[Host, ...] = ()
    cert: Path | None = None
    proxy: Proxy | None = None
    timeout: Annotated[int, Field(ge=1, le=86400)] | None = Field(default=None, description="Seconds.")


class BaseSection(Section):
    """Where base images come from."""

    mirrors: dict[Registry, Registry] = Field(
        default_factory=dict, description="Registry host, such as docker.io, to the prefix that replaces it."
    )
    bootstrap: Literal["auto", "always", "never"] = "auto"


class NetworkSection(Section):
    """What every download shares."""

    ca: Path | None = Field(
        default=None, description="CA bundle: a file with every certificate to trust, public ones too."
    )
    http_proxy: Proxy | None = None
    https_proxy: Proxy | None = None
    no_proxy: Line | None = None
    build: Literal["auto", "host", "default"] = Field(default="auto", description="Network of a build's containers.")

    @field_validator("no_proxy", mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        return ",".join(map(str, value)) if isinstance(value, list) else value


class EngineSection(Section):
    """The container engine."""

    kind: Literal["docker", "podman", "auto"] = Field(default="auto", description="Which engine; auto: what answers.")
    host: Line | None = None
    client: Line | None = Field(default=None, description="Program that builds: a path, or a name on PATH.")
    builder: Line | None = Field(default=None, description="One of buildx's builders, by name (Docker).")


class RegistrySection(Section):
    """Where images are named for."""

    name: Registry | None = None


class PathsSection(Section):
    """Folders."""

    cache: Path | None = None


class TrustSection(Section):
    """Whose evidence counts."""

    keys: tuple[TrustedKey, ...] = Field(default=(), description="Public keys: files, or PEM texts.")


class SigningSection(Section):
    """With what evidence is signed."""

    key: KeyFile | None = None


class SiteConfig(Section):
    """One site's settings, from every source.

    Attributes:
        origin: For each section, where it came from, for messages.
        in_file: The sections that a file gave; a file's ``pip`` and ``apt`` replace the host's own settings.
    """

    apt: AptSection = Field(default_factory=AptSection)
    rpm: RpmSection = Field(default_factory=RpmSection)
    pip: PipSection = Field(default_factory=PipSection)
    base: BaseSection = Field(default_factory=BaseSection)
    network: NetworkSection = Field(default_factory=NetworkSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    registry: RegistrySection = Field(default_factory=RegistrySection)
    paths: PathsSection = Field(default_factory=PathsSection)
    trust: TrustSection = Field(default_factory=TrustSection)
    signing: SigningSection = Field(default_factory=SigningSection)
    executor: ExecutorSection = Field(default_factory=ExecutorSection)
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    kubernetes: KubernetesSection = Field(default_factory=KubernetesSection)
    origin: dict[str, str] = Field(default_factory=dict)
    in_file: frozenset[str] = frozenset()


SECTIONS: dict[str, type[Section]] = {
    "apt": AptSection,
    "rpm": RpmSection,
    "pip": PipSection,
    "base": BaseSection,
    "network": NetworkSection,
    "engine": EngineSection,
    "registry": RegistrySection,
    "paths": PathsSection,
    "trust": TrustSection,
    "signing": SigningSection,
    "executor": ExecutorSection,
    "slurm": SlurmSection,
    "kubernetes": KubernetesSection,
}
