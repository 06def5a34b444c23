"""Progress on stderr: a calm live display on a terminal (see ``live``), plain lines everywhere else.

A display only narrates. Whatever happens to it (a closed pipe, a terminal of five columns, an encoding
without check marks), the work it tells about goes on: nothing in here raises.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TextIO

from envbuild import EVENTS_VARIABLE
from envbuild.events import (
    Event,
    Note,
    PhaseDone,
    PhaseStarted,
    Sink,
    StepDone,
    StepLine,
    StepStarted,
    WorkDone,
    step_text,
)

# BuildKit's own errands, such as reading the Dockerfile, and the naming of a base; worth a line only when they fail.
_PLAIN_WIDTH = 100
_ERRAND = re.compile(r"^\[(?:internal\]|[^\]]*\] FROM ).*", re.DOTALL)


@contextlib.contextmanager
def make_sink(
    *,
    quiet: bool = False,
    verbose: bool = False,
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Sink]:
    """A sink that shows events until the context ends; see ``make_sinks``."""
    with make_sinks(quiet=quiet, verbose=verbose, stream=stream, environ=environ) as sink_of:
        yield sink_of("")


@contextlib.contextmanager
def make_sinks(
    *,
    quiet: bool = False,
    verbose: bool = False,
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Callable[[str], Sink]]:
    """Sinks for works that go on at the same time, by the names that they are told apart by; "" is the only one.

    Args:
        quiet: Show warnings only.
        verbose: Show the steps' own output too.
        stream: Where to write; stderr by default.
        environ: Variables that decide about colour and movement (``CI``, ``NO_COLOR``, ``TERM``).
    """
    out = stream if stream is not None else sys.stderr
    variables = os.environ if environ is None else environ
    if listener := variables.get(EVENTS_VARIABLE):
        from envbuild.cli import lines

        sink = lines.into(Path(listener))
        yield lambda name: sink
        return
    if quiet or not _is_live(out, variables):
        yield _plain(out, quiet=quiet, verbose=verbose)
        return
    with contextlib.ExitStack() as stack:
        yield _Lazy(stack, out, verbose=verbose, colour=not variables.get("NO_COLOR")).of


def seconds_text(seconds: float) -> str:
    """A duration for people: ``0.3s``, ``12.3s``, ``1m 02s``, ``1h 05m``."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def is_errand(name: str) -> bool:
    """Whether a step is BuildKit's housekeeping rather than an instruction that does something."""
    return _ERRAND.match(name) is not None


def _is_live(out: TextIO, variables: Mapping[str, str]) -> bool:
    try:
        terminal = out.isatty()
    except ValueError:  # closed
        return False
    return terminal and not variables.get("CI") and variables.get("TERM", "") not in ("", "dumb")


class _Lazy:
    """A live display from the first event on: an answer that needs no narration does not pay for rich."""

    def __init__(self, stack: contextlib.ExitStack, out: TextIO, *, verbose: bool, colour: bool) -> None:
        self._stack = stack
        self._out = out
        self._verbose = verbose
        self._colour = colour
        self._lock = Lock()
        self._sinks: Callable[[str], Sink] | None = None

    def of(self, name: str) -> Sink:
        """The sink of one work."""

        def sink(event: Event) -> None:
            with self._lock:
                if self._sinks is None:
                    self._sinks = self._open()
            self._sinks(name)(event)

        return sink

    def _open(self) -> Callable[[str], Sink]:
        try:
            from envbuild.cli.live import Live

            display = Live(self._out, verbose=self._verbose, colour=self._colour)
            self._stack.enter_context(display.shown())
        except Exception:  # a terminal that rich cannot handle
            return _plain(self._out, quiet=False, verbose=self._verbose)
        return display.of


def _plain(out: TextIO, *, quiet: bool, verbose: bool) -> Callable[[str], Sink]:
    """Lines of several works, each of which has its own place in its own phase."""
    lock = Lock()
    return functools.cache(lambda name: Plain(out, quiet=quiet, verbose=verbose, name=name, lock=lock))


class Plain:
    """One line for each thing that happened, for logs and pipes; with the name of the work before it, if it has one."""

    def __init__(self, out: TextIO, *, quiet: bool, verbose: bool, name: str = "", lock: Lock | None = None) -> None:
        self._out = out
        self._prefix = f"{name}: " if name else ""
        self._quiet = quiet
        self._verbose = verbose
        self._phase = ""
        self._names: dict[str, str] = {}
        self._told: set[str] = set()
        self._lock = lock or Lock()

    def __call__(self, event: Event) -> None:
        # Container output arrives on a thread of its own.
        with self._lock, contextlib.suppress(Exception):
            for line in (self._prefix + line for line in self._lines(event)):
                encoding = getattr(self._out, "encoding", None) or "utf-8"
                self._out.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._out.flush()

    def _lines(self, event: Event) -> list[str]:
        if isinstance(event, Note):
            word = "warning" if event.level == "warning" else "note"
            return [f"{word}: {event.message}"] if word == "warning" or not self._quiet else []
        if self._quiet:
            return []
        if isinstance(event, PhaseStarted):
            self._phase = event.phase
            self._names.clear()
            self._told.clear()
            return [self._line(event.detail or "started")]
        if isinstance(event, PhaseDone):
            return [f"[{event.phase}] {_joined('done', seconds_text(event.seconds), event.detail)}"]
        if isinstance(event, WorkDone):
            return [_joined(event.detail, seconds_text(event.seconds))]
        return self._step(event)

    def _step(self, event: StepStarted | StepLine | StepDone) -> list[str]:
        if isinstance(event, StepStarted):
            self._names[event.key] = event.name
            return []
        if isinstance(event, StepDone):
            quick = event.status != "error" and event.seconds < 1
            if is_errand(event.name) and quick and not self._verbose:
                return []
            time_text = "" if event.status == "cached" else seconds_text(event.seconds)
            return [self._line(_joined(_number(event.key), _brief(event.name), time_text, event.status))]
        name = self._names.get(event.key)
        lines = []
        if name is not None and event.key not in self._told and not is_errand(name):
            # Only now is it known not to be cached: a long step says that it runs, a cached one is one line.
            self._told.add(event.key)
            lines.append(self._line(_joined(_number(event.key), _brief(name), "...")))
        if self._verbose:
            lines.append(self._line(_joined(_number(event.key), "|", event.text)))
        return lines

    def _line(self, text: str) -> str:
        return f"[{self._phase}] {text}" if self._phase else text


def _brief(name: str) -> str:
    """A step's name for one line of a log; the whole of it is in the build's own log."""
    text = step_text(name)
    return text if len(text) <= _PLAIN_WIDTH else f"{text[: _PLAIN_WIDTH - 3]}..."


def _number(key: str) -> str:
    """A Dockerfile step's number; the keys of other steps say nothing that their names do not."""
    return f"#{key}" if key.isdecimal() else ""


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
