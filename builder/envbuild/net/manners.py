"""Whom a password is for, how long to wait, and what went wrong in a few words."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from envbuild.net.types import NetworkError

# The errors of urllib3 that people meet, where the system says nothing of its own.
_WORDS = {
    "ConnectTimeoutError": "no connection in time",
    "IncompleteRead": "it ends too early",
    "NameResolutionError": "no such host",
    "NewConnectionError": "no connection",
    "ProtocolError": "not as HTTP asks for",
    "ReadTimeoutError": "nothing in time",
    "RemoteDisconnected": "it hung up",
}


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: whom a password is for."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def without_account(url: str) -> str:
    """``url`` without user and password, and without its fragment."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def shown(url: str) -> str:
    """``url`` as a message may have it: a query can be a password too."""
    parts = urlsplit(without_account(url))
    return urlunsplit(parts._replace(query="***" if parts.query else ""))


def joined(base: str, target: str) -> str:
    """Where an answer from ``base`` leads to.

    Raises:
        NetworkError: It is no address that can be asked.
    """
    try:
        there = urljoin(base, target)
        parts = urlsplit(there)
        if parts.hostname and parts.port != 0 and parts.scheme in ("http", "https"):
            return there
        where = f"{parts.scheme}:"
    except ValueError:
        where = "an address that is none"
    raise NetworkError(f"{shown(base)}: leads to {where}, which is not followed")


def account(url: str) -> tuple[str, str] | None:
    """User and password in ``url``; None without."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    return (unquote(name), unquote(password)) if at else None


def backoff(attempt: int) -> float:
    """Seconds before the next attempt: twice as long each time, and not the same for everybody."""
    import random

    return 0.5 * 2.0**attempt * random.uniform(1.0, 1.5)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of an answer's Retry-After, from a number or a date; None without one.

    A date is held to the server's own clock, where the answer has its Date (RFC 9110, 6.6.1): ours may be wrong.
    """
    text = headers.get("Retry-After", "")
    if re.fullmatch("[0-9]+", text.strip()):
        return float(text.strip()[:9])
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        now = datetime.datetime.now(datetime.timezone.utc)
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            now = _date(headers.get("Date", ""))
        return max(0.0, (_date(text) - now).total_seconds())
    return None


def _date(text: str) -> datetime.datetime:
    import email.utils

    said = email.utils.parsedate_to_datetime(text)
    # "-0000" is UTC too, and comes without a zone.
    return said if said.tzinfo else said.replace(tzinfo=datetime.timezone.utc)


def reason(error: BaseException) -> str:
    """The innermost cause, in a few words: the texts around it repeat URLs."""
    inner: Any = innermost(error)
    if str(inner).startswith("Tunnel connection failed: "):
        return f"the proxy answers {str(inner).partition(': ')[2]}"[:100]  # http.client's: a status and its words
    # urllib3 says why in a text and in what it was raised from, and nowhere else.
    for each in (inner, inner.__cause__, inner.__context__):
        if isinstance(each, OSError) and (said := each.strerror):
            return said[:1].lower() + said[1:]
    return _WORDS.get(type(inner).__name__, type(inner).__name__)


def innermost(error: BaseException) -> BaseException:
    """The error that the others are wrapped around."""
    inner: Any = error
    for _ in range(8):
        nested = getattr(inner, "reason", None)
        if not isinstance(nested, BaseException):
            nested = next((each for each in inner.args if isinstance(each, BaseException)), None)
        if nested is None:
            break
        inner = nested
    found: BaseException = inner
    return found
