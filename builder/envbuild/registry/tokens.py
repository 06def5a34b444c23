"""How a registry wants to be asked: its challenge, and the token that answers it.

Source: distribution.github.io/distribution/spec/auth/token and .../oauth, read 2026-11-30.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from envbuild.net import Broken, NetworkError, Wire
from envbuild.net.manners import origin, shown
from envbuild.registry.credentials import Account

_SCHEME = re.compile(r"\s*([A-Za-z]+)\s*(.*)", re.DOTALL)
_PARAMETER = re.compile(r'([a-zA-Z_]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
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
    """The challenge of a header; None where there is none that can be answered."""
    found = _SCHEME.match(header)
    if found is None or found[1].lower() not in ("basic", "bearer"):
        return None
    said = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(found[2])}
    return Challenge(
        scheme=found[1].lower(),
        realm=said.get("realm", ""),
        service=said.get("service", ""),
        scope=said.get("scope", ""),
        error=said.get("error", ""),
    )


def fetch(wire: Wire, registry: str, challenge: Challenge, scopes: tuple[str, ...], account: Account | None) -> str:
    """The token that a challenge wants.

    Args:
        registry: The URL that was asked: who may be told the password.
        scopes: What it is for, such as ``repository:team/cpu:pull``.

    Raises:
        NetworkError: The token server refuses, or is none that may be told a password.
        Broken: It does not answer.
    """
    realm = challenge.realm
    place = shown(realm)
    near = urlsplit(registry).scheme == "http"
    # Plain HTTP is spoken to a registry of this machine only; its token server may be of this machine too, not another.
    if urlsplit(realm).scheme != "https" and not (near and _same_host(realm, registry)):
        raise NetworkError(f"{shown(registry)}: wants a token from {place or 'nowhere'}, which is not reached over TLS")
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
    if response.status_code in (429, 500, 502, 503, 504):
        raise Broken(place, f"the token server answers {response.status_code}")
    if response.status_code != 200:
        raise NetworkError(
            f"{place}: gives no token ({response.status_code})"
            + (f" for the login from {account.origin}" if account else " to somebody without a login"),
            hint=f"Log in again: docker login {urlsplit(registry).netloc}",
        )
    token = _token(body)
    if token is None:
        raise NetworkError(f"{place}: answers with something else than a token")
    return token


def _token(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
    # It becomes a header: nothing but what a token may consist of.
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else None


def _same_host(one: str, other: str) -> bool:
    return origin(one)[1] == origin(other)[1]
