"""What is asked of a registry, and what may come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.net import NetworkError

AGAIN_HINT = "Run it again: what was transferred is kept."


class NoAccess(NetworkError):
    """A registry refuses: nobody is logged in, or who is may not do this (exit 3)."""

    code = "access"


class Again(NetworkError):
    """A registry does not answer, or not now: the same may go well later (exit 3)."""

    code = "registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What somebody has to be allowed for a request.

    Attributes:
        repository: Which repository it is about.
        push: Whether it is written to.
        source: Another repository that is read from, for a mount.
    """

    repository: str
    push: bool = False
    source: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        """As a token server reads it (distribution's "Token Scope Documentation")."""
        own = f"repository:{self.repository}:{'pull,push' if self.push else 'pull'}"
        return (own, f"repository:{self.source}:pull") if self.source else (own,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer with its body; ``headers`` by their names in lower case."""

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes
