"""What comes into the registry client from outside: names, manifests, challenges, times, logins; any bytes are."""

from __future__ import annotations

import base64
import contextlib
import json
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError, InputError
from envbuild.net import NetworkError
from envbuild.net.manners import joined, retry_after
from envbuild.registry import manifests, parse, tokens
from envbuild.registry.blobs import Effort
from envbuild.registry.credentials import account_for
from envbuild.registry.types import words_of

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "full", "address"),
    [
        ("cpu", "docker.io/library/cpu:latest", "registry-1.docker.io"),
        ("docker.io/cpu:1", "docker.io/library/cpu:1", "registry-1.docker.io"),
        ("team/cpu", "docker.io/team/cpu:latest", "registry-1.docker.io"),
        ("localhost/cpu", "localhost/cpu:latest", "localhost"),
        ("localhost:5000/a/b_c__d-e.f:X-1", "localhost:5000/a/b_c__d-e.f:X-1", "localhost:5000"),
        (f"[::1]:5000/a@{DIGEST}", f"[::1]:5000/a@{DIGEST}", "[::1]:5000"),
        (f"r.example/a:1@{DIGEST}", f"r.example/a:1@{DIGEST}", "r.example"),
    ],
)
def test_a_reference_is_read_by_dockers_rules(text: str, full: str, address: str) -> None:
    found = parse(text)
    assert (str(found), found.address) == (full, address) and parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "A", "r.example/", "r.example/A", "r.example/a:", "r.example/a:-1", "r.example/a@sha256:1", "r.example/a//b",
     "r.example:99999/a", "r.example:0/a", "[:::::]:5000/a", "r.example/a:1\n", "ü.example/a", "u@r.example/a",
     "http://r.example/a", "r.example/../a", f"r.example/{'a' * 300}", f"r.example/a@{DIGEST}@{DIGEST}",
     "²", "r.example:²/a", "a" * 100_000 + "!"],
)  # fmt: skip
def test_what_is_no_reference_is_an_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert len(caught.value.message) < 600


def described(**changes: Any) -> dict[str, Any]:
    return {"mediaType": "a/b", "digest": DIGEST, "size": 3, **changes}


def manifest(**changes: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": manifests.OCI_MANIFEST, "config": described(), "layers": [], **changes}


BAD = [
    manifest(config=described(size=-1)), manifest(config=described(size=True)),
    manifest(config=described(size=1 << 63)), manifest(config=described(size="3")),
    manifest(config=described(size=1.5)), manifest(config=described(digest="sha256:../../etc")),
    manifest(config=described(digest=7)), manifest(config=described(platform="linux")), manifest(config="x"),
    manifest(config=described(annotations=["x"])), manifest(layers={}), manifest(layers=[None]),
    manifest(annotations="x"), manifest(annotations={"a": 1}), manifest(subject=7), manifest(mediaType=["x"]),
    manifest(schemaVersion=1), manifest(manifests=[]), manifest(layers=[described()] * 10_001),
    manifest(artifactType="\ud800"),
]  # fmt: skip


@pytest.mark.parametrize("document", BAD, ids=range(len(BAD)))
def test_a_manifest_that_is_none_is_an_error(document: Any) -> None:
    with pytest.raises(manifests.NotUnderstood):
        manifests.parse(json.dumps(document).encode(), manifests.OCI_MANIFEST, "here")


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(DIGEST) | st.just(described()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(["config", "layers", "manifests", "size", "digest", "mediaType", "platform", "subject"]),
            inner, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from([manifests.OCI_MANIFEST, manifests.OCI_INDEX, "", "²"]),
)  # fmt: skip
def test_no_manifest_is_a_traceback(document: Any, kind: str) -> None:
    whole = {"schemaVersion": 2, **document} if isinstance(document, dict) else document
    for raw in (json.dumps(whole).encode(), b"[" * 50_000, b'{"schemaVersion": 2, "size": ' + b"9" * 5000 + b"}"):
        with contextlib.suppress(EnvbuildError):
            manifests.parse(raw, kind, "here")


def test_a_challenge_is_read_however_it_is_written() -> None:
    told = tokens.read('Bearer realm="https://a.example/t?x=1, y",service=it,scope="repository:a/b:pull,push"')
    assert told is not None and (told.realm, told.service) == ("https://a.example/t?x=1, y", "it")
    assert told.scope == "repository:a/b:pull,push"
    # Two challenges in one header, or in two that were joined: a token is for less than a password.
    for text in ('Basic realm="x", Bearer realm="https://r"', 'bearer realm="https://r", BASIC realm="x"'):
        both = tokens.read(text)
        assert both is not None and (both.scheme, both.realm) == ("bearer", "https://r")
    basic = tokens.read('Negotiate, Basic realm="a \\" b"')
    assert basic is not None and basic.scheme == "basic"
    for text in ("", "Negotiate", "Digest realm=x", "²", '"', "=" * 60_000, 'a="' * 20_000, "a " * 30_000):
        assert tokens.read(text) is None


def test_patience_is_a_number_or_a_date_by_the_servers_clock() -> None:
    def asked(text: str, date: str = "") -> float | None:
        return retry_after({"Retry-After": text, "Date": date})

    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    assert asked("7") == 7.0 and asked(" 120 ") == 120.0
    for text in (format_datetime(soon, usegmt=True), format_datetime(soon.replace(tzinfo=None))):
        assert 90 < (asked(text) or 0) <= 100, text
        assert 90 < (asked(text, "soon") or 0) <= 100, "a date that is none is none"
    assert asked("Thu, 01 Jan 1970 00:00:00 GMT") == 0.0
    assert asked("Fri, 02 Jan 1970 00:00:09 GMT", "Fri, 02 Jan 1970 00:00:02 GMT") == 7.0
    for text in ("", "²", "soon", "-1", "1e9", "Thu, 99 Jan 99999 00:00:00 +99999999999", "\x00"):
        assert asked(text) is None
    assert asked("9" * 5000) is not None and retry_after({}) is None


@pytest.mark.parametrize("target", ["file:///x", "http://[", "https://h:99999/", "data:,x", "http://h:²/"])
def test_an_address_that_leads_nowhere_is_an_error(target: str) -> None:
    with pytest.raises(NetworkError, match="leads to"):
        joined("https://r.example/v2/", target)


def test_a_registrys_own_words_are_short_and_show_no_secret() -> None:
    said = {"errors": [{"code": "X", "message": "no: tok-1 https://u:p@h/?sig=1 \x1b[2J" + "y" * 999}]}
    words = words_of(json.dumps(said).encode(), ["tok-1", ""])
    assert words.startswith("X no: *** https://***@h/?***") and len(words) <= 300 and "\x1b" not in words
    for body in (b"", b"[]", b'{"errors": 1}', b'{"errors": ["x"]}', b'{"errors": {"a": 1}}', b"[" * 60_000, b"\xff"):
        assert words_of(body, ["tok-1"]) == ""


def test_a_transfer_that_brings_next_to_nothing_ends() -> None:
    effort = Effort(0, 10 << 20)
    assert [effort.idle(at) for at in (0, 1, 2, 3 << 16, 3 << 16)] == [1, 2, 3, 0, 1]
    assert effort.idle(10 << 20) == 0


# --- logins in files --------------------------------------------------------------------------------------------------


def packed(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps({"auths": content}))


def login(registry: str, home: dict[str, str], path: str = "team/image") -> str | None:
    found = account_for(registry, path, home)
    assert found is None or "canary" not in repr(found)
    return f"{found.username}:{found.password or found.token}" if found else None


def test_logins_are_dockers_and_podmans(home: dict[str, str], tmp_path: Path) -> None:
    assert login("r.example", home) is None
    hub = "https://index.docker.io/v1/"
    docker = {"r.example": packed("ada:canary:1"), hub: packed("hub:1"), "http://old.example/v1/": packed("old:1")}
    write(tmp_path / ".docker/config.json", docker)
    assert login("r.example", home) == "ada:canary:1" and login("r.example:5000", home) is None
    assert login("docker.io", home) == "hub:1" and login("old.example", home) == "old:1"
    # podman's: the narrowest of a registry's parts goes first; and its file is the second to be asked.
    podman = {"p.example": packed("all:1"), "p.example/team": packed("team:1"), "p.example/team/image": packed("one:1"),
              "docker.io/team": packed("mine:1"), "r.example": packed("later:1")}  # fmt: skip
    write(tmp_path / "run/containers/auth.json", podman)
    for path, expected in (("team/image", "one:1"), ("team/image2", "team:1"), ("teams/x", "all:1")):
        assert login("p.example", home, path) == expected
    assert login("r.example", home) == "ada:canary:1"
    write(tmp_path / ".docker/config.json", "")
    assert login("r.example", home) == "later:1" and login("docker.io", home) == "mine:1"
    chosen = {**home, "REGISTRY_AUTH_FILE": str(tmp_path / "x.json"), "DOCKER_CONFIG": str(tmp_path / "d")}
    write(tmp_path / "x.json", {"p.example": {"identitytoken": "canary-t", **packed("ada:x")}})
    assert login("p.example", chosen) == "<token>:canary-t"
    assert account_for("p.example", "a", {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "\x00", "[" * 50_000, '{"auths": {"r.example": {"auth": "%%%"}}}', "x" * (2 << 20),
     '{"auths": {"r.example": {"auth": "YQ=="}}}', '{"auths": {"r.example": {"auth": 7}}}',
     '{"auths": {"r.example": {"auth": "/w=="}}}', '{"auths": {"r.example": {"username": "\\ud800", "password": "x"}}}',
     '{"auths": {"r.example": {"identitytoken": "\\ud800"}}}'],
)  # fmt: skip
def test_a_damaged_file_of_logins_is_named(content: str, home: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / ".docker/config.json", content)
    with pytest.raises(InputError) as caught:
        login("r.example", home)
    assert str(tmp_path / ".docker/config.json") in caught.value.message and caught.value.hint


def test_odd_files_of_logins_are_no_logins(home: dict[str, str], tmp_path: Path) -> None:
    for content in ('{"auths": []}', '{"auths": {"r.example": 7}}', '{"credHelpers": 7, "credsStore": 7}', "{}"):
        write(tmp_path / ".docker/config.json", content)
        assert login("r.example", home) is None
