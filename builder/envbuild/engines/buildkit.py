"""BuildKit builds: which client can do them, and what their progress output says."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import process
from envbuild.engines.argv import build_argv
from envbuild.engines.building import TAIL, FailedStep, check_files, clean, logged, message, short
from envbuild.engines.endpoint import Endpoint
from envbuild.engines.types import BuildRequest
from envbuild.errors import BuildError, EngineError, EnvbuildError
from envbuild.events import Event, Sink, StepDone, StepLine, StepStarted

_LINE = re.compile(r"^#(?P<key>\d+) (?P<rest>.*)$", re.DOTALL)
_DONE = re.compile(r"^DONE(?: (?P<seconds>\d+(?:\.\d+)?)s)?$")
_TIMED = re.compile(r"^\d+\.\d+ ?")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")

ENV = {
    "DOCKER_BUILDKIT": "1",
    # A provenance attestation would turn the image into an index and carry build arguments along.
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    # Not a builder of the user's that keeps its results to itself.
    "BUILDX_BUILDER": "default",
    "PROGRESS_NO_TRUNC": "1",
}


@dataclass(slots=True)
class _Step:
    name: str
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))
    open: bool = True
    canceled: bool = False
    error: str = ""


class PlainParser:
    """Reads ``--progress=plain`` line by line, in the dialects of docker 20.10 and of buildx.

    Steps run at the same time and their lines interleave; a step's header is printed again whenever
    the output comes back to it. Lines that belong to no step (the error excerpt at the end, warnings)
    are kept as ``rest``.
    """

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}
        self._rest: deque[str] = deque(maxlen=2 * TAIL)

    def feed(self, line: str) -> list[Event]:
        """The events that one more line of output makes."""
        found = _LINE.match(line)
        if found is None:
            if line.strip():
                self._rest.append(clean(line))
            return []
        key, rest = found["key"], found["rest"]
        step = self._steps.get(key)
        if step is None:
            if key == "0":  # buildx names its builder as step 0, which never ends
                return []
            self._steps[key] = _Step(rest)
            return [StepStarted(key=key, name=rest)]
        if rest == step.name:
            if step.open:
                return []
            step.open = True
            return [StepStarted(key=key, name=rest)]
        return self._inside(key, step, rest)

    def failed_step(self) -> FailedStep | None:
        """The step that failed; None while none has, or when the build failed outside any step."""
        for step in self._steps.values():
            if step.error:
                return FailedStep(name=step.name, error=step.error, lines=tuple(step.tail))
        return None

    def unfinished(self) -> tuple[str, ...]:
        """Names of the steps that have begun and not ended, or were given up when the build was."""
        return tuple(step.name for step in self._steps.values() if step.open or step.canceled)

    def rest(self) -> tuple[str, ...]:
        """The last lines that belong to no step."""
        return tuple(self._rest)

    def _inside(self, key: str, step: _Step, rest: str) -> list[Event]:
        # 20.10 does not end a step's unterminated last line: "#13 0.072 no newline#13 DONE 0.1s".
        before, mark, after = rest.rpartition(f"#{key} ")
        if mark and before and _DONE.match(after):
            return [*self._inside(key, step, before), *self._inside(key, step, after)]
        if rest == "..." or _DIGEST.match(rest):
            return []
        if _is_end(rest):
            return [self._end(key, step, rest)]
        text = clean(_TIMED.sub("", rest, count=1))
        if text:
            step.tail.append(text)
        return [StepLine(key=key, text=text)] if text else []

    def _end(self, key: str, step: _Step, rest: str) -> Event:
        step.open = False
        status, seconds = "done", 0.0
        if rest == "CACHED":
            status = "cached"
        elif rest == "CANCELED":
            status, step.canceled = "canceled", True
        elif rest.startswith("ERROR: "):
            status, step.error = "error", clean(rest.removeprefix("ERROR: "))
        elif found := _DONE.match(rest):
            seconds = float(found["seconds"] or 0)
        return StepDone(key=key, name=step.name, status=status, seconds=seconds)


def _is_end(rest: str) -> bool:
    return rest in ("CACHED", "CANCELED") or rest.startswith("ERROR: ") or _DONE.match(rest) is not None


def find_client(endpoint: str, configured: str | None, builder: str | None = None) -> str:
    """The first docker client that can build with BuildKit against ``endpoint``; with a builder, one that has buildx.

    The configured one is asked first, then every ``docker`` on PATH. A newer client without the buildx
    plugin and an old one with BuildKit built in look alike by name and version; what tells them apart
    is that only a client that can build with BuildKit offers ``build --secret``.

    Raises:
        EngineError: None of them can, or the builder is not there.
    """
    candidates = [*([configured] if configured else []), *process.which_all("docker")]
    if builder:
        return _with_builder(candidates, endpoint, builder)
    for client in candidates:
        if can_build(client, endpoint):
            return client
    tried = ", ".join(candidates) or "none found"
    raise EngineError(
        f"no docker client here can build with BuildKit (tried: {tried})",
        hint="install the buildx plugin (docker-buildx-plugin, docker-buildx) or Debian's docker.io",
    )


def _with_builder(candidates: list[str], endpoint: str, builder: str) -> str:
    reasons: list[str] = []
    for client in candidates:
        if process.run([client, "buildx", "version"], timeout=20).returncode != 0:
            reasons.append(f"{client} has no buildx")
            continue
        asked = process.run([client, "--host", endpoint, "buildx", "inspect", builder], timeout=60)
        if asked.returncode == 0:
            return client
        reasons.append(f"{client}: {process.last_words(asked.stderr, 300)}")
    raise EngineError(
        f"the builder {builder} cannot be used ({'; '.join(reasons) or 'there is no docker client on PATH'})",
        hint="install the buildx plugin (docker-buildx-plugin, docker-buildx); `docker buildx ls` shows the builders, "
        "`docker buildx create --name NAME` makes one",
    )


def can_build(client: str, endpoint: str) -> bool:
    """Whether this client can build with BuildKit."""
    try:
        answer = process.run([client, "--host", endpoint, "build", "--help"], env=ENV, timeout=20)
    except EngineError:
        return False
    return "--secret " in answer.stdout + answer.stderr


def build(
    client: str,
    endpoint: Endpoint,
    request: BuildRequest,
    *,
    sink: Sink,
    log: Path,
    timeout: float | None,
    builder: str | None = None,
) -> None:
    """Build an image; its tag exists afterwards if, and only if, this returns.

    The client's complete output is written to ``log``. The client runs in a process group of its own
    and is ended on interruption, whereupon the engine gives the build up.

    Raises:
        InputError: The Dockerfile, the context or a secret is not there.
        BuildError: A step failed, or ``timeout`` seconds were not enough.
        EngineError: The engine, its disk or a registry failed, or the log cannot be written.
    """
    check_files(request)
    argv = build_argv(client, endpoint.url, request, builder=builder)
    env = ENV | endpoint.env | ({"BUILDX_BUILDER": builder} if builder else {})
    parser = PlainParser()
    if logged(argv, parser, sink=sink, log=log, timeout=timeout, env=env) != 0:
        raise failure(parser, log)


def failure(parser: PlainParser, log: Path) -> EnvbuildError:
    """What to tell about a build that did not succeed: whose fault it is, the step, its last lines, the log."""
    step = parser.failed_step()
    rest = parser.rest()[-TAIL:]
    where = f"full log: {log}"
    if step is None:
        text = message("the build failed outside any step", rest, where)
    else:
        text = message(f"build step failed: {short(step.name)}", (*step.lines, short(step.error)), where)
    if "no space left on device" in "\n".join((text, *rest)).lower():
        return EngineError(
            text, hint="the disk is full: docker system df shows why, docker builder prune frees the build cache"
        )
    if step is not None and step.name.startswith(_METADATA):
        image = step.name.removeprefix(_METADATA)
        return EngineError(f"the base image {image} cannot be read: {step.error}\n{where}")
    return BuildError(text)


# A base that cannot be resolved is the registry's or the network's doing, not the Dockerfile's.
_METADATA = "[internal] load metadata for "
