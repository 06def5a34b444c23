"""A program whose output is wanted as it comes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envbuild.process.child import GRACE_SECONDS, Lines, end, signal_group, start

_CHUNK = 1 << 16


def watch(
    argv: Sequence[str],
    *,
    on_data: Callable[[int, bytes], None],
    timeout: float | None,
    stop: Callable[[], object],
    env: Mapping[str, str] | None = None,
) -> tuple[int, bool]:
    """Run a program and hand over its two streams as they come: 1 and stdout's bytes, 2 and stderr's.

    After ``timeout`` seconds, and when this process is interrupted, ``stop`` is called, which makes it end; one that
    goes on is ended. Returns its exit code (negative: ended by that signal), and whether its time was up.

    Raises:
        EngineError: The program does not exist.
    """
    child = start(argv, env=env)
    late = _heard(child, on_data, timeout, stop)
    return child.returncode, late


def listen(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    timeout: float | None,
) -> tuple[int, bool]:
    """The same for its merged output, line by line; what stops it is SIGTERM."""
    child, lines = start(argv, env=env, cwd=cwd, merged=True), Lines()

    def on_data(number: int, data: bytes) -> None:
        for line in lines.of(data):
            on_line(line)

    late = _heard(child, on_data, timeout, lambda: signal_group(child, signal.SIGTERM))
    on_data(1, b"")
    return child.returncode, late


def _heard(
    child: subprocess.Popen[bytes],
    on_data: Callable[[int, bytes], None],
    timeout: float | None,
    stop: Callable[[], object],
) -> bool:
    """Hear a program to its end, which comes whether or not it wants to; returns whether its time was up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    late = False

    def left() -> float | None:
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def over() -> bool:
        """Whether it has had its time and the grace behind it."""
        nonlocal deadline, late
        if left() != 0.0:
            return False
        if late:
            return True
        late, deadline = True, time.monotonic() + GRACE_SECONDS
        stop()
        return False

    try:
        with selectors.DefaultSelector() as selector:
            for number, pipe in ((1, child.stdout), (2, child.stderr)):
                if pipe is not None:
                    selector.register(pipe, selectors.EVENT_READ, number)
            while selector.get_map() and not over():
                for key, _ in selector.select(left()):
                    if data := os.read(key.fd, _CHUNK):
                        on_data(key.data, data)
                    else:
                        selector.unregister(key.fileobj)
        # It may go on with its streams closed.
        while child.returncode is None and not over():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=left())
    except BaseException:
        stop()
        raise
    finally:
        end(child)
    return late
