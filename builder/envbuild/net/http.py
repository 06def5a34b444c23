"""HTTP for reading: polite, bounded, and careful with whom it tells a password.

Redirects are followed here and not by requests, so that credentials and the decision to trust a certificate are
made anew for every host on the way.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from envbuild.events import Note, Sink, discard
from envbuild.net.manners import account, backoff, joined, origin, retry_after, shown, without_account
from envbuild.net.types import Answer, Missing, NetworkError, NoRanges
from envbuild.net.wire import Broken, Route, Wire

if TYPE_CHECKING:
    import requests

_ATTEMPTS = 4
_REDIRECTS = 10
# A server that asks for more patience than this is left alone until the next run (seconds).
_LONGEST_WAIT = 60.0
_AGAIN = frozenset({429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_AGAIN_HINT = "run it again: what was read is kept"
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})$")


T = TypeVar("T")


class Client:
    """Reads over HTTP. May be used from several threads."""

    def __init__(self, route: Route, *, sink: Sink = discard, pause: Callable[[float], object] = time.sleep) -> None:
        self._wire = Wire(route)
        self._sink = sink
        self._pause = pause
        self._accounts = {origin(url): pair for url in route.accounts if (pair := account(url))}

    def get(self, url: str, *, limit: int, headers: Mapping[str, str] | None = None) -> Answer:
        """The whole of a page; 304 where ``headers`` ask for that.

        Args:
            limit: Bytes, decompressed, after which an answer is refused.

        Raises:
            Missing: There is no such page.
            NetworkError: No answer, not in time, an error, or more than ``limit``.
        """

        def whole(response: requests.Response, place: str) -> Answer:
            body = b"".join(self._wire.blocks(response, place, limit))
            if response.status_code not in (200, 304):
                raise NetworkError(f"{place}: the answer is {response.status_code}, and a page was expected")
            return Answer(status=response.status_code, url=response.url, headers=_lower(response), body=body)

        return self._ask(url, headers or {}, whole)

    def part(self, url: str, start: int, end: int) -> tuple[bytes, int]:
        """The bytes from ``start`` up to ``end`` (excluded), and the size of the whole file. With a negative ``start``
        and ``end`` 0: the last bytes.

        Raises:
            NoRanges: The server sends whole files only; nothing was downloaded.
            Missing: There is no such file.
            NetworkError: As ``get``; or the answer is not the part that was asked for.
        """

        def ranged(response: requests.Response, place: str) -> tuple[bytes, int]:
            if response.status_code == 416:
                raise NetworkError(f"{place}: ends before byte {start}: the file is shorter than the index says")
            if response.status_code != 206:
                raise NoRanges(f"{place}: the server sends no parts of files (HTTP ranges), only whole ones")
            said = _RANGE.match(response.headers.get("Content-Range", ""))
            if said is None:
                raise NetworkError(f"{place}: a part without a usable Content-Range")
            first, last, size = (int(number) for number in said.groups())
            body = b"".join(self._wire.blocks(response, place, max(end - start, -start)))
            wanted = start if start >= 0 else max(0, size + start)
            if first != wanted or len(body) != last - first + 1 or last != min(end or size, size) - 1:
                raise NetworkError(f"{place}: asked for the bytes from {wanted}, got {len(body)} from {first}")
            return body, size

        span = f"{start}-{end - 1}" if start >= 0 else str(start)
        return self._ask(url, {"Range": f"bytes={span}", "Accept-Encoding": "identity"}, ranged)

    @contextlib.contextmanager
    def stream(self, url: str, *, limit: int) -> Iterator[Iterator[bytes]]:
        """A file in pieces, as they come. What breaks off on the way is not tried again.

        Raises:
            Missing: There is no such file.
            NetworkError: As ``get``.
        """
        opened: list[requests.Response] = []

        def begun(response: requests.Response, place: str) -> Iterator[bytes]:
            opened.append(response)
            if response.status_code != 200:
                raise NetworkError(f"{place}: the answer is {response.status_code}, and a file was expected")
            return self._blocks(response, place, limit)

        try:
            yield self._ask(url, {"Accept-Encoding": "identity"}, begun, keep=True)
        finally:
            for response in opened:
                response.close()

    @contextlib.contextmanager
    def rest(self, url: str, start: int, *, limit: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A file from byte ``start`` on, in pieces, as they come, and the byte that they begin with: 0 where the server
        sends whole files only.

        Args:
            limit: Size of the whole file in bytes; one that is longer is refused.

        Raises:
            Missing: There is no such file.
            Broken: While it is read: it broke off.
            NetworkError: As ``get``; or another part of it came than was asked for.
        """
        opened: list[requests.Response] = []

        def begun(response: requests.Response, place: str) -> tuple[int, Iterator[bytes]]:
            opened.append(response)
            if response.status_code == 200:
                return 0, self._wire.blocks(response, place, limit, decode=False)
            said = _RANGE.match(response.headers.get("Content-Range", ""))
            if response.status_code != 206 or said is None or int(said.group(1)) != start:
                raise NetworkError(f"{place}: asked for the bytes from {start}, and they did not come")
            return start, self._wire.blocks(response, place, limit - start, decode=False)

        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        try:
            yield self._ask(url, headers, begun, keep=True)
        finally:
            for response in opened:
                response.close()

    def _ask(
        self, url: str, headers: Mapping[str, str], read: Callable[[requests.Response, str], T], *, keep: bool = False
    ) -> T:
        """Ask until there is an answer that can be read, as often as is polite."""
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                response, place = self._follow(url, headers)
                wait = self._refusal(response, place, last=last, attempt=attempt)
                if wait is None:
                    try:
                        return read(response, place)
                    finally:
                        if not keep:
                            response.close()
                response.close()
            except Broken as error:
                if last:
                    raise NetworkError(f"{error.place}: {error.reason}", hint=_AGAIN_HINT) from error
                wait = backoff(attempt)
            self._pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _refusal(self, response: requests.Response, place: str, *, last: bool, attempt: int) -> float | None:
        """How long to wait before asking again; None for an answer that is one."""
        status = response.status_code
        if status in (404, 410):
            response.close()
            raise Missing(f"{place}: not there ({status})")
        if status in (401, 403, 407):
            response.close()
            raise NetworkError(f"{place}: no access ({status})", hint="check the credentials of the index or the proxy")
        if status not in _AGAIN:
            return None
        asked = retry_after(response.headers)
        wait = backoff(attempt) if asked is None else asked
        if last or wait > _LONGEST_WAIT:
            response.close()
            patience = f", and asks to wait {wait:.0f} seconds" if asked is not None else ""
            raise NetworkError(f"{place}: the server answers {status}{patience}", hint=_AGAIN_HINT)
        if wait >= 1:
            self._sink(Note(message=f"{urlsplit(place).hostname} answers {status}; asking again in {wait:.0f} s"))
        return wait

    def _follow(self, url: str, headers: Mapping[str, str]) -> tuple[requests.Response, str]:
        here = url
        for _ in range(_REDIRECTS):
            bare = without_account(here)
            place = shown(bare)
            response = self._once(here, bare, headers)
            target = response.headers.get("Location")
            if response.status_code not in _MOVED or not target:
                return response, place
            response.close()
            here = joined(bare, target)
            if place.startswith("https:") and here.startswith("http:"):
                raise NetworkError(f"{place}: leads from https to http, which is not followed")
        raise NetworkError(f"{shown(url)}: more than {_REDIRECTS} redirects")

    def _once(self, url: str, bare: str, headers: Mapping[str, str]) -> requests.Response:
        import requests

        auth = account(url) or self._accounts.get(origin(url)) or requests.utils.get_netrc_auth(bare)
        return self._wire.send("GET", bare, headers=headers, auth=auth)

    def _blocks(self, response: requests.Response, place: str, limit: int) -> Iterator[bytes]:
        try:
            yield from self._wire.blocks(response, place, limit)
        except Broken as error:
            raise NetworkError(f"{place}: {error.reason}", hint=_AGAIN_HINT) from error


def _lower(response: requests.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
