"""Where wheels come from: said by the site or by the host's own pip, and passed on to uv and to the pip of a build.

Of pip's configuration only that is honoured; a constraint or a target folder of the host has no business in an image.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild.errors import InputError
from envbuild.site import pipconf, urls
from envbuild.site.config import SiteConfig

PYPI = "https://pypi.org/simple"
# A page for each build follows, such as /cu118.
PYTORCH = "https://download.pytorch.org/whl"
CA_IN_BUILD = "/run/secrets/ca"
_YES = frozenset(("y", "yes", "t", "true", "on", "1"))
_NO = frozenset(("n", "no", "f", "false", "off", "0"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PipSettings:
    """Where packages come from. Its text form shows no credentials.

    Attributes:
        index: The main index; None is PyPI.
        find_links: Absolute folders (or HTML files), and http or file URLs.
        cert: CA bundle, a file or a folder.
        timeout: Seconds.
        ignored: What pip's own configuration says beyond this, as ``key (where)``, for a note.
        origin: Where these settings come from, for messages.
    """

    index: str | None = None
    extra_index: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: Path | None = None
    proxy: str | None = None
    no_proxy: str | None = None
    timeout: int | None = None
    no_index: bool = False
    ignored: tuple[str, ...] = ()
    origin: str = ""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"PipSettings({urls.mask(fields)})"

    @property
    def indexes(self) -> tuple[str, ...]:
        """Every index that is asked, the main one first."""
        return () if self.no_index else (self.index or PYPI, *self.extra_index)

    @property
    def locations(self) -> tuple[str, ...]:
        """Every index and page of links, with credentials: for programs, never for text."""
        return (*self.indexes, *self.find_links)

    @property
    def proxies(self) -> dict[str, str]:
        """Proxy by scheme, as ``requests`` takes it; empty without one."""
        return {"http": self.proxy, "https": self.proxy} if self.proxy else {}

    def secret_urls(self) -> tuple[str, ...]:
        """Every URL that may carry a credential, for ``urls.scrub``."""
        return (*self.locations, *self.extra_index, *(url for url in (self.index, self.proxy) if url))

    def with_extra_index(self, url: str) -> PipSettings:
        """The same with one more index; unchanged when it is there already."""
        return self if url in self.locations else replace(self, extra_index=(*self.extra_index, url))

    def uv_arguments(self) -> tuple[str, ...]:
        """Options of ``uv pip compile``; addresses go through ``uv_environment``, since others can read an argv."""
        # pip looks at all indexes and takes the best version; uv by default stops at the first that knows the name.
        arguments = ["--no-config", "--index-strategy", "unsafe-best-match"]
        if self.no_index:
            arguments.append("--no-index")
        for name in self.trusted_hosts:
            arguments += ["--allow-insecure-host", name]
        return tuple(arguments)

    def uv_environment(self) -> dict[str, str]:
        """Environment variables of ``uv pip compile``."""
        variables: dict[str, str] = {}
        if not self.no_index:
            # uv's default index comes last. Where two indexes have one version, the hashes are those of the first, and
            # the main index knows all files of a version, where a folder or a mirror may have a few.
            *first, variables["UV_DEFAULT_INDEX"] = self.indexes
            if first:
                variables["UV_INDEX"] = " ".join(first)
        if self.find_links:
            variables["UV_FIND_LINKS"] = ",".join(_without_comma(link) for link in self.find_links)
        if self.cert is not None:
            variables["SSL_CERT_DIR" if self.cert.is_dir() else "SSL_CERT_FILE"] = str(self.cert)
        if self.proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                # Both spellings, or an inherited one of the other spelling could win.
                variables[name] = variables[name.lower()] = self.proxy
            if self.no_proxy:
                variables["NO_PROXY"] = variables["no_proxy"] = self.no_proxy
        if self.timeout is not None:
            variables["UV_HTTP_TIMEOUT"] = str(self.timeout)
        return variables

    def pip_conf(self, cert: str = CA_IN_BUILD) -> str:
        """A pip.conf for the pip of a build, with its certificates at ``cert``; empty when there is nothing to say.

        Local folders and ``file:`` indexes do not exist there: what a lock needs of them comes with the context.
        """
        remote = [url for url in self.indexes if urls.is_remote(url)]
        pages = [url for url in self.find_links if urls.is_remote(url)]
        lines: list[str] = []
        if not remote:
            lines.append("no-index = true")
        else:
            if remote[0] != PYPI:
                lines.append(f"index-url = {remote[0]}")
            lines += _multiple("extra-index-url", remote[1:])
        lines += _multiple("find-links", pages)
        lines += _multiple("trusted-host", self.trusted_hosts)
        if self.cert is not None:
            lines.append(f"cert = {cert}")
        # pip.conf has no no_proxy: leave the proxy out when it is not for these hosts.
        if self.proxy and not all(urls.bypasses(url, self.no_proxy) for url in (*remote, *pages)):
            lines.append(f"proxy = {self.proxy}")
        if self.timeout is not None:
            lines.append(f"timeout = {self.timeout}")
        return "\n".join(["[global]", *lines, ""]) if lines else ""


def pip_settings(site: SiteConfig, environ: Mapping[str, str], *, prefix: Path | None = None) -> PipSettings:
    """Where packages come from at this site.

    A ``[pip]`` section in a site file replaces the host's own pip configuration; without one the host's is the base,
    and ``ENVBUILD_PIP_*`` and flags replace single values of it. ``[network]`` fills in a CA and a proxy where pip has
    none.

    Args:
        environ: Environment variables.
        prefix: Folder of pip's "site" file, ``sys.prefix`` by default.

    Raises:
        InputError: pip's configuration cannot be read or used.
    """
    settings = PipSettings() if "pip" in site.in_file else _host(environ, prefix or Path(sys.prefix))
    section = site.pip
    changes: dict[str, object] = {
        key: getattr(section, key)
        for key in ("index", "extra_index", "find_links", "trusted_hosts", "cert", "proxy", "timeout")
        if key in section.model_fields_set
    }
    if "index" in changes:
        changes["no_index"] = False
    settings = replace(settings, **changes, origin=site.origin.get("pip", ""))  # type: ignore[arg-type]
    if settings.cert is None and site.network.ca is not None:
        settings = replace(settings, cert=site.network.ca)
    proxy = settings.proxy
    if proxy is None:
        main = settings.index or PYPI
        proxy = site.network.http_proxy if main.startswith("http:") else site.network.https_proxy
    return replace(settings, proxy=proxy, no_proxy=site.network.no_proxy)


def _multiple(key: str, values: list[str] | tuple[str, ...]) -> list[str]:
    return [f"{key} =", *(f"    {value}" for value in values)] if values else []


def _without_comma(link: str) -> str:
    # uv splits UV_FIND_LINKS at commas.
    if "," not in link:
        return link
    return (link if "://" in link else Path(link).as_uri()).replace(",", "%2C")


def _host(environ: Mapping[str, str], prefix: Path) -> PipSettings:
    chosen, ignored = pipconf.read(environ, prefix)

    def words(key: str) -> tuple[str, ...]:
        return tuple(chosen[key][0].split()) if key in chosen else ()

    def one(key: str) -> str | None:
        values = words(key)
        if len(values) > 1:
            raise InputError(f"{chosen[key][1]}: {key} has to be one value without spaces")
        return values[0] if values else None

    links: list[str] = []
    for link in words("find-links"):
        path = urls.local_path(link)
        if path is None:
            links.append(link)
        elif (full := path.expanduser().resolve()).exists():
            links.append(str(full))
        else:
            # pip itself only warns.
            ignored.append(f"find-links {full}, which does not exist ({chosen['find-links'][1]})")
    proxy = one("proxy")
    return PipSettings(
        index=one("index-url"),
        extra_index=words("extra-index-url"),
        find_links=tuple(links),
        trusted_hosts=words("trusted-host"),
        cert=_cert(chosen, environ),
        proxy=proxy if proxy is None or "://" in proxy else f"http://{proxy}",
        timeout=_timeout(chosen.get("timeout")),
        no_index=_truth("no-index", chosen.get("no-index")),
        ignored=tuple(ignored),
    )


def _cert(chosen: Mapping[str, tuple[str, str]], environ: Mapping[str, str]) -> Path | None:
    if "cert" in chosen:
        value, place = chosen["cert"]
        path = Path(value).expanduser().resolve()
        if not path.exists():
            raise InputError(f"{place}: cert: {path} does not exist", hint="pip cannot work on this host either")
        return path
    # Without a cert of its own pip takes these, as its HTTP library does; it ignores them when they name nothing.
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if environ.get(variable):
            path = Path(environ[variable]).absolute()
            return path if path.exists() else None
    return None


def _timeout(item: tuple[str, str] | None) -> int | None:
    if item is None:
        return None
    try:
        seconds = float(item[0])
        return max(1, round(seconds))
    except (ValueError, OverflowError):
        raise InputError(f"{item[1]}: timeout has to be a number of seconds") from None


def _truth(key: str, item: tuple[str, str] | None) -> bool:
    if item is None:
        return False
    word = item[0].strip().lower()
    if word not in _YES | _NO:
        raise InputError(f"{item[1]}: {key} has to be yes or no")
    return word in _YES
