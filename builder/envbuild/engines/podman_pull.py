"""What podman says while it pulls, as steps."""

from __future__ import annotations

import re
import time
from collections import deque

from envbuild.events import Sink, StepDone, StepStarted

_BLOB = re.compile(r"^Copying blob (?:sha256:)?(?P<digest>[0-9a-f]{12,64})(?P<rest>.*)$")


class Progress:
    """A pull's output: one step per layer. Away from a terminal podman names a layer once, when it begins.

    Attributes:
        error: What went wrong, in podman's words; its last lines where it does not say so itself.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._began: dict[str, float] = {}
        self._last: deque[str] = deque(maxlen=5)
        self._error = ""

    @property
    def error(self) -> str:
        """What went wrong."""
        return self._error or " ".join(self._last)

    def feed(self, line: str) -> None:
        """Take one more line."""
        if line.startswith("Error: "):
            self._error = line.removeprefix("Error: ")
        self._last.append(line)
        if found := _BLOB.match(line):
            self._layer(found["digest"][:12], found["rest"])
        elif line.startswith("Copying config"):
            for digest in list(self._began):
                self._end(digest, "done")

    def _layer(self, digest: str, rest: str) -> None:
        if digest not in self._began:
            self._began[digest] = time.monotonic()
            self._sink(StepStarted(key=digest, name=f"layer {digest}"))
        if "already exists" in rest:
            self._end(digest, "cached")

    def _end(self, digest: str, status: str) -> None:
        began = self._began.pop(digest)
        self._sink(StepDone(key=digest, name=f"layer {digest}", status=status, seconds=time.monotonic() - began))
