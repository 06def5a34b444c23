"""Talking to one registry: over TLS except on this machine, as whoever is logged in, with patience."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from envbuild.events import Note, Sink, discard
from envbuild.net import Broken, Missing, NetworkError, Wire
from envbuild.net.manners import backoff, origin, retry_after, shown
from envbuild.registry import tokens
from envbuild.registry.credentials import Account
from envbuild.registry.types import AGAIN_HINT, Access, Again, NoAccess, Reply
from envbuild.site import urls

if TYPE_CHECKING:
    import requests

ATTEMPTS = 5
_REDIRECTS = 5
_MAX_BODY = 8 << 20
# A registry that asks for more patience than this is left alone until the next run (seconds).
_LONGEST_WAIT = 60.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
Data = Callable[[], Any]


class Session:
    """One registry, as one user. May be used from several threads."""

    def __init__(
        self,
        address: str,
        wire: Wire,
        account: Callable[[str], Account | None],
        *,
        sink: Sink = discard,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """
        Args:
            address: Host and port.
            account: The login for a repository; asked once for each, when the registry wants one.
        """
        self.address = address
        self._wire = wire
        self._account = account
        self._sink = sink
        self.pause = pause
        self._lock = threading.Lock()
        self._base = ""
        self._granted: dict[Access, str] = {}

    def ask(
        self,
        method: str,
        path: str,
        access: Access,
        *,
        headers: Mapping[str, str] | None = None,
        data: Data | None = None,
        ok: frozenset[int] = frozenset({200}),
    ) -> Reply:
        """One request with a small answer, tried again where that may help.

        Args:
            path: Below the registry (``/v2/...``), or the whole URL that it gave.
            access: What we have to be allowed.
            data: Gives the body, anew for each attempt.
            ok: The statuses that are an answer.

        Raises:
            NoAccess: 401 or 403.
            Missing: 404.
            Again: No answer, or one that says to come later, as often as was tried.
            NetworkError: Another status, or a certificate that is not trusted.
        """
        with self.open(method, path, access, headers=headers, data=data, ok=ok) as response:
            try:
                body = b"".join(self._wire.blocks(response, self.place(response.url), _MAX_BODY))
            except Broken as error:
                raise Again(f"{error.place}: {error.reason}", hint=AGAIN_HINT) from error
            return Reply(status=response.status_code, url=response.url, headers=_lower(response), body=body)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        access: Access,
        *,
        headers: Mapping[str, str] | None = None,
        data: Data | None = None,
        ok: frozenset[int] = frozenset({200}),
        attempts: int = ATTEMPTS,
    ) -> Iterator[requests.Response]:
        """As ``ask``, with the body still to be read."""
        response = self._patient(method, path, access, dict(headers or {}), data, ok, attempts)
        try:
            yield response
        finally:
            response.close()

    def blocks(self, response: requests.Response, limit: int) -> Iterator[bytes]:
        """The body of an answer in pieces.

        Raises:
            Broken: It broke off.
            NetworkError: It is longer than ``limit`` bytes.
        """
        return self._wire.blocks(response, self.place(response.url), limit)

    def place(self, url: str) -> str:
        """What messages call a URL: without credentials and without a storage's signed query."""
        return shown(url)

    def _patient(
        self,
        method: str,
        path: str,
        access: Access,
        headers: Mapping[str, str],
        data: Data | None,
        ok: frozenset[int],
        attempts: int,
    ) -> requests.Response:
        for attempt in range(attempts):
            last = attempt == attempts - 1
            try:
                response = self._followed(method, path, access, headers, data)
            except Broken as error:
                if last:
                    raise Again(f"{error.place}: {error.reason}", hint=AGAIN_HINT) from error
                self.pause(backoff(attempt))
                continue
            if response.status_code in ok:
                return response
            if response.status_code not in _AGAIN:
                self._refuse(response, access)
            self.pause(self._patience(response, attempt, last=last, access=access))
        raise AssertionError("the last attempt returns or raises")

    def _patience(self, response: requests.Response, attempt: int, *, last: bool, access: Access) -> float:
        """How long to wait after an answer that may be another one later."""
        asked = retry_after(response.headers.get("Retry-After", ""))
        wait = backoff(attempt) if asked is None else asked
        if last or wait > _LONGEST_WAIT:
            self._refuse(response, access)
        response.close()
        if wait >= 1:
            said = f"{self.address} answers {response.status_code}; asking again in {wait:.0f} s"
            self._sink(Note(message=said))
        return wait

    def _followed(
        self, method: str, path: str, access: Access, headers: Mapping[str, str], data: Data | None
    ) -> requests.Response:
        here = urljoin(self._root(), path)
        for _ in range(_REDIRECTS):
            response = self._authorized(method, here, access, headers, data)
            target = response.headers.get("Location")
            if response.status_code not in _MOVED or not target or method not in ("GET", "HEAD"):
                return response
            response.close()
            there = urljoin(here, target)
            if urlsplit(there).scheme not in ("http", "https"):
                raise NetworkError(f"{shown(here)}: leads to {urlsplit(there).scheme}:, which is not followed")
            if urlsplit(there).scheme == "http" and not (here.startswith("http:") and urls.is_loopback(there)):
                raise NetworkError(f"{shown(here)}: leads to {shown(there)}, which is not reached over TLS")
            here = there
        raise NetworkError(f"{shown(here)}: more than {_REDIRECTS} redirects")

    def _authorized(
        self, method: str, url: str, access: Access, headers: Mapping[str, str], data: Data | None
    ) -> requests.Response:
        # A storage that a registry sends to has its own permission in the URL, and is never told ours.
        ours = origin(url) == origin(self._root())
        for again in (False, True):
            granted = self._granted.get(access) if ours else None
            response = self._wire.send(
                method, url,
                headers={"Accept-Encoding": "identity", **headers, **({"Authorization": granted} if granted else {})},
                data=data() if data else None,
            )  # fmt: skip
            if response.status_code != 401 or not ours or again:
                return response
            challenge = tokens.read(response.headers.get("WWW-Authenticate", ""))
            answer = self._answer(challenge, access, refused=granted) if challenge else None
            if answer is None:
                return response
            response.close()
            self._granted[access] = answer
        raise AssertionError("the second round returns")

    def _answer(self, challenge: tokens.Challenge, access: Access, *, refused: str | None) -> str | None:
        """The header that answers a challenge; None where nobody could answer it better."""
        with self._lock:
            if (other := self._granted.get(access)) is not None and other != refused:
                return other  # another thread has just fetched it
            account = self._account(access.repository)
            if challenge.scheme == "basic":
                return account.basic if account is not None and account.basic != refused else None
            return "Bearer " + tokens.fetch(self._wire, self._root(), challenge, access.scopes, account)

    def _root(self) -> str:
        """The registry's URL. Loopback may speak plain HTTP, as with Docker; nobody else may."""
        with self._lock if not self._base else contextlib.nullcontext():
            if not self._base:
                plain = urls.is_loopback(f"http://{self.address}") and self._speaks_plainly()
                self._base = f"{'http' if plain else 'https'}://{self.address}/"
        return self._base

    def _speaks_plainly(self) -> bool:
        try:
            response = self._wire.send("GET", f"http://{self.address}/v2/", headers={})
        except Broken:
            return True  # nobody is there; the message then names what was tried first
        response.close()
        # A server that wants TLS answers plain HTTP with 400, or not at all.
        return response.status_code in (200, 401) or response.status_code >= 429

    def _refuse(self, response: requests.Response, access: Access) -> None:
        """Raise what an answer means."""
        status, place = response.status_code, self.place(response.url)
        said = self._said(response)
        response.close()
        tail = f": {said}" if said else ""
        if status == 404:
            raise Missing(f"{place}: not there (404){tail}")
        if status in (401, 403):
            account = self._account(access.repository)
            who = f"the login from {account.origin}" if account else "somebody without a login"
            do = "push to" if access.push else "pull from"
            login = f"docker login {self.address}"
            raise NoAccess(
                f"{self.address}: {who} may not {do} {access.repository} ({status}){tail}",
                hint=f"{login} as somebody who may" if account else f"Log in, and this uses it too: {login}",
            )
        asked = retry_after(response.headers.get("Retry-After", ""))
        patience = f", and asks to wait {asked:.0f} seconds" if asked else ""
        message = f"{place}: the registry answers {status}{patience}{tail}"
        raise Again(message, hint=AGAIN_HINT) if status in _AGAIN else NetworkError(message)

    def _said(self, response: requests.Response) -> str:
        """The registry's own words for an error (OCI distribution specification, "Error Codes")."""
        try:
            body = b"".join(self._wire.blocks(response, "", 1 << 16))
            errors = json.loads(body)["errors"]
            words = "; ".join(
                " ".join(filter(None, (str(each.get("code", "")), str(each.get("message", ""))))) for each in errors
            )
        except (Broken, NetworkError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ""
        return re.sub(r"[^\x20-\x7e]+", " ", words)[:300]


def _lower(response: requests.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
