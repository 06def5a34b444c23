"""One question to one server: whether it answers, and what an engine says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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

    # Besides requests' own errors there are urllib3's and idna's for odd names and addresses, and OSError for a CA
    # file that is not there; to the caller all of them mean the same.
    with contextlib.suppress(Exception), requests.Session() as session:
        answer = session.get(
            url,
            timeout=timeout,
            stream=True,
            verify=str(ca) if ca is not None else None,
            proxies=dict(proxies) if proxies else None,
        )
        answer.close()
        return answer.status_code < below
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an HTTP server said; ``headers`` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    method: str,
    url: str,
    *,
    timeout: float,
    headers: Mapping[str, str] | None = None,
    ca: Path | None = None,
    proxies: Mapping[str, str] | None = None,
    limit: int = 1 << 22,
) -> Reply:
    """One HTTP request, with no credentials but those in ``headers`` (no netrc); redirects are followed.

    Args:
        method: GET or HEAD.
        url: What to ask for.
        timeout: Limit in seconds, for the connection and for each piece of the answer.
        ca: CA bundle (file or folder) in place of the default one.
        proxies: Proxy URL by scheme, in place of the environment's; an empty one means none.
        limit: Most bytes of the body.

    Raises:
        OSError: Nothing answers, not in time, or with more than ``limit``.
    """
    import requests

    try:
        with requests.Session() as session:
            # Of the environment only this: left to itself, requests also takes ~/.netrc.
            session.trust_env = False
            session.max_redirects = 5
            bundle = ca or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
            with session.request(
                method,
                url,
                headers=dict(headers or {}),
                timeout=timeout,
                stream=True,
                verify=str(bundle) if bundle else True,
                proxies=dict(proxies) if proxies else requests.utils.get_environ_proxies(url),
            ) as answer:
                body = b""
                for block in answer.iter_content(1 << 16):
                    body += block
                    if len(body) > limit:
                        raise OSError(0, f"the answer is longer than {limit} bytes")
                names = {name.lower(): value for name, value in answer.headers.items()}
                return Reply(status=answer.status_code, headers=names, body=body)
    except OSError:
        # requests' own errors are OSErrors too.
        raise
    except Exception as error:
        # urllib3 and idna have errors of their own for odd names and addresses.
        raise OSError(0, str(error)) from error


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
