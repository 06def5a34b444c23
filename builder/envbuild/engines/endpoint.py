"""Where the Docker Engine is, and how to reach it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EngineError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
# The engine that `make engine-start` (and with it `make demo`) starts where no other answers.
OWN_SOCKET = "unix:///run/envbuild/docker.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address that may answer.

    Attributes:
        url: ``unix://``, ``tcp://`` or ``ssh://``.
        origin: Who named it, in words for a user.
        tls: Folder with ca.pem, cert.pem and key.pem; None is no TLS.
        verify: Check the server's certificate.
    """

    url: str
    origin: str
    tls: Path | None = None
    verify: bool = True

    @property
    def env(self) -> dict[str, str]:
        """The variables that make a docker client use this endpoint."""
        env = {"DOCKER_HOST": self.url}
        if self.tls is not None:
            env |= {"DOCKER_CERT_PATH": str(self.tls), "DOCKER_TLS_VERIFY": "1" if self.verify else ""}
        return env


def endpoints(host: str | None, environ: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The endpoints to try, in order.

    One that somebody chose (``host``, ``DOCKER_HOST``, a docker context) stands alone: falling through
    to another engine would build in a place nobody asked for. With no choice made, the default socket
    comes first and envbuild's own second.

    Raises:
        EngineError: The chosen docker context does not exist or cannot be read.
    """
    if host:
        return (_with_tls(host, "--host", environ),)
    if environ.get("DOCKER_HOST"):
        return (_with_tls(environ["DOCKER_HOST"], "DOCKER_HOST", environ),)
    name = _context_name(environ)
    if name:
        return (_context(name, environ),)
    return (Endpoint(url=DEFAULT_SOCKET, origin="default"), Endpoint(url=OWN_SOCKET, origin="make engine-start"))


def chosen(host: str | None, environ: Mapping[str, str]) -> bool:
    """Whether somebody chose an address."""
    return bool(host or environ.get("DOCKER_HOST") or _context_name(environ))


def _with_tls(url: str, origin: str, environ: Mapping[str, str]) -> Endpoint:
    # Docker's own variables: TLS is on when either is set, and only for addresses that can speak it.
    verify = bool(environ.get("DOCKER_TLS_VERIFY"))
    folder = environ.get("DOCKER_CERT_PATH")
    if not url.startswith(("tcp://", "https://")) or not (verify or folder):
        return Endpoint(url=url, origin=origin)
    tls = Path(folder) if folder else _docker_config(environ)
    return Endpoint(url=url, origin=origin, tls=tls, verify=verify)


def _docker_config(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _context_name(environ: Mapping[str, str]) -> str:
    """The current docker context, or nothing when it is the default one."""
    name = environ.get("DOCKER_CONTEXT", "")
    if not name:
        try:
            config = json.loads((_docker_config(environ) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        name = str(config.get("currentContext") or "") if isinstance(config, dict) else ""
    return "" if name == "default" else name


def _context(name: str, environ: Mapping[str, str]) -> Endpoint:
    # docker's context store: one folder per context, named by the SHA-256 of its name.
    store = _docker_config(environ) / "contexts"
    folder = hashlib.sha256(name.encode()).hexdigest()
    hint = "`docker context ls` shows the contexts there are, `docker context use default` goes back to the default"
    try:
        meta = json.loads((store / "meta" / folder / "meta.json").read_text(encoding="utf-8"))
        described = meta["Endpoints"]["docker"]
        url = str(described["Host"])
    except FileNotFoundError:
        raise EngineError(f"the docker context {name} does not exist", hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the docker context {name} cannot be read: {error!r}", hint=hint) from error
    tls = store / "tls" / folder / "docker"
    return Endpoint(
        url=url,
        origin=f"docker context {name}",
        tls=tls if tls.is_dir() else None,
        verify=not described.get("SkipTLSVerify", False),
    )


def unreachable(endpoint: Endpoint) -> str:
    """Why a local socket cannot answer, seen without asking it; empty when it may."""
    if not endpoint.url.startswith("unix://"):
        return ""
    path = Path(endpoint.url.removeprefix("unix://"))
    try:
        if not path.is_socket():
            return "there is no such socket"
    except PermissionError:
        return "permission denied"
    if not os.access(path, os.R_OK | os.W_OK):
        return "permission denied"
    return ""
