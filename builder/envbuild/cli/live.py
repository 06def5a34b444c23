"""The display on a terminal: finished things scroll away above, what runs now stays below."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Literal, TextIO

from envbuild.cli.display import is_errand, seconds_text, step_text
from envbuild.events import Event, Note, PhaseDone, PhaseStarted, StepDone, StepLine, StepStarted

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
        self._phase: _Phase | None = None
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
                self._print(self._flush_cached())
            with contextlib.suppress(Exception):
                live.stop()

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(Exception):
            # Never print under the lock: the drawing thread holds the console's lock when it asks for this one.
            with self._lock:
                rows = self._take(event)
            self._print(rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows: list[_Row] = []
        with contextlib.suppress(Exception), self._lock:
            rows = self._frame(time.monotonic())
        for row in rows:
            yield self._text(row, options.max_width)

    def _take(self, event: Event) -> list[_Row]:
        now = time.monotonic()
        if isinstance(event, Note):
            word, style = ("warning", "yellow") if event.level == "warning" else ("note", "cyan")
            return [_Row("", "", [(f"{word}: ", style), (event.message, "")], wrap="words")]
        if isinstance(event, PhaseStarted):
            rows = self._flush_cached()
            self._phase = _Phase(event.phase, event.detail, now)
            return rows
        if isinstance(event, PhaseDone):
            rows = self._flush_cached()
            detail = event.detail or (self._phase.detail if self._phase and not self._phase.headed else "")
            self._phase = None
            return [*rows, self._closing(event.phase, detail, event.seconds)]
        if self._phase is None:
            self._phase = _Phase("", "", now)
        return self._step(self._phase, event, now)

    def _step(self, phase: _Phase, event: StepStarted | StepLine | StepDone, now: float) -> list[_Row]:
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
        return [*self._heading(phase), *self._flush_cached(), row]

    def _heading(self, phase: _Phase) -> list[_Row]:
        """A phase with steps gets a line above them; one without is a single line at its end."""
        if phase.headed or not phase.name:
            return []
        phase.headed = True
        return [_Row("", "", [(phase.name, "bold"), (f"  {phase.detail}" if phase.detail else "", "dim")], wrap="soft")]

    def _flush_cached(self) -> list[_Row]:
        phase = self._phase
        if phase is None or not phase.cached:
            return []
        count, phase.cached = phase.cached, 0
        text = f"{count} step{'' if count == 1 else 's'} cached"
        return [*self._heading(phase), _Row(self._tick, "green", [(text, "dim")], indent=2)]

    def _closing(self, name: str, detail: str, seconds: float) -> _Row:
        parts = [(name, "bold"), (f"  {detail}" if detail else "", "dim")]
        return _Row(self._tick, "green", parts, seconds_text(seconds))

    def _frame(self, now: float) -> list[_Row]:
        phase = self._phase
        if phase is None:
            return []
        rows: list[_Row] = []
        shown = [step for step in phase.running.values() if not is_errand(step.name) or now - step.began > _QUICK]
        hidden = len(shown) - _MAX_RUNNING
        for step in shown[-_MAX_RUNNING:]:
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

    def _print(self, rows: list[_Row]) -> None:
        for row in rows:
            self._console.print(self._text(row, self._console.width), soft_wrap=row.wrap == "soft")

    def _text(self, row: _Row, width: int) -> Text:
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        left = " " * row.indent + (f"{row.mark} " if row.mark else "")
        text = Text(no_wrap=row.wrap == "no")
        text.append(self._plain(left), style=row.style or "default")
        body = Text()
        for part, style in row.parts:
            body.append(self._plain(part), style=style or "default")
        if row.wrap != "no":
            return text.append_text(body)
        space = max(1, min(width, _MAX_WIDTH) - cell_len(left) - (cell_len(row.right) + 2 if row.right else 0))
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


def _step_parts(name: str) -> list[tuple[str, str]]:
    text = step_text(name)
    found = _STAGE.match(text)
    return [(f"{found[1]}  ", "dim"), (found[2], "")] if found else [(text, "")]


def _elapsed(seconds: float) -> str:
    return f"{int(seconds)}s" if seconds < 60 else seconds_text(int(seconds))
