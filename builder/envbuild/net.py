"""The only place that opens a socket (the engine's client library apart)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
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
