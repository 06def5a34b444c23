"""Image references: their full form, and the site's mirrors in place of their registries."""

from __future__ import annotations

from collections.abc import Mapping

HUB = "docker.io"


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
