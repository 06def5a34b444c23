"""One question to one server: whether it answers, and what an engine says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from envbuild.net.manners import joined

_REDIRECTS = 10


def answers(
    url: str,
    *,
    timeout: float,
    ca: Path | None = None,
    proxies: Mapping[str, str] | None = None,
    below: int = 500,
) -> bool:
    """Whether an HTTP server answers at ``url``. Never raises.

    Args:
        url: What to ask for; the body is not read.
        timeout: Limit in seconds, for the connection and for the first byte each.
        ca: CA bundle (file or folder) in place of the default one.
        proxies: Proxy URL by scheme, in place of the environment's.
        below: A status under this counts as an answer: 500 means that the server lives, 400 that it has the page.
    """
    # Imported here: it costs a tenth of a second, and most commands never get here.
    import requests

    from envbuild.net.pool import Plain

    # Besides requests' own errors there are urllib3's and idna's for odd names and addresses, and OSError for a CA
    # file that is not there; to the caller all of them mean the same.
    with contextlib.suppress(Exception), Plain() as session:
        for _ in range(_REDIRECTS):
            answer = session.get(
                url,
                timeout=timeout,
                stream=True,
                allow_redirects=False,
                auth=requests.utils.get_netrc_auth(url),
                verify=str(ca or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or "")
                or True,
                proxies=dict(proxies) if proxies else requests.utils.get_environ_proxies(url),
            )
            answer.close()
            target = answer.headers.get("Location")
            if not answer.is_redirect or not target:
                return answer.status_code < below
            url = joined(url, target)
    return False


def unix_get(socket_path: str, target: str, *, timeout: float) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (their names in lower case) and body of one HTTP GET over a Unix socket.

    For the one or two questions to an engine that an up-to-date build asks: importing its client library takes
    longer (80 ms measured) than everything else that such a run does with it.

    Args:
        socket_path: The socket.
        target: Path and query, already quoted.
        timeout: Limit in seconds for each step of the exchange.

    Raises:
        OSError: Nothing answers there, or not in time.
    """
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(socket_path)
        # HTTP 1.0: the answer comes whole, not in chunks, and ends with the connection.
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
        answer = b""
        while block := connection.recv(1 << 16):
            answer += block
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise OSError(0, "the answer is not HTTP")
    pairs = (line.partition(":") for line in rest)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}, body
