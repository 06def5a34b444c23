"""Where packages come from: the site's repositories, those of a release, or those on a command line, in dnf's words.

A ``.repo`` file is read as dnf reads it, with two differences: ``gpgcheck=0`` is not obeyed, and a repository that does
not answer is never skipped. Red Hat's own ``redhat.repo`` with its client certificates is such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from envbuild.bundle.rpms.types import Source, System
from envbuild.errors import InputError
from envbuild.site import urls
from envbuild.site.rpm import KEYS_IN_BUILD, rpm_settings
from envbuild.site.sections import SiteConfig

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_TRUE, _FALSE = frozenset({"1", "yes", "true", "on"}), frozenset({"0", "no", "false", "off"})
_SCHEMES = ("https", "http", "file")


class OfRelease(Protocol):
    """A repository that facts know of a release."""

    @property
    def id(self) -> str: ...
    @property
    def baseurl(self) -> str: ...
    @property
    def gpgkey(self) -> str: ...


def sources(
    site: SiteConfig,
    family: str,
    system: System,
    *,
    given: Mapping[str, str] | None = None,
    keys: Iterable[str] = (),
    release: Iterable[OfRelease] = (),
) -> tuple[Source, ...]:
    """The repositories to take packages from: those that are given, else the site's, else the release's own.

    Args:
        family: Of the row, such as ``rocky8``.
        system: What the variables in addresses stand for.
        given: Addresses by id (``--repo``).
        keys: Files or addresses of keys, in place of what the configuration names.
        release: Repositories of a release whose own configuration leads nowhere any more.

    Raises:
        InputError: There are none, or one cannot be used; the message names it.
    """
    settings = rpm_settings(site, family)
    sections: dict[str, Mapping[str, str]] = dict(settings.repositories)
    if given:
        sections = {name: {"baseurl": address, "gpgkey": _site_keys(site)} for name, address in given.items()}
    elif not sections:
        sections = {each.id: {"baseurl": each.baseurl, "gpgkey": f"file://{each.gpgkey}"} for each in release}
    replaced = {f"file://{KEYS_IN_BUILD}": " ".join(f"file://{path.absolute()}" for path in settings.key_files)}
    found = []
    for name, options in sections.items():
        if not _ID.fullmatch(name):
            raise InputError(f"repository {name[:80]!r}: an id is letters, digits, dots and dashes")
        made = _Options(name, options, system.variables)
        if made.yes("enabled", True):
            found.append(_source(made, site, tuple(keys), replaced))
    if not found:
        raise InputError(
            "there is no repository to take packages from",
            hint="Name some with --repo NAME=URL, or in [rpm.repositories] of envbuild.toml.",
        )
    return tuple(found)


def _site_keys(site: SiteConfig) -> str:
    return " ".join(key if "://" in key else f"file://{Path(key).absolute()}" for key in site.rpm.gpgkey)


class _Options:
    """The options of one repository, with their variables filled in."""

    def __init__(self, name: str, options: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self.name, self._options, self._variables = name, options, variables

    def fault(self, key: str, what: str) -> InputError:
        return InputError(f"repository {self.name}: {key}: {what}")

    def text(self, key: str) -> str:
        def value(match: re.Match[str]) -> str:
            variable = match.group(1) or match.group(2)
            if variable not in self._variables:
                known = ", ".join(f"${name}" for name in self._variables)
                raise self.fault(key, f"nobody says what ${variable} stands for (known: {known})")
            return self._variables[variable]

        raw = self._options.get(key, "").strip()
        # A password may hold what looks like a variable, and dnf fills it in there, too; nobody wants that.
        return raw if key == "password" else _VARIABLE.sub(value, raw)

    def words(self, *keys: str) -> tuple[str, ...]:
        return tuple(word for key in keys for word in re.split(r"[\s,]+", self.text(key)) if word)

    def yes(self, key: str, default: bool) -> bool:
        said = self.text(key).lower()
        if said and said not in _TRUE | _FALSE:
            raise self.fault(key, f"{said[:40]!r} is neither yes nor no")
        return said in _TRUE if said else default

    def number(self, key: str, default: int) -> int:
        said = self.text(key)
        if said and not re.fullmatch("-?[0-9]{1,6}", said):
            raise self.fault(key, f"{said[:40]!r} is no number")
        return int(said) if said else default

    def file(self, key: str) -> Path | None:
        said = self.text(key)
        path = urls.local_path(said) if said else None
        if said and (path is None or not path.is_file()):
            raise self.fault(key, f"{urls.mask(said)} is no file on this machine")
        return path

    def addresses(self, key: str, schemes: tuple[str, ...] = _SCHEMES) -> tuple[str, ...]:
        found = self.words(key)
        for address in found:
            try:
                parts = urlsplit(address)
                wrong = (
                    parts.scheme not in schemes or (parts.scheme == "file") == bool(parts.hostname) or parts.port == 0
                )
            except ValueError:
                wrong = True
            if wrong:
                raise self.fault(key, f"{urls.mask(address)} is no address that begins with {', '.join(schemes)}")
        return found


def _source(options: _Options, site: SiteConfig, keys: tuple[str, ...], replaced: Mapping[str, str]) -> Source:
    section = site.rpm
    baseurls = options.addresses("baseurl")
    listing = None
    for kind in ("metalink", "mirrorlist"):
        if not baseurls and listing is None and (found := options.addresses(kind)):
            listing = (kind, found[0])
    if not baseurls and listing is None:
        raise options.fault("baseurl", "there is none, and neither a metalink nor a mirrorlist")
    certificate, key = options.file("sslclientcert"), options.file("sslclientkey")
    # One file may hold both.
    pair = (certificate, key or certificate) if certificate else None
    if pair is None and section.client_cert is not None:
        pair = (section.client_cert, section.client_key or section.client_cert)
    proxy = options.text("proxy")
    user = options.text("username")
    named = tuple(word for each in options.words("gpgkey") for word in replaced.get(each, each).split())
    return Source(
        id=options.name,
        baseurls=tuple(address.rstrip("/") + "/" for address in baseurls),
        listing=listing,  # type: ignore[arg-type]
        keys=keys or named,
        signed=options.yes("repo_gpgcheck", False),
        priority=options.number("priority", 99),
        excludes=options.words("exclude", "excludepkgs"),
        includes=options.words("includepkgs"),
        hotfixes=options.yes("module_hotfixes", False),
        certificate=pair,
        ca=options.file("sslcacert"),
        verify=options.yes("sslverify", True),
        account=(user, options.text("password")) if user else None,
        proxy="" if proxy.lower() == "_none_" else proxy or section.proxy,
    )
