"""Digests asked of a real registry, with images that the engine pushed to it; and builds that stay with them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envbuild import base, net
from envbuild.base.registry import manifest_digest
from envbuild.engines import DockerEngine
from envbuild.model import Environment, LockedBase
from envbuild.pipeline import locks
from envbuild.pipeline.workbench import Workbench
from envbuild.site.apt import AptSettings
from envbuild.site.sections import BaseSection, NetworkSection, SiteConfig

REPOSITORY = Path(__file__).parents[2]
INDEX = "application/vnd.oci.image.index.v1+json"
APT = AptSettings(suite="bookworm", components=("main",), family="debian")
CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "{address}"}}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian's registry: the installed one, or one unpacked for these tests, so that no service is installed."""
    if (found := shutil.which("docker-registry")) is not None:
        return found
    folder = tmp_path_factory.mktemp("deb")
    # apt drops its rights for the download, where it can write into the folder.
    folder.chmod(0o777)
    for argv in (["apt-get", "download", "-qq", "docker-registry"], ["sh", "-c", "dpkg-deb -x ./*.deb ."]):
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=120)
    return str(folder / "usr/bin/docker-registry")


@pytest.fixture(scope="module")
def registry(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a registry of these tests' own, without TLS, as loopback may be."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("registry")
    (folder / "config.yml").write_text(CONFIG.format(root=folder / "data", address=address))
    with subprocess.Popen(
        [program, "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 30
        while not net.answers(f"http://{address}/v2/", timeout=1):
            assert process.poll() is None and time.monotonic() < deadline, "the registry did not start"
        yield address
        process.terminate()
        process.wait(10)


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


@dataclass
class Front:
    """What stands before the registry: how it behaves, and what it was asked."""

    address: str
    realm: str = ""
    token: str = ""
    digest_header: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)


@pytest.fixture
def front(registry: str) -> Iterator[Front]:
    """A front that wants an anonymous token, as Docker Hub does, and has what it gives from the real registry."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
            if self.path.startswith("/token"):
                self.answer(200, json.dumps({"token": said.token}).encode(), {"Content-Type": "application/json"})
            elif self.headers.get("Authorization") != f"Bearer {said.token}":
                self.answer(401, b"{}", {"WWW-Authenticate": said.realm})
            else:
                wanted = {"Accept": self.headers.get("Accept", "")}
                request = urllib.request.Request(f"http://{registry}{self.path}", headers=wanted)
                with urllib.request.urlopen(request, timeout=10) as real:
                    names = ["Content-Type"] + (["Docker-Content-Digest"] if said.digest_header else [])
                    self.answer(200, real.read(), {name: real.headers[name] for name in names})

        do_HEAD = do_GET

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said = Front(address=f"127.0.0.1:{server.server_address[1]}", token=secrets.token_hex(8))
    said.realm = f'Bearer realm="http://{said.address}/token",service="it",scope="repository:team/image:pull"'
    yield said
    server.shutdown()
    server.server_close()


def test_an_anonymous_token_is_asked_for_and_no_password_is_sent(
    push: Any, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password canary-secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    pushed = push("team/image", "token")
    assert told(f"{front.address}/team/image:token") == (pushed, "")
    methods = [(method, path.partition("?")[0]) for method, path, _ in front.asked]
    manifest = "/v2/team/image/manifests/token"
    # A HEAD is no pull: Docker Hub counts those.
    assert methods == [("HEAD", manifest), ("GET", "/token"), ("HEAD", manifest)]
    assert "service=it&scope=repository%3Ateam%2Fimage%3Apull" in front.asked[1][1]
    assert [sent for _, _, sent in front.asked] == ["", "", f"Bearer {front.token}"]


def test_a_digest_that_the_registry_does_not_say_is_worked_out(push: Any, front: Front) -> None:
    pushed = push("team/image", "unsaid")
    front.digest_header = False
    assert told(f"{front.address}/team/image:unsaid") == (pushed, "")


@pytest.mark.parametrize(
    ("realm", "token", "reason"),
    [
        ('Basic realm="x"', "t", "it wants credentials"),
        ("Bearer", "t", "it wants credentials"),
        ('Bearer realm="file:///etc/passwd"', "t", "it wants credentials"),
        (None, "a\r\nX-Evil: 1", "it wants credentials"),
        (None, "", "it wants credentials"),
    ],
)
def test_challenges_that_lead_nowhere(realm: str | None, token: str, reason: str, front: Front) -> None:
    front.realm, front.token = realm or front.realm, token
    assert told(f"{front.address}/team/image:1") == (None, reason)


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
