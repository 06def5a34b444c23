"""What dnf and yum are told about a site, and what nobody is shown."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.site import config
from envbuild.site.apt import AptSettings
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PipSettings
from envbuild.site.rpm import FAMILIES, rpm_settings
from envbuild.site.secrets import build_secrets, needs_host_network

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n{}\n-----END PGP PUBLIC KEY BLOCK-----"
REPOSITORIES = (
    '[rpm.repositories]\nbaseos = "https://user:canary@m.example/baseos"\napps = "http://other.example/apps"\n'
)


def site(folder: Path, text: str = "", **environ: str) -> SiteConfig:
    (folder / "envbuild.toml").write_text(text)
    return config.load(folder, {"HOME": str(folder / "home"), **environ})


def secrets(configured: SiteConfig, family: str = "rocky8") -> dict[str, str]:
    settings = AptSettings(suite="", components=(), family=family)
    return {name: data.decode() for name, data in build_secrets(configured, PipSettings(), settings).items()}


def parsed(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return parser


def test_a_site_with_everything(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(KEY.format(name))
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    configured = site(
        tmp_path,
        '[rpm]\ngpgkey = ["a", "b", "file:///etc/pki/own"]\nproxy = "http://me:canary@p.example:3128"\n'
        f'{REPOSITORIES}[network]\nca = "ca.pem"\nno_proxy = ".example"\n',
    )
    found = secrets(configured)
    assert found["rpm"].splitlines() == [
        "[main]", "gpgcheck=1", "best=1", "reposdir=/dev/null", "sslcacert=/run/secrets/ca",
        "proxy=http://me:canary@p.example:3128",
    ]  # fmt: skip
    repositories = parsed(found["rpm-repositories"])
    assert dict(repositories["baseos"]) == {
        "name": "baseos",
        "baseurl": "https://user:canary@m.example/baseos",
        "gpgcheck": "1",
        "gpgkey": "file:///etc/pki/own file:///run/secrets/rpm-keys",
        "proxy": "_none_",
    }
    assert found["rpm-keys"] == KEY.format("a") + "\n" + KEY.format("b") + "\n"
    assert "canary" not in repr(rpm_settings(configured, "rocky8")) and "canary" not in repr(configured)


def test_without_keys_of_its_own_a_mirror_is_signed_by_the_distribution(tmp_path: Path) -> None:
    configured = site(tmp_path, REPOSITORIES)
    for family, key in (
        ("rocky8", "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-rockyofficial"),
        ("rhel9", "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-redhat-release"),
    ):
        found = secrets(configured, family)
        assert {
            section["gpgkey"] for name, section in parsed(found["rpm-repositories"]).items() if name != "DEFAULT"
        } == {key}
        assert "gpgcheck=0" not in "".join(found.values())


def test_a_family_may_have_repositories_of_its_own(tmp_path: Path) -> None:
    configured = site(tmp_path, f'{REPOSITORIES}[rpm.families.centos7]\nbase = "https://m.example/7"\n')
    by_family = {family: parsed(secrets(configured, family)["rpm-repositories"]).sections() for family in FAMILIES}
    assert by_family == {"centos7": ["base"], **{key: ["baseos", "apps"] for key in ("rhel8", "rhel9", "rocky8")}}


def test_settings_alone_leave_the_repositories_of_the_base(tmp_path: Path) -> None:
    found = secrets(site(tmp_path, '[network]\nhttp_proxy = "http://p:1"\n'))
    assert found["rpm"] == "[main]\ngpgcheck=1\nbest=1\nproxy=http://p:1\n" and found["rpm-repositories"] == ""


def test_other_families_get_nothing(tmp_path: Path) -> None:
    found = secrets(site(tmp_path, f'[rpm]\nproxy = "http://p:1"\n{REPOSITORIES}'), "debian")
    assert found["rpm"] == found["rpm-repositories"] == found["rpm-keys"] == ""


def test_a_repository_file_goes_in_as_it_is_with_keys_where_it_names_none(tmp_path: Path) -> None:
    (tmp_path / "site.repo").write_text(
        "# ours\n[one]\nname = One\nbaseurl = https://u:canary@m/1\n  https://m/2\nenabled=1\nmodule_hotfixes=1\n"
        "[two]\nmetalink=https://m/$basearch\ngpgkey=https://m/key\n"
    )
    found = parsed(secrets(site(tmp_path, '[rpm]\nrepo_file = "site.repo"\n'))["rpm-repositories"])
    assert found["one"]["baseurl"] == "https://u:canary@m/1\nhttps://m/2"
    assert found["one"]["gpgkey"] == "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-rockyofficial"
    assert (found["one"]["module_hotfixes"], found["two"]["gpgkey"]) == ("1", "https://m/key")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense canary\n", r"site\.repo:1: not a repository file"),
        ("[one]\nbaseurl=https://m\n[one]\nbaseurl=https://m\n", r"site\.repo:3: not a repository file"),
        ("[one]\ncanary\n", r"site\.repo:2: not a repository file"),
        ("[main]\nproxy=http://canary\n", r"\[main\] has no baseurl"),
        ("# nothing\n", "no repository"),
    ],
)
def test_a_repository_file_that_is_none(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "site.repo").write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        rpm_settings(site(tmp_path, '[rpm]\nrepo_file = "site.repo"\n'), "rhel8")
    assert "canary" not in caught.value.message


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("binary", "no public key")])
def test_a_key_file_that_is_none(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(InputError, match=said):
        secrets(site(tmp_path, f'[rpm]\ngpgkey = ["key"]\n{REPOSITORIES}'))


@pytest.mark.parametrize(
    "text",
    [
        '[rpm.repositories]\n"a b" = "https://m"\n',
        '[rpm.repositories]\n"a]" = "https://m"\n',
        '[rpm.repositories]\na = "https://m\\ngpgcheck=0"\n',
        '[rpm.repositories]\na = "ftp://m"\n',
        '[rpm]\ngpgkey = ["https://m/a b"]\n',
        '[rpm]\ngpgkeys = []\n',
        '[rpm]\nrepo_file = "nowhere.repo"\n',
        '[rpm.families.rocky7]\na = "https://m"\n',
    ],
)  # fmt: skip
def test_what_cannot_be_a_setting_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"envbuild\.toml:[0-9]+:1: rpm\."):
        site(tmp_path, text)


def test_variables_replace_single_keys(tmp_path: Path) -> None:
    configured = site(
        tmp_path, REPOSITORIES,
        ENVBUILD_RPM_REPOSITORIES="a=https://m/a?x=1,b=https://m/b", ENVBUILD_RPM_GPGKEY="file:///etc/k, https://m/k",
    )  # fmt: skip
    assert configured.rpm.repositories == {"a": "https://m/a?x=1", "b": "https://m/b"}
    assert configured.rpm.gpgkey == ("file:///etc/k", "https://m/k")


@pytest.mark.parametrize(
    ("text", "family", "needed"),
    [
        ('[rpm.repositories]\na = "http://127.0.0.1:8/"\n', "rhel8", True),
        ('[rpm.repositories]\na = "http://127.0.0.1:8/"\n', "debian", False),
        ('[rpm]\nproxy = "http://localhost:3128"\n', "centos7", True),
        (REPOSITORIES, "rhel8", False),
    ],
)
def test_a_repository_on_loopback_needs_the_hosts_network(text: str, family: str, needed: bool, tmp_path: Path) -> None:
    settings = AptSettings(suite="", components=(), family=family)
    assert needs_host_network(site(tmp_path, text), PipSettings(), settings) is needed
