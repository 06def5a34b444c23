from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import InputError
from envbuild.site import config, pipconf
from envbuild.site.pip import PipSettings, pip_settings


class Host:
    """A host whose pip configuration is in a folder of the test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = root / "prefix"
        self.environ = {"HOME": str(root / "home"), "XDG_CONFIG_DIRS": f"{root / 'xdg1'}:{root / 'xdg2'}"}

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def settings(self, **variables: str) -> PipSettings:
        environ = {**self.environ, **variables}
        project = self.root if (self.root / "envbuild.toml").exists() else None
        return pip_settings(config.load(project, environ), environ, prefix=self.prefix)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(pipconf, "SYSTEM_FILE", tmp_path / "etc" / "pip.conf")
    return Host(tmp_path)


# Lowest first, as https://pip.pypa.io/en/stable/topics/configuration/ has it.
ORDER = (
    "xdg1/pip/pip.conf",
    "xdg2/pip/pip.conf",
    "etc/pip.conf",
    "home/.pip/pip.conf",
    "home/.config/pip/pip.conf",
    "prefix/pip.conf",
)


@pytest.mark.parametrize("winner", range(len(ORDER)))
def test_a_later_file_wins(host: Host, winner: int) -> None:
    for name in ORDER[: winner + 1]:
        host.write(name, f"[global]\nindex-url = https://{name.replace('/', '-')}.example/simple\n")
    assert host.settings().index == f"https://{ORDER[winner].replace('/', '-')}.example/simple"


def test_own_configuration_folder_of_the_user(host: Host) -> None:
    host.write("conf/pip/pip.conf", "[global]\nindex-url = https://conf.example/simple\n")
    host.write("home/.config/pip/pip.conf", "[global]\nindex-url = https://home.example/simple\n")
    assert host.settings(XDG_CONFIG_HOME=str(host.root / "conf")).index == "https://conf.example/simple"


def test_install_beats_global_even_from_a_lower_file(host: Host) -> None:
    host.write("etc/pip.conf", "[install]\nindex-url = https://install.example/simple\n")
    host.write("prefix/pip.conf", "[global]\nindex-url = https://global.example/simple\n[download]\ntimeout = 7\n")
    settings = host.settings()
    assert settings.index == "https://install.example/simple"
    assert settings.timeout == 7
    assert host.settings(PIP_INDEX_URL="https://variable.example/simple").index == "https://variable.example/simple"


def test_own_file_replaces_the_users_and_beats_the_environments(host: Host) -> None:
    host.write("home/.config/pip/pip.conf", "[global]\nextra-index-url = https://user.example/simple\n")
    host.write("prefix/pip.conf", "[global]\nindex-url = https://site.example/simple\ntimeout = 5\n")
    own = host.write("own.conf", "[global]\nindex-url = https://own.example/simple\n")
    settings = host.settings(PIP_CONFIG_FILE=str(own))
    assert settings.index == "https://own.example/simple"
    assert settings.timeout == 5
    assert settings.extra_index == ()
    # A file that is not there keeps the user's.
    missing = host.settings(PIP_CONFIG_FILE=str(host.root / "missing"))
    assert missing.extra_index == ("https://user.example/simple",)


def test_dev_null_means_no_file_at_all(host: Host) -> None:
    host.write("prefix/pip.conf", "[global]\nindex-url = https://site.example/simple\n")
    settings = host.settings(PIP_CONFIG_FILE="/dev/null", PIP_TIMEOUT="3")
    assert settings.index is None
    assert settings.timeout == 3


def test_lists_names_and_values_as_pip_reads_them(host: Host) -> None:
    (host.root / "wheels").mkdir()
    host.write(
        "prefix/pip.conf",
        "[global]\nExtra_Index_Url =\n  https://a.example/%(x)s\n  https://b.example/${HOME}\n"
        f"find-links = {host.root / 'wheels'} https://list.example/ file://{host.root}/wheels {host.root}/gone\n"
        "trusted-host = a.example b.example:8080\nno-index = yes\ndefault-timeout = 12.6\nproxy = u:p@proxy:3128\n",
    )
    settings = host.settings()
    assert settings.extra_index == ("https://a.example/%(x)s", "https://b.example/${HOME}"), "nothing is interpolated"
    wheels = str(host.root / "wheels")
    assert settings.find_links == (wheels, "https://list.example/", wheels)
    assert settings.trusted_hosts == ("a.example", "b.example:8080")
    assert settings.no_index
    assert settings.indexes == ()
    assert settings.timeout == 13
    assert settings.proxy == "http://u:p@proxy:3128"
    assert any("gone, which does not exist" in item for item in settings.ignored)


def test_an_empty_value_takes_back_what_a_lower_file_said(host: Host) -> None:
    host.write("etc/pip.conf", "[global]\nindex-url = https://etc.example/simple\n")
    host.write("prefix/pip.conf", "[global]\nindex-url =\n")
    assert host.settings(PIP_EXTRA_INDEX_URL="").index is None


def test_everything_else_is_ignored_and_said(host: Host) -> None:
    path = host.write(
        "etc/pip.conf",
        "[global]\nconstraint = /c.txt\nrequire-virtualenv = true\ncache-dir = /x\n[install]\ntarget = /t\n"
        "[freeze]\nall = 1\n",
    )
    ignored = host.settings(PIP_USER="1", PIP_NO_COLOR="1", PIP_DISABLE_PIP_VERSION_CHECK="1").ignored
    assert sorted(ignored) == [
        f"constraint ({path})",
        f"require-virtualenv ({path})",
        f"target ({path})",
        "user (PIP_USER)",
    ]


def test_certificates(host: Host, tmp_path: Path) -> None:
    ca, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.touch(), other.touch()
    assert host.settings(REQUESTS_CA_BUNDLE=str(other)).cert == other
    assert host.settings(REQUESTS_CA_BUNDLE=str(other), PIP_CERT=str(ca)).cert == ca
    assert host.settings(CURL_CA_BUNDLE=str(tmp_path / "gone")).cert is None
    with pytest.raises(InputError, match=r"PIP_CERT: cert: .*gone does not exist"):
        host.settings(PIP_CERT=str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("index-url = https://x\n", r"pip\.conf:1: not a pip configuration file"),
        ("[global]\nonly canary words\n", r"pip\.conf:2: not a pip configuration file"),
        ("[global]\na=1\na=2\n", r"pip\.conf:3: not a pip configuration file"),
        ("[global]\ntimeout = canary\n", r"pip\.conf: timeout has to be a number"),
        ("[global]\nno-index = canary\n", r"pip\.conf: no-index has to be yes or no"),
        ("[global]\nindex-url = https://a\n  https://canary@b\n", r"pip\.conf: index-url has to be one value"),
    ],
)
def test_a_configuration_that_pip_could_not_use_either(host: Host, text: str, said: str) -> None:
    host.write("prefix/pip.conf", text)
    with pytest.raises(InputError, match=said) as caught:
        host.settings()
    assert "canary" not in caught.value.message


def test_a_site_file_replaces_pips_configuration(host: Host) -> None:
    host.write("prefix/pip.conf", "[global]\nindex-url = https://host.example/simple\ntimeout = 5\nconstraint = x\n")
    host.write("envbuild.toml", '[pip]\nextra_index = ["https://site.example/simple"]\n')
    settings = host.settings()
    assert settings.index is None
    assert settings.timeout is None
    assert settings.ignored == ()
    assert settings.indexes == ("https://pypi.org/simple", "https://site.example/simple")
    assert settings.origin == str(host.root / "envbuild.toml")


def test_a_variable_alone_changes_only_its_own_value(host: Host) -> None:
    host.write("prefix/pip.conf", "[global]\nindex-url = https://host.example/simple\nno-index = true\n")
    settings = host.settings(ENVBUILD_PIP_TIMEOUT="77")
    assert settings.index == "https://host.example/simple"
    assert settings.timeout == 77
    assert settings.no_index
    assert settings.origin == "pip's own configuration and environment"
    assert host.settings(ENVBUILD_PIP_INDEX="https://mine.example/simple").indexes == ("https://mine.example/simple",)


def test_network_fills_in_what_pip_does_not_say(host: Host, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    host.write("envbuild.toml", '[network]\nca = "ca.pem"\nhttp_proxy = "http://a:1"\nhttps_proxy = "http://b:1"\n')
    settings = host.settings()
    assert settings.cert == tmp_path / "ca.pem"
    assert settings.proxy == "http://b:1"
    assert host.settings(PIP_INDEX_URL="http://x.example").proxy == "http://a:1"
    assert host.settings(PIP_PROXY="http://own:1").proxy == "http://own:1"


FULL = PipSettings(
    index="https://user:canary@main.example/simple",
    extra_index=("file:///folder/simple", "https://canary@more.example/simple"),
    find_links=("/wheels", "/a,b", "https://list.example/x,y"),
    trusted_hosts=("main.example",),
    cert=Path("/ca.pem"),
    proxy="http://me:canary@proxy:3128",
    no_proxy="x.example",
    timeout=60,
)


def test_no_credentials_in_text_or_in_arguments() -> None:
    assert "canary" not in repr(FULL)
    assert "https://***@main.example/simple" in repr(FULL)
    assert "canary" not in " ".join(FULL.uv_arguments())


def test_uv_is_told_the_same() -> None:
    assert FULL.uv_arguments() == (
        "--no-config",
        "--index-strategy",
        "unsafe-best-match",
        "--allow-insecure-host",
        "main.example",
    )
    variables = FULL.uv_environment()
    # uv asks the default index last: the main one has to come first.
    assert variables["UV_INDEX"] == "https://user:canary@main.example/simple file:///folder/simple"
    assert variables["UV_DEFAULT_INDEX"] == "https://canary@more.example/simple"
    assert variables["UV_FIND_LINKS"] == "/wheels,file:///a%2Cb,https://list.example/x%2Cy"
    assert variables["SSL_CERT_FILE"] == "/ca.pem"
    assert variables["UV_HTTP_TIMEOUT"] == "60"
    assert {variables[name] for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY")} == {"http://me:canary@proxy:3128"}
    assert variables["NO_PROXY"] == "x.example"


def test_uv_without_settings_asks_pypi() -> None:
    assert PipSettings().uv_environment() == {"UV_DEFAULT_INDEX": "https://pypi.org/simple"}
    offline = PipSettings(no_index=True, find_links=("/w",))
    assert "--no-index" in offline.uv_arguments()
    assert offline.uv_environment() == {"UV_FIND_LINKS": "/w"}


def test_pip_in_a_build_gets_what_exists_there() -> None:
    assert FULL.pip_conf() == (
        "[global]\n"
        "index-url = https://user:canary@main.example/simple\n"
        "extra-index-url =\n    https://canary@more.example/simple\n"
        "find-links =\n    https://list.example/x,y\n"
        "trusted-host =\n    main.example\n"
        "cert = /run/secrets/ca\n"
        "proxy = http://me:canary@proxy:3128\n"
        "timeout = 60\n"
    )
    assert PipSettings().pip_conf() == ""
    assert PipSettings(find_links=("/wheels",)).pip_conf() == ""


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        # A host that replaced PyPI by a folder did not ask for PyPI.
        (PipSettings(index="file:///f/simple"), ["no-index = true"]),
        (PipSettings(index="file:///f", extra_index=("https://x.example/s",)), ["index-url = https://x.example/s"]),
        (PipSettings(no_index=True), ["no-index = true"]),
        (PipSettings(proxy="http://p:1", no_proxy="pypi.org"), []),
    ],
)
def test_pip_in_a_build_special_cases(settings: PipSettings, lines: list[str]) -> None:
    assert settings.pip_conf().splitlines()[1:] == lines


def test_pip_conf_reads_back_as_it_was_meant(host: Host) -> None:
    path = host.write("own.conf", FULL.pip_conf().replace("cert = /run/secrets/ca\n", ""))
    settings = host.settings(PIP_CONFIG_FILE=str(path))
    assert settings.index == FULL.index
    assert settings.extra_index == FULL.extra_index[1:]
    assert settings.find_links == FULL.find_links[2:]
    assert settings.proxy == FULL.proxy


def test_one_more_index() -> None:
    url = "https://download.pytorch.org/whl/cpu"
    more = FULL.with_extra_index(url)
    assert more.extra_index == (*FULL.extra_index, url)
    assert more.with_extra_index(url) is more
