"""Registries for the tests: a real one on loopback, what stands before it and breaks, and fakes of what it lacks.

Real: Debian's ``docker-registry``. Fake, and so named: the token server and the referrers API, neither of which that
registry has. A ``Front`` passes on what it is asked, and does what its rules say instead; it counts bytes.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import http.client
import ipaddress
import json
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

# One user, and bcrypt of the password, as `htpasswd -B` writes it: the registry takes nothing else.
USER, PASSWORD = "ada", "canary-password"
HTPASSWD = "ada:$2y$05$abcdefghijklmnopqrstuuTvmw3qcMpAvEgQGhbFMhqjD3R/evDDW\n"
_PIECE = 1 << 14
_OWN = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


# --- the real one -----------------------------------------------------------------------------------------------------


def program(folder: Path) -> str:
    """Debian's registry: the installed one, or one unpacked into ``folder``, so that no service is installed."""
    if (found := shutil.which("docker-registry")) is not None:
        return found
    # apt drops its rights for the download, where it can write into the folder.
    folder.chmod(0o777)
    for argv in (["apt-get", "download", "-qq", "docker-registry"], ["sh", "-c", "dpkg-deb -x ./*.deb ."]):
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, timeout=120)
    return str(folder / "usr/bin/docker-registry")


@contextlib.contextmanager
def running(
    binary: str, folder: Path, *, tls: Authority | None = None, login: bool = False, clients: Authority | None = None
) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a registry of one's own, with its data in ``folder``.

    Args:
        tls: Whose certificate it has; without, it speaks plain HTTP, as loopback may.
        login: Whether it wants USER and PASSWORD.
        clients: Whose certificate it wants of who asks.
    """
    address = f"127.0.0.1:{free_port()}"
    (folder / "htpasswd").write_text(HTPASSWD)
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": address},
    }
    if tls is not None:
        config["http"]["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    if clients is not None:
        config["http"]["tls"]["clientcas"] = [str(clients.bundle)]
    if login:
        config["auth"] = {"htpasswd": {"realm": "it", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with subprocess.Popen(
        [binary, "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(10)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        assert process.poll() is None and time.monotonic() < deadline, "the registry did not start"
        time.sleep(0.02)


class Authority:
    """A private CA, and a certificate of it for this machine: ``bundle``, ``certificate``, ``key``."""

    def __init__(self, folder: Path, called: str = "A site's CA") -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        now = datetime.datetime.now(datetime.timezone.utc)

        def name(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        def begun(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
            return (
                x509.CertificateBuilder()
                .subject_name(name(subject))
                .issuer_name(name(called))
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - datetime.timedelta(days=1))
                .not_valid_after(now + datetime.timedelta(days=1))
            )

        root, leaf = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        own = begun(called, root).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        server = begun("localhost", leaf).add_extension(x509.SubjectAlternativeName(names), critical=False)
        self.bundle, self.certificate, self.key = (folder / each for each in ("ca.pem", "server.pem", "server.key"))
        for path, certificate in ((self.bundle, own), (self.certificate, server)):
            path.write_bytes(certificate.sign(root, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            leaf.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def wrap(self, server: ThreadingHTTPServer, *, asks: bool = False) -> None:
        """Let a server speak TLS; one that ``asks`` takes a certificate of who comes, and does without one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if asks:
            context.load_verify_locations(self.bundle)
            context.verify_mode = ssl.CERT_OPTIONAL
        # The handshake belongs to the connection's own thread: one client must not hold up all.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)


# --- servers of the tests' own ----------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One write for the headers, and no waiting for the peer's acknowledgement before the body.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with contextlib.suppress(OSError, Cut):
            self.server.answer(self)  # type: ignore[attr-defined]
            return
        self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, answer: Callable[[_Handler], None], tls: Authority | None, host: str = "127.0.0.1", *, asks: bool = False
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.answer = answer
        if tls is not None:
            tls.wrap(self, asks=asks)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextlib.contextmanager
def _serving(
    answer: Callable[[_Handler], None], tls: Authority | None = None, host: str = "127.0.0.1", *, asks: bool = False
) -> Iterator[str]:
    server = _Server(answer, tls, host, asks=asks)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Cut(Exception):
    """The connection ends here."""


@dataclass
class Asked:
    """One request: what was asked, and how many bytes of bodies went each way."""

    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0
    given: int = 0
    status: int = 0

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")


def query(asked: Asked) -> dict[str, str]:
    """A request's query; of several values of one name, the first."""
    return {name: values[0] for name, values in parse_qs(urlsplit(asked.path).query).items()}


class Exchange:
    """One request and its answer, as an action sees it."""

    def __init__(self, handler: _Handler, front: Front) -> None:
        self.handler, self.front = handler, front
        self.method, self.path = handler.command, handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.asked = Asked(self.method, self.path, self.headers)
        self._left = int(self.headers.get("content-length", "0"))

    def body(self, limit: int = 1 << 62) -> Iterator[bytes]:
        """The request's body in pieces, as it comes."""
        while self._left and limit:
            piece = self.handler.rfile.read1(min(_PIECE, self._left, limit))
            if not piece:
                raise Cut
            self._left -= len(piece)
            limit -= len(piece)
            self.asked.sent += len(piece)
            self.front.moved(self)
            yield piece

    def reply(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None, *, length: int | None = None
    ) -> None:
        """Answer; with ``length``, claim another one than the body's."""
        for _ in self.body():
            pass
        self.begin(status, {**(headers or {}), "Content-Length": str(len(body) if length is None else length)})
        self.give(body)
        if length is not None and length != len(body):
            self.cut()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.asked.status = status
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()

    def give(self, piece: bytes) -> None:
        if self.method != "HEAD":
            self.handler.wfile.write(piece)
            self.asked.given += len(piece)
            self.front.moved(self)
        self.handler.wfile.flush()

    def cut(self) -> None:
        """Drop the connection, with what was given before."""
        with contextlib.suppress(OSError):
            self.handler.wfile.flush()
            self.handler.connection.shutdown(socket.SHUT_RDWR)
        raise Cut

    def relay(
        self,
        *,
        take: int | None = None,
        give: int | None = None,
        change: Callable[[dict[str, str]], dict[str, str]] = lambda headers: headers,
        flip: int | None = None,
        flip_sent: int | None = None,
        without: tuple[str, ...] = (),
        body: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Have the real registry answer.

        Args:
            take: Bytes of the request's body after which both connections drop.
            give: Bytes of the answer's body after which the client's connection drops.
            change: Makes the answer's headers.
            flip: Where one bit of the answer's body changes; ``flip_sent``: of the request's.
            without: Headers of the request that are not passed on.
            body: Makes the answer's body.
        """
        upstream = http.client.HTTPConnection(self.front.upstream, timeout=20)
        with contextlib.closing(upstream):
            upstream.putrequest(self.method, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name not in (*without, "authorization", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders()
            at = 0
            for piece in self.body(1 << 62 if take is None else take):
                upstream.send(_flipped(piece, at, flip_sent))
                at += len(piece)
            if take is not None:
                # The registry reads what it has got before it sees the end.
                assert upstream.sock is not None
                upstream.sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    upstream.sock.recv(1 << 16)
                self.cut()
            with upstream.getresponse() as answer:
                self._back(answer, give, change, flip, body)

    def _back(
        self,
        answer: http.client.HTTPResponse,
        give: int | None,
        change: Callable[[dict[str, str]], dict[str, str]],
        flip: int | None,
        body: Callable[[bytes], bytes] | None,
    ) -> None:
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
        # The registry names itself as it was asked (Host); the paths stay with the front.
        headers = {name: value.replace(self.front.upstream, self.front.address) for name, value in headers.items()}
        length = answer.headers.get("Content-Length", "0")
        if body is not None:
            made = body(answer.read())
            self.begin(answer.status, change({**headers, "Content-Length": str(len(made))}))
            self.give(made)
            return
        self.begin(answer.status, change({**headers, "Content-Length": length}))
        self.handler.wfile.flush()
        given = 0
        while give is None or given < give:
            piece = answer.read1(_PIECE if give is None else min(_PIECE, give - given))
            if not piece:
                return
            self.give(_flipped(piece, given, flip))
            given += len(piece)
        self.cut()


def _flipped(piece: bytes, at: int, offset: int | None) -> bytes:
    if offset is None or not at <= offset < at + len(piece):
        return piece
    changed = bytearray(piece)
    changed[offset - at] ^= 1
    return bytes(changed)


Action = Callable[[Exchange], None]


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    action: Action
    nth: tuple[int, ...]
    seen: int = 0


class Front:
    """What stands before a registry: passes on what it is asked, but for its rules, and counts.

    Attributes:
        asked: Every request, in order.
        watch: Called with the number of bytes of bodies that went either way so far, on every piece.
        heard: Called with the number of requests so far, on every one, before it is answered.
    """

    def __init__(self, upstream: str, tokens: FakeTokens | None = None) -> None:
        self.upstream, self.address = upstream, ""
        self.tokens = tokens
        self.asked: list[Asked] = []
        self.watch: Callable[[int], None] = lambda count: None
        self.heard: Callable[[int], None] = lambda count: None
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._count = 0

    def on(self, pattern: str, action: Action, *nth: int) -> None:
        """Do something else for requests whose ``METHOD path?query`` matches: the ``nth`` of them, from 1; or all."""
        self._rules.append(_Rule(re.compile(pattern), action, nth))

    def reset(self) -> None:
        self._rules.clear()
        self.asked.clear()
        self.watch, self._count = lambda count: None, 0

    def of(self, pattern: str) -> list[Asked]:
        """The requests so far whose ``METHOD path?query`` matches."""
        with self._lock:
            return [each for each in self.asked if re.search(pattern, f"{each.method} {each.path}")]

    @property
    def sent(self) -> int:
        """Bytes of blobs that came in."""
        return sum(each.sent for each in self.of(r"^(PATCH|PUT) .*/blobs/"))

    @property
    def given(self) -> int:
        """Bytes of blobs that went out."""
        return sum(each.given for each in self.of(r"^GET .*/blobs/sha256") if each.status in (200, 206))

    def moved(self, exchange: Exchange) -> None:
        with self._lock:
            self._count += 1
            count = sum(each.sent + each.given for each in self.asked)
        self.watch(count)

    def answer(self, handler: _Handler) -> None:
        exchange = Exchange(handler, self)
        with self._lock:
            self.asked.append(exchange.asked)
            action = self._action(f"{exchange.method} {exchange.path}")
            count = len(self.asked)
        self.heard(count)
        if self.tokens is not None and not self.tokens.admits(exchange):
            return
        action(exchange)

    def _action(self, asked: str) -> Action:
        for rule in self._rules:
            if rule.pattern.search(asked):
                rule.seen += 1
                if not rule.nth or rule.seen in rule.nth:
                    return rule.action
        return Exchange.relay


@contextlib.contextmanager
def fronting(
    upstream: str,
    *,
    tokens: FakeTokens | None = None,
    tls: Authority | None = None,
    host: str = "127.0.0.1",
    shown: Callable[[bool], object] | None = None,
) -> Iterator[Front]:
    """A front before a registry.

    Args:
        host: The address of this machine that it is at.
        shown: Told whether who asks has shown a certificate; then it asks for one.
    """
    front = Front(upstream, tokens)

    def answer(handler: _Handler) -> None:
        if shown is not None:
            shown(bool(handler.connection.getpeercert()))  # type: ignore[attr-defined]
            front.on("", lambda exchange: exchange.reply(200))
        front.answer(handler)

    with _serving(answer, tls, host, asks=shown is not None) as front.address:
        yield front


# --- fakes ------------------------------------------------------------------------------------------------------------


@dataclass
class FakeTokens:
    """A fake of a token server, and of a registry that wants its tokens: distribution's "Token Authentication".

    Attributes:
        users: Passwords by name; who has one may push.
        anonymous: Whether everybody may pull.
        refresh: An identity token that is as good as a password, for POST.
        refused: Actions (``push``) that no token is given for.
        says: Answers in place of a token, where set.
        realm: Where the challenge sends to.
        challenge: The whole challenge, in place of the one of the protocol.
        patience: Answers 429 with this Retry-After, where set.
    """

    users: dict[str, str] = field(default_factory=dict)
    anonymous: bool = True
    refresh: str = ""
    refused: tuple[str, ...] = ()
    says: bytes | None = None
    realm: str = ""
    challenge: str = ""
    patience: str = ""
    valid: dict[str, set[str]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def expire(self) -> None:
        """Every token so far has had its day."""
        self.valid.clear()

    def give(self, handler: _Handler) -> None:
        """The token server's own answers."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.asked.append(Asked(handler.command, handler.path, headers, sent=len(body)))
        if self.patience:
            _plain_reply(handler, 429, b"", {"Retry-After": self.patience})
            return
        form = parse_qs(body.decode() if handler.command == "POST" else urlsplit(handler.path).query)
        who = self._who(headers.get("authorization", ""), form)
        if who is None:
            _plain_reply(handler, 401, b'{"details": "incorrect username or password"}')
            return
        scopes = {scope for each in form.get("scope", []) for scope in each.split()}
        granted = {
            ":".join((*scope.split(":")[:2], action))
            for scope in scopes
            for action in scope.split(":")[-1].split(",")
            if action not in self.refused and (action == "pull" or who)
        }
        token = secrets.token_hex(16)
        self.valid[token] = granted
        name = "access_token" if handler.command == "POST" else "token"
        _plain_reply(handler, 200, json.dumps({name: token}).encode() if self.says is None else self.says)

    def _who(self, authorization: str, form: Mapping[str, list[str]]) -> str | None:
        if self.refresh and form.get("refresh_token") == [self.refresh] and form.get("client_id"):
            return "token"
        if authorization:
            name, _, password = base64.b64decode(authorization.split()[1]).decode().partition(":")
            return name if self.users.get(name) == password else None
        return "" if self.anonymous and not form.get("refresh_token") else None

    def admits(self, exchange: Exchange) -> bool:
        """Whether a request has a good token; else it has been answered."""
        repository = re.match(r"/v2/(.+?)/(?:manifests|blobs|tags|referrers)/", exchange.path)
        wanted = ""
        if repository:
            action = "pull" if exchange.method in ("GET", "HEAD") and "/uploads/" not in exchange.path else "push"
            wanted = f"repository:{repository[1]}:{action}"
        scheme, _, token = exchange.asked.authorization.partition(" ")
        known = self.valid.get(token) if scheme == "Bearer" else None
        if known is not None and (not wanted or wanted in known):
            return True
        error = "" if known is None else ',error="insufficient_scope"'
        challenge = self.challenge or f'Bearer realm="{self.realm}",service="it",scope="{wanted}"{error}'
        exchange.reply(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}', {
            "WWW-Authenticate": challenge, "Content-Type": "application/json"
        })  # fmt: skip
        return False


@contextlib.contextmanager
def giving_tokens(tokens: FakeTokens, *, tls: Authority | None = None) -> Iterator[FakeTokens]:
    """A fake token server on a port of its own."""
    with _serving(tokens.give, tls) as address:
        tokens.realm = f"{'https' if tls else 'http'}://{address}/token"
        yield tokens


def _plain_reply(handler: _Handler, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class FakeReferrers:
    """A fake of the referrers API of the OCI distribution specification 1.1, before a registry without one.

    Attributes:
        page: Entries in one answer.
        filters: Whether it filters by artifactType (which the specification leaves to it).
    """

    def __init__(self, front: Front, *, page: int = 2, filters: bool = True) -> None:
        self.page, self.filters = page, filters
        self._known: dict[str, list[dict[str, Any]]] = {}
        front.on(r"^PUT .*/manifests/", self._put)
        front.on(r"^GET .*/referrers/", self._list)

    def _put(self, exchange: Exchange) -> None:
        taken: list[bytes] = []
        original = exchange.body

        def body(limit: int = 1 << 62) -> Iterator[bytes]:
            for piece in original(limit):
                taken.append(piece)
                yield piece

        exchange.body = body  # type: ignore[method-assign]

        def change(headers: dict[str, str]) -> dict[str, str]:
            raw = b"".join(taken)
            document = json.loads(raw)
            subject = (document.get("subject") or {}).get("digest")
            if not subject:
                return headers
            entry = {
                "mediaType": document["mediaType"],
                "digest": f"sha256:{hashlib.sha256(raw).hexdigest()}",
                "size": len(raw),
                "artifactType": document.get("artifactType") or document["config"]["mediaType"],
                "annotations": document.get("annotations") or {},
            }
            known = self._known.setdefault(subject, [])
            if entry not in known:
                known.append(entry)
            return {**headers, "OCI-Subject": subject}

        exchange.relay(change=change)

    def _list(self, exchange: Exchange) -> None:
        parts = urlsplit(exchange.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        digest, start = parts.path.rpartition("/")[2], int(query.get("from", "0"))
        found = self._known.get(digest, [])
        headers = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
        kind = query.get("artifactType")
        if kind and self.filters:
            found = [each for each in found if each["artifactType"] == kind]
            headers["OCI-Filters-Applied"] = "artifactType"
        if start + self.page < len(found):
            rest = f"?from={start + self.page}" + (f"&artifactType={kind}" if kind else "")
            headers["Link"] = f'<{parts.path}{rest}>; rel="next"'
        index = {
            "schemaVersion": 2,
            "mediaType": headers["Content-Type"],
            "manifests": found[start : start + self.page],
        }
        exchange.reply(200, json.dumps(index).encode(), headers)


class FakeUploads:
    """A fake of uploads that can be taken up where they broke off, as the OCI distribution specification 1.1 has it
    ("Pushing a blob in chunks") and distribution 2.x has not: its ``_state`` only fits what came whole (distribution
    pull request 3755, in 3.0). An upload whose bytes were refused stays as it is.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._taken: dict[str, bytearray] = {}
        front.on(r"^POST .*/blobs/uploads/$", self._begin)
        front.on(r"^(GET|PATCH|PUT) .*/blobs/uploads/fake-", self._upload)

    def _begin(self, exchange: Exchange) -> None:
        name = f"fake-{secrets.token_hex(8)}"
        self._taken[name] = bytearray()
        exchange.reply(202, b"", {"Location": f"{exchange.path}{name}?_state=canary", "Range": "0-0"})

    def _upload(self, exchange: Exchange) -> None:
        parts = urlsplit(exchange.path)
        base, _, name = parts.path.rpartition("/")
        taken = self._taken.get(name)
        if taken is None:
            exchange.reply(404, b'{"errors": [{"code": "BLOB_UPLOAD_UNKNOWN"}]}')
            return
        if exchange.method == "PUT":
            self._finish(exchange, base, name, parse_qs(parts.query)["digest"][0])
            return
        status = 204
        if exchange.method == "PATCH":
            start = int(exchange.headers["content-range"].partition("-")[0])
            status = 202 if start == len(taken) else 416
            for piece in exchange.body():
                taken += piece if status == 202 else b""
        state = {"Location": f"{base}/{name}?_state=canary", "Range": f"0-{max(len(taken) - 1, 0)}"}
        exchange.reply(status, b"", state)

    def _finish(self, exchange: Exchange, base: str, name: str, digest: str) -> None:
        data = bytes(self._taken[name])
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            exchange.reply(400, b'{"errors": [{"code": "DIGEST_INVALID", "message": "not what was sent"}]}')
            return
        with contextlib.closing(http.client.HTTPConnection(self._front.upstream, timeout=20)) as real:
            real.request("POST", f"{base}/")
            begun = real.getresponse()
            begun.read()
            there = begun.headers["Location"].partition(self._front.upstream)[2]
            real.request("PUT", f"{there}&digest={digest}", body=data)
            exchange.reply(real.getresponse().status)
        del self._taken[name]
