"""Some programs at once, each heard line by line."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from envbuild.process.child import Lines, signal_group, start

# A member of a crew ends children of its own, each of which has a grace of its own.
_CREW_GRACE_SECONDS = 30.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One program of a crew, by the name that its audience knows it by."""

    name: str
    argv: tuple[str, ...]


def crew(
    members: Iterable[Member],
    *,
    at_once: int,
    on_start: Callable[[str], None],
    on_line: Callable[[str, str], None],
    on_end: Callable[[str, int], None],
) -> None:
    """Run programs, some of them at once, each to its end; what becomes of one is nothing to the others.

    Everything is called back on the thread of the caller. On an interruption every program is told to end, is heard to
    its end, and only then does the interruption go on; another one ends them without a word.

    Args:
        members: What to run, in the order in which they are begun.
        at_once: How many may run at a time.
        on_start: Gets the name of one that begins.
        on_line: Gets name and line of the merged output.
        on_end: Gets name and exit code (negative: ended by that signal).

    Raises:
        EngineError: One cannot be started; those that run have been ended.
    """
    waiting = deque(members)
    with selectors.DefaultSelector() as selector:
        running: dict[str, _Running] = {}

        def begin() -> None:
            member = waiting.popleft()
            on_start(member.name)
            child = start(member.argv, merged=True)
            assert child.stdout is not None
            running[member.name] = _Running(child)
            selector.register(child.stdout, selectors.EVENT_READ, member.name)

        def listen(timeout: float | None) -> None:
            for key, _ in selector.select(timeout):
                each = running[key.data]
                chunk = os.read(key.fd, _CHUNK)
                for line in each.lines.of(chunk):
                    on_line(key.data, line)
                if not chunk:
                    selector.unregister(key.fileobj)
                    code = each.child.wait()
                    del running[key.data]
                    each.close()
                    on_end(key.data, code)

        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    begin()
                listen(None)
        except BaseException:
            for each in running.values():
                signal_group(each.child, signal.SIGTERM)
            deadline = time.monotonic() + _CREW_GRACE_SECONDS
            try:
                while running and (left := deadline - time.monotonic()) > 0:
                    listen(left)
            finally:
                for each in running.values():
                    signal_group(each.child, signal.SIGKILL)
                    each.child.wait()
                    each.close()
            raise


class _Running:
    """A program of a crew, and what it has said of its next line."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.lines = Lines()

    def close(self) -> None:
        if self.child.stdout is not None:
            self.child.stdout.close()
