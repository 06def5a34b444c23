"""The registry client against a real registry, with everything on the way that breaks, lies or wants a password.

Every fault ends in a blob that is whole and checked, or in an error with words for the user; and a rerun ends well.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import format_datetime
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import registries
from envbuild import net
from envbuild.errors import EnvbuildError
from envbuild.net import Client, NetworkError, Route, Wire
from envbuild.registry import (
    Again,
    Blobs,
    Descriptor,
    Index,
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
from registries import PASSWORD, USER, Exchange, FakeReferrers, FakeTokens, Front

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
        assert expected and __import__("re").search(expected, said(error)), error
        assert not blobs.has(blob)
    else:
        assert not expected and whole(path, blob) and sum(counted) == SIZE
    assert front.given <= most * SIZE + 4 * len(ENDLESS)
    front.reset()
    assert whole(blobs.fetch(repository(front.address), blob), blob)
    assert front.given <= SIZE
