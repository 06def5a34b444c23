"""The display on a terminal: finished things scroll away above, what runs now stays below."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Literal, TextIO

from envbuild.cli.display import is_errand, seconds_text
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

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

_FRAMES_PER_SECOND = 8
# Beyond this a right-aligned time is too far from its step to be read with it.
_MAX_WIDTH = 100
_MAX_RUNNING = 4
# An errand that takes longer, such as the pull of a base, is shown like any other step (seconds).
_QUICK = 1.0
_STAGE = re.compile(r"^\[([^\]]*)\] (.*)$")


@dataclass(slots=True)
class _Running:
    name: str
    began: float
    last: str = ""


@dataclass(slots=True)
class _Row:
    """One line of the display: a mark, a text in styled parts, and a time at the right edge."""

    mark: str
    style: str
    parts: list[tuple[str, str]]
    right: str = ""
    indent: int = 0
    # Whose line it is, where several works are told of.
    name: str = ""
    # How a line that is too long breaks: cut off, between words, or (a path to be copied) left to the terminal.
    wrap: Literal["no", "words", "soft"] = "no"


@dataclass(slots=True)
class _Phase:
    name: str
    detail: str
    began: float
    headed: bool = False
    cached: int = 0
    last: str = ""
    running: dict[str, _Running] = field(default_factory=dict)


class Live:
    """Finished things scroll away above; what runs now stays below, with a spinner and its time."""

    def __init__(self, out: TextIO, *, verbose: bool, colour: bool) -> None:
        from rich.console import Console

        class Patient(Console):
            def on_broken_pipe(self) -> None:
                # rich would end the program; a build does not end because nobody watches it any more.
                self.quiet = True

        self._console: Console = Patient(
            file=out, force_terminal=True, no_color=not colour, highlight=False, emoji=False
        )
        self._verbose = verbose
        self._lock = Lock()
        # By the name of the work that is in it; "" where there is one only.
        self._phases: dict[str, _Phase] = {}
        encoding = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "")
        self._unicode = encoding in ("utf8", "utf16", "utf32")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw until the context ends, then leave only what is finished."""
        from rich.live import Live as RichLive

        live = RichLive(
            self,
            console=self._console,
            refresh_per_second=_FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with contextlib.suppress(Exception):
            live.start()
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                for name in self._phases:
                    self._print(self._flush_cached(name), name)
            with contextlib.suppress(Exception):
                live.stop()

    def of(self, name: str) -> Sink:
        """The sink of one work; what it shows begins with its name, if it has one."""
        return functools.partial(self._show, name)

    def __call__(self, event: Event) -> None:
        self._show("", event)

    def _show(self, name: str, event: Event) -> None:
        with contextlib.suppress(Exception):
            # Never print under the lock: the drawing thread holds the console's lock when it asks for this one.
            with self._lock:
                rows = self._take(name, event)
            self._print(rows, name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[_Row] = []
        with contextlib.suppress(Exception), self._lock:
            now, most = time.monotonic(), max(1, _MAX_RUNNING // max(1, len(self._phases)))
            rows = [row for name, phase in self._phases.items() for row in _named(self._frame(phase, now, most), name)]
        for row in rows:
            yield self._text(row, options.max_width)

    def _take(self, name: str, event: Event) -> list[_Row]:
        now = time.monotonic()
        if isinstance(event, Note):
            word, style = ("warning", "yellow") if event.level == "warning" else ("note", "cyan")
            return [_Row("", "", [(f"{word}: ", style), (event.message, "")], wrap="words")]
        if isinstance(event, PhaseStarted):
            rows = self._flush_cached(name)
            self._phases[name] = _Phase(event.phase, event.detail, now)
            return rows
        if isinstance(event, PhaseDone):
            rows = self._flush_cached(name)
            phase = self._phases.pop(name, None)
            detail = event.detail or (phase.detail if phase and not phase.headed else "")
            return [*rows, self._closing(event.phase, detail, event.seconds)]
        if isinstance(event, WorkDone):
            rows = self._flush_cached(name)
            self._phases.pop(name, None)
            mark, style = (self._tick, "green") if event.ok else (self._cross, "red")
            return [*rows, _Row(mark, style, [(event.detail, "bold")], seconds_text(event.seconds))]
        return self._step(name, self._phases.setdefault(name, _Phase("", "", now)), event, now)

    def _step(self, name: str, phase: _Phase, event: StepStarted | StepLine | StepDone, now: float) -> list[_Row]:
        if isinstance(event, StepStarted):
            phase.running[event.key] = _Running(event.name, now)
            return []
        if isinstance(event, StepLine):
            running = phase.running.get(event.key)
            if running is not None:
                running.last = event.text
            else:
                phase.last = event.text
            if running is not None and is_errand(running.name):
                return []
            rows = self._heading(phase) if running is not None or self._verbose else []
            if self._verbose:
                rows.append(_Row("", "", [(event.text, "dim")], indent=4, wrap="soft"))
            return rows
        phase.running.pop(event.key, None)
        if event.status == "cached":
            phase.cached += not is_errand(event.name)
            return []
        if is_errand(event.name) and event.status != "error" and event.seconds < _QUICK:
            return []
        mark, style = {"done": (self._tick, "green"), "error": (self._cross, "red")}.get(event.status, ("-", "dim"))
        right = seconds_text(event.seconds) if event.status == "done" else event.status
        row = _Row(mark, style, _step_parts(event.name), right, indent=2)
        return [*self._heading(phase), *self._flush_cached(name), row]

    def _heading(self, phase: _Phase) -> list[_Row]:
        """A phase with steps gets a line above them; one without is a single line at its end."""
        if phase.headed or not phase.name:
            return []
        phase.headed = True
        return [_Row("", "", [(phase.name, "bold"), (f"  {phase.detail}" if phase.detail else "", "dim")], wrap="soft")]

    def _flush_cached(self, name: str) -> list[_Row]:
        phase = self._phases.get(name)
        if phase is None or not phase.cached:
            return []
        count, phase.cached = phase.cached, 0
        text = f"{count} step{'' if count == 1 else 's'} cached"
        return [*self._heading(phase), _Row(self._tick, "green", [(text, "dim")], indent=2)]

    def _closing(self, name: str, detail: str, seconds: float) -> _Row:
        parts = [(name, "bold"), (f"  {detail}" if detail else "", "dim")]
        return _Row(self._tick, "green", parts, seconds_text(seconds))

    def _frame(self, phase: _Phase, now: float, most: int) -> list[_Row]:
        rows: list[_Row] = []
        shown = [step for step in phase.running.values() if not is_errand(step.name) or now - step.began > _QUICK]
        hidden = len(shown) - most
        for step in shown[-most:]:
            rows.append(_Row(self._spin(now), "cyan", _step_parts(step.name), _elapsed(now - step.began), indent=2))
            if step.last:
                rows.append(_Row("", "", [(step.last, "dim")], indent=4))
        if hidden > 0:
            rows.append(_Row("", "", [(f"and {hidden} more", "dim")], indent=4))
        if phase.name:
            about = phase.last or ("" if phase.headed else phase.detail)
            parts = [(phase.name, "bold"), (f"  {about}" if about else "", "dim")]
            rows.append(_Row(self._spin(now), "cyan", parts, _elapsed(now - phase.began)))
        return rows

    def _print(self, rows: list[_Row], name: str) -> None:
        for row in _named(rows, name):
            self._console.print(self._text(row, self._console.width), soft_wrap=row.wrap == "soft")

    def _text(self, row: _Row, width: int) -> Text:
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        name = f"{self._plain(row.name)}  " if row.name else ""
        left = " " * row.indent + (f"{row.mark} " if row.mark else "")
        text = Text(name, no_wrap=row.wrap == "no")
        text.stylize("blue")
        text.append(self._plain(left), style=row.style or "default")
        body = Text()
        for part, style in row.parts:
            body.append(self._plain(part), style=style or "default")
        if row.wrap != "no":
            return text.append_text(body)
        space = max(1, min(width, _MAX_WIDTH) - cell_len(name + left) - (cell_len(row.right) + 2 if row.right else 0))
        if body.cell_len > space:
            dots = "…" if self._unicode else "..."
            body = body[: len(set_cell_size(body.plain, max(1, space - len(dots))))]
            body.append(dots, style="dim")
        if row.right:
            body.append(" " * (space - body.cell_len + 2))
            body.append(row.right, style="dim" if row.style != "red" else "red")
        return text.append_text(body)

    def _plain(self, text: str) -> str:
        """Text that this terminal can show: no control characters, nothing that its encoding lacks."""
        safe = "".join(character if character.isprintable() else " " for character in text)
        return safe if self._unicode else safe.encode("ascii", "replace").decode()

    def _spin(self, now: float) -> str:
        frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if self._unicode else "|/-\\"
        return frames[int(now * _FRAMES_PER_SECOND) % len(frames)]

    @property
    def _tick(self) -> str:
        return "✓" if self._unicode else "+"

    @property
    def _cross(self) -> str:
        return "✗" if self._unicode else "x"


def _named(rows: list[_Row], name: str) -> list[_Row]:
    """The lines of one work of several, with its name before each."""
    return [dataclasses.replace(row, name=name) for row in rows]


def _step_parts(name: str) -> list[tuple[str, str]]:
    text = step_text(name)
    found = _STAGE.match(text)
    return [(f"{found[1]}  ", "dim"), (found[2], "")] if found else [(text, "")]


def _elapsed(seconds: float) -> str:
    return f"{int(seconds)}s" if seconds < 60 else seconds_text(int(seconds))
