"""How a registry wants to be asked: its challenge, and the token that answers it.

Source: distribution.github.io/distribution/spec/auth/token and .../oauth, read 2026-11-30.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from envbuild.net import Broken, NetworkError, Wire
from envbuild.net.manners import joined, retry_after, shown
from envbuild.registry.credentials import Account
from envbuild.registry.types import NoAccess
from envbuild.site import urls

# A scheme, or a parameter of the scheme before it.
_WORD = re.compile(r'([A-Za-z][A-Za-z0-9_-]*)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_MAX_BYTES = 1 << 20
_CLIENT = "envbuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What a ``WWW-Authenticate`` header asks for; ``scheme`` is in small letters."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""
    error: str = ""


def read(header: str) -> Challenge | None:
    """The challenge of a header; None where there is none that can be answered. Of several, a token goes first."""
    said: dict[str, dict[str, str]] = {}
    parameters: dict[str, str] = {}
    for found in _WORD.finditer(header):
        name = found[1].lower()
        if found[2] is None and found[3] is None:
            parameters = said.setdefault(name, {})
        else:
            parameters.setdefault(name, found[2] or found[3] or "")
    for scheme in ("bearer", "basic"):
        if scheme in said:
            known = {name: said[scheme].get(name, "") for name in ("realm", "service", "scope", "error")}
            return Challenge(scheme=scheme, **known)
    return None


def fetch(wire: Wire, registry: str, challenge: Challenge, scopes: tuple[str, ...], account: Account | None) -> str:
    """The token that a challenge wants.

    Args:
        registry: The URL that was asked: who may be told the password.
        scopes: What it is for, such as ``repository:team/cpu:pull``.

    Raises:
        NoAccess: The token server refuses, is none that may be told a password, or gives something else.
        NetworkError: Its certificate is not trusted.
        Broken: It does not answer.
    """
    realm = _usable(registry, challenge.realm)
    place = shown(realm)
    # Plain HTTP is spoken to a registry of this machine only; its token server may be of this machine too, not another.
    near = registry.startswith("http:") and realm.startswith("http:") and urls.is_loopback(realm)
    if not realm.startswith("https:") and not near:
        raise NoAccess(f"{shown(registry)}: wants a token from {place or 'nowhere'}, which is not reached over TLS")
    if account is not None and account.token:
        form = {
            "grant_type": "refresh_token", "service": challenge.service, "client_id": _CLIENT,
            "scope": " ".join(scopes), "refresh_token": account.token,
        }  # fmt: skip
        response = wire.send(
            "POST", realm, headers={"Content-Type": "application/x-www-form-urlencoded"}, data=urlencode(form).encode()
        )
    else:
        query = urlencode([("service", challenge.service), *(("scope", scope) for scope in scopes)])
        headers = {"Authorization": account.basic} if account else {}
        response = wire.send("GET", f"{realm}{'&' if urlsplit(realm).query else '?'}{query}", headers=headers)
    try:
        body = b"".join(wire.blocks(response, place, _MAX_BYTES))
    finally:
        response.close()
    status = response.status_code
    if status in (429, 500, 502, 503, 504):
        raise Broken(place, f"the token server answers {status}", wait=retry_after(response.headers) or 0.0)
    if status != 200:
        message = f"{place}: gives no token ({status})" + (
            f" for the login from {account.origin}" if account else " to somebody without a login"
        )
        raise NoAccess(message, hint=f"Log in again: docker login {urlsplit(registry).netloc}")
    token = _token(body)
    if token is None:
        raise NoAccess(f"{place}: answers with something else than a token")
    return token


def _usable(registry: str, realm: str) -> str:
    try:
        return joined(registry, realm) if realm else ""
    except NetworkError:
        return ""


def _token(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
    # It becomes a header: nothing but what a token may consist of.
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else None
