"""What one row of several tells the run that started it: a line of JSON for each event, and one for the result."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import envbuild
from envbuild import EVENTS_VARIABLE
from envbuild.events import Event, Sink

# The folder of the package comes last, and the current folder not at all: python -m would take modules from there.
_PROGRAM = "import sys; sys.path[:] = [*filter(None, sys.path), {folder!r}]; from envbuild.__main__ import main; main()"
_writing = Lock()
_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a row.

    Attributes:
        image: Its image as ``--json`` shows it; empty where there is none.
        error: Its error as ``--json`` shows it; empty where there is none.
        told: The error as people read it, line by line.
    """

    image: Mapping[str, Any]
    error: Mapping[str, Any]
    told: tuple[str, ...] = ()


def program() -> tuple[str, ...]:
    """This program as another process, here or on a host that sees the same files, starts it."""
    folder = str(Path(envbuild.__file__).resolve().parents[1])
    return (sys.executable, "-c", _PROGRAM.format(folder=folder))


def own_folder() -> Path | None:
    """Of a task on a cluster: the folder of this attempt, which the host that asked for it sees; None elsewhere."""
    events = os.environ.get(EVENTS_VARIABLE)
    return Path(events).absolute().parent if events else None


def tell(event: Event) -> None:
    """A sink: the event as a line of stdout."""
    _write([type(event).__name__, dataclasses.asdict(event)])


def into(path: Path) -> Sink:
    """A sink: the event as a line of a file, which somebody elsewhere reads while it grows.

    What cannot be written is not told; the work goes on.
    """

    def sink(event: Event) -> None:
        line = json.dumps([type(event).__name__, dataclasses.asdict(event)], default=str) + "\n"
        with _writing, contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(line)

    return sink


def end(ended: Ended) -> None:
    """The last line."""
    _write(["Ended", dataclasses.asdict(ended)])


def _write(said: list[Any]) -> None:
    # Container output arrives on a thread of its own.
    with _writing:
        try:
            sys.stdout.write(json.dumps(said, default=str) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever asked for this row was killed: it is to end as if it had been told to.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            os.kill(os.getpid(), signal.SIGTERM)


def read(line: str) -> Event | Ended | None:
    """What a line tells; None where it is none of these, such as a library's warning."""
    try:
        kind, said = json.loads(line)
        if kind == "Ended":
            return Ended(image=said["image"], error=said["error"], told=tuple(said["told"]))
        event: Event = _EVENTS[kind](**said)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return event
