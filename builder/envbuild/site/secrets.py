"""The site's settings as build secrets: files that are mounted while a step runs and are in no layer.

- ``pip``: a pip.conf with indexes, pages of links, proxy and time-out.
- ``apt``: an apt.conf fragment with proxies, certificate and where the sources are.
- ``apt-sources``: one-line sources; only where the site has mirrors, so that a base's own sources stay otherwise.
- ``rpm``: the ``[main]`` section of dnf's or yum's configuration: proxy, certificate.
- ``rpm-repositories``: the site's repositories; only where it has some, so that a base's own stay otherwise.
- ``rpm-keys``: the keys that these are signed with.
- ``ca``: the CA bundle, as the site gives it. For pip, apt and dnf it *replaces* the public certificates, so it has to
  hold those too where public hosts are used. The system's bundle of a host that trusts the site's CA does.

All of them always exist and are empty where there is nothing to say, so that the Dockerfile is the same for every site.
"""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.errors import InputError
from envbuild.site import urls
from envbuild.site.apt import FAMILIES, AptSettings
from envbuild.site.config import SiteConfig
from envbuild.site.pip import CA_IN_BUILD, PipSettings
from envbuild.site.rpm import FAMILIES as RPM_FAMILIES
from envbuild.site.rpm import rpm_settings

SOURCES_IN_BUILD = "/run/secrets/apt-sources"
_BEGIN = b"-----BEGIN CERTIFICATE-----"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# BuildKit refuses larger ones (MaxSecretSize in its session/secrets package).
_MAX_SECRET = 500 * 1024


def build_secrets(site: SiteConfig, pip: PipSettings, apt: AptSettings) -> dict[str, bytes]:
    """The content of every build secret by its id (see above). The row's family is that of ``apt``.

    Raises:
        InputError: The CA bundle, a key or a repository file cannot be used.
    """
    ca = _bundle(site, pip)
    apt_family = apt.family in FAMILIES
    rpm = rpm_settings(site, apt.family)
    mirrored = apt_family and bool(apt.mirror or apt.security_mirror)
    return {
        "pip": pip.pip_conf().encode(),
        "apt": _apt_conf(apt, mirrored=mirrored, ca=bool(ca)).encode() if apt_family else b"",
        "apt-sources": apt.sources().encode() if mirrored else b"",
        "rpm": rpm.main(ca=bool(ca) and apt.family in RPM_FAMILIES).encode(),
        "rpm-repositories": rpm.sections().encode(),
        "rpm-keys": rpm.keys(),
        "ca": ca,
    }


def needs_host_network(site: SiteConfig, pip: PipSettings, apt: AptSettings) -> bool:
    """Whether build containers have to share the host's network.

    Yes when an index, a mirror or a proxy listens on the loopback interface, which a container has one of its own of;
    ``[network] build`` decides by itself where it is not ``auto``.
    """
    if site.network.build != "auto":
        return site.network.build == "host"
    rpm = rpm_settings(site, apt.family)
    locations = (*pip.locations, *apt.locations, *rpm.locations, *((pip.proxy,) if pip.proxy else ()))
    return any(map(urls.is_loopback, (url for url in locations if "://" in url)))


def _apt_conf(apt: AptSettings, *, mirrored: bool, ca: bool) -> str:
    lines: list[str] = []
    for scheme, proxy in (("http", apt.http_proxy), ("https", apt.https_proxy)):
        if proxy:
            lines.append(f'Acquire::{scheme}::Proxy "{proxy}";')
            lines += [
                f'Acquire::{scheme}::Proxy::{name} "DIRECT";'
                for name in dict.fromkeys(map(urls.host, apt.archives()))
                if name and urls.bypasses(name, apt.no_proxy)
            ]
    if ca:
        lines.append(f'Acquire::https::CAInfo "{CA_IN_BUILD}";')
        # apt downloads as the user _apt, who may not read a secret of root's.
        lines.append('APT::Sandbox::User "root";')
    if mirrored:
        lines.append(f'Dir::Etc::sourcelist "{SOURCES_IN_BUILD}";')
        lines.append('Dir::Etc::sourceparts "/dev/null";')
    return "".join(f"{line}\n" for line in lines)


def _bundle(site: SiteConfig, pip: PipSettings) -> bytes:
    """The site's certificates: the CA of ``[network]`` as it is, and what pip's own bundle has beyond it."""
    paths = list(dict.fromkeys(path for path in (site.network.ca, pip.cert) if path is not None))
    contents = [_certificates(path) for path in paths]
    bundle = contents[0] if contents else b""
    for more in contents[1:]:
        bundle += b"".join(b"\n" + block + b"\n" for block in _PEM.findall(more) if block not in bundle)
    if len(bundle) > _MAX_SECRET:
        raise InputError(
            f"CA bundle {' and '.join(map(str, paths))}: {len(bundle)} bytes are more than the {_MAX_SECRET} "
            "of a build secret",
            hint="name a smaller bundle: the site's own CA, and the public ones that the site needs",
        )
    return bundle


def _certificates(path: Path) -> bytes:
    try:
        if not path.is_dir():
            data = path.read_bytes()
        else:
            # A folder in OpenSSL's style names each certificate twice, by name and by hash.
            real = sorted({entry.resolve() for entry in path.iterdir() if entry.is_file()})
            data = b"\n".join(text for entry in real if _BEGIN in (text := entry.read_bytes()))
    except OSError as error:
        raise InputError(f"CA bundle {path} cannot be read: {error.strerror}") from error
    if _BEGIN not in data:
        raise InputError(f"CA bundle {path} holds no PEM certificate")
    return data
