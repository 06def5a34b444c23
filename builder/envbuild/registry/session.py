"""Talking to one registry: over TLS except on this machine, as whoever is logged in, with patience."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from envbuild.events import Note, Sink, discard
from envbuild.net import Broken, NetworkError, Wire
from envbuild.net.manners import backoff, joined, origin, retry_after, shown
from envbuild.registry import tokens
from envbuild.registry.credentials import Account
from envbuild.registry.refusals import AGAIN, Refusal
from envbuild.registry.types import Access, Again, Reply, hint_of, words_of
from envbuild.site import urls

if TYPE_CHECKING:
    import requests

ATTEMPTS = 5
_REDIRECTS = 5
_MAX_BODY = 8 << 20
# A registry that asks for more patience than this is left alone until the next run (seconds).
_LONGEST_WAIT = 60.0
_MOVED = frozenset({301, 302, 303, 307, 308})
_OK = frozenset({200})
_PLAIN_HINT = "A proxy before the registry ends TLS and does not tell it so: it has to send X-Forwarded-Proto."
Data = Callable[[], Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    access: Access
    headers: Mapping[str, str]
    data: Data | None
    ok: frozenset[int]


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
        attempts: int = ATTEMPTS,
    ) -> None:
        """
        Args:
            address: Host and port.
            account: The login for a repository; asked once for each, when the registry wants one.
            attempts: How often a request is tried where that may help.
        """
        self.address = address
        self._wire = wire
        self._account = account
        self._sink = sink
        self.pause = pause
        self._attempts = attempts
        self._lock = threading.RLock()
        self._base, self._heard = "", False
        self._granted: dict[Access, str] = {}
        self._accounts: dict[str, Account | None] = {}

    def ask(
        self,
        method: str,
        path: str,
        access: Access,
        *,
        headers: Mapping[str, str] | None = None,
        data: Data | None = None,
        ok: frozenset[int] = _OK,
        attempts: int | None = None,
    ) -> Reply:
        """One request with a small answer, tried again where that may help.

        Args:
            path: Below the registry (``/v2/...``), or the whole URL that it gave.
            access: What we have to be allowed.
            data: Gives the body, anew for each attempt.
            ok: The statuses that are an answer.
            attempts: How often, where not as often as the session tries.

        Raises:
            NoAccess: 401 or 403.
            Missing: 404.
            Again: No answer, or one that says to come later, as often as was tried.
            NetworkError: Another status, or a certificate that is not trusted.
        """

        def whole(response: requests.Response) -> Reply:
            try:
                body = b"".join(self._wire.blocks(response, self.place(response.url), _MAX_BODY))
            finally:
                response.close()
            return Reply(status=response.status_code, url=response.url, headers=_lower(response), body=body)

        request = _Request(method, path, access, headers or {}, data, ok)
        return self._patient(request, attempts or self._attempts, whole)

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        access: Access,
        *,
        headers: Mapping[str, str] | None = None,
        ok: frozenset[int] = _OK,
    ) -> Iterator[requests.Response]:
        """As ``ask``, with the body still to be read."""
        request = _Request(method, path, access, headers or {}, None, ok)
        response: requests.Response = self._patient(request, self._attempts, lambda response: response)
        try:
            yield response
        finally:
            response.close()

    def blocks(self, response: requests.Response, limit: int) -> Iterator[bytes]:
        """The body of an answer in pieces, as the registry has it: a digest is that of the bytes it stores.

        Raises:
            Broken: It broke off.
            TooLong: It is longer than ``limit`` bytes.
        """
        return self._wire.blocks(response, self.place(response.url), limit, decode=False)

    def heed(self, error: NetworkError) -> None:
        """Wait as long as the registry asked for, before it is asked anything else.

        Raises:
            NetworkError: The same, where that is longer than is sensible.
        """
        if error.wait > _LONGEST_WAIT:
            raise error
        if error.wait:
            self._sink(Note(message=f"{self.address} answers {error.status}; going on in {error.wait:.0f} s"))
            self.pause(error.wait)

    def place(self, url: str) -> str:
        """What messages call a URL: without credentials and without a storage's signed query."""
        return shown(url)

    def lead(self, here: str, target: str) -> str:
        """Where an answer from ``here`` leads to.

        Raises:
            NetworkError: There is no going there: it is no address, or not reached over TLS.
        """
        there = joined(here, target)
        if urlsplit(there).scheme == "http" and not (self._root().startswith("http:") and urls.is_loopback(there)):
            same = origin(there)[1] == origin(self._root())[1]
            raise NetworkError(
                f"{shown(here)}: leads to {shown(there)}, which is not reached over TLS", hint=_PLAIN_HINT * same
            )
        return there

    def _patient(self, request: _Request, attempts: int, read: Callable[[requests.Response], T]) -> T:
        """Ask until there is an answer that can be read, as often as is polite."""
        for attempt in range(attempts):
            last = attempt == attempts - 1
            try:
                response = self._followed(request)
                if response.status_code in request.ok:
                    return read(response)
            except Broken as error:
                if last or error.wait > _LONGEST_WAIT:
                    raise Again(f"{error.place}: {error.reason}", hint=hint_of(self.address, self._heard)) from error
                self.pause(error.wait or backoff(attempt))
                continue
            if response.status_code not in AGAIN:
                self._refuse(response, request.access)
            self.pause(self._patience(response, attempt, last=last, access=request.access))
        raise AssertionError("the last attempt returns or raises")

    def _patience(self, response: requests.Response, attempt: int, *, last: bool, access: Access) -> float:
        """How long to wait after an answer that may be another one later."""
        asked = retry_after(response.headers)
        wait = backoff(attempt) if asked is None else asked
        if last or wait > _LONGEST_WAIT:
            self._refuse(response, access)
        response.close()
        if wait >= 1:
            self._sink(Note(message=f"{self.address} answers {response.status_code}; asking again in {wait:.0f} s"))
        return wait

    def _followed(self, request: _Request) -> requests.Response:
        here = self.lead(self._root(), request.url)
        for _ in range(_REDIRECTS):
            response = self._authorized(request, here)
            target = response.headers.get("Location")
            if response.status_code not in _MOVED or not target or request.method not in ("GET", "HEAD"):
                return response
            response.close()
            here = self.lead(here, target)
        raise NetworkError(f"{shown(here)}: more than {_REDIRECTS} redirects")

    def _authorized(self, request: _Request, url: str) -> requests.Response:
        # A storage that a registry sends to has its own permission in the URL, and is never told ours.
        ours = origin(url) == origin(self._root())
        access = request.access
        for again in (False, True):
            granted = self._granted.get(access) if ours else None
            own = {"Authorization": granted} if granted else {}
            response = self._wire.send(
                request.method, url,
                headers={"Accept-Encoding": "identity", **request.headers, **own},
                data=request.data() if request.data else None,
            )  # fmt: skip
            self._heard = True
            if response.status_code != 401 or not ours or again:
                return response
            challenge = tokens.read(response.headers.get("WWW-Authenticate", ""))
            with contextlib.ExitStack() as stack:
                stack.callback(response.close)
                answer = self._answer(challenge, access, refused=granted) if challenge else None
                if answer is None:
                    stack.pop_all()
                    return response
            self._granted[access] = answer
        raise AssertionError("the second round returns")

    def _answer(self, challenge: tokens.Challenge, access: Access, *, refused: str | None) -> str | None:
        """The header that answers a challenge; None where nobody could answer it better."""
        with self._lock:
            if (other := self._granted.get(access)) is not None and other != refused:
                return other  # another thread has just fetched it
            account = self._login(access)
            if challenge.scheme == "basic":
                # An identity token is no password: only a token server takes it.
                basic = account.basic if account is not None and not account.token else None
                return basic if basic != refused else None
            return "Bearer " + tokens.fetch(self._wire, self._root(), challenge, access.scopes, account)

    def _login(self, access: Access) -> Account | None:
        with self._lock:
            if access.repository not in self._accounts:
                self._accounts[access.repository] = self._account(access.repository)
            return self._accounts[access.repository]

    def _root(self) -> str:
        """The registry's URL. Loopback may speak plain HTTP, as with Docker; nobody else may."""
        with self._lock if not self._base else contextlib.nullcontext():
            if not self._base:
                plain = urls.is_loopback(f"http://{self.address}") and self._speaks_plainly()
                self._base = f"{'http' if plain else 'https'}://{self.address}/"
        return self._base

    def _speaks_plainly(self) -> bool:
        """Whether a registry of this machine speaks plain HTTP. One with TLS answers that with 400, or hangs up."""
        for scheme in ("http", "https"):
            try:
                response = self._wire.send("GET", f"{scheme}://{self.address}/v2/", headers={})
            except Broken:
                continue
            except NetworkError:
                return False  # its certificate is not trusted, but it has one
            response.close()
            return scheme == "http" and response.status_code not in (400, *_MOVED)
        return True  # nobody is there; the message then names what was tried first

    def _refuse(self, response: requests.Response, access: Access) -> None:
        """Raise what an answer means."""
        said = self._said(response)
        response.close()
        refusal = Refusal(
            address=self.address, place=self.place(response.url), status=response.status_code, said=said,
            asked=retry_after(response.headers) or 0.0,
        )  # fmt: skip
        raise refusal.error(access, self._login)

    def _said(self, response: requests.Response) -> str:
        """The registry's own words for an error."""
        try:
            body = b"".join(self._wire.blocks(response, "", 1 << 16))
        except (Broken, NetworkError):
            return ""
        logins = [each for each in list(self._accounts.values()) if each]
        granted = [each.partition(" ")[2] for each in list(self._granted.values())]
        return words_of(body, (*granted, *(secret for each in logins for secret in (each.password, each.token))))


def _lower(response: requests.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
