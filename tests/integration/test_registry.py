"""Digests asked of a real registry, with images that the engine pushed to it; and builds that stay with them."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import secrets
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import registries
from envbuild import base
from envbuild.base.registry import manifest_digest
from envbuild.engines import DockerEngine
from envbuild.model import Environment, LockedBase
from envbuild.pipeline import locks
from envbuild.pipeline.workbench import Workbench
from envbuild.site.apt import AptSettings
from envbuild.site.sections import BaseSection, NetworkSection, SiteConfig
from registries import FakeTokens, Front

REPOSITORY = Path(__file__).parents[2]
INDEX = "application/vnd.oci.image.index.v1+json"
APT = AptSettings(suite="bookworm", components=("main",), family="debian")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a registry of these tests' own, without TLS, as loopback may be."""
    program = registries.program(tmp_path_factory.mktemp("deb"))
    with registries.running(program, tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="module")
def push(engine: DockerEngine, registry: str) -> Iterator[Any]:
    """Make a new small image and push it under a name; returns the manifest digest that the engine was told."""
    api: Any = engine._link.api
    made: set[str] = set()

    def call(name: str, tag: str) -> str:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            archive.addfile(tarfile.TarInfo(secrets.token_hex(8)))
        ref = f"{registry}/{name}:{tag}"
        with contextlib.suppress(Exception):
            api.remove_image(ref)
        api.import_image_from_data(tar.getvalue(), repository=f"{registry}/{name}", tag=tag)
        made.add(ref)
        said = list(api.push(f"{registry}/{name}", tag=tag, stream=True, decode=True))
        assert not [line for line in said if "error" in line], said
        return str(next(line["aux"]["Digest"] for line in said if "aux" in line))

    yield call
    for ref in made:
        engine.untag(ref)


def told(image: str, **changes: Any) -> tuple[str | None, str]:
    answer = manifest_digest(image, SiteConfig(**changes), timeout=10)
    return answer.digest, answer.reason


def test_a_tag_has_the_digest_that_the_engine_pushed(push: Any, registry: str) -> None:
    pushed = push("team/image", "1")
    assert told(f"{registry}/team/image:1") == (pushed, "")
    assert told(f"{registry}/team/image:2") == (None, "it has no such image")
    assert told(f"{registry}/team/other:1") == (None, "it has no such image")
    # A mirror's digest is that of the image, whatever the mirror is called.
    mirrors = BaseSection(mirrors={"docker.io": f"{registry}/hub", "docker.io/acme": f"{registry}/team"})
    assert told("docker.io/acme/image:1", base=mirrors) == (pushed, "")
    hub = push("hub/library/debian", "bookworm-slim")
    assert told("docker.io/library/debian:bookworm-slim", base=mirrors) == (hub, "")
    # A proxy of the site is not for this machine's own addresses.
    proxy = NetworkSection(http_proxy="http://127.0.0.1:1", https_proxy="http://127.0.0.1:1")
    assert told(f"{registry}/team/image:1", network=proxy) == (pushed, "")


def test_an_image_for_several_platforms_is_locked_by_its_index(push: Any, registry: str) -> None:
    manifests = [push("team/many", arch) for arch in ("amd64", "arm64")]
    entries = []
    for digest, arch in zip(manifests, ("amd64", "arm64"), strict=True):
        url = f"http://{registry}/v2/team/many/manifests/{digest}"
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": kind}), timeout=10) as answer:
            size = len(answer.read())
        platform = {"os": "linux", "architecture": arch}
        entries.append({"mediaType": kind, "digest": digest, "size": size, "platform": platform})
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    request = urllib.request.Request(
        f"http://{registry}/v2/team/many/manifests/1", data=body, method="PUT", headers={"Content-Type": INDEX}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        index = answer.headers["Docker-Content-Digest"]
    assert index not in manifests
    assert told(f"{registry}/team/many:1") == (index, "")


@pytest.fixture
def tokens() -> Iterator[FakeTokens]:
    with registries.giving_tokens(FakeTokens()) as tokens:
        yield tokens


@pytest.fixture
def front(registry: str, tokens: FakeTokens) -> Iterator[Front]:
    """A front that wants a token, as Docker Hub does, and has what it gives from the real registry."""
    with registries.fronting(registry, tokens=tokens) as front:
        yield front


def test_an_anonymous_token_is_asked_for_and_no_password_is_sent(
    push: Any, front: Front, tokens: FakeTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password canary-secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    pushed = push("team/image", "token")
    assert told(f"{front.address}/team/image:token") == (pushed, "")
    # A HEAD is no pull: Docker Hub counts those. The first question is only whether it speaks TLS.
    manifest = "/v2/team/image/manifests/token"
    assert [(each.method, each.path) for each in front.asked] == [
        ("GET", "/v2/"),
        ("HEAD", manifest),
        ("HEAD", manifest),
    ]
    assert [each.path.partition("?")[2] for each in tokens.asked] == [
        "service=it&scope=repository%3Ateam%2Fimage%3Apull"
    ]
    sent = [each.authorization for each in (*front.asked, *tokens.asked)]
    assert sent == ["", "", f"Bearer {next(iter(tokens.valid))}", ""]


def test_a_private_base_is_asked_for_with_the_login_and_a_stale_one_is_in_nobodys_way(
    push: Any, front: Front, tokens: FakeTokens, tmp_path: Path
) -> None:
    pushed = push("team/image", "private")
    tokens.users, tokens.anonymous = {"ada": "good"}, False
    image = f"{front.address}/team/image:private"

    def ask(password: str) -> tuple[str | None, str]:
        auth = base64.b64encode(f"ada:{password}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {front.address: {"auth": auth}}}))
        answer = manifest_digest(image, SiteConfig(), environ={"DOCKER_CONFIG": str(tmp_path)})
        return answer.digest, answer.reason

    assert ask("good") == (pushed, "")
    assert ask("stale") == (None, "it wants credentials")
    tokens.anonymous = True
    assert ask("stale") == (pushed, "")
    (tmp_path / "config.json").write_text('{"credsStore": "that-is-not-here"}')
    answer = manifest_digest(image, SiteConfig(), environ={"DOCKER_CONFIG": str(tmp_path)})
    assert answer.digest == pushed


def test_a_digest_that_the_registry_does_not_say_is_worked_out(push: Any, front: Front) -> None:
    pushed = push("team/image", "unsaid")

    def silent(headers: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.lower() != "docker-content-digest"}

    front.on("/manifests/", lambda exchange: exchange.relay(change=silent))
    assert told(f"{front.address}/team/image:unsaid") == (pushed, "")


@pytest.mark.parametrize(
    ("challenge", "token"),
    [
        ('Basic realm="x"', "t"),
        ("Bearer", "t"),
        ('Bearer realm="file:///etc/passwd"', "t"),
        ('Bearer realm="http://[::"', "t"),
        ('Bearer realm="http://registry.example.com/token"', "t"),
        ("", "a\r\nX-Evil: 1"),
        ("", ""),
    ],
)
def test_challenges_that_lead_nowhere(challenge: str, token: str, front: Front, tokens: FakeTokens) -> None:
    tokens.challenge, tokens.says = challenge, json.dumps({"token": token}).encode()
    assert told(f"{front.address}/team/image:1") == (None, "it wants credentials")


def test_whatever_answers_or_does_not_nothing_is_raised(registry: str) -> None:
    for image in ("127.0.0.1:1/a/b:1", "registry.invalid/a/b:1", f"{registry}/a/b:1"):
        answer = manifest_digest(image, SiteConfig(), timeout=5)
        assert answer.digest is None and answer.reason and "http" not in answer.reason
        assert answer.silent is (not image.startswith(registry))


@pytest.mark.parametrize("moved", [False, True])
def test_a_locked_base_is_what_a_build_starts_from_even_when_the_tag_has_moved(
    moved: bool, push: Any, registry: str, engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"base{secrets.token_hex(4)}"
    first = push(f"hub/acme/{name}", "1")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/envbuild.toml").write_text(f'[base]\nmirrors = {{ "docker.io" = "{registry}/hub" }}\n')
    text = (REPOSITORY / "matrix.yaml").read_text()
    assert text.count("image: docker.io/library/debian:bookworm-slim") >= 2
    text = text.replace("docker.io/library/debian:bookworm-slim", f"docker.io/acme/{name}:1", 1)
    (tmp_path / "project/matrix.yaml").write_text(text)
    bench = Workbench(project_folder=tmp_path / "project", environ=dict(os.environ))
    env: Environment = bench.matrix.get("cpu")
    _, made = locks.make_lock(bench, env)
    assert made.base == LockedBase(image=f"docker.io/acme/{name}:1", digest=first)
    assert registry not in (tmp_path / "project/images/cpu/lock.json").read_text(), "nothing of the site"
    if moved:
        assert push(f"hub/acme/{name}", "1") != first
    used = base.ensure(engine, made.pin(env), site=bench.site, apt=APT, no_cache=True)
    try:
        assert (used.how, used.digest) == ("pulled", first)
    finally:
        engine.untag(used.reference)
        with contextlib.suppress(Exception):
            engine._link.api.remove_image(f"{registry}/hub/acme/{name}@{first}")  # type: ignore[no-untyped-call]
