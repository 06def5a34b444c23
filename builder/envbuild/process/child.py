"""A child process: how it begins, what it inherits, how its whole tree ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from envbuild import own_variables
from envbuild.errors import EngineError

GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.02
# Bytes. No program that is meant to be read line by line has such lines.
_LONGEST_LINE = 32 << 20

own = own_variables
"""Names of environment variables that envbuild set for itself: children do not inherit them."""


def environment(added: Mapping[str, str] | None) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in own}, **(added or {})}


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    merged: bool = False,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            env=environment(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.STDOUT if merged else stderr,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise EngineError(f"{error.filename} was not found") from error
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error


class Lines:
    """What a program says, line by line; one that never ends is handed over in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def of(self, chunk: bytes) -> list[str]:
        """The lines that ``chunk`` completes; an empty one is the end, which completes whatever is left."""
        self._rest += chunk
        if chunk and b"\n" not in chunk and len(self._rest) < _LONGEST_LINE:
            return []
        *whole, rest = self._rest.split(b"\n")
        if rest and (not chunk or len(rest) >= _LONGEST_LINE):
            whole.append(rest)
            rest = bytearray()
        self._rest = rest
        return [line.decode(errors="replace").rstrip("\r") for line in whole]


def signal_group(child: subprocess.Popen[bytes], number: int) -> bool:
    """Whether there was anybody to tell."""
    # The group is the child's own (start_new_session), so this reaches its descendants and nobody else.
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(child: subprocess.Popen[bytes], grace: float = GRACE_SECONDS) -> None:
    """Ask it and its descendants to end, and end those that have not within the grace."""
    if child.returncode is None:
        deadline = time.monotonic() + grace
        signal_group(child, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=grace)
        # A child that ends at once may leave descendants that do not.
        while signal_group(child, 0) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        signal_group(child, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
