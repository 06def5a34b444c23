"""Every engine that could be meant here, asked; which one is taken, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envbuild import process
from envbuild.engines import cdi
from envbuild.engines.choosing import Candidate, Wish, candidates, names_podman
from envbuild.engines.endpoint import chosen
from envbuild.engines.engine import Engine
from envbuild.engines.types import EngineInfo
from envbuild.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One candidate, and what it says of itself.

    Attributes:
        taken: Whether it is the one that commands use.
        why: Why it is taken, or why it is not.
        info: What it says; None where it does not answer.
        builds: The client that builds; empty where none can.
        obstacles: What is wrong although it answers.
        gpus: The ways in which it can give GPUs to a container, as far as can be seen from here.
    """

    candidate: Candidate
    taken: bool
    why: str
    info: EngineInfo | None = None
    builds: str = ""
    obstacles: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


def survey(wish: Wish, environ: Mapping[str, str]) -> tuple[Seen, ...]:
    """All of them, those that are meant first."""
    seen: list[Seen] = []
    for candidate in _asked(wish, environ):
        taken = candidate.engine is not None and not any(each.taken for each in seen)
        why = _why(wish, environ) if taken else candidate.reason or "another one comes first"
        seen.append(_look(candidate, taken=taken, why=why))
    for other, reason in _not_meant(wish, environ):
        seen += [_look(each, taken=False, why=each.reason or reason) for each in _asked(other, environ)]
    return tuple(seen)


def _asked(wish: Wish, environ: Mapping[str, str]) -> Iterator[Candidate]:
    try:
        yield from candidates(wish, environ)
    except EngineError as error:
        yield Candidate(kind="docker", place="docker context", origin="chosen", reason=error.message, hint=error.hint)


def _why(wish: Wish, environ: Mapping[str, str]) -> str:
    if wish.kind == "podman":
        return "Podman was asked for"
    if chosen(wish.host, environ) or names_podman(wish, environ):
        return "its address was chosen"
    return "the first that answers"


def _not_meant(wish: Wish, environ: Mapping[str, str]) -> Iterator[tuple[Wish, str]]:
    """Engines of the other kind, and why they are passed over."""
    bare = replace(wish, host=None, client=None, builder=None)
    if wish.kind == "podman":
        yield replace(bare, kind="docker"), "Podman was asked for"
    elif wish.kind == "docker":
        yield replace(bare, kind="podman"), "Docker was asked for"
    elif names_podman(wish, environ):
        yield replace(bare, kind="docker"), "an address was chosen: CONTAINER_HOST"
    elif chosen(wish.host, environ):
        yield replace(bare, kind="podman"), "an address was chosen: --host, [engine] host, DOCKER_HOST or a context"


def _look(candidate: Candidate, *, taken: bool, why: str) -> Seen:
    engine = candidate.engine
    if engine is None:
        return Seen(candidate=candidate, taken=False, why=why)
    obstacles: list[str] = []
    try:
        info = engine.info()
    except EngineError as error:
        return Seen(candidate=candidate, taken=taken, why=why, obstacles=(error.message,))
    try:
        builds = engine.building_client()
    except EngineError as error:
        builds = ""
        obstacles.append(f"{error.message}; {error.hint}")
    return Seen(
        candidate=candidate, taken=taken, why=why, info=info, builds=builds, obstacles=tuple(obstacles),
        gpus=_gpu_ways(engine, info),
    )  # fmt: skip


def _gpu_ways(engine: Engine, info: EngineInfo) -> tuple[str, ...]:
    ways = ["nvidia runtime"] if "nvidia" in info.runtimes else []
    if engine.local:
        # The device driver of `docker run --gpus` is there when its hook is on dockerd's PATH (moby,
        # daemon/nvidia_linux.go), which is seldom another PATH than this one.
        if info.kind == "docker" and process.which("nvidia-container-runtime-hook"):
            ways.append("nvidia-container-runtime-hook")
        ways += [f"CDI {path}" for path in cdi.specifications()]
    return tuple(ways)
