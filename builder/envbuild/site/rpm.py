"""Where Enterprise Linux's packages come from, and the lines that say so to dnf and yum.

This host's own dnf configuration is never read: it names keys, certificates and variables of this host's release, which
mean nothing in another one.
"""

from __future__ import annotations

import configparser
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import InputError
from envbuild.site import urls
from envbuild.site.sections import SiteConfig

KEYS_IN_BUILD = "/run/secrets/rpm-keys"
CA_IN_BUILD = "/run/secrets/ca"
_BEGIN = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"

# The files of a base of each family that hold the keys of its distribution. CentOS 7's second one comes with the
# package centos-release-scl-rh, which is installed before anything that is signed with it.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "centos7": ("/etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7", "/etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-SIG-SCLo"),
    "rhel8": ("/etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release",),
    "rhel9": ("/etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release",),
    "rocky8": ("/etc/pki/rpm-gpg/RPM-GPG-KEY-rockyofficial",),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RpmSettings:
    """What dnf and yum are told about a site. Its text form shows no credentials.

    Attributes:
        repositories: Options of each repository by its id; empty leaves those of the base or of the row's release.
        key_files: Files on this host whose content the build is given.
        proxy: For everything but the hosts in ``no_proxy``.
    """

    repositories: Mapping[str, Mapping[str, str]]
    key_files: tuple[Path, ...] = ()
    proxy: str | None = None
    no_proxy: str | None = None

    def __repr__(self) -> str:
        return f"RpmSettings({urls.mask(repr(self.repositories))}, proxy={urls.mask(repr(self.proxy))})"

    @property
    def locations(self) -> tuple[str, ...]:
        """Every URL in use, credentials included."""
        found = [
            url
            for options in self.repositories.values()
            for name in ("baseurl", "mirrorlist", "metalink")
            for url in options.get(name, "").split()
        ]
        return (*found, *((self.proxy,) if self.proxy else ()))

    def main(self, *, ca: bool) -> str:
        """The section ``[main]``; empty where there is nothing to say."""
        if not (self.repositories or self.proxy or ca):
            return ""
        lines = ["[main]", "gpgcheck=1", "best=1"]
        if self.repositories:
            # The base's own repositories, and those that NVIDIA's images have, are out of the site's reach.
            lines.append("reposdir=/dev/null")
        if ca:
            lines.append(f"sslcacert={CA_IN_BUILD}")
        if self.proxy:
            lines.append(f"proxy={self.proxy}")
        return "".join(f"{line}\n" for line in lines)

    def sections(self) -> str:
        """The repositories, one section each."""
        text = io.StringIO()
        for name, options in self.repositories.items():
            direct = self.proxy and all(urls.bypasses(url, self.no_proxy) for url in options.get("baseurl", "").split())
            text.write(f"[{name}]\n")
            for key, value in ({**options, "proxy": "_none_"} if direct and "baseurl" in options else options).items():
                # A line that begins with a space goes on with the value of the one before.
                text.write(f"{key}={value}\n".replace("\n", "\n ").rstrip(" "))
        return text.getvalue()

    def keys(self) -> bytes:
        """The content of the key files.

        Raises:
            InputError: One cannot be read, or is no public key in ASCII armor.
        """
        found = []
        for path in self.key_files:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise InputError(f"rpm.gpgkey: {path} cannot be read: {error.strerror}") from error
            if _BEGIN not in data:
                raise InputError(
                    f"rpm.gpgkey: {path} holds no public key in ASCII armor",
                    hint="gpg --armor --export KEY > FILE writes one",
                )
            found.append(data.rstrip(b"\n") + b"\n")
        return b"".join(found)


def rpm_settings(site: SiteConfig, family: str) -> RpmSettings:
    """What a site says about the packages of ``family``; nothing for a family that is not an RPM one.

    Raises:
        InputError: The repository file cannot be used.
    """
    if family not in FAMILIES:
        return RpmSettings(repositories={})
    section = site.rpm
    files = tuple(Path(key) for key in section.gpgkey if "://" not in key)
    given = [key for key in section.gpgkey if "://" in key] + ([f"file://{KEYS_IN_BUILD}"] if files else [])
    keys = {"gpgkey": " ".join(given or [f"file://{path}" for path in FAMILIES[family]])}
    by_family: dict[str, dict[str, str]] = {str(name): own for name, own in section.families.items()}
    addresses = by_family.get(family, section.repositories)
    repositories: dict[str, dict[str, str]] = {
        name: {"name": name, "baseurl": url, "gpgcheck": "1", **keys} for name, url in addresses.items()
    }
    if section.repo_file:
        for name, options in _sections(section.repo_file).items():
            repositories[name] = {"name": name, **keys, **options}
    return RpmSettings(
        repositories=repositories,
        key_files=files,
        proxy=section.proxy or site.network.https_proxy or site.network.http_proxy,
        no_proxy=site.network.no_proxy,
    )


def _sections(path: Path) -> dict[str, dict[str, str]]:
    """The repositories of a ``.repo`` file."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#", ";"), strict=True)
    try:
        parser.read_string(path.read_bytes().decode(), source=str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"rpm.repo_file: {path}: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise InputError(f"rpm.repo_file: {path} cannot be read: {error.strerror}") from error
    except configparser.Error as error:
        # Its first line names file and line; the ones below may repeat a secret.
        place = getattr(error, "lineno", None) or next((line for line, _ in getattr(error, "errors", [])), None)
        where = f"{path}:{place}" if place else str(path)
        raise InputError(f"rpm.repo_file: {where}: not a repository file ({type(error).__name__})") from error
    found = {name: dict(parser.items(name)) for name in parser.sections()}
    wrong = [name for name, options in found.items() if not {"baseurl", "mirrorlist", "metalink"} & set(options)]
    if wrong or not found:
        what = f"[{wrong[0]}] has no baseurl" if wrong else "it has no repository"
        raise InputError(f"rpm.repo_file: {path}: {what}")
    return found
