"""Upstream over real HTTP: ranges, caches, patience, passwords, and a refresh that is killed half-way."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import upstream as made
from envbuild.events import Note
from envbuild.facts.upstream import RemoteFile, Shape, Upstream
from envbuild.facts.upstream.archive import Whole
from envbuild.facts.upstream.reader import route
from envbuild.net import Client, NetworkError
from envbuild.site.pip import PipSettings

pytestmark = pytest.mark.integration

PASSWORD = "geheim-5f3c"


class Server:
    """An index on the loopback interface: pages below /simple, files below /files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: dict[str, str] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.answer: Callable[[Any], bool] = lambda handler: False
        self.ranges = True
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Range", ""), dict(self.headers)))
                if not outer.answer(self):
                    outer.serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.port = self.http.server_address[1]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}"

    def serve(self, handler: Any) -> None:
        path = handler.path.partition("?")[0]
        if path in self.pages:
            body = self.pages[path].encode()
            etag = f'"{hashlib.sha256(body).hexdigest()[:12]}"'
            extra = {"Content-Type": "text/html", "ETag": etag, **self.headers}
            if handler.headers.get("If-None-Match") == etag:
                send(handler, 304, b"", extra)
            else:
                send(handler, 200, body, extra)
            return
        file = self.folder / path.rpartition("/")[2]
        if not path.startswith("/files/") or not file.is_file():
            send(handler, 404, b"none", {})
            return
        data = file.read_bytes()
        span = re.match(r"bytes=(\d*)-(\d*)$", handler.headers.get("Range", "")) if self.ranges else None
        if span is None:
            send(handler, 200, data, {})
            return
        start = int(span[1]) if span[1] else len(data) - int(span[2])
        end = min(int(span[2]) + 1, len(data)) if span[1] and span[2] else len(data)
        send(handler, 206, data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


def send(handler: Any, status: int, body: bytes, headers: dict[str, str], *, said: int | None = None) -> bool:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if said is None else said))
    # A reader that has had enough, or was killed, hangs up.
    with contextlib.suppress(ConnectionError):
        handler.end_headers()
        handler.wfile.write(body)
    return True


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "files"
    folder.mkdir()
    found = Server(folder)
    yield found
    found.http.shutdown()
    found.http.server_close()


class Site:
    """What one user of the index has: pip's settings, a cache, and a clock that does not wait."""

    def __init__(self, server: Server, cache: Path, *, index: str = "", whole: bool = False) -> None:
        pip = PipSettings(index=index or f"{server.url()}/simple", timeout=5)
        self.waits: list[float] = []
        self.notes: list[Any] = []
        client = Client(route(pip), sink=self.notes.append, pause=self.waits.append)
        self.upstream = Upstream(pip, cache, sink=self.notes.append, whole=whole, client=client)

    def only(self, name: str = "torch") -> RemoteFile:
        (file,) = self.upstream.files(name)
        return file


@pytest.fixture
def torch(server: Server) -> Path:
    """A torch wheel of some megabytes that compresses badly, and the page that links to it."""
    noise = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(120_000))
    members = {"torch/version.py": b"cuda = '13.0'\n", "torch/lib/big.so": noise}
    path = made.wheel(server.folder, "torch", "2.11.0", "triton==3.6.0", members=members)
    server.pages["/simple/torch/"] = made.page(path)
    return path


def test_metadata_comes_in_parts_and_only_once(server: Server, torch: Path, tmp_path: Path) -> None:
    site = Site(server, tmp_path / "cache")
    assert site.upstream.metadata(site.only()).pin("triton", python="3.10") == "3.6.0"
    got = [int(b) - int(a) + 1 for _, span, _ in server.asked for a, b in re.findall(r"bytes=(\d+)-(\d+)", span)]
    assert got and sum(got) < torch.stat().st_size, "less than the whole wheel"
    assert all(headers["User-Agent"].startswith("envbuild/") for _, _, headers in server.asked)
    before = len(server.asked)
    again = Site(server, tmp_path / "cache")
    again.upstream.metadata(again.only())
    assert server.paths()[before:] == ["/simple/torch/"], "the page is asked about, the file is known"
    assert "If-None-Match" in server.asked[-1][2]
    server.headers["Cache-Control"] = "public, max-age=600"
    Site(server, tmp_path / "cache").only()
    before = len(server.asked)
    Site(server, tmp_path / "cache").only()
    assert len(server.asked) == before, "a fresh page is not asked about"


def test_metadata_beside_the_wheel_is_taken_and_its_hash_checked(server: Server, torch: Path, tmp_path: Path) -> None:
    beside = made.metadata("torch", "2.11.0", "triton==3.7.7")
    (server.folder / f"{torch.name}.metadata").write_bytes(beside)
    digest = hashlib.sha256(beside).hexdigest()
    server.pages["/simple/torch/"] = made.page(torch, attributes=f' data-core-metadata="sha256={digest}"')
    site = Site(server, tmp_path / "cache")
    assert site.upstream.metadata(site.only()).pin("triton", python="3.10") == "3.7.7"
    assert server.paths() == ["/simple/torch/", f"/files/{torch.name}.metadata"]

    server.pages["/simple/torch/"] = made.page(torch, attributes=f' data-core-metadata="sha256={"0" * 64}"')
    other = Site(server, tmp_path / "other")
    with pytest.raises(Shape, match=r"\.whl\.metadata: its SHA-256 is not the one that the index names"):
        other.upstream.metadata(other.only())


def test_a_server_without_ranges_is_named_and_nothing_is_downloaded(
    server: Server, torch: Path, tmp_path: Path
) -> None:
    server.ranges = False
    site = Site(server, tmp_path / "cache")
    with pytest.raises(Whole, match="sends no parts of files") as raised:
        site.upstream.metadata(site.only())
    assert "--download" in raised.value.hint and "not downloaded" in raised.value.message
    whole = Site(server, tmp_path / "cache", whole=True)
    assert whole.upstream.metadata(whole.only()).pin("triton", python="3.10") == "3.6.0"
    torch.write_bytes(torch.read_bytes() + b"more")
    wrong = Site(server, tmp_path / "other", whole=True)
    with pytest.raises(Shape, match="SHA-256"):
        wrong.upstream.metadata(wrong.only())


def cut_file(server: Server, torch: Path) -> None:
    torch.write_bytes(torch.read_bytes()[:-300])


def lying_range(server: Server, torch: Path) -> None:
    """Another part than the one that was asked for, of the right size."""

    def answer(handler: Any) -> bool:
        span = re.match(r"bytes=(\d+)-(\d+)$", handler.headers.get("Range", ""))
        if span is None or int(span[1]) == 0:
            return False
        data, length = torch.read_bytes(), int(span[2]) - int(span[1]) + 1
        return send(handler, 206, data[:length], {"Content-Range": f"bytes 0-{length - 1}/{len(data)}"})

    server.answer = answer


def broken_off(server: Server, torch: Path) -> None:
    def answer(handler: Any) -> bool:
        if not handler.headers.get("Range"):
            return False
        handler.close_connection = True
        return send(handler, 206, b"x", {"Content-Range": "bytes 3999999-3999999/4000000"}, said=4_000)

    server.answer = answer


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [(cut_file, "expected a wheel"), (lying_range, "asked for the bytes from"), (broken_off, "the answer broke off")],
)
def test_a_wheel_that_is_not_whole_is_an_error(
    server: Server, torch: Path, tmp_path: Path, spoil: Callable[[Server, Path], None], expected: str
) -> None:
    spoil(server, torch)
    site = Site(server, tmp_path / "cache")
    with pytest.raises((Shape, NetworkError), match=rf"torch-2\.11\.0-py3-none-any\.whl: {expected}"):
        site.upstream.metadata(site.only())


def test_patience_is_what_the_server_asks_for_and_has_an_end(server: Server, torch: Path, tmp_path: Path) -> None:
    busy = iter([(429, "7"), (503, ""), (429, "2")])

    def answer(handler: Any) -> bool:
        status, after = next(busy, (0, ""))
        return bool(status) and send(handler, status, b"busy", {"Retry-After": after} if after else {})

    server.answer = answer
    site = Site(server, tmp_path / "cache")
    site.only()
    assert site.waits[0] == 7.0 and site.waits[2] == 2.0 and 0.5 <= site.waits[1] <= 2
    assert any(isinstance(note, Note) and "answers 429; asking again in 7 s" in note.message for note in site.notes)

    server.answer = lambda handler: send(handler, 429, b"busy", {"Retry-After": "3600"})
    later = Site(server, tmp_path / "other")
    with pytest.raises(NetworkError, match="asks to wait 3600 seconds"):
        later.only()
    assert later.waits == [] and len([path for path in server.paths() if path == "/simple/torch/"]) == 5

    server.answer = lambda handler: send(handler, 500, b"no", {})
    failing = Site(server, tmp_path / "third")
    before = len(server.asked)
    with pytest.raises(NetworkError, match="answers 500"):
        failing.only()
    assert len(server.asked) - before == 4, "four attempts, and no more"


def test_a_private_index_gets_its_password_and_nobody_else_does(server: Server, torch: Path, tmp_path: Path) -> None:
    allowed = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()

    def answer(handler: Any) -> bool:
        own = handler.headers.get("Host", "").startswith("127.0.0.1")
        if own and handler.headers.get("Authorization") != allowed:
            return send(handler, 401, b"who?", {})
        if own and handler.path.startswith("/files/"):
            # As mirrors do: the file lies elsewhere.
            return send(handler, 302, b"", {"Location": f"{server.url('localhost')}{handler.path}?sig={PASSWORD}"})
        return False

    server.answer = answer
    site = Site(server, tmp_path / "cache", index=f"http://reader:{PASSWORD}@127.0.0.1:{server.port}/simple")
    assert site.upstream.metadata(site.only()).pin("triton", python="3.10") == "3.6.0"
    others = [headers for _, _, headers in server.asked if headers["Host"].startswith("localhost")]
    assert others and not any("Authorization" in headers for headers in others)
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path

    messages = []
    server.answer = lambda handler: send(handler, 403, b"no", {})
    for problem in ("files", "page"):
        wrong = Site(server, tmp_path / problem, index=f"http://reader:{PASSWORD}@127.0.0.1:{server.port}/simple")
        if problem == "files":
            with pytest.raises(NetworkError) as raised:
                wrong.upstream.metadata(site.only())
        else:
            with pytest.raises(NetworkError) as raised:
                wrong.only()
        messages.append(raised.value.message + raised.value.hint)
    assert all("no access (403)" in message and PASSWORD not in message for message in messages)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("ftp://files.example/x", "leads to ftp:"),
        ("file:///etc/passwd", "leads to file:"),
        ("/simple/torch/", "redirects"),
    ],
)
def test_a_redirect_to_nowhere_good_is_an_error(server: Server, tmp_path: Path, target: str, expected: str) -> None:
    server.answer = lambda handler: send(handler, 301, b"", {"Location": target})
    with pytest.raises(NetworkError, match=expected):
        Site(server, tmp_path / "cache").only()


def test_a_page_that_was_none_is_not_kept(server: Server, torch: Path, tmp_path: Path) -> None:
    good, server.pages["/simple/torch/"] = server.pages["/simple/torch/"], "<h1>Sign in</h1>"
    server.headers["Cache-Control"] = "max-age=3600"
    with pytest.raises(Shape, match=r"/simple/torch/: not a page of an index"):
        Site(server, tmp_path / "cache").only()
    server.pages["/simple/torch/"] = good
    assert Site(server, tmp_path / "cache").only().filename == torch.name


def test_a_body_without_end_is_given_up(server: Server, tmp_path: Path) -> None:
    server.answer = lambda handler: send(handler, 200, bytes(70 << 20), {"Content-Type": "text/html"})
    with pytest.raises(NetworkError, match=r"more than the \d+ bytes that are sensible here"):
        Site(server, tmp_path / "cache").only()


KILLED = """
import datetime, sys
from pathlib import Path
from envbuild.facts.refresh import refresh
from envbuild.facts.upstream import Upstream
from envbuild.site.pip import PipSettings
index, cache, facts = sys.argv[1:]
outcome = refresh(
    Upstream(PipSettings(index=index, timeout=5), Path(cache)), [Path(facts)], ["torch"], datetime.date(2026, 11, 30)
)
print(outcome.confirmed, outcome.failed)
"""


def test_a_killed_refresh_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    versions = ("2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1")
    for version in versions:
        made.torch(server.folder, version, pythons=("cp310",))
    server.pages["/simple/torch/"] = made.page(*sorted(server.folder.glob("torch-*")))
    for name in ("torchvision", "torchaudio"):
        server.pages[f"/simple/{name}/"] = made.page(
            made.wheel(server.folder, name, "9.9", "torch==9.9", tag=f"cp310-cp310-{made.X86}")
        )
    facts = Path(__file__).parents[2] / "facts"
    argv = [sys.executable, "-c", KILLED, f"{server.url()}/simple", str(tmp_path / "cache"), str(facts)]
    # PyTorch's own index is not asked: the proxy of this run refuses.
    env = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    killed = threading.Event()

    def answer(handler: Any) -> bool:
        done = {path for path in server.paths() if path.startswith("/files/torch-")}
        if len(done) > 4 and not killed.is_set():
            process.kill()
            killed.set()
            return send(handler, 500, b"", {})
        return False

    server.answer = answer
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.communicate(timeout=120)
    assert process.returncode == -9, "killed in the middle"
    kept = {path.name for path in (tmp_path / "cache" / "files").iterdir() if not path.name.endswith(".tmp")}
    assert kept
    server.answer = lambda handler: False
    after_kill = files_asked(server, argv, env)
    assert kept <= {path.name for path in (tmp_path / "cache" / "files").iterdir()}, "what was read stays"
    fresh = [*argv[:4], str(tmp_path / "empty"), argv[5]]
    assert 0 < after_kill < files_asked(server, fresh, env), "and is not read again"
    assert files_asked(server, argv, env) == 0, "a third run reads no file at all"


def files_asked(server: Server, argv: list[str], env: dict[str, str]) -> int:
    """How many pieces of files a whole run asks the server for."""
    before = len(server.asked)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n"), done.stdout
    return sum(path.startswith("/files/") for path in server.paths()[before:])
