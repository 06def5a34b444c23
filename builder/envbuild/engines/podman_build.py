"""Builds by podman (Buildah): what its output says, and whose fault a failure is."""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path

from envbuild.engines.building import TAIL, FailedStep, check_files, clean, logged, message, short
from envbuild.engines.podman_argv import build_argv
from envbuild.engines.podman_run import Client, hint
from envbuild.engines.types import BuildRequest
from envbuild.errors import BuildError, EngineError, EnvbuildError
from envbuild.events import Event, Sink, StepDone, StepLine, StepStarted

_STEP = re.compile(
    r"^(?:\[(?P<stage>\d+)/(?P<stages>\d+)\] )?STEP (?P<number>\d+)/(?P<count>\d+): (?P<text>.*)$", re.DOTALL
)
_MADE = re.compile(r"^--> (?P<what>Using cache )?[0-9a-f]{8,64}$")
_FAILED = re.compile(r"^Error: (?:building at STEP|error building at STEP)", re.DOTALL)
_STATUS = re.compile(r"exit status (\d+)$")


class Parser:
    """Reads the output of ``podman build`` line by line; one step runs at a time."""

    def __init__(self) -> None:
        self._key = 0
        self._name = ""
        self._began = 0.0
        self._cached = False
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._rest: deque[str] = deque(maxlen=2 * TAIL)
        self._last = ""
        self.error = ""

    def feed(self, line: str) -> list[Event]:
        """The events that one more line of output makes."""
        if found := _STEP.match(line):
            ended = self._end("cached" if self._cached else "done")
            stage = f"stage {found['stage']}/{found['stages']} " if found["stage"] else ""
            self._key += 1
            self._name = f"[{stage}{found['number']}/{found['count']}] {found['text']}"
            self._began, self._cached = time.monotonic(), False
            self._tail.clear()
            return [*ended, StepStarted(key=str(self._key), name=self._name)]
        if found := _MADE.match(line):
            self._cached = bool(found["what"])
            return [] if self._cached else self._end("done")
        if line.startswith(("COMMIT ", "Error: ")):
            self.error = clean(line.removeprefix("Error: ")) if line.startswith("Error: ") else ""
            if _FAILED.match(line):
                return self._end("error")
            self._rest.append(clean(line))
            return self._end("cached" if self._cached else "done") if not self.error else []
        text = clean(line)
        if not text:
            return []
        if not self._name:
            self._rest.append(text)
            return []
        self._tail.append(text)
        return [StepLine(key=str(self._key), text=text)]

    def failed_step(self) -> FailedStep | None:
        """The step that failed; None when the build failed outside any step."""
        if not _FAILED.match(f"Error: {self.error}"):
            return None
        status = _STATUS.search(self.error)
        error = f"exit code: {status[1]}" if status else self.error.rpartition('": ')[2]
        return FailedStep(name=self._last, error=error, lines=tuple(self._tail))

    def unfinished(self) -> tuple[str, ...]:
        """The step that has begun and not ended."""
        return (self._name,) if self._name else ()

    def rest(self) -> tuple[str, ...]:
        """The last lines that belong to no step."""
        return tuple(self._rest)

    def _end(self, status: str) -> list[Event]:
        if not self._name:
            return []
        done = StepDone(key=str(self._key), name=self._name, status=status, seconds=time.monotonic() - self._began)
        self._last, self._name = self._name, ""
        return [done]


def build(client: Client, request: BuildRequest, *, sink: Sink, log: Path, timeout: float | None) -> None:
    """Build an image; its tag exists afterwards if, and only if, this returns. Raises what ``buildkit.build`` does."""
    check_files(request)
    parser = Parser()
    argv = build_argv(client.program, client.endpoint, request)
    if logged(argv, parser, sink=sink, log=log, timeout=timeout) != 0:
        raise failure(parser, log)


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
