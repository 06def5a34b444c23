"""What was read from upstream, kept: a killed refresh goes on where it was, and nothing is asked for twice.

Pages are asked about again (``If-None-Match``) when their ``max-age`` is over. What was read from a file that never
changes stays for ever, by the file's SHA-256; without one, by its address and size. No password is in it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from envbuild import store
from envbuild.errors import EnvbuildError
from envbuild.facts.upstream.page import RemoteFile
from envbuild.net import Answer, Client
from envbuild.net.manners import origin, shown, without_account

_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})")
_LONGEST = 24 * 3600.0


class Cache:
    """A folder of pages and of pieces of files. Whatever is wrong with it, it only costs time."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def page(self, client: Client, url: str, *, accept: str, limit: int) -> Answer:
        """A page, from here while it is fresh, else from its server.

        Raises:
            NetworkError: As ``Client.get``. An old copy is never given in place of an answer.
        """
        path = self._folder / "pages" / f"{_name(without_account(url), accept)}.json"
        kept = _read_page(path)
        if kept is not None and kept[1] > self._now():
            return kept[0]
        headers = {"Accept": accept}
        if kept is not None:
            for name, question in (("etag", "If-None-Match"), ("last-modified", "If-Modified-Since")):
                if name in kept[0].headers:
                    headers[question] = kept[0].headers[name]
        answer = client.get(url, headers=headers, limit=limit)
        if answer.status == 304 and kept is not None:
            merged = {**kept[0].headers, **{k: v for k, v in answer.headers.items() if k in _KEPT}}
            answer = Answer(status=200, url=kept[0].url, headers=merged, body=kept[0].body)
        self._write(path, _page(answer, self._now()))
        return answer

    def forget(self, url: str, *, accept: str) -> None:
        """Drop a page that turned out to be none, so that it is asked for again."""
        with contextlib.suppress(OSError):
            (self._folder / "pages" / f"{_name(without_account(url), accept)}.json").unlink()

    def piece(self, file: RemoteFile, what: str, read: Callable[[], bytes]) -> bytes:
        """What ``read`` finds in a file, or found there once. ``what`` says which piece, and how it was read."""
        identity = file.sha256 or f"{without_account(file.url)} {file.size}"
        # Of a file that is read in parts nobody checks the SHA-256: one server's word is not another's.
        path = self._folder / "files" / _name(identity, *map(str, origin(file.url)), what)
        with contextlib.suppress(OSError):
            kept = path.read_bytes()
            digest, _, content = kept.partition(b"\n")
            # A file that a crash or a full disk left behind, or that somebody edited, is read again.
            if digest == hashlib.sha256(content).hexdigest().encode():
                return content
        content = read()
        # A file: index is at hand, and its files can change under their names.
        if not file.url.startswith("file:") or file.sha256:
            self._write(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        return content

    def _write(self, path: Path, content: bytes) -> None:
        with contextlib.suppress(EnvbuildError):
            store.write_atomic(path, content)


_KEPT = frozenset({"etag", "last-modified", "cache-control", "content-type", "age"})


def _name(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()


def _page(answer: Answer, now: float) -> bytes:
    control = answer.headers.get("cache-control", "")
    said = _MAX_AGE.search(control)
    fresh = min(float(said[1]), _LONGEST) if said and "no-cache" not in control and "no-store" not in control else 0.0
    document = {
        "url": shown(answer.url) if "?" in answer.url else answer.url,
        "until": now + fresh,
        "headers": {name: value for name, value in answer.headers.items() if name in _KEPT},
        "body": base64.b64encode(answer.body).decode(),
    }
    return store.encode_json(document).encode()


def _read_page(path: Path) -> tuple[Answer, float] | None:
    try:
        document = json.loads(path.read_bytes())
        headers = {str(name): str(value) for name, value in document["headers"].items()}
        body = base64.b64decode(document["body"], validate=True)
        return Answer(status=200, url=str(document["url"]), headers=headers, body=body), float(document["until"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
