"""The registry client against a real registry, with everything on the way that breaks, lies or wants a password.

Every fault ends in a blob that is whole and checked, or in an error with words for the user; and a rerun ends well.
"""

from __future__ import annotations

import base64
import json
import random
import re
import resource
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

import registries
from envbuild import net
from envbuild.errors import EngineError, EnvbuildError
from envbuild.net import Client, NetworkError, Route, Wire
from envbuild.registry import (
    Again,
    Blobs,
    Descriptor,
    Manifest,
    NoAccess,
    Repository,
    Sent,
    Session,
    parse,
    push_blob,
)
from envbuild.registry.credentials import Account, account_for
from envbuild.registry.manifests import OCI_CONFIG, OCI_EMPTY, OCI_MANIFEST, digest_of, dump
from registries import PASSWORD, USER, Exchange, FakeReferrers, FakeTokens, FakeUploads, Front

SIZE = 3_000_000
BLOB = rb"^GET .*/blobs/sha256".decode()
PATCH = r"^PATCH "
ENDLESS = b"x" * (1 << 16)


def repository(
    address: str,
    path: str = "team/image",
    *,
    timeout: float = 10,
    ca: Path | None = None,
    account: Account | None = None,
) -> Repository:
    wire = Wire(Route(agent="envbuild-test", timeout=timeout, ca=ca))
    session = Session(address, wire, lambda path: account, pause=lambda seconds: None)
    return Repository(session, parse(f"{address}/{path}"))


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    return registries.program(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def real(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registries.running(binary, tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> registries.Authority:
    return registries.Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def front(real: str) -> Iterator[Front]:
    with registries.fronting(real) as front:
        yield front


@pytest.fixture
def resuming(real: str) -> Iterator[Front]:
    """A front before a registry whose uploads can be taken up again: a fake of that, before the real one."""
    with registries.fronting(real) as fake, registries.fronting(fake.address) as front:
        FakeUploads(fake)
        yield front


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def made(blobs: Blobs, size: int = SIZE) -> Descriptor:
    """A new blob on this disk."""
    data = random.randbytes(size)
    blobs.add(data, digest_of(data))
    return Descriptor(media_type="application/octet-stream", digest=digest_of(data), size=size)


def whole(path: Path, blob: Descriptor) -> bool:
    return digest_of(path.read_bytes()) == blob.digest


def said(error: EnvbuildError, *secret: str) -> str:
    """What a user reads of an error; it has no secret in it."""
    text = f"{error.message}\n{error.hint}"
    for each in ("canary", "Bearer", "_state=", *secret):
        assert each not in text, text
    return text


# --- pulling ----------------------------------------------------------------------------------------------------------


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(timezone.utc) + timedelta(seconds=seconds), usegmt=True)


def cut_in_thirds(front: Front) -> None:
    for nth in (1, 2):
        front.on(BLOB, lambda exchange: exchange.relay(give=SIZE // 3), nth)


def cut_before_anything(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.relay(give=0), 1)
    front.on(BLOB, Exchange.cut, 2)


def cut_often(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.relay(give=70_000 + secrets.randbelow(200_000)))


def shorter(front: Front) -> None:
    """It claims to be whole and is not."""

    def answer(exchange: Exchange) -> None:
        exchange.relay(give=1_000_000, change=lambda headers: {**headers, "Content-Length": "1000000"})

    front.on(BLOB, answer, 1)


def flipped_once(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.relay(flip=SIZE // 2), 1)


def flipped_always(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.relay(flip=SIZE // 2))


def busy(front: Front) -> None:
    for nth, (status, patience) in enumerate([(500, ""), (429, "1"), (503, http_date(2)), (502, "soon")], 1):
        front.on(BLOB, lambda exchange, status=status, patience=patience: exchange.reply(
            status, b"<html>busy</html>", {"Retry-After": patience} if patience else {}), nth)  # fmt: skip


def busy_for_hours(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.reply(429, b"", {"Retry-After": "7200"}))


def without_ranges(front: Front) -> None:
    front.on(BLOB, lambda exchange: exchange.relay(give=SIZE // 2), 1)
    front.on(BLOB, lambda exchange: exchange.relay(without=("range",)))


def another_range(front: Front) -> None:
    """After a break another part comes than was asked for, once."""
    front.on(BLOB, lambda exchange: exchange.relay(give=SIZE // 2), 1)

    def answer(exchange: Exchange) -> None:
        exchange.relay(change=lambda headers: {**headers, "Content-Range": f"bytes 7-{SIZE - 1}/{SIZE}"})

    front.on(BLOB, answer, 2)


def endless(front: Front) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin(200, {"Connection": "close"})
        while True:
            exchange.give(ENDLESS)

    front.on(BLOB, answer)


def nowhere(front: Front) -> None:
    front.on(
        BLOB, lambda exchange: exchange.reply(404, b"<html>\xff no such page</html>", {"Content-Type": "text/html"})
    )


def leads(target: str) -> Callable[[Front], None]:
    return lambda front: front.on(BLOB, lambda exchange: exchange.reply(307, b"", {"Location": target}))


def endless_redirect(front: Front) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin(307, {"Location": f"http://{front.address}/moved", "Connection": "close"})
        while True:
            exchange.give(ENDLESS)

    front.on(BLOB, answer)
    front.on("^GET /moved", lambda exchange: exchange.reply(404))


def shrunk(front: Front) -> None:
    """The registry's own copy ends early, and it says so of every part beyond."""
    front.on(BLOB, lambda exchange: exchange.relay(give=SIZE // 2), 1)
    front.on(BLOB, lambda exchange: exchange.reply(416, b"", {"Content-Range": "bytes */5"}), 2)


PULLS: list[tuple[Callable[[Front], None], str, float]] = [
    # What is done, what the error says (nothing: it ends well), the bytes that come, at most, in sizes of the blob.
    (cut_in_thirds, "", 1.0),
    (cut_before_anything, "", 1.0),
    (cut_often, "", 1.0),
    (shorter, "", 1.0),
    (flipped_once, "", 2.0),
    (flipped_always, "changes it", 2.0),
    (busy, "", 1.0),
    (busy_for_hours, "asks to wait 7200 seconds", 0.0),
    (without_ranges, "", 1.5),
    (another_range, "", 2.5),
    (endless, "sensible", 9.0),
    (nowhere, r"not there \(404\)", 0.0),
    (leads("file:///etc/passwd"), "leads to file:", 0.0),
    (leads("http://storage.invalid/x?signature=canary"), "not reached over TLS", 0.0),
    (leads("http://[::canary"), "leads to", 0.0),
    (leads("http://127.0.0.1:99999/"), "leads to", 0.0),
    (leads("//127.0.0.1:1/\xe9?signature=canary"), "does not answer", 0.0),
    (endless_redirect, r"not there \(404\)", 0.0),
    (shrunk, "", 1.5),
]


@pytest.mark.parametrize(("fault", "expected", "most"), PULLS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_pull_ends_whole_or_says_why_and_a_rerun_ends_well(
    fault: Callable[[Front], None], expected: str, most: float, front: Front, blobs: Blobs, tmp_path: Path
) -> None:
    source = Blobs(tmp_path / "source")
    blob = made(source)
    push_blob(repository(front.upstream), blob, source)
    fault(front)
    counted: list[int] = []
    try:
        path = blobs.fetch(repository(front.address), blob, moved=counted.append)
    except EnvbuildError as error:
        assert expected and re.search(expected, said(error)), error
        assert not blobs.has(blob)
    else:
        assert not expected and whole(path, blob) and sum(counted) == SIZE
    assert front.given <= most * SIZE + 4 * len(ENDLESS)
    front.reset()
    assert whole(blobs.fetch(repository(front.address), blob), blob)
    assert front.given <= SIZE


# --- pushing ----------------------------------------------------------------------------------------------------------


def take_thirds(front: Front) -> None:
    for nth in (1, 2):
        front.on(PATCH, lambda exchange: exchange.relay(take=SIZE // 3), nth)


def take_nothing(front: Front) -> None:
    front.on(PATCH, lambda exchange: exchange.relay(take=0), 1)
    front.on("^POST ", Exchange.cut, 1)
    front.on("^HEAD ", Exchange.cut, 1)


def lose_answers(front: Front) -> None:
    """Every step is done, and its answer lost once."""

    def lost(exchange: Exchange) -> None:
        exchange.relay(change=lambda headers: exchange.cut() or headers)

    for step in ("^POST ", PATCH, "^PUT "):
        front.on(step, lost, 1)


def garbled_once(front: Front) -> None:
    front.on(PATCH, lambda exchange: exchange.relay(flip_sent=SIZE // 2), 1)


def garbled_always(front: Front) -> None:
    front.on(PATCH, lambda exchange: exchange.relay(flip_sent=SIZE // 2))


def busy_registry(front: Front) -> None:
    for step in ("^POST ", PATCH, "^PUT "):
        front.on(step, lambda exchange: exchange.reply(503, b"", {"Retry-After": http_date(1)}), 1)
        front.on(step, lambda exchange: exchange.reply(500), 2)


def broken_for_good(front: Front) -> None:
    front.on("^PUT ", lambda exchange: exchange.reply(500, b'{"errors": [{"code": "DISK", "message": "full"}]}'))


def forgets(front: Front) -> None:
    """An upload breaks off, and the registry knows nothing of it any more."""
    front.on(PATCH, lambda exchange: exchange.relay(take=SIZE // 2), 1)
    front.on("^GET .*/uploads/", lambda exchange: exchange.reply(404), 1)


def takes_less(front: Front) -> None:
    """All of it is sent, a part of it taken, and said so."""

    def short(exchange: Exchange) -> None:
        pieces = list(exchange.body())
        half = b"".join(pieces)[: SIZE // 2]
        exchange.body = lambda limit=0: iter([half])  # type: ignore[method-assign]
        exchange.headers["content-length"] = str(len(half))
        exchange.headers["content-range"] = f"0-{len(half) - 1}"
        exchange.relay()

    front.on(PATCH, short, 1)


def upload_to(location: str) -> Callable[[Front], None]:
    return lambda front: front.on("^POST ", lambda exchange: exchange.reply(202, b"", {"Location": location}))


PUSHES: list[tuple[Callable[[Front], None], str, float]] = [
    # What is done, what the error says (nothing: it ends well), the bytes that are sent, at most, in sizes of the blob.
    (take_thirds, "", 1.0),
    (take_nothing, "", 1.0),
    (lose_answers, "", 1.0),
    (garbled_once, "", 2.0),
    (garbled_always, "DIGEST_INVALID", 2.0),
    (busy_registry, "", 2.0),
    (broken_for_good, "500: DISK full", 1.0),
    (forgets, "", 1.5),
    (takes_less, "", 1.5),
    (upload_to("http://storage.invalid/x?signature=canary"), "not reached over TLS", 0.0),
    (upload_to("ftp://127.0.0.1/"), "leads to ftp:", 0.0),
    (upload_to("http://[canary"), "leads to", 0.0),
    (upload_to(""), "where to send", 0.0),
]


@pytest.mark.parametrize("kind", ["front", "resuming"])
@pytest.mark.parametrize(("fault", "expected", "most"), PUSHES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_push_ends_whole_or_says_why_and_a_rerun_ends_well(
    fault: Callable[[Front], None],
    expected: str,
    most: float,
    kind: str,
    blobs: Blobs,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    front: Front = request.getfixturevalue(kind)
    blob = made(blobs)
    fault(front)
    counted: list[int] = []
    try:
        sent = push_blob(repository(front.address), blob, blobs, moved=counted.append)
    except EnvbuildError as error:
        assert expected and re.search(expected, said(error)), error
        assert not repository(front.upstream).has_blob(blob.digest)
    else:
        assert not expected and sent == Sent(how="sent") and sum(counted) == SIZE
    # What the registry has acknowledged is not sent again. Distribution 2.x knows nothing of an upload that broke off.
    assert front.sent <= (most if kind == "resuming" else most + 1) * SIZE + 4 * len(ENDLESS)
    front.reset()
    again = push_blob(repository(front.address), blob, blobs)
    assert again == Sent(how="sent" if expected else "there") and (expected or not front.sent)
    copy = Blobs(tmp_path / "copy").fetch(repository(front.upstream), blob)
    assert whole(copy, blob)


def test_a_blob_that_is_there_or_next_door_is_not_sent(front: Front, blobs: Blobs, tmp_path: Path) -> None:
    blob = made(blobs, 100_000)
    assert push_blob(repository(front.address), blob, blobs) == Sent(how="sent")
    elsewhere = Blobs(tmp_path / "elsewhere")
    assert push_blob(repository(front.address), blob, elsewhere) == Sent(how="there")
    other = repository(front.address, "team/other")
    assert push_blob(other, blob, elsewhere, sources=("team/none", "team/image")) == Sent(how="mounted")
    assert front.sent == 100_000
    empty = made(blobs, 0)
    assert push_blob(other, empty, blobs) == Sent(how="sent")
    assert whole(elsewhere.fetch(other, empty), empty)


def test_a_blob_that_is_not_what_it_was_is_not_sent_as_if_it_were(front: Front, blobs: Blobs) -> None:
    """Shorter, longer, other bytes: an error, and no request with more or fewer bytes than it announced."""
    for change, expected in (
        (lambda data: data[:-70_000], "too early"),
        (lambda data: data + b"GET / HTTP/1.1\r\n\r\n", "sent"),
        (lambda data: b"x" + data[1:], "DIGEST_INVALID"),
        (None, "cannot read"),
    ):
        blob = made(blobs)
        path = blobs.path(blob.digest)
        data = path.read_bytes()
        path.unlink() if change is None else path.write_bytes(change(data))
        try:
            assert push_blob(repository(front.address), blob, blobs).how == expected
        except EnvbuildError as error:
            assert expected in said(error)
        path.write_bytes(data)
        assert push_blob(repository(front.address), blob, blobs).how == ("there" if expected == "sent" else "sent")
    assert not front.of("^GET / ")


# --- kills, two at once, a full disk ----------------------------------------------------------------------------------

CHILD = """
import sys
import time
from pathlib import Path
from envbuild.errors import EnvbuildError
from envbuild.net import Route, Wire
from envbuild.registry import Blobs, Descriptor, Repository, Session, parse, push_blob
what, address, folder, digest, size = sys.argv[1:]
wire = Wire(Route(agent="child", timeout=20))
session = Session(address, wire, lambda path: None, pause=lambda seconds: time.sleep(seconds / 10))
there, blobs = Repository(session, parse(f"{address}/team/image")), Blobs(Path(folder))
blob = Descriptor(media_type="application/octet-stream", digest=digest, size=int(size))
def tell(event):
    print(event.message, file=sys.stderr, flush=True)
try:
    push_blob(there, blob, blobs, sink=tell) if what == "push" else blobs.fetch(there, blob, sink=tell)
except EnvbuildError as error:
    sys.exit(f"{error.message}\\n{error.hint}")
"""


def child(what: str, front: Front, blobs: Blobs, blob: Descriptor, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, what, front.address, str(blobs.folder), blob.digest, str(blob.size)],
        stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("what", ["push", "fetch"])
def test_what_a_killed_run_had_transferred_is_kept(
    what: str, resuming: Front, blobs: Blobs, tmp_path: Path, real: str
) -> None:
    """Up to six kills at random bytes, and the last run ends: nearly nothing was transferred twice."""
    front, size, kills = resuming, 12_000_000, 6
    source = Blobs(tmp_path / "source")
    blob = made(source if what == "fetch" else blobs, size)
    if what == "fetch":
        push_blob(repository(real), blob, source)
    part = blobs.path(blob.digest).with_name(f"{blob.digest[7:]}.part")
    kept: list[int] = []
    killed = 0
    for more in [random.randrange(1000, size // kills) for _ in range(kills)] + [size * kills]:
        kept.append(part.stat().st_size if part.exists() else 0)
        before = front.sent + front.given
        with child(what, front, blobs, blob) as run:
            front.watch = lambda count, ends=before + more, run=run: count >= ends and run.kill()
            _, text = run.communicate(timeout=30)
        front.watch = lambda count: None
        # What a killed run had already given to its sockets still arrives: the rest may come without the last runs.
        assert run.returncode in ((0,) if more > size else (0, -signal.SIGKILL)), text
        killed += run.returncode != 0
    assert killed >= 3
    if what == "push":
        # What was in the sockets when a run was killed: at most their buffers, each time.
        assert size <= front.sent <= size + kills * 1_500_000
        path = Blobs(tmp_path / "x").fetch(repository(real), blob)
    else:
        # What is in the file is not asked for again, to the byte. What one run left in the front's sockets may end the
        # next before it has asked: then it asks for nothing, and the order of the others stays.
        asked = [each.headers.get("range") for each in front.of(BLOB)]
        starts = [f"bytes={at}-" if at else None for at in kept]
        later = iter(starts)
        assert all(any(start == each for start in later) for each in asked), (asked, starts)
        assert asked[-1] == starts[-1] and len(set(asked)) >= 3, (asked, starts)
        assert kept == sorted(kept)
        path = blobs.path(blob.digest)
    assert whole(path, blob)


@pytest.mark.parametrize("what", ["push", "fetch"])
def test_two_at_once_transfer_a_blob_once(what: str, front: Front, blobs: Blobs, tmp_path: Path) -> None:
    source = Blobs(tmp_path / "source")
    blob = made(source if what == "fetch" else blobs)
    if what == "fetch":
        push_blob(repository(front.upstream), blob, source)
    begun, waited = threading.Event(), threading.Event()

    def held(exchange: Exchange) -> None:
        begun.set()
        assert waited.wait(30)
        exchange.relay()

    front.on(PATCH if what == "push" else BLOB, held, 1)
    with child(what, front, blobs, blob) as first:
        assert begun.wait(30)
        with child(what, front, blobs, blob) as second:
            assert second.stderr is not None and "waiting for it" in second.stderr.readline()
            waited.set()
            assert (first.wait(30), second.wait(30)) == (0, 0)
    assert (front.sent if what == "push" else front.given) == SIZE


def test_a_full_disk_is_named_and_what_came_is_kept(front: Front, blobs: Blobs, tmp_path: Path) -> None:
    source = Blobs(tmp_path / "source")
    blob = made(source)
    push_blob(repository(front.upstream), blob, source)
    limit = SIZE // 2

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    with child("fetch", front, blobs, blob, preexec_fn=small) as run:
        _, text = run.communicate(timeout=30)
    assert run.returncode == 1 and "cannot write" in text and "[paths] cache" in text and "Traceback" not in text
    assert not blobs.has(blob)
    front.reset()
    assert whole(blobs.fetch(repository(front.address), blob), blob)
    assert front.given == SIZE - limit


# --- logins and tokens ------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens() -> Iterator[FakeTokens]:
    with registries.giving_tokens(FakeTokens(users={USER: PASSWORD})) as tokens:
        yield tokens


@pytest.fixture
def guarded(real: str, tokens: FakeTokens) -> Iterator[Front]:
    with registries.fronting(real, tokens=tokens) as front:
        yield front


ADA = Account(username=USER, password=PASSWORD, origin="a file")
REFRESH = Account(username="<token>", token="canary-identity", origin="a helper")


def test_a_token_that_expires_on_the_way_is_fetched_anew(guarded: Front, tokens: FakeTokens, blobs: Blobs) -> None:
    blob = made(blobs)
    there = repository(guarded.address, account=ADA)

    def expired(exchange: Exchange) -> None:
        tokens.expire()
        exchange.relay()

    # Each step finds that the token of the step before is none any more.
    for step in ("^POST ", PATCH, "^PUT ", "^HEAD "):
        guarded.on(step, expired)
    counted: list[int] = []
    assert push_blob(there, blob, blobs, moved=counted.append) == Sent(how="sent") and sum(counted) == SIZE
    assert max(sum(counted[: n + 1]) for n in range(len(counted))) == SIZE, "no progress beyond the end"
    scopes = {"repository:team/image:pull", "repository:team/image:pull,push"}
    assert {registries.query(each)["scope"] for each in tokens.asked} == scopes


@pytest.mark.parametrize(
    ("account", "refused", "expected"),
    [
        (None, (), "somebody without a login may not push to team/image"),
        (ADA, ("push",), "the login from a file may not push to team/image"),
        (Account(username=USER, password="canary-wrong", origin="a file"), (), r"\(401\) for the login from a file"),
        (Account(username="<token>", token="canary-old", origin="a helper"), (), "for the login from a helper"),
    ],
)
def test_who_may_not_is_told_who_he_is_to_the_registry(
    account: Account | None, refused: tuple[str, ...], expected: str, guarded: Front, tokens: FakeTokens, blobs: Blobs
) -> None:
    tokens.refused = refused
    with pytest.raises(NoAccess) as caught:
        push_blob(repository(guarded.address, account=account), made(blobs, 1000), blobs)
    assert re.search(expected, said(caught.value)) and f"docker login {guarded.address}" in caught.value.hint
    assert len(guarded.asked) < 8 and guarded.sent == 0, "it is no use to go on"


def test_an_identity_token_is_exchanged_and_no_password_goes_to_a_storage(
    guarded: Front, tokens: FakeTokens, blobs: Blobs, tmp_path: Path
) -> None:
    tokens.refresh = REFRESH.token
    blob = made(blobs)
    there = repository(guarded.address, account=REFRESH)
    push_blob(there, blob, blobs)
    assert {each.method for each in tokens.asked} == {"POST"} and all(
        "canary" not in each.path for each in tokens.asked
    )
    with registries.fronting(guarded.upstream) as storage:
        signed = f"http://{storage.address}/v2/team/image/blobs/{blob.digest}?signature=canary"
        guarded.on(BLOB, lambda exchange: exchange.reply(307, b"", {"Location": signed}))
        storage.on(BLOB, lambda exchange: exchange.relay(give=1000), 1)
        assert whole(Blobs(tmp_path / "x").fetch(there, blob), blob)
        assert [each.authorization for each in storage.asked] == ["", ""]
        assert storage.asked[1].headers["range"] == "bytes=1000-", "a part may be asked for behind a redirect, too"
        storage.on(BLOB, lambda exchange: exchange.reply(403, b"AccessDenied"))
        with pytest.raises(NoAccess) as caught:
            Blobs(tmp_path / "y").fetch(there, blob)
        assert "signature" not in said(caught.value)
        # An upload may be sent elsewhere as well.
        away = repository(guarded.address, "team/away", account=REFRESH)
        elsewhere = f"http://{storage.address}/v2/team/away/blobs/uploads/"
        guarded.on("^POST ", lambda exchange: exchange.reply(202, b"", {"Location": f"{elsewhere}none?_state=canary"}))
        with pytest.raises(NetworkError) as refused:
            push_blob(away, made(blobs), blobs)
        said(refused.value)
        assert storage.of("uploads") and not any(each.authorization for each in storage.asked)


def test_a_registry_that_repeats_secrets_is_not_repeated(guarded: Front, tokens: FakeTokens, blobs: Blobs) -> None:
    def echo(exchange: Exchange) -> None:
        words = f"{exchange.asked.authorization} {PASSWORD} https://u:canary@h/x?signature=canary \x1b[2J\u202e"
        exchange.reply(400, json.dumps({"errors": [{"code": "X", "message": words}]}).encode())

    guarded.on("^POST ", echo)
    with pytest.raises(NetworkError) as caught:
        push_blob(repository(guarded.address, account=ADA), made(blobs, 10), blobs)
    text = caught.value.message
    assert PASSWORD not in text and "canary" not in text and "\x1b" not in text and "\u202e" not in text
    assert not any(token in text for token in tokens.valid)


def test_tls_on_loopback_is_recognized_and_its_ca_is_the_sites(
    binary: str, authority: registries.Authority, blobs: Blobs, tmp_path: Path
) -> None:
    (tmp_path / "registry").mkdir()
    with registries.running(binary, tmp_path / "registry", tls=authority, login=True) as address:
        blob = made(blobs)
        there = repository(address, ca=authority.bundle, account=ADA)
        assert push_blob(there, blob, blobs) == Sent(how="sent")
        assert whole(Blobs(tmp_path / "x").fetch(there, blob), blob)
        for unknown in (None, tmp_path / "none.pem", authority.key):
            with pytest.raises(NetworkError) as caught:
                repository(address, ca=unknown).resolve("1")
            assert "[network] ca" in caught.value.hint and not isinstance(caught.value, Again), caught.value
            assert str(unknown or "not trusted") in caught.value.message
        for account in (None, Account(username=USER, password="canary-wrong", origin="a file"), REFRESH):
            with pytest.raises(NoAccess) as refused:
                repository(address, ca=authority.bundle, account=account).resolve("1")
            assert f"docker login {address}" in said(refused.value)
    # A server that hangs up when it is spoken to plainly is one with TLS too.
    with registries.fronting(address, tls=authority) as front:
        front.on("", lambda exchange: exchange.reply(404))
        assert repository(front.address, ca=authority.bundle).resolve("1") is None


def test_plain_http_is_spoken_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def send(self: Wire, method: str, url: str, **given: Any) -> Any:
        asked.append(url)
        raise net.Broken(url, "nobody")

    monkeypatch.setattr(Wire, "send", send)
    for address in ("registry.example.com:5000", "10.0.0.7:5000", "127.0.0.1.example.com"):
        with pytest.raises(Again):
            repository(address).resolve("1")
    assert asked and all(url.startswith("https://") for url in asked)


def test_a_way_out_of_a_slow_server_is_found(front: Front, blobs: Blobs, real: str) -> None:
    """One byte now and then resets the time-out of a socket; nobody waits for ever, in the body or in the headers."""
    source = Blobs(blobs.folder / "source")
    blob = made(source)
    push_blob(repository(real), blob, source)
    stop = threading.Event()

    def drip(exchange: Exchange) -> None:
        status = 206 if "range" in exchange.headers else 200
        exchange.begin(status, {"Content-Length": str(SIZE), "Content-Range": f"bytes 0-{SIZE - 1}/{SIZE}"})
        while not stop.wait(0.02):
            exchange.give(b"x")

    def drip_headers(exchange: Exchange) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 10_000:
            exchange.handler.wfile.write(bytes([byte]))
            exchange.handler.wfile.flush()
            if stop.wait(0.02):
                return

    client = Client(Route(agent="test", timeout=0.1), pause=lambda seconds: None)
    url = f"http://{front.address}/blobs/sha256"
    try:
        for fault in (drip, drip_headers):
            front.reset()
            front.on("", fault)
            with pytest.raises(Again, match=r"too slowly|does not answer|broke off"):
                blobs.fetch(repository(front.address, timeout=0.1), blob)
            for read in (
                lambda: client.get(url, limit=SIZE),
                lambda: client.part(url, 0, SIZE),
                lambda: [list(pieces) for pieces in _streamed(client, url)],
            ):
                with pytest.raises(NetworkError, match=r"too slowly|does not answer"):
                    read()
        assert net.answers(url, timeout=0.1) is False
    finally:
        stop.set()
    front.reset()
    assert whole(blobs.fetch(repository(front.address), blob), blob)


def _streamed(client: Client, url: str) -> Iterator[Iterator[bytes]]:
    with client.stream(url, limit=SIZE) as pieces:
        yield pieces


HELPER = """#!/bin/sh
read -r key
echo "$1 $key" >> "{log}"
case "$key" in
"{known}") echo '{{"ServerURL": "x", "Username": "{user}", "Secret": "{secret}"}}' ;;
broken*) echo "the keyring is locked https://u:canary@h/"; exit 1 ;;
*) echo "credentials not found in native keychain"; exit 1 ;;
esac
"""


def test_helpers_are_asked_as_docker_asks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def helper(name: str, known: str, user: str = "ada", secret: str = "s3cret") -> None:
        path = tmp_path / f"docker-credential-{name}"
        path.write_text(HELPER.format(log=log, known=known, user=user, secret=secret))
        path.chmod(0o755)

    def login(registry: str, path: str = "team/image", **config: Any) -> tuple[str, str, str] | None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        log.write_text("")
        found = account_for(registry, path, {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)})
        return (found.username, found.password, found.token) if found else None

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    helper("desk", "r.example")
    assert login("r.example", credsStore="desk") == ("ada", "s3cret", "")
    # Once, for the registry alone: for anything else some helpers fail.
    assert log.read_text() == "get r.example\n"
    assert login("other.example", credsStore="desk") is None
    assert login("r.example", credHelpers={"r.example": "desk"}) == ("ada", "s3cret", "")
    assert login("x.example", credHelpers={"r.example": "desk"}) is None and not log.read_text()
    # Whoever the helper does not know may stand in the file.
    auths = {"other.example": {"auth": base64.b64encode(b"bob:x:y").decode()}, "r.example": {}}
    assert login("other.example", credsStore="desk", auths=auths) == ("bob", "x:y", "")
    helper("desk", "https://index.docker.io/v1/", "<token>", "identity")
    assert login("docker.io", "library/debian", credsStore="desk") == ("<token>", "", "identity")
    assert log.read_text() == "get https://index.docker.io/v1/\n"
    helper("desk", "r.example", "", "")
    assert login("r.example", credsStore="desk") is None
    for store, registry in (("desk", "broken.example"), ("none", "r.example"), ("../../bin/sh", "r.example")):
        with pytest.raises(EngineError) as caught:
            login(registry, credsStore=store)
        assert registry in said(caught.value) and caught.value.hint
    helper("desk", "r.example", secret="\\ud800")
    with pytest.raises(EngineError, match="something else than a login"):
        login("r.example", credsStore="desk")


# --- manifests, tags, referrers ---------------------------------------------------------------------------------------


def image(there: Repository, blobs: Blobs, *tags: str) -> Descriptor:
    """Push a small image."""
    blob, config = made(blobs, 100), made(blobs, 50)
    for each in (blob, config):
        push_blob(there, each, blobs)
    document = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": {**config.as_dict(), "mediaType": OCI_CONFIG},
        "layers": [blob.as_dict()],
    }  # fmt: skip
    for tag in tags:
        there.put_manifest(dump(document), OCI_MANIFEST, tag)
    return there.put_manifest(dump(document), OCI_MANIFEST)


def attachment(there: Repository, blobs: Blobs, subject: Descriptor, kind: str) -> Descriptor:
    """Push something that refers to an image."""
    empty = Descriptor(media_type=OCI_EMPTY, digest=digest_of(b"{}"), size=2)
    blobs.add(b"{}", empty.digest)
    blob = made(blobs, 30)
    for each in (empty, blob):
        push_blob(there, each, blobs)
    document = {
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": kind, "config": empty.as_dict(),
        "layers": [blob.as_dict()], "subject": subject.as_dict(), "annotations": {"what": kind},
    }  # fmt: skip
    return there.attach(document, subject.digest)


@pytest.mark.parametrize("how", ["tag schema", "referrers API", "referrers API without filters"])
def test_what_refers_to_an_image_is_found(how: str, front: Front, blobs: Blobs) -> None:
    if how != "tag schema":
        FakeReferrers(front, filters=how.endswith("API"))
    there = repository(front.address, f"team/{secrets.token_hex(4)}")
    subject, other = image(there, blobs, "1"), image(there, blobs, "2")
    kinds = ["a/sbom", "a/evidence", "a/evidence", "a/lock", "a/evidence"]
    made_of = [attachment(there, blobs, subject, kind) for kind in kinds]
    found = there.referrers(subject.digest)
    assert {each.digest for each in found} == {each.digest for each in made_of}
    assert sorted(each.artifact_type for each in found) == sorted(kinds)
    assert all(each.annotations == {"what": each.artifact_type} for each in found)
    assert len(there.referrers(subject.digest, "a/evidence")) == 3 and there.referrers(subject.digest, "a/x") == ()
    assert there.referrers(other.digest) == ()
    fallback = f"sha256-{subject.digest[7:]}"
    assert (fallback in there.tags()) is (how == "tag schema")
    # A registry without the API says so in several ways, and a page for people is none of it.
    if how == "tag schema":
        for status in (400, 405, 200):
            front.on("/referrers/", lambda exchange, status=status: exchange.reply(status, b"<html>"), status)
        assert {len(there.referrers(subject.digest)) for _ in range(3)} == {5}


def test_a_list_has_pages_and_an_end(front: Front, blobs: Blobs) -> None:
    there = repository(front.address)
    names = [f"t{n}" for n in range(5)]

    def page(exchange: Exchange) -> None:
        start = int(registries.query(exchange.asked).get("last", "t-1")[1:]) + 1
        link = {"Link": f'<{exchange.path.partition("?")[0]}?n=2&last=t{start + 1}>; rel="next"'} if start < 4 else {}
        exchange.reply(200, json.dumps({"tags": names[start : start + 2]}).encode(), link)

    front.on("tags/list", page)
    assert there.tags() == tuple(names) and len(front.of("tags/list")) == 3
    front.reset()
    around = {"Link": '<?n=1000>; rel="next"'}
    front.on("tags/list", lambda exchange: exchange.reply(200, b'{"tags": ["a", "not a tag", "a"]}', around))
    assert there.tags() == ("a",)
    for body in (b"[]", b'{"tags": 7}', b'{"tags": [1]}', b"\xff", b"[" * 100_000):
        front.reset()
        front.on("tags/list", lambda exchange, body=body: exchange.reply(200, body))
        with pytest.raises(NetworkError, match="no list of tags"):
            there.tags()


def test_a_manifest_is_what_was_asked_for_or_an_error(front: Front, blobs: Blobs) -> None:
    there = repository(front.address, f"team/{secrets.token_hex(4)}")
    first, second = image(there, blobs, "1"), image(there, blobs, "2")
    assert there.resolve("1") == first and there.resolve("none") is None
    cases: list[tuple[Callable[[Exchange], None], str]] = [
        # The registry gives another image for this digest; bits change; it ends early, again and again; it has no end.
        (lambda exchange: (setattr(exchange, "path", exchange.path.replace(first.digest, second.digest)),
                           exchange.relay())[1], "in its place"),
        (lambda exchange: exchange.relay(flip=20), "in its place|not a manifest|no manifest"),
        (lambda exchange: exchange.relay(give=20), "broke off"),
        (lambda exchange: exchange.reply(200, b" " * (9 << 20)), "sensible"),
        (lambda exchange: exchange.reply(200, b"<html>sign in</html>"), "not a manifest"),
        (lambda exchange: exchange.reply(404, b"<html>no</html>"), "not there"),
    ]  # fmt: skip
    for action, expected in cases:
        front.reset()
        front.on("^GET .*/manifests/", action)
        with pytest.raises(NetworkError) as caught:
            there.manifest(first.digest)
        assert re.search(expected, said(caught.value)), caught.value
    # One that breaks off once is asked for again; a tag that moves between two questions is another image.
    front.reset()
    front.on("^GET .*/manifests/", lambda exchange: exchange.relay(give=20), 1)
    assert isinstance(there.manifest(first.digest), Manifest)
    resolved = there.resolve("1")
    assert resolved is not None
    there.put_manifest(there.manifest(second.digest).raw, OCI_MANIFEST, "1")
    assert there.resolve("1") == second and there.manifest(resolved.digest).descriptor == first
    # What the headers say of a digest and a size is believed where it can be one.
    for changed in ({"Docker-Content-Digest": "sha256:x"}, {"Content-Length": "\xb2"}, {"Docker-Content-Digest": ""}):
        front.reset()
        front.on("^HEAD ", lambda exchange, changed=changed: exchange.relay(change=lambda said: {**said, **changed}))
        assert there.resolve("2") == second
    front.on(
        "^PUT ", lambda exchange: exchange.relay(change=lambda said: {**said, "Docker-Content-Digest": first.digest})
    )
    with pytest.raises(NetworkError, match="calls"):
        there.put_manifest(there.manifest(second.digest).raw, OCI_MANIFEST, "3")
