"""Integration tests need a real Docker Engine. Where none answers they fail: a skip would pass for a success."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import registries
from envbuild.base import BaseUsed, Declared, choose
from envbuild.engines import DockerEngine, Engine, PodmanEngine, connect
from envbuild.events import discard
from envbuild.model import Bootstrap
from envbuild.site.apt import AptSettings, host_apt
from envbuild.site.sections import BaseSection, NetworkSection, SiteConfig
from worlds import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker, whether or not its author thought of it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session", autouse=True)
def own_store(store_home: Path) -> None:
    """Every test here works with the session's own store."""


@dataclass(frozen=True)
class Canaries:
    """What a site might leave behind: needles, and what was asked of the site's proxy."""

    needles: tuple[bytes, ...]
    requests: list[str]


@dataclass(frozen=True)
class CanaryBase:
    """A base that was bootstrapped through a mirror, a proxy and a CA of a made-up site."""

    used: BaseUsed
    canaries: Canaries


@pytest.fixture(scope="session")
def canary_base(docker: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> CanaryBase:
    """Bootstrap bookworm once per session, through a site whose every setting is a canary."""
    real = host_apt("bookworm", "debian")
    word = f"canary-{secrets.token_hex(6)}"
    ca = tmp_path_factory.mktemp(word) / f"{word}.crt"
    ca.write_text(f"# {word}\n")
    with _site_proxy(real, f"{word}.invalid") as (port, requests):
        site = SiteConfig(base=BaseSection(bootstrap="always"), network=NetworkSection(ca=ca))
        apt = AptSettings(
            suite="bookworm",
            components=("main",),
            family="debian",
            mirror=f"http://mirror-user:{word}@{word}.invalid/debian",
            security_mirror=f"http://mirror-user:{word}@{word}.invalid/debian-security",
            http_proxy=f"http://proxy-user:{word}@127.0.0.1:{port}",
        )
        declared = Declared(
            image="docker.io/library/debian:bookworm-slim",
            digest=None,
            bootstrap=Bootstrap(suite="bookworm", packages=()),
            platform="linux/amd64",
        )
        used = choose.ensure_declared(docker, declared, site, apt, discard, no_cache=True)
    needles = (word.encode(), b"mirror-user", b"proxy-user", f"127.0.0.1:{port}".encode())
    return CanaryBase(used=used, canaries=Canaries(needles=needles, requests=requests))


@pytest.fixture(scope="session")
def base(canary_base: CanaryBase) -> str:
    """The local name of a small Debian with a shell."""
    return canary_base.used.reference


@contextlib.contextmanager
def _site_proxy(real: AptSettings, host: str) -> Iterator[tuple[int, list[str]]]:
    """A forward proxy on loopback that has a made-up host's packages from where this machine really gets its own."""
    requests: list[str] = []
    main, security = (url.rstrip("/") for url in replace(real, suite="bookworm").archives())
    proxies = {name: url for name, url in (("http", real.http_proxy), ("https", real.https_proxy)) if url}
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler(proxies)] if proxies else []))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            path = self.path.partition(host)[2]
            archive, rest = (security, path[16:]) if path.startswith("/debian-security/") else (main, path[7:])
            try:
                answer = opener.open(archive + rest, timeout=60)
            except urllib.error.HTTPError as error:
                self.send_error(error.code)
                return
            with answer, contextlib.suppress(ConnectionError):
                self.send_response(200)
                for name in ("Content-Length", "Last-Modified"):
                    if answer.headers.get(name):
                        self.send_header(name, answer.headers[name])
                self.end_headers()
                while block := answer.read(1 << 16):
                    self.wfile.write(block)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodmanEngine]:
    """The machine's podman, with images and containers in a folder of the session's own."""
    program = shutil.which("podman")
    assert program, "there is no podman here (make podman)"
    folder = tmp_path_factory.mktemp("podman")
    runtime = shutil.which("runc") or "crun"
    (folder / "containers.conf").write_text(
        f'[engine]\nruntime = "{Path(runtime).name}"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        for driver in ("overlay", "vfs"):  # overlay does not go on top of another overlay
            (folder / "storage.conf").write_text(
                f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder / driver}"\nrunroot = "{folder / "run"}"\n'
            )
            if subprocess.run([program, "info"], capture_output=True).returncode == 0:
                break
        engine = connect(kind="podman")
        assert isinstance(engine, PodmanEngine)
        yield engine
        for what in ("rm", "rmi"):
            subprocess.run([program, what, "--all", "--force"], capture_output=True)


@pytest.fixture
def tag(engine: DockerEngine) -> Iterator[str]:
    """A name for one test's image; gone afterwards."""
    name = f"envbuild-test/image:{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    engine.untag(name)


@pytest.fixture
def site_proxy() -> Callable[[AptSettings, str], AbstractContextManager[tuple[int, list[str]]]]:
    """A made-up site's proxy, for a test of its own."""
    return _site_proxy


@pytest.fixture
def places_of(engine: DockerEngine) -> Callable[[str, tuple[bytes, ...]], list[str]]:
    """Finds every place in an exported image, down to the files of its layers, whose name or content has a needle."""

    def search(ref: str, needles: tuple[bytes, ...]) -> list[str]:
        places: list[str] = []
        with engine.save(ref) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                # Podman's archive has links for Docker's old names of the layers.
                file = archive.extractfile(member) if member.isfile() else None
                if file is None:
                    continue
                if not member.name.endswith(".tar"):
                    if any(needle in file.read() for needle in needles):
                        places.append(member.name)
                    continue
                with tarfile.open(fileobj=file, mode="r|") as layer:
                    for inner in layer:
                        content = layer.extractfile(inner) if inner.isfile() else None
                        data = inner.name.encode() + b"\n" + (content.read() if content else b"")
                        places += [f"{member.name}:{inner.name}" for needle in needles if needle in data]
        return places

    return search


@pytest.fixture(scope="module")
def loopback_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a real registry."""
    binary = registries.program(tmp_path_factory.mktemp("deb"))
    with registries.running(binary, tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def world(engine: Engine, loopback_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A pusher, a puller, and a front before the registry between them, on a module's own ``engine``."""
    with registries.fronting(loopback_registry) as front:
        made = World(engine, front, tmp_path, f"{front.address}/{secrets.token_hex(3)}", monkeypatch)
        yield made
        made.forget()
