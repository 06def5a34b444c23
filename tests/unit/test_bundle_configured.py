"""Where packages come from: a site's repositories in dnf's words, and a described host as a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.bundle.rpms import System, sources, target
from envbuild.errors import InputError
from envbuild.site.config import load
from envbuild.site.sections import RpmSection, SiteConfig

EL8 = System(distro="rhel", major=8, releasever="8.8")
REDHAT = """\
[rhel-8-baseos]
name = Red Hat Enterprise Linux 8 - BaseOS
baseurl = https://cdn.example.com/content/dist/rhel8/$releasever/$basearch/baseos/os
enabled = 1
gpgcheck = 0
gpgkey = file://{folder}/key
sslverify = 1
sslcacert = {folder}/ca.pem
sslclientkey = {folder}/client.key
sslclientcert = {folder}/client.pem
priority = 5
excludepkgs = kernel*, *.i686
repo_gpgcheck = yes

[rhel-8-debug]
baseurl = https://cdn.example.com/debug
enabled = 0

[mirrored]
metalink = https://mirrors.example.com/metalink?repo=x-${{releasever_major}}&arch=$basearch
username = ada
password = p$assword
proxy = _none_
module_hotfixes = true
"""


@pytest.fixture
def redhat(tmp_path: Path) -> Path:
    for name in ("key", "ca.pem", "client.key", "client.pem"):
        (tmp_path / name).touch()
    path = tmp_path / "redhat.repo"
    path.write_text(REDHAT.format(folder=tmp_path))
    return path


def site(path: Path, **rpm: object) -> SiteConfig:
    return SiteConfig(rpm=RpmSection.model_validate({"repo_file": path, **rpm}))


def test_red_hats_own_file_is_read_with_its_entitlement(redhat: Path, tmp_path: Path) -> None:
    base, mirrored = sources(site(redhat), "rhel8", EL8)
    assert base.baseurls == ("https://cdn.example.com/content/dist/rhel8/8.8/x86_64/baseos/os/",)
    assert base.certificate == (tmp_path / "client.pem", tmp_path / "client.key") and base.ca == tmp_path / "ca.pem"
    assert (base.priority, base.excludes, base.signed, base.keys) == (
        5, ("kernel*", "*.i686"), True, (f"file://{tmp_path}/key",)
    )  # fmt: skip
    assert mirrored.listing == ("metalink", "https://mirrors.example.com/metalink?repo=x-8&arch=x86_64")
    assert (mirrored.account, mirrored.proxy, mirrored.hotfixes) == (("ada", "p$assword"), "", True)
    assert "assword" not in repr(mirrored)


def test_what_is_given_replaces_the_sites_and_keeps_its_keys_and_certificate(redhat: Path, tmp_path: Path) -> None:
    found = sources(
        site(redhat, gpgkey=[str(tmp_path / "key")], client_cert=tmp_path / "client.pem"), "rhel8", EL8,
        given={"own": "file:///srv/repo $x".replace(" $x", "")},
    )  # fmt: skip
    assert [(each.id, each.baseurls) for each in found] == [("own", ("file:///srv/repo/",))]
    assert found[0].keys == (f"file://{tmp_path}/key",)
    assert found[0].certificate == (tmp_path / "client.pem", tmp_path / "client.pem")


@dataclass(frozen=True)
class OfRelease:
    id: str = "vault"
    baseurl: str = "https://vault.example.com/7/os/x86_64/"
    gpgkey: str = "/etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7"


def test_a_releases_own_repositories_count_where_nobody_says_anything() -> None:
    found = sources(SiteConfig(), "centos7", System(distro="centos", major=7), release=[OfRelease()])
    assert found[0].keys == ("file:///etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7",)
    with pytest.raises(InputError, match="no repository to take packages from") as failed:
        sources(SiteConfig(), "rocky8", EL8)
    assert "--repo" in failed.value.hint


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("$releasever/", "$contentdir/", r"baseurl: nobody says what \$contentdir stands for"),
        ("https://cdn", "ftp://cdn", "baseurl: ftp://cdn.example.com/"),
        ("https://cdn.example.com/content", "https://u:canary@cdn:0/content", r"baseurl: https://\*\*\*@cdn:0"),
        ("enabled = 1", "enabled = maybe", "enabled: 'maybe' is neither yes nor no"),
        ("priority = 5", "priority = high", "priority: 'high' is no number"),
        ("client.pem", "expired.pem", "sslclientcert: .*expired.pem is no file"),
        ("metalink = https://mirrors", "metalink = file://host", "metalink: "),
    ],
)
def test_a_line_that_cannot_be_used_is_named(redhat: Path, before: str, after: str, said: str) -> None:
    redhat.write_text(redhat.read_text().replace(before, after))
    with pytest.raises(InputError, match=said) as failed:
        sources(site(redhat), "rhel8", EL8)
    assert "canary" not in failed.value.message


def test_the_sites_certificate_has_to_be_there(tmp_path: Path) -> None:
    (tmp_path / "envbuild.toml").write_text('[rpm]\nclient_cert = "missing.pem"\n')
    with pytest.raises(InputError, match=r"rpm\.client_cert: .*missing\.pem"):
        load(tmp_path, {"HOME": str(tmp_path / "home")})


@dataclass(frozen=True)
class Relation:
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Has:
    name: str = "lib"
    epoch: int = 1
    version: str = "2.0"
    release: str = "3.el8"
    arch: str = "x86_64"
    provides: tuple[Relation, ...] = (Relation("lib = 1:2.0-3.el8"),)
    requires: tuple[Relation, ...] = (Relation("(a if b)"),)
    conflicts: tuple[Relation, ...] = ()
    obsoletes: tuple[Relation, ...] = ()
    files: tuple[str, ...] = ("/etc/lib.conf",)


@dataclass(frozen=True)
class Chosen:
    name: str
    stream: str
    state: str


@dataclass(frozen=True)
class Host:
    name: str = "login"
    sha256: str = "0" * 64
    os_id: str = "rhel"
    os_version: str = "8.8"
    arch: str = "x86_64"
    fips: bool = True
    modules: tuple[Chosen, ...] = (Chosen("node", "12", "enabled"), Chosen("perl", "5", "disabled"))
    packages: tuple[Has, ...] = (Has(),)


def test_a_described_host_is_a_target() -> None:
    found = target(Host())
    assert (found.name, found.source, found.streams, found.empty) == ("login", "0" * 64, {"node": "12"}, False)
    assert found.system == System(distro="rhel", major=8, releasever="8.8", arch="x86_64", fips=True)
    (package,) = found.installed
    assert str(package.nevra) == "lib-1:2.0-3.el8.x86_64" and package.requires == ("(a if b)",)
    with pytest.raises(InputError, match="is no number"):
        target(Host(os_version="rolling"))
