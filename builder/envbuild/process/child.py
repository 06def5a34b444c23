"""A child process: how it begins, what it inherits, how its whole tree ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from envbuild.errors import EngineError

GRACE_SECONDS = 10.0

own: set[str] = set()
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


def signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    # The group is the child's own (start_new_session), so this reaches its descendants and nobody else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def end(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is None:
        signal_group(child, signal.SIGTERM)
        try:
            child.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            signal_group(child, signal.SIGKILL)
            child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
