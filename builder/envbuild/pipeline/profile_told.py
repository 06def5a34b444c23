"""The passes of a measurement as steps of a phase: what the profiler says on stderr, as events."""

from __future__ import annotations

import time

from envbuild.events import Event, PhaseDone, PhaseStarted, Sink, StepDone, StepLine, StepStarted
from envbuild.pipeline.profile_wish import PASSES


class Told:
    """A phase whose steps are the passes: what the profiler says on stderr, as events."""

    def __init__(self, sink: Sink, detail: str) -> None:
        self._sink = sink
        self._detail = detail
        self._pass = ""
        self._began = self._pass_began = 0.0

    def __enter__(self) -> Sink:
        self._began = time.monotonic()
        self._sink(PhaseStarted(phase="profile", detail=self._detail))
        return self._heard

    def __exit__(self, kind: object, *rest: object) -> None:
        self._finish("done" if kind is None else "error")
        if kind is None:
            self._sink(PhaseDone(phase="profile", seconds=time.monotonic() - self._began))

    def _heard(self, event: Event) -> None:
        if not isinstance(event, StepLine) or not event.text.startswith("envbuild: "):
            self._sink(event)
            return
        words = event.text.split()[1:]
        name = words[0] if words and words[0] in PASSES else ""
        if name and name != self._pass:
            self._finish("done")
            self._pass, self._pass_began = name, time.monotonic()
            self._sink(StepStarted(key=name, name=name))
        elif name:
            self._sink(StepLine(key=name, text=" of ".join(words[1:])))

    def _finish(self, status: str) -> None:
        if self._pass:
            seconds = time.monotonic() - self._pass_began
            self._sink(StepDone(key=self._pass, name=self._pass, status=status, seconds=seconds))
            self._pass = ""
