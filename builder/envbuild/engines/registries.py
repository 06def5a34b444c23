"""What a registry says of a name, asked from here: for an engine that cannot be asked to ask."""

from __future__ import annotations

import os

from envbuild.engines.faults import root_cause
from envbuild.engines.types import RemoteAnswer
from envbuild.errors import EnvbuildError

# With and without TLS, and for a token in between.
_REQUESTS = 3


def on_loopback(ref: str) -> bool:
    """Whether the name's registry is this very host."""
    from envbuild.site import urls

    return urls.is_loopback(f"http://{ref.partition('/')[0]}")


def ask(ref: str, timeout: float) -> RemoteAnswer:
    """The manifest digest of ``ref``, or why there is none; never raises."""
    from envbuild import registry
    from envbuild.site.sections import SiteConfig

    try:
        wanted = registry.parse(ref)
        there = registry.connect(wanted, SiteConfig(), os.environ, timeout=timeout / _REQUESTS, attempts=1)
        found = there.resolve(wanted.wanted)
    except EnvbuildError as error:
        cause = root_cause(error)
        reason = error.message if cause in error.message else f"{error.message}: {cause}"
        return RemoteAnswer(digest=None, reason=reason)
    return RemoteAnswer(digest=found.digest) if found else RemoteAnswer(digest=None, reason="manifest unknown")
