"""Ends a training that hangs, where that was asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from envbuild.watching import proc

_GRACE = 30.0


class Stop:
    """Ends a training: its first process is asked, and after a while all that is left is ended.

    A rank that was stopped by a signal hears of nothing, and launchers leave such ones behind.

    Args:
        mark: What all that it starts has in its environment, whoever its parent is by then.
    """

    def __init__(self, root: int, mark: Mapping[str, str] | None = None) -> None:
        self._root, self._mark = root, mark
        self._container: int | None = None
        self._until: float | None = None
        self._members: dict[tuple[int, int], proc.Stat] = {}

    def follow(self, container: int) -> None:
        """What it is for runs in a container; who started that passes signals on."""
        self._container = container

    def __call__(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + _GRACE
            self._find(self._root, *([self._container] if self._container else []))
            with contextlib.suppress(OSError):
                os.kill(self._root, signal.SIGTERM)

    def over(self) -> None:
        """Its time may be up."""
        if self._until is not None:
            self._find()
            if time.monotonic() > self._until:
                self.left()

    def left(self) -> None:
        """End what is left, the children first; nothing where nobody was asked to end."""
        if self._until is None:
            return
        self._find()
        if self._mark is not None:
            self._add(proc.having(self._mark))
        for member in reversed(self._members.values()):
            if _there(member):
                with contextlib.suppress(OSError):
                    os.kill(member.pid, signal.SIGKILL)

    def _find(self, *roots: int) -> None:
        """Who is told to end may start somebody."""
        self._add(proc.tree(*roots, *(member.pid for member in self._members.values() if _there(member))))

    def _add(self, found: list[proc.Stat]) -> None:
        for member in found:
            if member.pid != os.getpid():
                self._members.setdefault((member.pid, member.started), member)


def _there(member: proc.Stat) -> bool:
    now = proc.stat(member.pid)
    return now is not None and now.started == member.started
