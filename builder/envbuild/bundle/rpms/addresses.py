"""Addresses of repositories and of what lies below them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from envbuild.errors import BundleError
from envbuild.site import urls


def local(url: str) -> Path | None:
    """The path of a ``file:`` address."""
    return urls.local_path(url) if url.startswith("file:") else None


def joined(base: str, location: str) -> str:
    """The address of something below a repository; ``location`` is relative, as it stands in its metadata.

    Raises:
        BundleError: It leads out of the repository.
    """
    # As it stands, and as whoever opens it reads it.
    parts = (*location.split("/"), *unquote(location).split("/"))
    odd = any(ord(character) < 32 or ord(character) == 127 for character in location)
    if not location or location.startswith("/") or ".." in parts or odd or "\\" in location or "://" in location:
        raise BundleError(f"{urls.mask(base)}: its metadata leads to {location[:200]!r}, which is not below it")
    # Locations are paths, not addresses: what is special in an address is quoted (dnf does the same).
    return base.rstrip("/") + "/" + quote(location, safe="/%+~^!@,=;:()-._")


def place(url: str) -> str:
    """``host:port`` of an address, without credentials."""
    return urlsplit(url).netloc.rpartition("@")[2]


def with_account(url: str, account: tuple[str, str]) -> str:
    """An address with user and password in it."""
    parts = urlsplit(url)
    user, password = (quote(word, safe="") for word in account)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))
