"""Where Debian's and Ubuntu's packages come from, and the lines that say so to apt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from envbuild import process
from envbuild.errors import EnvbuildError
from envbuild.site import urls
from envbuild.site.config import SiteConfig

_QUERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A family of releases as its archive names it (fields ``Origin`` and ``Label`` of its Release files).

    Attributes:
        security_label: ``Label`` of the archive with security updates.
        own_security: Whether security updates lie in an archive apart from the main one.
        keyring: The keys in every image of the family.
    """

    origin: str
    mirror: str
    security: str
    security_label: str
    own_security: bool
    keyring: str


FAMILIES: Mapping[str, Distribution] = {
    "debian": Distribution(
        origin="Debian",
        mirror="http://deb.debian.org/debian",
        security="http://deb.debian.org/debian-security",
        security_label="Debian-Security",
        own_security=True,
        keyring="/usr/share/keyrings/debian-archive-keyring.gpg",
    ),
    "ubuntu": Distribution(
        origin="Ubuntu",
        mirror="http://archive.ubuntu.com/ubuntu",
        security="http://security.ubuntu.com/ubuntu",
        security_label="Ubuntu",
        own_security=False,
        keyring="/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AptSettings:
    """Package mirrors for one base. Its text form shows no credentials.

    Attributes:
        mirror: None is the distribution's public one; so is ``security_mirror`` unless the mirror carries it.
        family: ``debian`` or ``ubuntu``; for any other family there is nothing to say to apt.
        origin: Where the mirror and the proxies come from, for messages; empty for the public ones.
    """

    suite: str
    components: tuple[str, ...]
    family: str
    mirror: str | None = None
    security_mirror: str | None = None
    http_proxy: str | None = None
    https_proxy: str | None = None
    no_proxy: str | None = None
    origin: str = ""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"AptSettings({urls.mask(fields)})"

    @property
    def locations(self) -> tuple[str, ...]:
        """Every URL in use, credentials included."""
        found = (self.mirror, self.security_mirror, self.http_proxy, self.https_proxy)
        return tuple(url for url in found if url)

    def archives(self) -> tuple[str, str]:
        """The main archive and the one with security updates.

        Raises:
            KeyError: Not an apt family.
        """
        distribution = FAMILIES[self.family]
        mirror = self.mirror or distribution.mirror
        if self.security_mirror:
            return mirror, self.security_mirror
        if self.mirror is None:
            return mirror, distribution.security
        # Ubuntu's mirrors carry the security pocket. Debian's is another archive, beside the main one by custom.
        if not distribution.own_security:
            return mirror, mirror
        stem = mirror.rstrip("/")
        return mirror, f"{stem}-security" if stem.endswith("/debian") else distribution.security

    def sources(self) -> str:
        """One-line sources for apt, updates and security updates included."""
        main, security = self.archives()
        options = f"[signed-by={FAMILIES[self.family].keyring}]"
        parts = " ".join(self.components)
        return (
            f"deb {options} {main} {self.suite} {parts}\n"
            f"deb {options} {main} {self.suite}-updates {parts}\n"
            f"deb {options} {security} {self.suite}-security {parts}\n"
        )


def apt_settings(site: SiteConfig, *, suite: str, components: tuple[str, ...], family: str) -> AptSettings:
    """Package mirrors for a base of ``family`` and ``suite``.

    An ``[apt]`` section in a site file decides; without one, what this host's own apt uses for the same distribution is
    the default, and ``ENVBUILD_APT_*`` and flags replace single values. ``[network]`` fills in the proxies.
    """
    host = AptSettings(suite=suite, components=components, family=family)
    if family in FAMILIES and "apt" not in site.in_file:
        host = replace(host_apt(suite, family), components=components)
    section = site.apt
    mirror = section.mirror or host.mirror
    return replace(
        host,
        mirror=mirror,
        # Security updates from one site and the rest from another would be a surprise.
        security_mirror=section.security_mirror or (None if section.mirror else host.security_mirror),
        http_proxy=section.proxy or host.http_proxy or site.network.http_proxy,
        https_proxy=section.proxy or host.https_proxy or site.network.https_proxy,
        no_proxy=site.network.no_proxy,
        origin=" and ".join(part for part in (site.origin.get("apt", ""), host.origin) if part),
    )


def host_apt(suite: str, family: str) -> AptSettings:
    """What this host's own apt uses for the same distribution, as far as it differs from the public archives.

    Never an error: without apt, or with empty lists, it is the public archives and no proxy.
    """
    plain = AptSettings(suite=suite, components=("main",), family=family)
    distribution = FAMILIES.get(family)
    if distribution is None:
        return plain
    targets = _ask("apt-get", "indextargets", "--format", "$(REPO_URI)|$(CODENAME)|$(ORIGIN)|$(LABEL)|$(SUITE)")
    mirror, security = _mirrors(targets, suite, distribution)
    proxies = _proxies(_ask("apt-config", "dump"))
    found = replace(
        plain,
        mirror=mirror,
        security_mirror=security,
        http_proxy=proxies.get("http"),
        https_proxy=proxies.get("https"),
    )
    return replace(found, origin="this host's apt configuration") if found != plain else plain


def _ask(*argv: str) -> str:
    if process.which(argv[0]) is None:
        return ""
    try:
        done = process.run(argv, env={"LC_ALL": "C"}, timeout=_QUERY_SECONDS)
    except EnvbuildError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _mirrors(targets: str, suite: str, distribution: Distribution) -> tuple[str | None, str | None]:
    """The main mirror and the security mirror in use, where they are not the public ones."""
    main: dict[bool, str] = {}
    security: dict[bool, str] = {}
    for line in targets.splitlines():
        uri, codename, origin, label, pocket = (*line.split("|"), "", "", "", "", "")[:5]
        # Other schemes (file:, cdrom:, mirror+file:, tor+https:) mean nothing inside a container.
        if origin != distribution.origin or not urls.is_remote(uri) or any(character in uri for character in ' "\\;'):
            continue
        same = codename.removesuffix("-security") == suite
        pocket_security = codename.endswith("-security") or pocket.endswith("-security")
        if label == distribution.security_label and pocket_security:
            security.setdefault(same, uri)
        elif label == distribution.origin and not pocket_security:
            main.setdefault(same, uri)
    found = main.get(True) or main.get(False), security.get(True) or security.get(False)
    public = distribution.mirror, distribution.security
    # Where one differs, both are said: beside a mirror, an unsaid security archive would be guessed.
    if all(uri is None or uri.rstrip("/") == known for uri, known in zip(found, public, strict=True)):
        return None, None
    return found


def _proxies(dump: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in dump.splitlines():
        name, _, value = line.partition(" ")
        for scheme in ("http", "https"):
            if name.lower() == f"acquire::{scheme}::proxy":
                url = value.strip().rstrip(";").strip('"')
                # "DIRECT" means none.
                if "://" in url and not any(character in url for character in ' "\\;'):
                    found[scheme] = url
    # apt's https method uses the http proxy when it has none of its own.
    if "http" in found:
        found.setdefault("https", found["http"])
    return found
