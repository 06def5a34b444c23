"""Which engine: what was looked at, what was found there, and which one is taken."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from envbuild import process
from envbuild.engines.docker import DockerEngine
from envbuild.engines.endpoint import Endpoint, chosen, endpoints, unreachable
from envbuild.engines.engine import Engine
from envbuild.engines.podman import PodmanEngine
from envbuild.errors import EngineError, InputError

Kind = Literal["docker", "podman", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which engine somebody wants.

    Attributes:
        host: Endpoint that the user chose (``--host``, site configuration), or None.
        client: Program to build with, or None for the one on PATH that can.
        kind: ``docker``, ``podman``, or whichever answers.
        builder: One of buildx's builders, by name.
    """

    host: str | None = None
    client: str | None = None
    kind: Kind = "auto"
    builder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One engine that may be there.

    Attributes:
        place: Address, or program.
        origin: Who named it, in words for a user.
        engine: The engine; None where there is none.
        reason: Why there is none.
        hint: What to do about that, where the engine itself said so.
    """

    kind: str
    place: str
    origin: str
    engine: Engine | None = None
    reason: str = ""
    hint: str = ""


def candidates(wish: Wish, environ: Mapping[str, str]) -> Iterator[Candidate]:
    """Every engine that may be meant, in the order of preference, asked one by one as the caller goes on.

    An address that somebody chose stands alone: falling through to another engine would build in a place that nobody
    asked for. With no choice made Docker comes first, then Podman. CONTAINER_HOST is Podman's own variable for an
    address, and chooses Podman where nothing of Docker's is chosen.

    Raises:
        EngineError: The chosen docker context does not exist or cannot be read.
    """
    if wish.kind != "podman" and not names_podman(wish, environ):
        for endpoint in endpoints(wish.host, environ):
            yield _docker(endpoint, wish)
    if wish.kind == "podman" or (wish.kind == "auto" and not chosen(wish.host, environ)):
        yield _podman(wish, environ)


def names_podman(wish: Wish, environ: Mapping[str, str]) -> bool:
    """Whether nobody asked for an engine but by CONTAINER_HOST."""
    return wish.kind == "auto" and not chosen(wish.host, environ) and bool(environ.get("CONTAINER_HOST"))


def connect(
    host: str | None = None, client: str | None = None, *, kind: Kind = "auto", builder: str | None = None
) -> Engine:
    """The engine that answers first.

    Raises:
        EngineError: None answers; the message says what was tried and why each one did not.
        InputError: A builder of buildx's was named, and the engine is not Docker.
    """
    wish = Wish(host=host, client=client, kind=kind, builder=builder)
    tried: list[Candidate] = []
    for candidate in candidates(wish, os.environ):
        if candidate.engine is not None:
            if builder and candidate.engine.kind != "docker":
                raise InputError(f"the builder {builder} is buildx's, and the engine is Podman",
                                 hint="Leave out the builder, or choose Docker (--engine docker).")  # fmt: skip
            return candidate.engine
        tried.append(candidate)
    raise nobody(wish, tried)


def nobody(wish: Wish, tried: list[Candidate]) -> EngineError:
    """No engine: what was tried, and what to do."""
    lines = [f"  {each.place} ({each.origin}): {each.reason}" for each in tried]
    kinds = {each.kind for each in tried}
    what = "container engine" if len(kinds) > 1 else "Podman" if kinds == {"podman"} else "Docker Engine"
    hint = (
        "start the Docker Engine (in a checkout of envbuild: make engine-start), or name one with --host or DOCKER_HOST"
    )
    own = next((each.hint for each in tried if each.hint), "")
    if any("permission denied" in line for line in lines):
        hint = "this user may not use the socket: join the group that owns it (often `docker`), or run as root"
    elif own:
        hint = own
    elif any("ssh://" in line for line in lines):
        hint = (
            "`ssh HOST docker system dial-stdio` has to work without a question: a key (ssh-add), a known host key, "
            "docker 18.09 or newer there, and a user that may use it"
        )
    elif wish.kind == "podman":
        hint = "install podman (package podman); it needs no service and no root"
    return EngineError("\n".join((f"no {what} answers; tried", *lines)), hint=hint)


def _docker(endpoint: Endpoint, wish: Wish) -> Candidate:
    reason, hint, engine = unreachable(endpoint), "", None
    if not reason:
        try:
            engine = DockerEngine(endpoint, wish.client, wish.builder)
        except EngineError as error:
            reason, hint = error.message, error.hint
    return Candidate(kind="docker", place=endpoint.url, origin=endpoint.origin, engine=engine, reason=reason, hint=hint)


def _podman(wish: Wish, environ: Mapping[str, str]) -> Candidate:
    named = wish.kind == "podman"
    program = (wish.client if named else None) or process.which("podman")
    address = (wish.host if named else None) or environ.get("CONTAINER_HOST") or None
    origin = "--host" if named and wish.host else "CONTAINER_HOST" if address else "podman on PATH"
    if named and wish.client and not address:
        origin = "[engine] client"
    place = address or program or "podman"
    if program is None:
        return Candidate(kind="podman", place=place, origin=origin, reason="there is no podman client on PATH")
    try:
        engine = PodmanEngine(program, address)
    except EngineError as error:
        return Candidate(kind="podman", place=place, origin=origin, reason=error.message, hint=error.hint)
    return Candidate(kind="podman", place=place, origin=origin, engine=engine)
