"""What a site keeps to itself: its CA, its proxy's password, its index's token. None of it may stay in an image."""

from __future__ import annotations

import base64
import dataclasses
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from envbuild.base import ensure
from envbuild.engines import BuildRequest, DockerEngine
from envbuild.pipeline.image import build_image
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench
from envbuild.site.apt import AptSettings, host_apt
from envbuild.site.pip import pip_settings
from envbuild.site.sections import NetworkSection, PipSection, SiteConfig

if TYPE_CHECKING:
    SiteProxy = Callable[[AptSettings, str], AbstractContextManager[tuple[int, list[str]]]]
    PlacesOf = Callable[[str, tuple[bytes, ...]], list[str]]

REPOSITORY = Path(__file__).parents[2]


class UpToTheWheels:
    """The real engine, asked to build the first two stages again from nothing: the ones that use every secret."""

    def __init__(self, engine: DockerEngine, tag: str) -> None:
        self._engine, self._tag = engine, tag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def build(self, request: BuildRequest, **rest: Any) -> None:
        self._engine.build(dataclasses.replace(request, target="wheels", tag=self._tag, no_cache=True), **rest)


@pytest.fixture
def index_behind_a_token() -> Iterator[tuple[str, str, list[str]]]:
    """A package index on loopback that wants a token and has its pages from where this machine really gets them."""
    token = f"token-{secrets.token_hex(8)}"
    seen: list[str] = []
    host = pip_settings(SiteConfig(), os.environ)
    upstream, trusted = host.indexes[0].rstrip("/"), str(host.cert) if host.cert else True

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if self.headers.get("Authorization") != "Basic " + base64.b64encode(f"{token}:x".encode()).decode():
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                return
            answer = requests.get(f"{upstream}{self.path}", headers={"Accept": "text/html"}, timeout=60, verify=trusted)
            body = answer.text.replace("<head>", f'<head><base href="{answer.url}">', 1).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{token}:x@127.0.0.1:{server.server_address[1]}", token, seen
    server.shutdown()
    server.server_close()


def test_a_site_leaves_no_trace_in_an_image(
    engine: DockerEngine, tag: str, tmp_path: Path, site_proxy: SiteProxy, places_of: PlacesOf,
    index_behind_a_token: tuple[str, str, list[str]],
) -> None:  # fmt: skip
    url, token, asked = index_behind_a_token
    word = f"canary-{secrets.token_hex(6)}"
    host = pip_settings(SiteConfig(), os.environ)
    bundle = host.cert.read_text() if host.cert else Path(requests.certs.where()).read_text()
    ca = tmp_path / f"{word}.pem"
    ca.write_text(f"# {word}\n{bundle}")

    bench = Workbench(project_folder=REPOSITORY)
    target = prepare(bench, "cpu")
    # The base is what the other tests use; how a base is made without a trace is tested with the engine.
    ensure(engine, target.env, site=bench.site, apt=bench.apt_for(target.env), sink=bench.sink)

    site = SiteConfig(
        network=NetworkSection(ca=ca),
        pip=PipSection(index=url, extra_index=host.extra_index, find_links=host.find_links, cert=ca),
    )
    bench.__dict__["site"] = site
    bench.__dict__["engine"] = UpToTheWheels(engine, tag)
    with site_proxy(host_apt("bookworm", "debian"), f"{word}.invalid") as (port, fetched):
        apt = AptSettings(
            suite="bookworm", components=("main",), family="debian",
            mirror=f"http://mirror-user:{word}@{word}.invalid/debian",
            security_mirror=f"http://mirror-user:{word}@{word}.invalid/debian-security",
            http_proxy=f"http://proxy-user:{word}@127.0.0.1:{port}",
        )  # fmt: skip
        bench.apt_for = lambda env: apt  # type: ignore[method-assign]
        with running(bench) as run:
            build_image(bench, run, target, no_cache=False, timeout=600, compilers=1)

    assert any(path.endswith(".deb") for path in fetched), "apt did not go through the proxy"
    assert any("/pip/" in path for path in asked), "pip did not ask the index"
    needles = (word.encode(), token.encode(), b"mirror-user", b"proxy-user", f"127.0.0.1:{port}".encode())
    assert places_of(tag, needles) == []
