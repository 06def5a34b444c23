"""Who we are to a registry: Docker's and podman's own files, and their credential helpers.

Nothing is stored here: people log in with ``docker login`` or ``podman login``. The order is Docker's: a helper for
the registry (``credHelpers``), the helper for all (``credsStore``), the file itself (``auths``).
Source: docs.docker.com/reference/cli/docker/login and containers-auth.json(5), read 2026-11-30.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import process
from envbuild.errors import EngineError, InputError
from envbuild.registry.reference import HUB
from envbuild.site import urls

_MAX_BYTES = 1 << 20
HELPER_SECONDS = 60.0
_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", HUB, "registry-1.docker.io")
# A helper's answer for "I know nobody there", which is no failure (docker-credential-helpers, credentials/error.go).
_NOBODY = "credentials not found"
_TOKEN_USER = "<token>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One login.

    Attributes:
        token: An identity token, which is exchanged for access, in place of a password.
        origin: The file or helper it comes from.
    """

    username: str
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    origin: str = ""

    @property
    def basic(self) -> str:
        """The header of basic authentication."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def account_for(
    registry: str, path: str, environ: Mapping[str, str], *, seconds: float = HELPER_SECONDS
) -> Account | None:
    """The login for a repository, from the first file that knows one; None to go as nobody.

    Args:
        registry: Host and port.
        path: The repository: podman's files may have a login for a part of a registry.
        seconds: Limit of one question to a helper.

    Raises:
        InputError: A file cannot be used.
        EngineError: A helper fails.
    """
    for file in _files(environ):
        document = _read(file)
        if document is None:
            continue
        own = _HUB_KEYS if registry == HUB else (registry,)
        keys = (*_narrowing(registry, path), *own)
        found = _by_helper(document, keys, own[0], seconds) or _by_file(document, keys, file)
        if found:
            return found
    return None


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    # Where nobody knows of a home, as for a made-up user id in a container, there is nothing in it.
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (pathlib's raises)
    if chosen := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(chosen)
    yield Path(environ.get("DOCKER_CONFIG") or Path(home, ".docker"), "config.json")
    # What podman takes where a session has no folder of its own.
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield Path(runtime, "containers", "auth.json") if runtime else Path(f"/run/containers/{os.getuid()}/auth.json")
    yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "containers", "auth.json")


def _narrowing(registry: str, path: str) -> Iterator[str]:
    """The repository and what it lies in, the narrowest first."""
    parts = path.split("/")
    for count in range(len(parts), 0, -1):
        yield "/".join((registry, *parts[:count]))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"{file}: the registry logins cannot be read: {error.strerror}") from error
    try:
        # An empty file is what Docker takes for one without logins.
        document = json.loads(data or b"{}") if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(
            f"{file}: the registry logins are not JSON that Docker could have written",
            hint="Repair it, or name another folder: DOCKER_CONFIG=DIR.",
        )
    return document


def _by_helper(document: Mapping[str, Any], keys: tuple[str, ...], registry: str, seconds: float) -> Account | None:
    helpers = document.get("credHelpers")
    store = document.get("credsStore")
    for key in keys:
        name = helpers.get(key) if isinstance(helpers, dict) else None
        if isinstance(name, str) and (found := _ask_helper(name, key, seconds)):
            return found
    # It is asked for the registry alone: for anything else some helpers fail instead of knowing nothing.
    return _ask_helper(store, registry, seconds) if isinstance(store, str) and store else None


def _ask_helper(name: str, key: str, seconds: float) -> Account | None:
    program = f"docker-credential-{name}"
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or process.which(program) is None:
        raise EngineError(
            f"{program[:100]!r} is to know the login for {key}, and is not on PATH",
            hint="Install it, or take credsStore and credHelpers out of Docker's config.json and log in again.",
        )
    done = process.run([program, "get"], input=key.encode(), timeout=seconds, most=_MAX_BYTES)
    if done.returncode != 0:
        said = urls.mask(" ".join((done.stdout + done.stderr).split()))[:200]
        if _NOBODY in said:
            return None
        raise EngineError(
            f"{program} does not tell the login for {key}: {said or f'exit code {done.returncode}'}",
            hint=f"Try it by hand: echo {key} | {program} get",
        )
    try:
        answer = json.loads(done.stdout)
        username, secret = _text(answer["Username"]), _text(answer["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise EngineError(
            f"{program} answers with something else than a login for {key}",
            hint=f"Try it by hand: echo {key} | {program} get",
        ) from None
    if not secret:
        return None
    if username == _TOKEN_USER:
        return Account(username=username, token=secret, origin=program)
    return Account(username=username, password=secret, origin=program)


def _by_file(document: Mapping[str, Any], keys: tuple[str, ...], file: Path) -> Account | None:
    auths = document.get("auths")
    if not isinstance(auths, dict):
        return None
    # A key may be a URL of Docker's older days.
    known = {_plain(key): entry for key, entry in auths.items() if isinstance(entry, dict)}
    for key in keys:
        entry = known.get(_plain(key))
        if entry is not None and (found := _entry(entry, file)):
            return found
    return None


def _plain(key: str) -> str:
    bare = re.sub(r"^https?://", "", key)
    return re.sub(r"/v[12]/?$", "", bare).rstrip("/")


def _entry(entry: Mapping[str, Any], file: Path) -> Account | None:
    try:
        token, packed = _text(entry.get("identitytoken")), _text(entry.get("auth"))
        username, password = _text(entry.get("username")), _text(entry.get("password"))
        if token:
            return Account(username=_TOKEN_USER, token=token, origin=str(file))
        if packed:
            unpacked = base64.b64decode("".join(packed.split()), validate=True).decode()
            username, colon, password = unpacked.partition(":")
            if not colon:
                raise ValueError("no password")
            password = password.rstrip("\0")
    except (TypeError, ValueError):  # binascii's is one of these
        raise InputError(f"{file}: a login in it is damaged", hint="Log in again: docker login REGISTRY") from None
    return Account(username=username, password=password, origin=str(file)) if username else None


def _text(value: Any) -> str:
    """A text that can be sent; empty for null.

    Raises:
        TypeError, ValueError: It is none.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("not a text")
    value.encode()  # half a character, from an escape
    return value
