"""Image references: what they name, their full form, and the site's mirrors in place of their registries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from envbuild.errors import InputError

HUB = "docker.io"
# Docker Hub's name is not the address of its registry.
_ADDRESSES = {HUB: "registry-1.docker.io"}
# OCI distribution specification 1.1, "Pulling manifests".
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image in a registry.

    Attributes:
        registry: Host and port, as people write it.
        path: The repository within the registry.
        tag: None where only a digest is named.
        digest: The manifest's digest; None where only a tag is named.
    """

    registry: str
    path: str
    tag: str | None = None
    digest: str | None = None

    @property
    def address(self) -> str:
        """Host and port that are asked."""
        return _ADDRESSES.get(self.registry, self.registry)

    @property
    def repository(self) -> str:
        """Registry and path."""
        return f"{self.registry}/{self.path}"

    @property
    def wanted(self) -> str:
        """What to ask the registry for: the digest where there is one, else the tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        return self.repository + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Take a reference apart, by Docker's rules: ``cpu`` is ``docker.io/library/cpu:latest``.

    Raises:
        InputError: It is not one.
    """
    full = repository(text)
    registry, _, path = full.partition("/")
    digest = text.partition("@")[2] or None
    _, colon, tail = text.partition("@")[0].rpartition(":")
    named = tail if colon and "/" not in tail else None
    wrong = (
        "it is longer than 255 characters" if len(full) > 255
        else "its registry is not host[:port]" if not _is_host(registry)
        else "its repository has other characters than small letters, digits and . _ - /" if not _NAME.fullmatch(path)
        else "its tag is none" if named is not None and not _TAG.fullmatch(named)
        else "its digest is not sha256 with 64 hex digits" if digest is not None and not DIGEST.fullmatch(digest)
        else ""
    )  # fmt: skip
    if wrong:
        raise InputError(
            f"{text[:300]!r} is not an image reference: {wrong}",
            hint="Such as registry.example.com:5000/team/envbuild/cpu:validated, or ...@sha256:...",
        )
    return Reference(registry=registry, path=path, tag=named or (None if digest else "latest"), digest=digest)


def _is_host(text: str) -> bool:
    try:
        parts = urlsplit(f"https://{text}/")
        return _HOST.fullmatch(text) is not None and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no address in the brackets, no such port
        return False


def repository(ref: str) -> str:
    """The full name of a reference's repository: registry, path, no tag and no digest.

    Docker's rule: the first part is a registry when it has a dot or a colon or is ``localhost``;
    anything else is on Docker Hub, there in ``library/`` when it has one part only.
    """
    name = ref.partition("@")[0]
    head, colon, tail = name.rpartition(":")
    if colon and "/" not in tail:
        name = head
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name if first != HUB or "/" in rest else f"{HUB}/library/{rest}"
    return f"{HUB}/{name}" if slash else f"{HUB}/library/{name}"


def is_tag(text: str) -> bool:
    """Whether this can be a tag."""
    return _TAG.fullmatch(text) is not None


def tag(ref: str) -> str:
    """A reference's tag; ``latest`` where it names none."""
    _, colon, tail = ref.partition("@")[0].rpartition(":")
    return tail if colon and "/" not in tail else "latest"


def mirrored(name: str, mirrors: Mapping[str, str]) -> str:
    """A full repository name with the longest matching prefix replaced by the site's mirror of it."""
    for prefix in sorted(mirrors, key=len, reverse=True):
        clean = prefix.rstrip("/")
        if name.startswith(f"{clean}/"):
            return mirrors[prefix].rstrip("/") + name[len(clean) :]
    return name
