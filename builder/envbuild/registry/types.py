"""What is asked of a registry, and what may come back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envbuild.net import NetworkError
from envbuild.site import urls

AGAIN_HINT = "Run it again: what was transferred is kept."


def hint_of(address: str, heard: bool) -> str:
    """What to do about a registry that does not answer now, or has not answered once."""
    if heard:
        return AGAIN_HINT
    return f"Is {address} its address, and is it up? A site's is [registry] name in envbuild.toml; or --registry NAME."


class NoAccess(NetworkError):
    """A registry refuses: nobody is logged in, or who is may not do this (exit 3)."""

    code = "access"


class Again(NetworkError):
    """A registry does not answer, or not now: the same may go well later (exit 3)."""

    code = "registry"


class Damaged(NetworkError):
    """A registry gives other bytes than it says (exit 3)."""

    code = "damaged"


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


def words_of(body: bytes, secrets: Iterable[str]) -> str:
    """A registry's own words for an error (OCI distribution specification, "Error Codes"); empty where it has none.

    Args:
        secrets: What only we and it should know: some repeat what they were sent.
    """
    try:
        errors = json.loads(body)["errors"]
        words = "; ".join(
            " ".join(filter(None, (str(each.get("code", "")), str(each.get("message", ""))))) for each in errors
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    for secret in filter(None, secrets):
        words = words.replace(secret, "***")
    return urls.mask(re.sub(r"[^\x20-\x7e]+", " ", words))[:300]
