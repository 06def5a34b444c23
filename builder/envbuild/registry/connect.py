"""The way to a registry: over the site's network, with the user's own login."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from envbuild import __version__
from envbuild.events import Sink, discard
from envbuild.net import Route, Wire
from envbuild.registry.certificates import certificates_for
from envbuild.registry.credentials import Account, account_for
from envbuild.registry.reference import Reference
from envbuild.registry.repository import Repository
from envbuild.registry.session import ATTEMPTS, Session
from envbuild.site import urls
from envbuild.site.sections import SiteConfig

TIMEOUT = 30.0


def connect(
    reference: Reference,
    site: SiteConfig,
    environ: Mapping[str, str],
    *,
    sink: Sink = discard,
    timeout: float = TIMEOUT,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    account: Callable[[str], Account | None] | None = None,
) -> Repository:
    """The repository of a reference; nothing is asked yet.

    Args:
        environ: Says where logins lie, and names a CA bundle where the site names none.
        timeout: Limit in seconds for the connection and for each wait.
        account: The login for a repository, in place of the user's own.

    Raises:
        InputError: A certificate that lies there for the registry cannot be used.
    """
    network = site.network
    proxies = {"http": network.http_proxy, "https": network.https_proxy}
    own_ca = certificates_for((reference.registry, reference.address), environ)
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    route = Route(
        agent=f"envbuild/{__version__}",
        timeout=timeout,
        ca=network.ca or (Path(bundle) if bundle else None),
        proxies={scheme: proxy for scheme, proxy in proxies.items() if proxy},
        direct=lambda url: urls.is_loopback(url) or urls.bypasses(url, network.no_proxy),
        roots=own_ca.roots,
        client=own_ca.client,
        client_for=reference.address,
    )

    def own(path: str) -> Account | None:
        return account_for(reference.registry, path, environ)

    session = Session(reference.address, Wire(route), account or own, sink=sink, pause=pause, attempts=attempts)
    return Repository(session, reference)
