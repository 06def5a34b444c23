from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import process
from envbuild.errors import EngineError, InputError
from envbuild.site import apt, config
from envbuild.site.apt import AptSettings, apt_settings, host_apt
from envbuild.site.config import SiteConfig
from envbuild.site.pip import PipSettings
from envbuild.site.secrets import build_secrets, needs_host_network

PEM = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"


def settings(**values: str) -> AptSettings:
    return AptSettings(**{"suite": "bookworm", "components": ("main", "contrib"), "family": "debian", **values})  # type: ignore[arg-type]


def site(tmp_path: Path, text: str = "") -> SiteConfig:
    (tmp_path / "envbuild.toml").write_text(text)
    return config.load(tmp_path, {"HOME": str(tmp_path / "home")})


def test_all_secrets_are_there_and_empty_by_default(tmp_path: Path) -> None:
    secrets = build_secrets(site(tmp_path), PipSettings(), settings())
    assert secrets == dict.fromkeys(("pip", "apt", "apt-sources", "rpm", "rpm-repositories", "rpm-keys", "ca"), b"")


def test_a_site_with_everything(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(PEM.format("site"))
    configured = site(tmp_path, '[network]\nca = "ca.pem"\n')
    pip = PipSettings(index="https://u:canary@i.example/simple", cert=tmp_path / "ca.pem")
    packages = settings(
        mirror="https://m.example/debian",
        http_proxy="http://u:canary@p:1",
        https_proxy="http://p:2",
        no_proxy="m.example",
    )
    secrets = build_secrets(configured, pip, packages)
    assert secrets["pip"].decode() == (
        "[global]\nindex-url = https://u:canary@i.example/simple\ncert = /run/secrets/ca\n"
    )
    assert secrets["apt"].decode().splitlines() == [
        'Acquire::http::Proxy "http://u:canary@p:1";',
        'Acquire::http::Proxy::m.example "DIRECT";',
        'Acquire::https::Proxy "http://p:2";',
        'Acquire::https::Proxy::m.example "DIRECT";',
        'Acquire::https::CAInfo "/run/secrets/ca";',
        'APT::Sandbox::User "root";',
        'Dir::Etc::sourcelist "/run/secrets/apt-sources";',
        'Dir::Etc::sourceparts "/dev/null";',
    ]
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert secrets["apt-sources"].decode() == (
        f"deb {key} https://m.example/debian bookworm main contrib\n"
        f"deb {key} https://m.example/debian bookworm-updates main contrib\n"
        f"deb {key} https://m.example/debian-security bookworm-security main contrib\n"
    )
    assert secrets["ca"] == (tmp_path / "ca.pem").read_bytes(), "one bundle, given twice, is one bundle"
    assert "canary" not in repr(packages)


def test_two_bundles_are_both_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text(PEM.format("site"))
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "b.pem").write_text("# a comment\n" + PEM.format("site") + PEM.format("pip"))
    (folder / "0123abcd.0").symlink_to("b.pem")
    (folder / "README").write_text("not a certificate")
    configured = site(tmp_path, '[network]\nca = "a.pem"\n')
    ca = build_secrets(configured, PipSettings(cert=folder), settings())["ca"].decode()
    assert ca == PEM.format("site") + "\n" + PEM.format("pip"), "each certificate once"


def test_a_bundle_that_the_builder_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text(PEM.format("x" * 512_000))
    with pytest.raises(InputError, match=r"a\.pem: 5\d+ bytes are more than the 512000"):
        build_secrets(site(tmp_path), PipSettings(cert=tmp_path / "a.pem"), settings())


def test_a_bundle_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(InputError, match=r"a\.pem holds no PEM certificate"):
        build_secrets(site(tmp_path), PipSettings(cert=tmp_path / "a.pem"), settings())
    with pytest.raises(InputError, match="cannot be read"):
        build_secrets(site(tmp_path), PipSettings(cert=tmp_path / "gone"), settings())


@pytest.mark.parametrize(
    ("values", "archives"),
    [
        ({}, ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")),
        ({"mirror": "http://m/debian/"}, ("http://m/debian/", "http://m/debian-security")),
        # No guess where a mirror is not named as Debian names it.
        ({"mirror": "http://m/deb12"}, ("http://m/deb12", "http://deb.debian.org/debian-security")),
        ({"security_mirror": "http://m/sec"}, ("http://deb.debian.org/debian", "http://m/sec")),
        ({"family": "ubuntu", "mirror": "http://m/ubuntu"}, ("http://m/ubuntu", "http://m/ubuntu")),
        ({"family": "ubuntu"}, ("http://archive.ubuntu.com/ubuntu", "http://security.ubuntu.com/ubuntu")),
    ],
)
def test_archives(values: dict[str, str], archives: tuple[str, str]) -> None:
    assert settings(**values).archives() == archives


def test_other_families_get_nothing_for_apt(tmp_path: Path) -> None:
    secrets = build_secrets(site(tmp_path), PipSettings(), settings(family="rhel", http_proxy="http://p:1"))
    assert secrets["apt"] == secrets["apt-sources"] == b""


@pytest.mark.parametrize(
    ("pip", "packages", "needed"),
    [
        (PipSettings(), settings(), False),
        (PipSettings(index="https://i.example", find_links=("/wheels",)), settings(mirror="http://m/debian"), False),
        (PipSettings(extra_index=("http://127.0.0.1:3141/simple",)), settings(), True),
        (PipSettings(extra_index=("file://localhost/simple",)), settings(), False),
        (PipSettings(proxy="http://localhost:3128"), settings(), True),
        (PipSettings(), settings(mirror="http://[::1]/debian"), True),
        (PipSettings(), settings(https_proxy="http://127.0.0.1:1"), True),
    ],
)
def test_host_network(tmp_path: Path, pip: PipSettings, packages: AptSettings, needed: bool) -> None:
    assert needs_host_network(site(tmp_path), pip, packages) is needed
    assert needs_host_network(site(tmp_path, '[network]\nbuild = "host"\n'), pip, packages)
    assert not needs_host_network(site(tmp_path, '[network]\nbuild = "default"\n'), pip, packages)


DEBIAN_HOST = """\
http://mirror.example/debian/|bookworm|Debian|Debian|oldstable
http://mirror.example/debian/|bookworm-updates|Debian|Debian|oldstable-updates
http://mirror.example/debian-security/|bookworm-security|Debian|Debian-Security|oldstable-security
https://packages.example/|bookworm|Docker|Docker CE|bookworm
"""
UBUNTU_HOST = """\
http://mirror.example/ubuntu/|jammy|Ubuntu|Ubuntu|jammy
http://security.example/ubuntu/|jammy|Ubuntu|Ubuntu|jammy-security
"""
PUBLIC_HOST = "http://deb.debian.org/debian/|bookworm|Debian|Debian|stable\n"
PROXIES = 'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://p:1";\nAcquire::https::Proxy "DIRECT";\n'


def on_host(monkeypatch: pytest.MonkeyPatch, targets: str, dump: str = "") -> None:
    def run(argv: tuple[str, ...], **options: object) -> process.Completed:
        out = targets if argv[0] == "apt-get" else dump
        return process.Completed(argv=tuple(argv), returncode=0, stdout=out, stderr="")

    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(process, "run", run)


@pytest.mark.parametrize(
    ("targets", "suite", "family", "mirrors"),
    [
        (
            DEBIAN_HOST,
            "bookworm",
            "debian",
            ("http://mirror.example/debian/", "http://mirror.example/debian-security/"),
        ),
        # Another release of the same distribution lies on the same mirror.
        (DEBIAN_HOST, "trixie", "debian", ("http://mirror.example/debian/", "http://mirror.example/debian-security/")),
        (DEBIAN_HOST, "jammy", "ubuntu", (None, None)),
        (UBUNTU_HOST, "jammy", "ubuntu", ("http://mirror.example/ubuntu/", "http://security.example/ubuntu/")),
        (PUBLIC_HOST, "bookworm", "debian", (None, None)),
        # A public security archive beside a mirror is said, or it would be guessed from the mirror's address.
        (
            "http://m/debian|bookworm|Debian|Debian|stable\n"
            "http://deb.debian.org/debian-security/|bookworm-security|Debian|Debian-Security|stable-security\n",
            "bookworm",
            "debian",
            ("http://m/debian", "http://deb.debian.org/debian-security/"),
        ),
        ("file:/srv/debian|bookworm|Debian|Debian|stable\nnonsense\n||||||\n", "bookworm", "debian", (None, None)),
        ("", "bookworm", "debian", (None, None)),
    ],
)
def test_the_hosts_own_mirrors(
    monkeypatch: pytest.MonkeyPatch, targets: str, suite: str, family: str, mirrors: tuple[str | None, str | None]
) -> None:
    on_host(monkeypatch, targets)
    found = host_apt(suite, family)
    assert (found.mirror, found.security_mirror) == mirrors
    assert bool(found.origin) is (mirrors != (None, None))


def test_the_hosts_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    on_host(monkeypatch, "", PROXIES)
    found = host_apt("bookworm", "debian")
    # apt's https method falls back to the http proxy.
    assert (found.http_proxy, found.https_proxy) == ("http://p:1", "http://p:1")


def test_no_apt_and_a_failing_apt_are_the_public_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = AptSettings(suite="bookworm", components=("main",), family="debian")
    monkeypatch.setattr(process, "which", lambda program: None)
    assert host_apt("bookworm", "debian") == plain
    on_host(monkeypatch, "")

    def fails(argv: tuple[str, ...], **options: object) -> process.Completed:
        raise EngineError("it hangs")

    monkeypatch.setattr(process, "run", fails)
    assert host_apt("bookworm", "debian") == plain
    assert host_apt("9", "rhel") == AptSettings(suite="9", components=("main",), family="rhel")


def test_who_decides_about_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_host(monkeypatch, DEBIAN_HOST, PROXIES)

    def chosen(configured: SiteConfig) -> AptSettings:
        return apt_settings(configured, suite="bookworm", components=("main", "non-free"), family="debian")

    host = chosen(site(tmp_path))
    assert host.mirror == "http://mirror.example/debian/"
    assert host.components == ("main", "non-free")
    assert host.origin == "this host's apt configuration"

    own = chosen(site(tmp_path, '[apt]\nmirror = "http://own.example/debian"\n'))
    assert (own.mirror, own.security_mirror, own.http_proxy) == ("http://own.example/debian", None, None)

    environ = {"HOME": str(tmp_path / "home"), "ENVBUILD_APT_PROXY": "http://mine:1"}
    mixed = chosen(config.load(None, environ))
    assert mixed.mirror == "http://mirror.example/debian/"
    assert (mixed.http_proxy, mixed.https_proxy) == ("http://mine:1", "http://mine:1")

    network = chosen(site(tmp_path, '[apt]\nmirror = "http://m/debian"\n[network]\nhttps_proxy = "http://n:1"\n'))
    assert (network.http_proxy, network.https_proxy) == (None, "http://n:1")


def test_families_are_the_two_that_apt_serves() -> None:
    assert set(apt.FAMILIES) == {"debian", "ubuntu"}
