"""One HTTP exchange: to whom a certificate, a proxy and a password belong, and what may break on the way.

Redirects are not followed here, so that whoever does decides anew for every host whom to tell a password.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envbuild.net.manners import innermost, origin, reason, shown
from envbuild.net.types import NetworkError, TooLong, Untrusted

if TYPE_CHECKING:
    import requests

CHUNK = 1 << 18
# Less than this in a time-out's worth of time is no transfer: somebody keeps the line busy (bytes).
TRICKLE = 1 << 16
CA_HINT = "name the site's CA bundle: [network] ca (for package indexes: [pip] cert) in envbuild.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way to the servers of one site.

    Attributes:
        agent: What we call ourselves.
        timeout: Limit in seconds for the connection and for each wait on the server.
        ca: CA bundle (file or folder) in place of the default one.
        proxies: Proxy URL by scheme.
        direct: Whether a URL is reached without the proxy.
        unverified: Hosts, or ``host:port``, whose certificates are not looked at.
        accounts: URLs with credentials; these go to the same scheme, host and port only.
        roots: CAs that are trusted besides the others, as PEM.
        client: Our certificate and its key, shown to ``client_for`` (``host:port``) only.
    """

    agent: str
    timeout: float = 30.0
    ca: Path | None = None
    proxies: Mapping[str, str] = field(default_factory=dict)
    direct: Callable[[str], bool] = lambda url: False
    unverified: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    roots: str = field(default="", repr=False)
    client: tuple[Path, Path] | None = None
    client_for: str = ""


class Broken(Exception):
    """Nothing was answered, or not all of it: worth another attempt, after ``wait`` seconds where it asked for that."""

    def __init__(self, place: str, reason: str, *, wait: float = 0.0) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason
        self.wait = wait


class Wire:
    """Sends single requests. May be used from several threads: each has connections of its own, which stay open."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._local = threading.local()

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        auth: tuple[str, str] | None = None,
        data: Any = None,
    ) -> requests.Response:
        """One request; the answer's body is still to be read.

        Args:
            url: Without credentials.
            auth: User and password for basic authentication.
            data: Bytes, or a readable of them.

        Raises:
            Untrusted: The server's certificate is not trusted.
            NetworkError: There is no CA bundle where one was named.
            Broken: No answer.
        """
        import requests
        import urllib3

        route = self.route
        parts = urlsplit(url)
        named = {parts.hostname, parts.netloc}
        verify: bool | str = False if named & set(route.unverified) else str(route.ca) if route.ca else True
        proxies = {} if route.direct(url) else dict(route.proxies)
        shows = route.client is not None and origin(url) == origin(f"https://{route.client_for}")
        cert = (str(route.client[0]), str(route.client[1])) if route.client is not None and shows else None
        try:
            return self._session().request(
                method,
                url,
                headers={"User-Agent": route.agent, **headers},
                timeout=route.timeout,
                stream=True,
                allow_redirects=False,
                verify=verify,
                cert=cert,
                proxies=proxies,
                auth=auth,
                data=data,
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # Not chained: the original text repeats the URL, and a proxy's with its password.
            raise self._failure(url, error) from None

    def blocks(self, response: requests.Response, place: str, limit: int, *, decode: bool = True) -> Iterator[bytes]:
        """The body of an answer, as it comes.

        Args:
            place: What messages call it.
            limit: Bytes, decompressed, after which it is refused.
            decode: Whether to undo a compression of the transfer.

        Raises:
            TooLong: More than ``limit``.
            Broken: It broke off, or trickles.
        """
        import requests
        import urllib3

        size = mark = 0
        waited = 0.0
        try:
            while True:
                # Only the time that the server takes: whoever reads may be slow, too.
                since = time.monotonic()
                # What has arrived, and not a full chunk: that would wait as long as a byte comes now and then.
                block = response.raw.read1(CHUNK, decode_content=decode)
                waited += time.monotonic() - since
                if not block:
                    return
                size += len(block)
                if size > limit:
                    raise TooLong(f"{place}: more than the {limit} bytes that are sensible here")
                if waited > self.route.timeout:
                    if size - mark < TRICKLE:
                        raise Broken(place, "sends too slowly")
                    mark, waited = size, 0.0
                yield block
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise Broken(place, f"the answer broke off ({reason(error)})") from None

    def _failure(self, url: str, error: Exception) -> NetworkError | Broken:
        """What it means that nothing came."""
        inner, ca = innermost(error), self.route.ca
        if isinstance(inner, ssl.SSLCertVerificationError):
            return Untrusted(f"{shown(url)}: its certificate is not trusted ({reason(error)})", hint=CA_HINT)
        # requests has no error of its own for a bundle that is not there; one without certificates is OpenSSL's X509.
        if ca is not None and (not ca.exists() or (isinstance(inner, ssl.SSLError) and inner.library == "X509")):
            return NetworkError(f"{ca}: no CA bundle can be read there", hint=CA_HINT)
        return Broken(shown(url), f"does not answer ({reason(error)})")

    def _session(self) -> requests.Session:
        import urllib3

        from envbuild.net.pool import Plain

        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            # Proxies and certificates come from the site's settings, which have read the environment already.
            session = self._local.session = Plain(self.route.roots)
            if self.route.unverified:
                # The site said so; urllib3 need not say it again for every request.
                urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return session
