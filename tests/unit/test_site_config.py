from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import InputError
from envbuild.site import config, urls


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "envbuild.toml").write_text(text)
    return folder


def test_nothing_configured(home: dict[str, str], tmp_path: Path) -> None:
    site = config.load(tmp_path, home)
    assert site.base.bootstrap == "auto"
    assert site.network.build == "auto"
    assert site.pip.index is None
    assert site.origin == {"pip": "pip's own configuration"}


def test_project_file_replaces_the_users_section_by_section(home: dict[str, str], tmp_path: Path) -> None:
    user = write(
        tmp_path / "home" / ".config" / "envbuild",
        '[apt]\nmirror = "http://user.example/debian"\nproxy = "http://p:1"\n[registry]\nname = "user.example"\n',
    )
    root = write(tmp_path / "project", '[apt]\nmirror = "http://project.example/debian"\n')
    site = config.load(root, home)
    assert site.apt.mirror == "http://project.example/debian"
    assert site.apt.proxy is None
    assert site.registry.name == "user.example"
    assert site.origin["apt"] == str(root / "envbuild.toml")
    assert site.origin["registry"] == str(user / "envbuild.toml")
    assert site.in_file == {"apt", "registry"}


def test_variables_beat_files_and_flags_beat_variables(home: dict[str, str], tmp_path: Path) -> None:
    root = write(
        tmp_path, '[registry]\nname = "file.example"\n[pip]\nindex = "https://file.example/simple"\ntimeout = 9\n'
    )
    environ = {
        **home,
        "ENVBUILD_REGISTRY_NAME": "variable.example",
        "ENVBUILD_PIP_EXTRA_INDEX": "https://a.example/simple, https://b.example/simple",
        "ENVBUILD_PIP_TIMEOUT": "30",
        "ENVBUILD_BASE_MIRRORS": "docker.io=mirror.example/hub,ghcr.io=mirror.example/ghcr",
        "ENVBUILD_HOME": "/elsewhere",
        "ENVBUILD_SOMETHING_ELSE": "of another room",
    }
    site = config.load(root, environ, {"engine.host": "unix:///flag.sock", "registry.name": None})
    assert site.registry.name == "variable.example"
    assert site.pip.index == "https://file.example/simple"
    assert site.pip.extra_index == ("https://a.example/simple", "https://b.example/simple")
    assert site.pip.timeout == 30
    assert site.base.mirrors == {"docker.io": "mirror.example/hub", "ghcr.io": "mirror.example/ghcr"}
    assert site.engine.host == "unix:///flag.sock"
    assert site.origin["pip"] == f"{root / 'envbuild.toml'} and environment"
    assert site.origin["engine"] == "flags"


def test_paths_are_relative_to_the_file(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.pem").touch()
    (tmp_path / "home").mkdir()
    root = write(
        tmp_path,
        '[network]\nca = "ca.pem"\n[pip]\nfind_links = ["sub/../wheels", "https://x.example/list"]\n'
        '[paths]\ncache = "c"\n[engine]\nclient = "bin/docker"\n[trust]\nkeys = ["k.pub"]\n',
    )
    site = config.load(root, home)
    assert site.network.ca == tmp_path / "ca.pem"
    assert site.pip.find_links == (str(tmp_path / "wheels"), "https://x.example/list")
    assert site.paths.cache == tmp_path / "c"
    assert site.engine.client == str(tmp_path / "bin/docker")
    assert site.trust.keys == (tmp_path / "k.pub",)
    assert config.load(None, {**home, "ENVBUILD_ENGINE_CLIENT": "docker"}).engine.client == "docker"


def test_every_problem_is_told_at_once_with_its_place(home: dict[str, str], tmp_path: Path) -> None:
    root = write(
        tmp_path,
        "# a comment\n[pip]\nindx = 'https://a.example'\nfind_links = ['nowhere']\n  timeout = 'soon'\n\n"
        "[netwrok]\nca = 'x'\n[network]\nca = 'missing.pem'\nbuild = 'bridge'\n"
        "[base.mirrors]\n'docker.io' = 'NO WAY'\n",
    )
    with pytest.raises(InputError) as caught:
        config.load(root, {**home, "ENVBUILD_PIP_INDX": "x", "ENVBUILD_APT_PROXY": "ht tp"})
    file = root / "envbuild.toml"
    lines = caught.value.message.splitlines()
    for start, part in (
        (f"{file}:3:1: pip.indx:", 'did you mean "index"?'),
        (f"{file}:4:1: pip.find_links:", f"{root / 'nowhere'} does not exist"),
        (f"{file}:5:3: pip.timeout:", "valid integer"),
        (f"{file}:7:1: netwrok:", 'did you mean "network"?'),
        (f"{file}:10:1: network.ca:", f"{root / 'missing.pem'} is not a file"),
        (f"{file}:11:1: network.build:", "'auto', 'host' or 'default'"),
        (f"{file}:12:1: base.mirrors.docker.io:", "has to be a registry"),
        ("ENVBUILD_PIP_INDX:", 'did you mean "ENVBUILD_PIP_INDEX"?'),
        ("ENVBUILD_APT_PROXY: apt.proxy:", "has to be a URL"),
    ):
        assert any(line.startswith(start) and part in line for line in lines), (start, part, lines)
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[pip]\nindex = "a\n', r"envbuild\.toml:2:\d+: not valid TOML"),
        ("[pip]\n[pip]\n", r"envbuild\.toml:2:\d+: not valid TOML"),
        ('[pip]\nindex = """a', r"envbuild\.toml:2:\d+: not valid TOML"),
        ("pip = 3\n", r"envbuild\.toml:1:1: pip: has to be a section"),
        ("pip.indx = 3\n", r"envbuild\.toml:1:1: pip\.indx: unknown key"),
    ],
)
def test_broken_files_have_a_line(home: dict[str, str], tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        config.load(write(tmp_path, text), home)


def test_not_text(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "envbuild.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"not valid TOML: .* at byte 0"):
        config.load(tmp_path, home)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("pip", 'index = "https://x.example/simple\\"\\nevil = 1"'),
        ("pip", 'index = "ftp://user:canary-secret@x.example"'),
        ("apt", 'mirror = "https://x.example/debian; Evil::Key"'),
        ("apt", 'proxy = "http://p canary-secret"'),
        ("network", 'https_proxy = "http://user:canary-secret@p\\";"'),
        ("pip", 'trusted_hosts = ["a b canary-secret"]'),
    ],
)
def test_what_could_break_out_of_a_configuration_file_is_refused_and_not_repeated(
    home: dict[str, str], tmp_path: Path, section: str, value: str
) -> None:
    with pytest.raises(InputError) as caught:
        config.load(write(tmp_path, f"[{section}]\n{value}\n"), home)
    assert "canary-secret" not in caught.value.message + caught.value.hint
    assert f"envbuild.toml:2:1: {section}." in caught.value.message


def test_text_form_shows_no_credentials(home: dict[str, str], tmp_path: Path) -> None:
    root = write(
        tmp_path,
        '[pip]\nindex = "https://user:canary@x.example/simple"\nextra_index = ["https://canary@y.example"]\n'
        '[apt]\nproxy = "http://u:canary@p:1"\n[network]\nhttp_proxy = "u:canary@p:1"\n',
    )
    site = config.load(root, home)
    assert site.network.http_proxy == "http://u:canary@p:1"
    for text in (repr(site), str(site), repr(site.pip), str(site.apt), f"{site.network}"):
        assert "canary" not in text
        assert "***@" in text


def test_usual_proxy_variables_are_a_default(home: dict[str, str], tmp_path: Path) -> None:
    environ = {
        **home,
        "http_proxy": "low:1",
        "HTTP_PROXY": "http://high:1",
        "HTTPS_PROXY": "http://s:1",
        "no_proxy": "x",
    }
    network = config.load(None, environ).network
    assert (network.http_proxy, network.https_proxy, network.no_proxy) == ("http://low:1", "http://s:1", "x")
    # A site that says anything about proxies says everything.
    root = write(tmp_path, '[network]\nhttps_proxy = "http://site:1"\nno_proxy = ["a.example", "b.example"]\n')
    network = config.load(root, environ).network
    assert (network.http_proxy, network.https_proxy) == (None, "http://site:1")
    assert network.no_proxy == "a.example,b.example"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("get https://user:p@ss@h.example/x?token=abc now", "get https://***@h.example/x?*** now"),
        ("'http://tok@h:1/a', ok", "'http://***@h:1/a', ok"),
        ("https://h.example/a@b and me@h.example", "https://h.example/a@b and me@h.example"),
    ],
)
def test_mask(text: str, masked: str) -> None:
    assert urls.mask(text) == masked


def test_scrub_also_covers_credentials_outside_of_urls() -> None:
    said = urls.scrub("401 for s%2Fcret and s/cret, user bob", ["https://bob:s%2Fcret@h.example/"])
    assert said == "401 for *** and ***, user bob"
    assert urls.scrub("bad token abcdef", ["https://abcdef@h.example/"]) == "bad token ***"


@pytest.mark.parametrize(
    ("url", "no_proxy", "expected"),
    [
        ("https://a.example.com/x", "example.com", True),
        ("https://a.example.com/x", ".example.com", True),
        ("https://badexample.com/x", "example.com", False),
        ("https://10.1.2.3/x", "10.0.0.0/8", True),
        ("https://10.1.2.3/x", "other, 11.0.0.0/8", False),
        ("https://x/", "*", True),
        ("https://x/", None, False),
    ],
)
def test_no_proxy(url: str, no_proxy: str | None, expected: bool) -> None:
    assert urls.bypasses(url, no_proxy) is expected


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a%20b/c", "/a b/c"),
        ("file://localhost/a", "/a"),
        ("/plain/path", "/plain/path"),
        ("file://server/share", None),
        ("https://x/", None),
    ],
)
def test_local_path(url: str, path: str | None) -> None:
    assert urls.local_path(url) == (Path(path) if path else None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://localhost", "http://[::1]:3/", "http://a.localhost/"])
def test_loopback(url: str) -> None:
    assert urls.is_loopback(url)
    assert not urls.is_loopback("http://127.example.com/")


def test_frozen(home: dict[str, str]) -> None:
    site: Any = config.load(None, home)
    with pytest.raises(ValueError, match="frozen"):
        site.pip.index = "https://x.example"
