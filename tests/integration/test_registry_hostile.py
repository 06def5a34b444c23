"""The registry client against registries that mean harm, or are only odd: certificates, names, lists, patience.

What a front does in place of the registry is a fake; the registry, its TLS and its client certificates are real.
"""

from __future__ import annotations

import gzip
import json
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import registries
from envbuild.errors import EngineError, EnvbuildError, InputError
from envbuild.net import NetworkError
from envbuild.pipeline import attached
from envbuild.registry import Blobs, Descriptor, Repository, connect, parse, push_blob
from envbuild.registry import certificates as certs
from envbuild.registry.certificates import certificates_for
from envbuild.registry.credentials import account_for
from envbuild.registry.manifests import OCI_INDEX, OCI_MANIFEST, digest_of, dump
from envbuild.registry.repository import fallback_tag
from envbuild.site.sections import NetworkSection, SiteConfig
from registries import Authority, Exchange, FakeTokens, FakeUploads, Front


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    return registries.program(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def real(binary: str, data: Path) -> Iterator[str]:
    with registries.running(binary, data) as address:
        yield address


@pytest.fixture
def front(real: str) -> Iterator[Front]:
    with registries.fronting(real) as front:
        yield front


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def repository(
    address: str, path: str = "", *, pauses: list[float] | None = None, timeout: float = 10, **network: object
) -> Repository:
    """As the product connects, with nobody's login."""
    name = path or f"team/{secrets.token_hex(4)}"
    site = SiteConfig(network=NetworkSection.model_validate(network))
    return connect(
        parse(f"{address}/{name}"), site, {"HOME": "/nonexistent"}, timeout=timeout, account=lambda path: None,
        pause=(lambda seconds: None) if pauses is None else pauses.append,
    )  # fmt: skip


def made(blobs: Blobs, size: int = 1000) -> Descriptor:
    data = random.randbytes(size)
    blobs.add(data, digest_of(data))
    return Descriptor(media_type="application/octet-stream", digest=digest_of(data), size=size)


def image(there: Repository, blobs: Blobs) -> Descriptor:
    layer, config = made(blobs), made(blobs)
    for each in (layer, config):
        push_blob(there, each, blobs)
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config.as_dict(), "layers": [layer.as_dict()]}
    return there.put_manifest(dump(document), OCI_MANIFEST)


# --- certs.d ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of certificates that there is."""
    monkeypatch.setattr(certs, "SYSTEM", (tmp_path / "etc",))
    return tmp_path / "etc"


def lay(folder: Path, address: str, **files: bytes) -> Path:
    """Files of one registry, called ``name_suffix``."""
    own = folder / address
    own.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (own / name.replace("_", ".")).write_bytes(data)
    return own


def test_a_registrys_own_ca_and_client_certificate_are_dockers(
    binary: str, blobs: Blobs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that wants a certificate of us and has one of its own CA; and another host that must not see ours."""
    for name in ("registry", "a", "b"):
        (tmp_path / name).mkdir()
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b", "A stranger's CA")
    with registries.running(binary, tmp_path / "registry", tls=authority, clients=authority) as address:
        for files in (
            {},
            {"ca_crt": authority.bundle.read_bytes()},  # no certificate of ours
            {"ca_crt": stranger.bundle.read_bytes()},
        ):
            lay(folder, address, **files)
            with pytest.raises(EngineError):
                repository(address).resolve("1")
        own = lay(
            folder, address, ca_crt=stranger.bundle.read_bytes(), b_crt=authority.bundle.read_bytes(),
            me_cert=authority.certificate.read_bytes(), me_key=authority.key.read_bytes(), note_txt=b"x",
        )  # fmt: skip
        there = repository(address, timeout=20)
        blob = made(blobs)
        assert push_blob(there, blob, blobs).how == "sent"
        assert there.has_blob(blob.digest)
        # They come besides the site's CA, not in its place, as with Docker ("merged with the system defaults").
        site = tmp_path / "site.pem"
        site.write_bytes(stranger.bundle.read_bytes())
        assert repository(address, there.path, ca=site).has_blob(blob.digest)
        (own / "b.crt").rename(own / "b.kept")
        assert repository(address, there.path, ca=authority.bundle).has_blob(blob.digest)
        (own / "b.kept").rename(own / "b.crt")
        # For this registry alone: by its port, and not for the storage that it sends to.
        (folder / address.partition(":")[0]).mkdir()
        assert certificates_for(("127.0.0.1:1",), {}).client is None
        seen: list[bool] = []
        with registries.fronting(address, tls=authority, shown=seen.append) as storage:
            there.session._wire.send("GET", f"https://{storage.address}/v2/", headers={}).close()
        assert seen == [False]
        (own / "me.key").unlink()
        with pytest.raises(InputError, match=r"there is no me\.key beside it") as caught:
            repository(address)
        assert ".crt" in caught.value.hint


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"ca_crt": b"not a certificate"}, "no CA certificate"),
        ({"ca_crt": b"\xff" * 100}, "no CA certificate"),
        ({"ca_crt": b""}, "no CA certificate"),
        ({"me_cert": b"x", "me_key": b"y"}, "fits me.key"),
        ({"me_cert": b""}, "me.cert"),
    ],
)
def test_certificates_that_cannot_be_used_are_named(files: dict[str, bytes], expected: str, folder: Path) -> None:
    own = lay(folder, "r.example:5000", **files)
    with pytest.raises(InputError, match=expected) as caught:
        repository("r.example:5000")
    assert str(own) in caught.value.message and caught.value.hint


def test_where_certificates_lie(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    pem = Authority(tmp_path / "ca").bundle.read_bytes()
    environ = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    for place in (folder, tmp_path / "home/.config/containers/certs.d", tmp_path / "xdg/docker/certs.d"):
        own = lay(place, "r.example", ca_crt=pem)
        assert certificates_for(("r.example",), environ).roots.encode() == pem.strip(), place
        assert certificates_for(("r.example:443", "other"), environ).roots == ""
        (own / "ca.crt").unlink()
    assert certificates_for(("r.example",), environ) == certs.Certificates()


# --- the list of what refers to an image ------------------------------------------------------------------------------


def note(there: Repository, blobs: Blobs, subject: Descriptor) -> attached.Artifact:
    artifact = attached.Artifact(kind="a/note", files=(("n", "a/note", secrets.token_bytes(8)),))
    attached.attach(there, subject, [artifact], blobs)
    return artifact


def test_two_hosts_that_attach_at_once_lose_nothing(front: Front, tmp_path: Path) -> None:
    """Each list that one of them reads is overtaken by the other one's, until both have seen theirs."""
    stores = [Blobs(tmp_path / name) for name in "ab"]
    there = repository(front.address)
    subject = image(there, stores[0])
    both = threading.Barrier(2, timeout=30)

    def written(headers: dict[str, str]) -> dict[str, str]:
        both.wait()  # both have written before one of them looks again
        return headers

    def together(exchange: Exchange) -> None:
        both.wait()  # both have read the same list before one of them writes
        exchange.relay(change=written)

    front.on(f"^PUT .*/manifests/{fallback_tag(subject.digest)}", together, 1, 2)
    failures: list[Exception] = []

    def attach(store: Blobs) -> None:
        try:
            note(repository(front.address, there.path), store, subject)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=attach, args=(store,)) for store in stores]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failures and len(there.referrers(subject.digest)) == 2


def test_who_always_writes_the_list_is_no_reason_to_go_on_for_ever(front: Front, blobs: Blobs) -> None:
    there = repository(front.address)
    subject = image(there, blobs)
    empty = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}

    def dropped(exchange: Exchange) -> None:
        exchange.relay()
        direct = repository(front.upstream, there.path)
        direct.put_manifest(dump(empty), OCI_INDEX, fallback_tag(subject.digest))

    rule = f"^PUT .*/manifests/{fallback_tag(subject.digest)}"
    front.on(rule, dropped)
    with pytest.raises(NetworkError, match="others write the list"):
        note(there, blobs, subject)
    assert len(front.of(rule)) < 10
    front.reset()
    note(there, blobs, subject)
    assert len(there.referrers(subject.digest)) == 1


def entry(digest: str, **changes: object) -> dict[str, object]:
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": 7, "artifactType": "a/note", **changes}


def test_what_strangers_put_beside_an_image_hides_nothing(front: Front, blobs: Blobs, tmp_path: Path) -> None:
    """Entries of the tag's list that name nothing, another kind, another image's, a file that is not there."""
    there = repository(front.address)
    subject, other = image(there, blobs), image(there, blobs)
    mine = note(there, blobs, subject)
    known = json.loads(there.manifest(fallback_tag(subject.digest)).raw)
    (own,) = known["manifests"]
    gone = Descriptor(media_type="a/note", digest=f"sha256:{'b' * 64}", size=9)
    odd: list[bytes] = [
        dump({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": "a/note", "config": gone.as_dict(),
              "layers": [gone.as_dict()], "subject": subject.as_dict()}),
        dump({"mediaType": "application/vnd.oci.artifact.manifest.v1+json", "artifactType": "a/note"}),
        dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry(own["digest"])]}),
        dump({"schemaVersion": 1}), b"[" * 50_000, b"\xff", b"",
    ]  # fmt: skip
    by_digest = {digest_of(raw): raw for raw in odd}
    listed = [entry(f"sha256:{'0' * 64}"), entry(other.digest), *map(entry, by_digest), entry(own["digest"]), *(
        entry(digest, artifactType=None) for digest in by_digest
    )]  # fmt: skip
    front.on(
        f"^GET .*/manifests/{fallback_tag(subject.digest)}",
        lambda exchange: exchange.reply(
            200, dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed}), {"Content-Type": OCI_INDEX}
        ),
    )
    for digest, raw in by_digest.items():
        front.on(f"^GET .*/manifests/{digest}", lambda exchange, raw=raw: exchange.reply(
            200, raw, {"Content-Type": OCI_MANIFEST}))  # fmt: skip
    found = list(attached.attached(there, subject, ("a/note",), Blobs(tmp_path / "fresh")))
    assert [each.files for each in found] == [mine.files]
    # A list that is none is an error, of few words, and not an image without evidence.
    for raw in (
        odd[0],
        b"[]",
        b"\x00",
        dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": {}}),
        dump({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry("sha256:x")]}),
        b" " * (9 << 20),
    ):
        front.reset()
        front.on(f"^GET .*/manifests/{fallback_tag(subject.digest)}", lambda exchange, raw=raw: exchange.reply(
            200, raw, {"Content-Type": OCI_INDEX}))  # fmt: skip
        with pytest.raises(NetworkError) as caught:
            there.referrers(subject.digest)
        assert len(caught.value.message) < 400


# --- uploads ----------------------------------------------------------------------------------------------------------


def begun(data: Path, there: Repository) -> list[str]:
    """Uploads that the registry keeps."""
    uploads = data / "data/docker/registry/v2/repositories" / there.path / "_uploads"
    return sorted(str(path) for path in uploads.glob("*/data"))


def test_uploads_that_are_given_up_are_not_left_to_the_registry(front: Front, blobs: Blobs, data: Path) -> None:
    """No source has it, so each has begun an upload; and one whose bytes are refused for good."""
    there = repository(front.address)
    blob = made(blobs, 100_000)
    push_blob(there, blob, blobs, sources=("team/none", "team/neither", "team/nor"))
    assert begun(data, there) == [] and len(front.of("^DELETE ")) == 2
    damaged = made(blobs, 100_000)
    blobs.path(damaged.digest).write_bytes(random.randbytes(100_000))
    with pytest.raises(NetworkError, match="DIGEST_INVALID"):
        push_blob(there, damaged, blobs)
    assert begun(data, there) == [] and not list((blobs.folder / "uploads").iterdir())
    # One that cannot be told so is a registry like another.
    front.on("^DELETE ", lambda exchange: exchange.reply(405))
    another = made(blobs)
    assert push_blob(there, another, blobs, sources=("team/none", "team/neither")).how == "sent"


@pytest.mark.parametrize("step", ["^POST ", "^PATCH ", "^PUT "])
def test_a_registry_that_asks_for_patience_while_it_is_written_to_gets_it(
    step: str, front: Front, blobs: Blobs
) -> None:
    FakeUploads(front)
    front.on("^$", Exchange.cut)
    first = front._rules.pop()
    front._rules.insert(0, first)
    pauses: list[float] = []
    there = repository(front.address, pauses=pauses)
    front.on(step, lambda exchange: exchange.reply(429, b"", {"Retry-After": "17"}), 1)
    front._rules.insert(0, front._rules.pop())
    assert push_blob(there, made(blobs, 100_000), blobs).how == "sent"
    assert 17.0 in pauses, pauses
    # For hours it is not waited; the run says so.
    front.on(step, lambda exchange: exchange.reply(503, b"", {"Retry-After": "7200"}))
    front._rules.insert(0, front._rules.pop())
    with pytest.raises(NetworkError, match="asks to wait 7200 seconds"):
        push_blob(there, made(blobs, 100_000), blobs)
    assert max(pauses) <= 60


# --- answers ----------------------------------------------------------------------------------------------------------


def chunked(exchange: Exchange, data: bytes, *, end: bool = True) -> None:
    exchange.begin(200, {"Transfer-Encoding": "chunked", "Content-Type": OCI_MANIFEST})
    for at in range(0, len(data), 70_000):
        piece = data[at : at + 70_000]
        exchange.give(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    if not end:
        exchange.cut()
    exchange.give(b"0\r\n\r\n")


def bombs(exchange: Exchange) -> None:
    data = gzip.compress(bytes(64 << 20))
    exchange.reply(200, data, {"Content-Encoding": "gzip", "Content-Type": OCI_MANIFEST})


def test_answers_without_a_length_and_packed_ones(front: Front, blobs: Blobs, tmp_path: Path, real: str) -> None:
    there = repository(front.address)
    blob = made(blobs, 300_000)
    data = blobs.path(blob.digest).read_bytes()
    push_blob(there, blob, blobs)
    get = "^GET .*/blobs/"
    # In chunks; in chunks that end early, once; until the connection ends; and early, once.
    front.on(get, lambda exchange: chunked(exchange, data))
    assert Blobs(tmp_path / "1").fetch(there, blob).read_bytes() == data
    front.reset()
    front.on(get, lambda exchange: chunked(exchange, data[:100_000], end=False), 1)
    assert Blobs(tmp_path / "2").fetch(there, blob).read_bytes() == data
    front.reset()

    def until_the_end(exchange: Exchange) -> None:
        exchange.begin(200, {"Connection": "close"})
        exchange.give(data[:200_000])
        exchange.cut()

    front.on(get, until_the_end, 1)
    assert Blobs(tmp_path / "3").fetch(there, blob).read_bytes() == data
    # Something on the way that packs what nobody asked to be packed: not the bytes of the digest.
    front.reset()
    front.on(get, lambda exchange: exchange.reply(200, gzip.compress(data), {"Content-Encoding": "gzip"}))
    with pytest.raises(NetworkError):
        Blobs(tmp_path / "4").fetch(there, blob)
    assert not Blobs(tmp_path / "4").has(blob)
    # A manifest may be packed on the way; not one of 64 MB in 64 kB.
    subject = image(there, blobs)
    raw = there.manifest(subject.digest).raw
    front.on("^GET .*/manifests/", lambda exchange: exchange.reply(
        200, gzip.compress(raw), {"Content-Encoding": "gzip", "Content-Type": OCI_MANIFEST}))  # fmt: skip
    assert there.manifest(subject.digest).descriptor == subject
    for hostile in (bombs, lambda exchange: exchange.reply(200, b"x" * 900, {"Content-Encoding": "gzip"})):
        front.reset()
        front.on("^GET .*/manifests/", hostile)
        with pytest.raises(NetworkError):
            there.manifest(subject.digest)


def headers_without_end(exchange: Exchange) -> None:
    exchange.handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(5000):
        exchange.handler.wfile.write(b"X-%d: %s\r\n" % (number, b"x" * 60_000))


ODD: list[Callable[[Exchange], None]] = [
    headers_without_end,
    lambda exchange: exchange.handler.wfile.write(b"\x00\xff not HTTP\r\n\r\n") and exchange.cut(),
    lambda exchange: exchange.handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx") and exchange.cut(),
    lambda exchange: exchange.handler.wfile.write(b"HTTP/1.1 999999999999 X\r\n\r\n") and exchange.cut(),
    lambda exchange: exchange.reply(401, b"", {"WWW-Authenticate": "Basic " + "a=b, " * 10_000}),
    lambda exchange: exchange.reply(401, b"", {"WWW-Authenticate": 'Bearer realm="https://[::1", scope="'}),
    lambda exchange: exchange.reply(503, b"", {"Retry-After": "-5"}),
    lambda exchange: exchange.reply(308, b"", {"Location": exchange.path}),
    lambda exchange: exchange.reply(302, b"", {"Location": "/v2/a\u00e9 b/../../x"}),
    lambda exchange: exchange.reply(204),
    lambda exchange: exchange.reply(200, b"{}", {"Content-Type": "x" * 60_000}),
    lambda exchange: exchange.reply(200, b'{"schemaVersion": 2, "mediaType": ["x"], "layers": []}'),
    lambda exchange: exchange.reply(200, b'{"schemaVersion": 2, "mediaType": {"a": 1}}'),
]


@pytest.mark.parametrize("answer", ODD, ids=range(len(ODD)))
def test_an_answer_that_is_none_is_an_error_in_words(answer: Callable[[Exchange], None], front: Front) -> None:
    front.on("", lambda exchange: exchange.reply(200), 1)  # it speaks plainly
    front.on("", answer)
    there = repository(front.address, timeout=3)
    for ask in (lambda: there.manifest("1"), lambda: there.tags(), lambda: there.referrers(f"sha256:{'a' * 64}")):
        with pytest.raises(EnvbuildError) as caught:
            ask()
            raise NetworkError("it was taken for an answer of no use")  # 204 of a list, or no tags
        assert len(caught.value.message) < 1000
    assert len(front.asked) < 60


def test_a_registry_that_never_believes_its_own_tokens_is_left_alone(real: str) -> None:
    with registries.giving_tokens(FakeTokens()) as tokens, registries.fronting(real, tokens=tokens) as front:
        front.tokens = None
        challenge = {"WWW-Authenticate": f'Bearer realm="{tokens.realm}",service="it"'}
        front.on("/manifests/", lambda exchange: exchange.reply(401, b"", challenge))
        with pytest.raises(NetworkError, match="401"):
            repository(front.address).resolve("1")
        assert len(front.of("/manifests/")) == 2 and len(tokens.asked) == 1
        # A token server that asks for patience gets it.
        pauses: list[float] = []
        tokens.patience = "23"
        with pytest.raises(NetworkError, match="429"):
            repository(front.address, pauses=pauses).resolve("1")
        assert pauses == [23.0] * 4


# --- the way there ----------------------------------------------------------------------------------------------------


def test_a_registry_at_an_address_of_the_newer_kind(real: str, blobs: Blobs) -> None:
    with registries.fronting(real, host="::1") as front:
        assert front.address.startswith("[::1]:")
        there = repository(front.address)
        blob = made(blobs)
        assert push_blob(there, blob, blobs).how == "sent" and there.has_blob(blob.digest)


def test_a_proxy_is_for_others_and_no_proxy_says_for_whom_not(front: Front) -> None:
    """Every registry behind a proxy that notes whom it is asked for; a proxy that refuses is named."""
    asked: list[str] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(4096).decode("latin-1").split()[1])
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        proxy = f"http://u:canary@127.0.0.1:{listener.getsockname()[1]}"
        through = {"http_proxy": proxy, "https_proxy": proxy}
        with pytest.raises(NetworkError) as caught:
            repository("r.invalid:5000", timeout=5, **through).resolve("1")
        assert set(asked) == {"r.invalid:5000"} and "canary" not in f"{caught.value.message}{caught.value.hint}"
        assert "407" in caught.value.message, caught.value.message
        asked.clear()
        for exempt in ("r.invalid", ".invalid", "*", "other,r.invalid:5000"):
            with pytest.raises(NetworkError):
                repository("r.invalid:5000", timeout=5, no_proxy=exempt, **through).resolve("1")
        assert repository(front.address, **through).resolve("1") is None and asked == []
        listener.shutdown(socket.SHUT_RDWR)


# --- logins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo garbage", "something else than a login"),
        ("printf '\\377\\376\\000'", "something else than a login"),
        ("exit 7", "exit code 7"),
        ("kill -9 $$", "does not tell"),
        ("exec yes", "prints more than"),
        ("exec yes >&2", "prints more than"),
        ("exec sleep 1000", "did not end within"),
        ("sleep 1000 & echo {}", "something else than a login|did not end within"),
        ('echo \'{"Username": 1, "Secret": []}\'', "something else than a login"),
    ],
)
def test_a_helper_that_hangs_or_babbles_is_named(
    script: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-odd"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text('{"credsStore": "odd"}')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EngineError, match=expected) as caught:
        account_for("r.example", "team/x", {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}, seconds=2.0)
    assert "docker-credential-odd" in caught.value.message and len(caught.value.message) < 400


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", "\xff", '{"auths": {"r.example": {"auth": "%%%"}}}', '{"auths": {"r.example": {"auth": "Zm9v"}}}',
     '{"auths": {"r.example": {"identitytoken": 7}}}', "[" * 100_000],
)  # fmt: skip
def test_a_config_that_is_broken_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"config\.json"):
        account_for("r.example", "x", {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)})


def test_logins_that_are_there_and_say_nothing(tmp_path: Path) -> None:
    for text in ("", "{}", '{"auths": null, "credHelpers": [], "credsStore": ""}', '{"auths": {"r.example": null}}'):
        (tmp_path / "config.json").write_text(text)
        assert account_for("r.example", "x", {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}) is None
