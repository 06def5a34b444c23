"""Addresses with credentials in them, and how to speak of them without."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Up to the last "@" before the path, so that a password with a raw "@" in it is covered whole.
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"<>`]*@")
_QUERY = re.compile(r"(?P<url>[A-Za-z][A-Za-z0-9+.-]*://[^\s?#'\"<>`]*)\?[^\s'\"<>`)]*")


def mask(text: str) -> str:
    """``text`` with the credentials (and query) of every URL in it replaced by ``***``."""
    return _QUERY.sub(r"\g<url>?***", _USERINFO.sub(r"\g<scheme>***@", text))


def tokens(urls: Iterable[str]) -> tuple[str, ...]:
    """User names, passwords and query strings in ``urls``, raw and decoded, longest first: what no text may show."""
    found: set[str] = set()
    for url in urls:
        parts = _split(url)
        userinfo = parts[0].rpartition("@")[0]
        user, _, password = userinfo.partition(":")
        # With a password beside it, the user name is a name; alone, it is the token itself.
        for value in (userinfo, password or user, parts[1]):
            found.update((value, unquote(value)))
    # Short ones would blank out unrelated words; mask() still covers them inside a URL.
    return tuple(sorted((value for value in found if len(value) >= 4), key=lambda value: (-len(value), value)))


def scrub(text: str, urls: Iterable[str]) -> str:
    """``text``, said by another program, without any credential of ``urls``, in a URL or out of one."""
    clean = mask(text)
    for token in tokens(urls):
        clean = clean.replace(token, "***")
    return clean


def host(url: str) -> str:
    """Host of a URL or a ``host:port``, in lower case; empty where there is none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def is_loopback(url: str) -> bool:
    """Whether ``url`` names this machine itself, which inside a container is another one."""
    name = "" if url.lower().startswith("file:") else host(url)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def is_remote(url: str) -> bool:
    """Whether ``url`` is fetched over the network (http or https)."""
    return url.lower().startswith(("http://", "https://"))


def local_path(location: str) -> Path | None:
    """The path of a ``file:`` URL or of a plain path; None for every other URL."""
    if location.lower().startswith("file:"):
        try:
            parts = urlsplit(location)
        except ValueError:
            return None
        return Path(unquote(parts.path)) if parts.netloc in ("", "localhost") and parts.path else None
    return None if "://" in location else Path(location)


def bypasses(url: str, no_proxy: str | None) -> bool:
    """Whether ``no_proxy`` (comma separated hosts, domains and networks, or ``*``) exempts the host of ``url``."""
    name = host(url)
    for entry in (no_proxy or "").replace(" ", ",").split(","):
        bare = entry.strip().lower()
        if bare == "*":
            return True
        if "/" in bare and _inside(name, bare):
            return True
        suffix = bare.partition(":")[0].lstrip("*").lstrip(".")
        if suffix and (name == suffix or name.endswith(f".{suffix}")):
            return True
    return False


def _inside(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _split(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
    except ValueError:
        return "", ""
    return parts.netloc, parts.query
