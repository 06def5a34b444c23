"""What a registry says of an image's tag: its digest, asked over HTTP with no engine and no credentials.

The OCI distribution protocol, as much of it as it takes: a manifest's digest, and the anonymous token that Docker Hub
and others want for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from envbuild import net
from envbuild.registry import reference
from envbuild.site import urls
from envbuild.site.sections import SiteConfig

TIMEOUT = 8.0
# Indexes first: the digest of an image for several platforms is that of its index.
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER = re.compile(r'(?P<name>[a-z]+)="(?P<value>[^"]*)"', re.IGNORECASE)
# Docker Hub's name is not the address of its registry.
_HOSTS = {reference.HUB: "registry-1.docker.io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The digest of a tag, or why there is none; ``silent`` where nobody answered at all."""

    digest: str | None
    reason: str = ""
    silent: bool = False


def manifest_digest(image: str, site: SiteConfig, *, timeout: float = TIMEOUT) -> Told:
    """The manifest digest that ``image``'s tag has now; never raises.

    Args:
        image: A reference with a tag.
        site: Whose mirror, certificate and proxy are used.
        timeout: Limit in seconds for each of the two or three requests.
    """
    name = reference.mirrored(reference.repository(image), site.base.mirrors)
    registry, _, path = name.partition("/")
    host = _HOSTS.get(registry, registry)
    place = f"{host}/v2/{path}/manifests/{reference.tag(image)}"
    told = _over("https", place, site, timeout)
    if told.silent and urls.is_loopback(host):
        # As Docker does: a registry of this machine may speak plain HTTP, any other one may not.
        return _over("http", place, site, timeout)
    return told


def _over(scheme: str, place: str, site: SiteConfig, timeout: float) -> Told:
    try:
        return _ask(f"{scheme}://{place}", site, timeout)
    except OSError as error:
        return Told(digest=None, reason=_brief(error), silent=True)


def _ask(url: str, site: SiteConfig, timeout: float) -> Told:
    headers = {"Accept": ", ".join(_KINDS)}
    answer = _request("HEAD", url, site, timeout, headers)
    if answer.status == 401:
        token = _token(url, answer.headers.get("www-authenticate", ""), site, timeout)
        if token is None:
            return Told(digest=None, reason="it wants credentials")
        headers["Authorization"] = f"Bearer {token}"
        answer = _request("HEAD", url, site, timeout, headers)
    if answer.status == 200 and not _DIGEST.fullmatch(answer.headers.get("docker-content-digest", "")):
        # The header is optional; what it says can be worked out from the manifest.
        answer = _request("GET", url, site, timeout, headers)
        known = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    else:
        known = answer.headers.get("docker-content-digest", "")
    if answer.status != 200:
        what = {401: "it wants credentials", 403: "it refuses", 404: "it has no such image", 429: "too many requests"}
        return Told(digest=None, reason=what.get(answer.status, f"it says {answer.status}"))
    # An ancient manifest's signature is in its bytes: its digest is none that a pull could be checked with.
    if answer.headers.get("content-type", "").partition(";")[0].strip() not in _KINDS:
        return Told(digest=None, reason="it has no manifest of a known kind")
    return Told(digest=known)


def _token(asked: str, challenge: str, site: SiteConfig, timeout: float) -> str | None:
    """An anonymous token, as the registry's challenge says; None where there is none for the asking."""
    scheme, _, rest = challenge.partition(" ")
    said = {found["name"].lower(): found["value"] for found in _PARAMETER.finditer(rest)}
    realm = said.get("realm", "")
    # Only a registry of this machine may send to this machine.
    near = urls.is_loopback(asked) and realm.startswith("http://")
    if scheme.lower() != "bearer" or urls.is_loopback(realm) != near or not (near or realm.startswith("https://")):
        return None
    query = urlencode({name: said[name] for name in ("service", "scope") if name in said})
    answer = _request("GET", f"{realm}{'&' if '?' in realm else '?'}{query}", site, timeout, {})
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    token = (document.get("token") or document.get("access_token")) if isinstance(document, dict) else None
    # It becomes a header: nothing but what a token may consist of.
    return token if isinstance(token, str) and re.fullmatch(r"[\x21-\x7e]{1,16384}", token) else None


def _request(method: str, url: str, site: SiteConfig, timeout: float, headers: Mapping[str, str]) -> net.Reply:
    network = site.network
    proxy = network.http_proxy if url.startswith("http:") else network.https_proxy
    proxies: dict[str, str] = {}
    if urls.is_loopback(url) or urls.bypasses(url, network.no_proxy):
        proxies = {"http": "", "https": "", "no_proxy": "*"}
    elif proxy:
        proxies = {"http": proxy, "https": proxy}
    return net.ask(method, url, timeout=timeout, headers=headers, ca=network.ca, proxies=proxies)


def _brief(error: OSError) -> str:
    """The kind of a failure, without the addresses (and tokens) that a library puts into its words."""
    text = str(error).lower()
    for words, said in (
        (("timed out", "timeout"), "does not answer in time"),
        (("name or service", "resolve", "nodename", "getaddrinfo"), "its name is not known here"),
        (("refused",), "connection refused"),
        (("certificate", "ssl"), "its certificate or TLS was not accepted"),
        (("proxy",), "the proxy does not let through"),
    ):
        if any(word in text for word in words):
            return said
    return "does not answer"
