"""Builds by podman (Buildah): what its output says, and whose fault a failure is."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild import store
from envbuild.engines.building import TAIL, FailedStep, check_files, clean, logged, message, short
from envbuild.engines.podman_argv import build_argv
from envbuild.engines.podman_run import Client, hint
from envbuild.engines.types import BuildRequest
from envbuild.errors import BuildError, EngineError, EnvbuildError
from envbuild.events import Event, Note, Sink, StepDone, StepLine, StepStarted

_STEP = re.compile(
    r"^(?:\[(?P<stage>\d+)/(?P<stages>\d+)\] )?STEP (?P<number>\d+)/(?P<count>\d+): (?P<text>.*)$", re.DOTALL
)
_MADE = re.compile(r"^--> (?P<what>Using cache )?[0-9a-f]{8,64}$")
_COMMIT = re.compile(r"^(?:\[\d+/\d+\] )?COMMIT ")
_FAILED = re.compile(r"^Error: (?:building at STEP|error building at STEP)", re.DOTALL)
_LOCKED = ",sharing=locked"
_LETS_GO = (4, 4)
_STATUS = re.compile(r"exit status (\d+)$")


@dataclass(slots=True)
class _Step:
    key: str
    name: str
    began: float
    cached: bool = False
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def done(self, status: str) -> StepDone:
        return StepDone(key=self.key, name=self.name, status=status, seconds=time.monotonic() - self.began)


class Parser:
    """Reads the output of ``podman build`` line by line.

    One step runs at a time; one whose mount is another stage's is announced first, and then waits for that stage. What
    is printed belongs to the step that was announced last and has not ended.

    Attributes:
        error: What podman said in the end; empty while nothing is wrong.
    """

    def __init__(self) -> None:
        self.error = ""
        self._count = 0
        self._open: dict[str, _Step] = {}
        self._failed: _Step | None = None
        self._rest: deque[str] = deque(maxlen=2 * TAIL)

    def feed(self, line: str) -> list[Event]:
        """The events that one more line of output makes."""
        if found := _STEP.match(line):
            return self._begin(found["stage"] or "", found)
        if found := _MADE.match(line):
            return self._made(cached=bool(found["what"]))
        if line.startswith("Error: "):
            self.error = clean(line.removeprefix("Error: "))
            self._rest.append(clean(line))
            return self._fail() if _FAILED.match(line) else []
        text = clean(line)
        if not text:
            return []
        if not self._open or _COMMIT.match(line):
            self._rest.append(text)
            return self._close(next(reversed(self._open))) if self._open else []
        step = next(reversed(self._open.values()))
        step.tail.append(text)
        return [StepLine(key=step.key, text=text)]

    def failed_step(self) -> FailedStep | None:
        """The step that failed; None when the build failed outside any step."""
        if self._failed is None:
            return None
        status = _STATUS.search(self.error)
        error = f"exit code: {status[1]}" if status else self.error.rpartition('": ')[2]
        return FailedStep(name=self._failed.name, error=error, lines=tuple(self._failed.tail))

    def unfinished(self) -> tuple[str, ...]:
        """Names of the steps that have begun and not ended."""
        return tuple(step.name for step in self._open.values())

    def rest(self) -> tuple[str, ...]:
        """The last lines that belong to no step."""
        return tuple(self._rest)

    def _begin(self, stage: str, found: re.Match[str]) -> list[Event]:
        ended = self._close(stage)
        self._count += 1
        of = f"stage {stage}/{found['stages']} " if stage else ""
        name = f"[{of}{found['number']}/{found['count']}] {found['text']}"
        self._open[stage] = _Step(str(self._count), name, time.monotonic())
        return [*ended, StepStarted(key=str(self._count), name=name)]

    def _made(self, *, cached: bool) -> list[Event]:
        if not self._open:
            return []
        stage, step = next(reversed(self._open.items()))
        if cached:  # the image's own line follows
            step.cached = True
            return []
        return self._close(stage)

    def _close(self, stage: str) -> list[Event]:
        step = self._open.pop(stage, None)
        return [step.done("cached" if step.cached else "done")] if step else []

    def _fail(self) -> list[Event]:
        if not self._open:
            return []
        _, self._failed = self._open.popitem()
        return [self._failed.done("error")]


def build(client: Client, request: BuildRequest, *, version: str, sink: Sink, log: Path, timeout: float | None) -> None:
    """Build an image; its tag exists afterwards if, and only if, this returns. Raises what ``buildkit.build`` does.

    Podman before 4.4 never lets go of a cache mount that is locked, where a RUN has several of them or empties one
    (https://github.com/containers/buildah/issues/4342; mended in Buildah 1.29 by pull request 4349), and the next RUN
    waits for it for ever. There the mounts are not locked, and one build of this user waits for another.

    Labels of its command line Podman gives to the result of every step (measured with 4.3.1), and its build cache would
    say that it is made of images of this row. As the last step they are the image's alone.
    """
    check_files(request)
    parser = Parser()
    with contextlib.ExitStack() as stack:
        text = request.dockerfile.read_text(encoding="utf-8")
        if _number(version) < _LETS_GO and _LOCKED in text:
            text = text.replace(_LOCKED, "")
            lock = store.FileLock(store.home() / "locks" / "podman-build.lock")
            lock.acquire(lambda: sink(Note(message="another build with this Podman is running; waiting for it")))
            stack.callback(lock.release)
        if request.target is None:
            text, request = f"{text.rstrip()}\n{labelling(request.labels)}", replace(request, labels=())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envbuild-build-")))
        (folder / "Dockerfile").write_text(text, encoding="utf-8")
        request = replace(request, dockerfile=folder / "Dockerfile")
        argv = build_argv(client.program, client.endpoint, request)
        if logged(argv, parser, sink=sink, log=log, timeout=timeout) != 0:
            raise failure(parser, log)


def labelling(labels: tuple[tuple[str, str], ...]) -> str:
    """The instruction that gives an image its labels; nothing without any."""
    words = (f'"{_quoted(key)}"="{_quoted(value)}"' for key, value in labels)
    return f"LABEL {' '.join(words)}\n" if labels else ""


def _quoted(text: str) -> str:
    return re.sub(r'[\\"$]', r"\\\g<0>", " ".join(text.splitlines()))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def failure(parser: Parser, log: Path) -> EnvbuildError:
    """What to tell about a build that did not succeed: whose fault it is, the step, its last lines, the log."""
    step = parser.failed_step()
    where = f"full log: {log}"
    if step is None:
        said = parser.error or "\n".join(parser.rest())
        return EngineError(message("the build failed outside any step", (said[-1000:],), where), hint=hint(said))
    text = message(f"build step failed: {short(step.name)}", (*step.lines, short(step.error)), where)
    if "no space left on device" in text.lower():
        return EngineError(text, hint=hint("no space left on device"))
    return BuildError(text)
