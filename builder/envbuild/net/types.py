"""What comes back from a server, and what may go wrong on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server sent.

    Attributes:
        url: Where it was found in the end, without credentials.
        headers: By name in lower case.
        body: Decompressed; empty for 304.
    """

    status: int
    url: str
    headers: Mapping[str, str]
    body: bytes


class NetworkError(EngineError):
    """A server does not answer, or not as it should (exit 3).

    Attributes:
        status: The HTTP status that says so; 0 where it is something else.
        wait: How long the server asks to be left alone (seconds).
    """

    code = "network"
    status: int = 0
    wait: float = 0.0


class Missing(NetworkError):
    """A server answers that it has no such thing (404 or 410)."""

    code = "missing"


class Untrusted(NetworkError):
    """A server's certificate is not trusted."""

    code = "certificate"


class NoRanges(NetworkError):
    """A server sends whole files only."""

    code = "no-ranges"


class TooLong(NetworkError):
    """An answer is longer than is sensible."""

    code = "too-long"
