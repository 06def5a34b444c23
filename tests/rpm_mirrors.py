"""A mirror of RPM repositories on loopback that can break off, lie, and want to know who asks."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Mirror:
    """What a mirror does, and what it was asked for.

    Attributes:
        change: Gets path and content, returns what is sent in its place.
        breaks: Bytes of an answer's body after which the connection is cut, by the end of the path; each cut counts.
        ranges: Whether it sends parts of files.
        account: ``user:password`` in base64, without which nothing is given.
        hold: Said when an answer is cut, and waited for before the connection is.
        asked: Every (path, range header) that was answered; ``shown`` says of each whether a client certificate came,
            ``told`` what it authorized itself with.
    """

    folder: Path
    url: str = ""
    change: Callable[[str, bytes], bytes] = lambda path, data: data
    breaks: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    account: str | None = None
    hold: tuple[threading.Event, threading.Event] | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def mirrored(mirror: Mirror, context: ssl.SSLContext | None = None) -> Iterator[Mirror]:
    """Serve a folder; with a context over TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            asked = self.headers.get("Range", "")
            certificate = self.connection.getpeercert(True) if isinstance(self.connection, ssl.SSLSocket) else None
            with mirror.lock:
                mirror.asked.append((path, asked))
                mirror.shown.append(certificate is not None)
                mirror.told.append(self.headers.get("Authorization", ""))
            if mirror.account and self.headers.get("Authorization") != f"Basic {mirror.account}":
                return self._answer(401, b"", path)
            file = mirror.folder / path.lstrip("/")
            if not file.is_file():
                return self._answer(404, b"", path)
            data = mirror.change(path, file.read_bytes())
            if asked and mirror.ranges:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    return self._answer(416, b"", path)
                span = f"bytes {start}-{len(data) - 1}/{len(data)}"
                return self._answer(206, data[start:], path, span)
            return self._answer(200, data, path)

        def _answer(self, status: int, body: bytes, path: str, span: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()
            with mirror.lock:
                cuts = next((each for end, each in mirror.breaks.items() if path.endswith(end)), [])
                cut = cuts.pop(0) if cuts else None
            part = body if cut is None else body[:cut]
            with mirror.lock:
                mirror.sent[path] += len(part)
            with contextlib.suppress(OSError):
                self.wfile.write(part)
            if cut is not None:
                if mirror.hold is not None:
                    self.wfile.flush()
                    mirror.hold[0].set()
                    mirror.hold[1].wait(60)
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mirror.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}/"
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
