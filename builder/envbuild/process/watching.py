"""A program whose two streams are wanted as they come."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence

from envbuild.process.child import GRACE_SECONDS, end, start


def watch(
    argv: Sequence[str],
    *,
    on_data: Callable[[int, bytes], None],
    timeout: float | None,
    stop: Callable[[], object],
) -> tuple[int, bool]:
    """Run a program and hand over its two streams as they come: 1 and stdout's bytes, 2 and stderr's.

    After ``timeout`` seconds, and when this process is interrupted, ``stop`` is called, which makes it end; one that
    goes on is ended. Returns its exit code (negative: ended by that signal), and whether its time was up.

    Raises:
        EngineError: The program does not exist.
    """
    child = start(argv)
    deadline = None if timeout is None else time.monotonic() + timeout
    late = False
    try:
        with selectors.DefaultSelector() as selector:
            for number, pipe in ((1, child.stdout), (2, child.stderr)):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, number)
            while selector.get_map():
                ready = selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    if data := os.read(key.fd, 1 << 16):
                        on_data(key.data, data)
                    else:
                        selector.unregister(key.fileobj)
                if deadline is not None and time.monotonic() >= deadline:
                    if late:
                        break
                    late, deadline = True, time.monotonic() + GRACE_SECONDS
                    stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_SECONDS)
    except BaseException:
        stop()
        raise
    finally:
        end(child)
    return child.returncode, late
