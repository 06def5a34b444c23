"""What every builder has in common: a program whose output is a log, steps on the way, a failure in words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuild import process
from envbuild.engines.types import BuildRequest
from envbuild.errors import BuildError, EngineError, InputError
from envbuild.events import Event, Sink, step_text

# Lines of a step's output that are kept for the message of a failure.
TAIL = 15

# Terminal control sequences that a step's own progress bars print.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_EXIT = re.compile(r"exit code: \d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStep:
    """The step that ended a build: its name, the error the builder gave and the step's last lines."""

    name: str
    error: str
    lines: tuple[str, ...]


class Reader(Protocol):
    """What makes events of a builder's output."""

    def feed(self, line: str) -> list[Event]:
        """The events that one more line of output makes."""
        ...

    def unfinished(self) -> tuple[str, ...]:
        """Names of the steps that have begun and not ended."""
        ...


def logged(
    argv: Sequence[str],
    reader: Reader,
    *,
    sink: Sink,
    log: Path,
    timeout: float | None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a builder; its complete output goes to ``log``, what it means to ``sink``. Returns its exit code.

    Raises:
        BuildError: ``timeout`` seconds were not enough.
        EngineError: The log cannot be written, or there is no such builder.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8", errors="replace", buffering=1) as file:
            file.write(f"$ {shlex.join(argv)}\n")

            def on_line(line: str) -> None:
                file.write(line + "\n")
                for event in reader.feed(line):
                    sink(event)

            return process.stream(argv, on_line=on_line, env=env, timeout=timeout)
    except process.TimedOut:
        head = f"the build did not end within {timeout:.0f} s; unfinished steps:"
        raise BuildError(
            message(head, [short(name) for name in reader.unfinished()] or ["none"], f"full log: {log}"),
            hint="a larger --timeout gives it more time; finished steps are cached",
        ) from None
    except OSError as error:
        raise EngineError(f"the build log {log} cannot be written: {error.strerror or error}") from error


def clean(line: str) -> str:
    """One line as a terminal would show it in the end: the last rewrite of a progress bar, no control codes."""
    shown = [part for part in line.rstrip("\r\n").split("\r") if part.strip()]
    return _CONTROL.sub("", shown[-1]).replace("\t", " ").rstrip() if shown else ""


def short(text: str, limit: int = 200) -> str:
    """A step's name or error without a whole RUN instruction in it; the log has it all."""
    if found := _EXIT.search(text):
        return found[0]
    text = step_text(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def message(head: str, lines: Iterable[str], tail: str) -> str:
    """A failure with its last lines, indented, and where to read more."""
    return "\n".join((head, *(f"  {line}" for line in lines), tail))


def check_files(request: BuildRequest) -> None:
    """See that what a build needs is there.

    Raises:
        InputError: It names everything that is missing.
    """
    wanted = [("Dockerfile", request.dockerfile, Path.is_file), ("build context", request.context, Path.is_dir)]
    wanted += [(f"build secret {name}", path, Path.is_file) for name, path in request.secrets]
    missing = [f"{what} {path} is not there" for what, path, there in wanted if not there(path)]
    if missing:
        raise InputError("\n".join(missing))
