"""The registry of a site, as this user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuild import __version__
from envbuild.errors import InputError
from envbuild.events import Sink
from envbuild.net import Route, Wire
from envbuild.registry import Blobs, Reference, Repository, Session
from envbuild.registry.credentials import Account, account_for
from envbuild.site import urls

if TYPE_CHECKING:
    from envbuild.pipeline.workbench import Workbench

_TIMEOUT = 30.0


def need_registry(bench: Workbench) -> str:
    """The prefix of the site's registry.

    Raises:
        InputError: The site names none.
    """
    name = bench.site.registry.name
    if not name:
        raise InputError(
            "no registry is configured",
            hint='Say it once: [registry] name = "registry.example.com/team" in envbuild.toml; or --registry NAME.',
        )
    return name.rstrip("/")


def repository(bench: Workbench, reference: Reference, sink: Sink) -> Repository:
    """The repository of a reference, over the site's network, with the user's own login."""
    network = bench.site.network
    proxies = {
        scheme: proxy for scheme, proxy in (("http", network.http_proxy), ("https", network.https_proxy)) if proxy
    }
    route = Route(
        agent=f"envbuild/{__version__}",
        timeout=_TIMEOUT,
        ca=network.ca,
        proxies=proxies,
        direct=lambda url: urls.is_loopback(url) or urls.bypasses(url, network.no_proxy),
    )

    def account(path: str) -> Account | None:
        return account_for(reference.registry, path, bench.environ)

    return Repository(Session(reference.address, Wire(route), account, sink=sink), reference)


def blobs(bench: Workbench) -> Blobs:
    """The blobs of this user's cache."""
    return Blobs(bench.cache / "blobs")
