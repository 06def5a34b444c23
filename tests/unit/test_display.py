"""What people see of the progress: on a terminal, in a log, and where either is unusual."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import pytest

from envbuild.cli.display import make_sink, make_sinks, seconds_text
from envbuild.cli.live import Live
from envbuild.events import Event, Note, PhaseDone, PhaseStarted, StepDone, StepLine, StepStarted, WorkDone, step_text

TERM = {"TERM": "xterm-256color"}
RUN = "[wheels 3/7] RUN --mount=type=secret,id=pip --network=host   set -eu;  pip install torch"

STORY: list[Event] = [
    PhaseStarted(phase="build", detail="envbuild/cpu:candidate-1 (log: /logs/x.log)"),
    StepStarted(key="1", name="[internal] load build definition"),
    StepLine(key="1", text="transferring dockerfile"),
    StepDone(key="1", name="[internal] load build definition", status="done", seconds=0.0),
    StepStarted(key="4", name="[base 1/2] FROM debian"),
    StepDone(key="4", name="[base 1/2] FROM debian", status="done", seconds=0.0),
    StepStarted(key="5", name="[base 2/2] RUN apt-get update"),
    StepDone(key="5", name="[base 2/2] RUN apt-get update", status="cached", seconds=0.0),
    StepStarted(key="6", name="[ops 1/1] COPY a b"),
    StepDone(key="6", name="[ops 1/1] COPY a b", status="cached", seconds=0.0),
    StepStarted(key="7", name=RUN),
    StepLine(key="7", text="Collecting torch"),
    StepLine(key="7", text="Installing ✓"),
    Note(message="slow mirror", level="warning"),
    StepDone(key="7", name=RUN, status="done", seconds=72.4),
    PhaseDone(phase="build", seconds=75.0),
    Note(message="not signed"),
]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class AsciiFile(io.StringIO):
    encoding = "ascii"

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


class AsciiTerminal(AsciiFile):
    def isatty(self) -> bool:
        return True


class Broken(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def tell(out: io.StringIO, *, quiet: bool = False, verbose: bool = False, environ: Mapping[str, str] = TERM) -> str:
    with make_sink(quiet=quiet, verbose=verbose, stream=out, environ=environ) as sink:
        for event in STORY:
            sink(event)
    return out.getvalue()


def frame(*events: Event, width: int = 60, out: io.StringIO | None = None) -> list[str]:
    """What the moving part of the display shows after ``events``, without colours."""
    from rich.console import Console

    live = Live(out or Terminal(), verbose=False, colour=True)
    live._console = Console(file=io.StringIO(), width=width)
    for event in events:
        live(event)
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    with screen.capture() as captured:
        screen.print(live, end="")
    return captured.get().splitlines()


def test_plain_lines_tell_each_step_once_and_long_ones_twice() -> None:
    assert tell(io.StringIO()).splitlines() == [
        "[build] envbuild/cpu:candidate-1 (log: /logs/x.log)",
        "[build] #5 [base 2/2] RUN apt-get update cached",
        "[build] #6 [ops 1/1] COPY a b cached",
        "[build] #7 [wheels 3/7] RUN set -eu; pip install torch ...",
        "warning: slow mirror",
        "[build] #7 [wheels 3/7] RUN set -eu; pip install torch 1m 12s done",
        "[build] done 1m 15s",
        "note: not signed",
    ]


def test_verbose_plain_lines_carry_the_steps_output() -> None:
    lines = tell(io.StringIO(), verbose=True).splitlines()
    assert "[build] #7 | Collecting torch" in lines
    assert "[build] #1 [internal] load build definition 0.0s done" in lines


def test_quiet_leaves_warnings_only() -> None:
    for out in (io.StringIO(), Terminal()):
        assert tell(out, quiet=True) == "warning: slow mirror\n"


@pytest.mark.parametrize("environ", [{**TERM, "CI": "true"}, {"TERM": "dumb"}, {}])
def test_a_terminal_that_should_not_move_gets_plain_lines(environ: dict[str, str]) -> None:
    text = tell(Terminal(), environ=environ)
    assert text == tell(io.StringIO())
    assert "\x1b" not in text


def test_a_terminal_ends_with_finished_things_only() -> None:
    text = tell(Terminal())
    kept = _without_control(text)
    assert "2 steps cached" in kept
    assert "RUN set -eu; pip install torch" in kept
    assert "load build definition" not in kept
    assert "FROM debian" not in kept
    assert text.endswith("\x1b[?25h") or "\x1b[?25h" in text.splitlines()[-1], "the cursor is shown again"


def test_no_color_moves_without_colour() -> None:
    coloured, plain = tell(Terminal()), tell(Terminal(), environ={**TERM, "NO_COLOR": "1"})
    assert "\x1b[32m" in coloured
    assert "\x1b[32m" not in plain
    assert "\x1b[?25l" in plain


def test_the_moving_part_shows_running_steps_their_last_line_and_the_phase() -> None:
    *above, mark = frame(*STORY[:13])
    assert above[0].split()[1:8] == ["wheels", "3/7", "RUN", "set", "-eu;", "pip", "install"]
    assert above[0].endswith("0s")
    assert above[1].strip() == "Installing ✓"
    assert mark.split()[1:] == ["build", "0s"]


def test_steps_beyond_a_handful_are_counted() -> None:
    many = [StepStarted(key=str(key), name=f"[s {key}/9] RUN x") for key in range(9)]
    lines = frame(STORY[0], *many)
    assert len(lines) == 6
    assert lines[4].strip() == "and 5 more"


@pytest.mark.parametrize("width", [1, 5, 12, 24, 80, 250])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    wide = StepStarted(key="8", name="[ops 1/2] RUN 日本語のテキスト日本語のテキスト日本語のテキスト")
    for line in frame(*STORY[:13], wide, width=width):
        assert len(line) <= min(width, 100)


def test_output_of_a_container_shows_beside_its_phase() -> None:
    lines = frame(PhaseStarted(phase="smoke", detail="2 ranks"), StepLine(key="container", text="step 3 of 10"))
    assert [line.split()[1:-1] for line in lines] == [["smoke", "step", "3", "of", "10"]]


def test_control_characters_of_a_step_do_not_reach_the_terminal() -> None:
    lines = frame(*STORY[:12], StepLine(key="7", text="a\x1b[2Jb\x07"))
    assert "\x1b" not in "".join(lines)
    assert "\x07" not in "".join(lines)


def test_an_encoding_without_check_marks_is_enough() -> None:
    assert "+ " in _without_control(tell(AsciiTerminal()))
    assert "[build] #7 | Installing ?" in tell(AsciiFile(), verbose=True)


def test_a_closed_or_broken_stream_does_not_stop_the_work() -> None:
    closed = io.StringIO()
    closed.close()
    for out in (Broken(), closed):
        with make_sink(stream=out, environ=TERM) as sink:
            for event in STORY:
                sink(event)


def test_an_exception_inside_passes_through_and_restores_the_terminal() -> None:
    out = Terminal()
    with pytest.raises(KeyboardInterrupt), make_sink(stream=out, environ=TERM) as sink:
        sink(STORY[0])
        raise KeyboardInterrupt
    assert "\x1b[?25h" in out.getvalue()


def test_without_events_nothing_is_written() -> None:
    out = Terminal()
    with make_sink(stream=out, environ=TERM):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (59.94, "59.9s"), (59.96, "1m 00s"), (119.6, "2m 00s"), (3600, "1h 00m"), (7384, "2h 03m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_steps_name_loses_its_flags_and_nothing_else() -> None:
    assert step_text(RUN) == "[wheels 3/7] RUN set -eu; pip install torch"
    assert step_text("COPY --from=a /b /c") == "COPY --from=a /b /c"
    assert step_text("[a 1/2] RUN cmake --build x") == "[a 1/2] RUN cmake --build x"


def _without_control(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


def test_several_works_on_a_terminal_are_told_apart_and_leave_nothing_behind() -> None:
    out = Terminal()
    with make_sinks(stream=out, environ=TERM) as sink_of:
        for name in ("row-a", "row-b"):
            sink_of(name)(PhaseStarted(phase="build", detail="candidate"))
            sink_of(name)(StepStarted(key="1", name=RUN))
            sink_of(name)(StepLine(key="1", text=f"said by {name}"))
        sink_of("row-a")(WorkDone(detail="failed: no disk", seconds=2.0, ok=False))
        sink_of("row-b")(StepDone(key="1", name=RUN, status="done", seconds=3.0))
        sink_of("row-b")(WorkDone(detail="built", seconds=4.0, ok=True))
    shown = [line.split() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).splitlines()]
    assert ["row-a", "✗", "failed:", "no", "disk", "2.0s"] in shown and ["row-b", "✓", "built", "4.0s"] in shown
    assert any(line[:2] == ["row-b", "✓"] and line[-1] == "3.0s" for line in shown)
