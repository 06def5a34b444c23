"""Steps, told to their audience; from several threads one at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from envbuild.events import Event, Sink, StepDone, StepLine, StepStarted


class Stopped(Exception):
    """A transfer ends here, because the run does."""


class Brake:
    """What transfers in other threads hold to: once it is set, each ends at its next piece."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def moved(self, count: int) -> None:
        """A piece more.

        Raises:
            Stopped: It is to be the last one.
        """
        if self._set:
            raise Stopped


def shared(sink: Sink) -> Sink:
    """A sink that several threads may tell something."""
    lock = threading.RLock()

    def tell(event: Event) -> None:
        with lock:
            sink(event)

    return tell


@contextlib.contextmanager
def step(sink: Sink, key: str, name: str) -> Iterator[Callable[[str], None]]:
    """One step, from its beginning to its end, good or bad; gives a function that says how far it is."""
    began = time.monotonic()

    def ended(status: str) -> None:
        sink(StepDone(key=key, name=name, status=status, seconds=time.monotonic() - began))

    sink(StepStarted(key=key, name=name))
    try:
        yield lambda text: sink(StepLine(key=key, text=text))
    except BaseException:
        ended("error")
        raise
    ended("done")
