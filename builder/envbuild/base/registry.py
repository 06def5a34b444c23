"""What a registry says of an image's tag: its digest, asked with no engine, once, and with little patience."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.errors import EnvbuildError, InputError
from envbuild.net import Broken, NetworkError, Untrusted
from envbuild.registry import Again, NoAccess, NotUnderstood, Reference, Repository, connect, reference
from envbuild.registry.credentials import HELPER_SECONDS, Account, account_for
from envbuild.registry.manifests import INDEXES, MANIFESTS
from envbuild.site.sections import SiteConfig

TIMEOUT = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The digest of a tag, or why there is none.

    Attributes:
        silent: Nobody answered at all.
        refused: Who asked may not have it.
    """

    digest: str | None
    reason: str = ""
    silent: bool = False
    refused: bool = False


def manifest_digest(
    image: str,
    site: SiteConfig,
    *,
    timeout: float = TIMEOUT,
    environ: Mapping[str, str] = os.environ,
    login_seconds: float = HELPER_SECONDS,
) -> Told:
    """The manifest digest that ``image``'s tag has now; never raises.

    Asked with the user's login where there is one and the registry wants one: a base may be private. A login that is
    no good any more does not stand in the way of an image that everybody may have.

    Args:
        image: A reference with a tag.
        site: Whose mirror, certificate and proxy are used.
        timeout: Limit in seconds for each of the two or three requests.
        environ: Says where the logins lie.
        login_seconds: Limit of a question to a credential helper.
    """
    name = reference.mirrored(reference.repository(image), site.base.mirrors)
    try:
        wanted = reference.parse(f"{name}:{reference.tag(image)}")
    except EnvbuildError:
        return Told(digest=None, reason="it is no name of an image")
    logins: list[Account] = []

    def own(path: str) -> Account | None:
        try:
            found = account_for(wanted.registry, path, environ, seconds=login_seconds)
        except EnvbuildError:
            return None  # a helper that is not there, a damaged file: most bases are everybody's
        logins.extend([found] if found else [])
        return found

    try:
        there = connect(wanted, site, environ, timeout=timeout, attempts=1, account=own)
        nobody = connect(wanted, site, environ, timeout=timeout, attempts=1, account=lambda path: None)
    except InputError:
        return Told(digest=None, reason="a certificate for it cannot be used")
    told = _ask(there, wanted)
    if told.refused and logins:
        # Refused again, the first answer is about the login, which is what can be mended.
        again = _ask(nobody, wanted)
        return told if again.refused else again
    return told


def _ask(repository: Repository, wanted: Reference) -> Told:
    try:
        found = repository.resolve(wanted.wanted)
    except NoAccess as error:
        reason = "it refuses" if error.status == 403 else "it wants credentials"
        return Told(digest=None, reason=reason, refused=True)
    except Untrusted:
        return Told(digest=None, reason="its certificate was not accepted", silent=True)
    except NotUnderstood:
        return Told(digest=None, reason="it has no manifest of a known kind")
    except Again as error:
        if isinstance(error.__cause__, Broken):
            return Told(digest=None, reason=_brief(error.__cause__), silent=True)
        return Told(digest=None, reason="too many requests" if error.status == 429 else f"it says {error.status}")
    except EnvbuildError as error:
        status = error.status if isinstance(error, NetworkError) else 0
        return Told(digest=None, reason=f"it says {status}" if status else "it does not answer as a registry does")
    if found is None:
        return Told(digest=None, reason="it has no such image")
    # An ancient manifest's signature is in its bytes: its digest is none that a pull could be checked with.
    if found.media_type not in MANIFESTS | INDEXES:
        return Told(digest=None, reason="it has no manifest of a known kind")
    return Told(digest=found.digest)


def _brief(broken: Broken) -> str:
    """The kind of a failure, in words that do not depend on who answers (or does not)."""
    text = broken.reason.lower()
    for words, said in (
        (("timed out", "timeout"), "does not answer in time"),
        (("name or service", "resolve", "nodename", "getaddrinfo"), "its name is not known here"),
        (("refused",), "connection refused"),
        (("ssl", "certificate"), "TLS with it does not come about"),
        (("proxy",), "the proxy does not let through"),
    ):
        if any(word in text for word in words):
            return said
    return "does not answer"
