"""The only place that starts a process.

Children run in a process group of their own, so that an interrupted run can end the whole tree, and
with a closed stdin, so that no tool ever waits for an answer that nobody gives.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO

from envbuild.errors import EngineError

_GRACE_SECONDS = 10.0
# A member of a crew ends children of its own, each of which has the grace above.
_CREW_GRACE_SECONDS = 30.0
_CHUNK = 1 << 16

own: set[str] = set()
"""Names of environment variables that envbuild set for itself: children do not inherit them."""


class TimedOut(EngineError):
    """A process was ended because it ran longer than its limit."""

    code = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A process that ended, whatever its exit code (negative: ended by that signal)."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def which(program: str) -> str | None:
    """The path of ``program`` on PATH, or None."""
    return shutil.which(program)


def which_all(program: str) -> tuple[str, ...]:
    """Every executable ``program`` on PATH, first match first, each file once."""
    found: list[str] = []
    for folder in os.get_exec_path():
        path = Path(folder, program)
        if path.is_file() and os.access(path, os.X_OK) and not any(path.samefile(other) for other in found):
            found.append(str(path))
    return tuple(found)


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    input: bytes | None = None,
) -> Completed:
    """Run a program to its end and return what it printed.

    Args:
        argv: Program and arguments; no shell is involved.
        env: Variables added to the inherited environment.
        cwd: Working folder.
        timeout: Limit in seconds.
        input: Bytes for its stdin; without them stdin is empty.

    Raises:
        EngineError: The program does not exist.
        TimedOut: It ran longer than ``timeout``.
    """
    child = _start(argv, env=env, cwd=cwd, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL)
    try:
        out, err = child.communicate(input=input, timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(child)
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s") from None
    except BaseException:
        _end(child)
        raise
    return _completed(argv, child, out, err)


def stream(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> int:
    """Run a program and hand over its merged output line by line; returns the exit code.

    Raises:
        EngineError: The program does not exist.
        TimedOut: It ran longer than ``timeout`` seconds; it has been ended.
    """
    child = _start(argv, env=env, cwd=cwd, merged=True)
    deadline = None if timeout is None else time.monotonic() + timeout
    timer = None if timeout is None else Timer(timeout, _signal_group, (child, signal.SIGTERM))
    if timer is not None:
        timer.daemon = True
        timer.start()
    assert child.stdout is not None
    try:
        for raw in child.stdout:
            on_line(raw.decode(errors="replace").rstrip("\r\n"))
        code = child.wait(timeout=_GRACE_SECONDS)
    except BaseException:
        _end(child)
        raise
    finally:
        if timer is not None:
            timer.cancel()
        child.stdout.close()
    if deadline is not None and code != 0 and time.monotonic() >= deadline:
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s")
    return code


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
            child = _start(member.argv, merged=True)
            assert child.stdout is not None
            running[member.name] = _Running(child)
            selector.register(child.stdout, selectors.EVENT_READ, member.name)

        def listen(timeout: float | None) -> None:
            for key, _ in selector.select(timeout):
                each = running[key.data]
                chunk = os.read(key.fd, _CHUNK)
                for line in each.lines(chunk):
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
                _signal_group(each.child, signal.SIGTERM)
            deadline = time.monotonic() + _CREW_GRACE_SECONDS
            try:
                while running and (left := deadline - time.monotonic()) > 0:
                    listen(left)
            finally:
                for each in running.values():
                    _signal_group(each.child, signal.SIGKILL)
                    each.child.wait()
                    each.close()
            raise


class _Running:
    """A program of a crew, and what it has said of its next line."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self._rest = b""

    def lines(self, chunk: bytes) -> list[str]:
        """The lines that ``chunk`` completes; an empty one is the end, which completes whatever is left."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if not chunk and self._rest:
            whole.append(self._rest)
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def close(self) -> None:
        if self.child.stdout is not None:
            self.child.stdout.close()


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
    child = _start(argv)
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
                    late, deadline = True, time.monotonic() + _GRACE_SECONDS
                    stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE_SECONDS)
    except BaseException:
        stop()
        raise
    finally:
        _end(child)
    return child.returncode, late


def chunks(argv: Sequence[str], *, size: int = 1 << 20) -> Generator[bytes, None, None]:
    """What a program writes to stdout, piece by piece; a generator that is closed early ends the program.

    Raises:
        EngineError: It failed; the message is what it said.
    """
    with tempfile.TemporaryFile() as said:
        child = _start(argv, stderr=said)
        assert child.stdout is not None
        try:
            while data := child.stdout.read(size):
                yield data
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=_GRACE_SECONDS)
        finally:
            _end(child)
        if child.returncode != 0:
            said.seek(0)
            raise EngineError(last_words(said.read().decode(errors="replace")) or f"{argv[0]} failed")


def feed(argv: Sequence[str], pieces: Iterable[bytes]) -> Completed:
    """Run a program whose stdin is ``pieces``; one that does not want them all is not given them all.

    Raises:
        EngineError: The program does not exist.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = _start(argv, stdin=subprocess.PIPE, stdout=out, stderr=err)
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin:
                for piece in pieces:
                    child.stdin.write(piece)
            child.wait()
        except BaseException:
            _end(child)
            raise
        out.seek(0)
        err.seek(0)
        return _completed(argv, child, out.read(), err.read())


def serve(argv: Sequence[str], connection: int, said: IO[bytes]) -> Callable[[], None]:
    """Let a program talk with whoever is at the other end of a connection; what it complains about goes to ``said``.
    Returns a function that ends it.

    Raises:
        EngineError: The program does not exist.
    """
    child = _start(argv, stdin=connection, stdout=connection, stderr=said)
    return lambda: _end(child)


def last_words(text: str, limit: int = 1000) -> str:
    """What a program said in the end, in one line."""
    return " ".join(text.split())[-limit:]


def replace(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Become another program: it gets this terminal, its signals and its exit code. Does not return.

    Raises:
        EngineError: The program cannot be started.
    """
    try:
        os.execvpe(argv[0], list(argv), _environment(env))
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in own}, **(added or {})}


def _completed(argv: Sequence[str], child: subprocess.Popen[bytes], out: bytes, err: bytes) -> Completed:
    said, complained = out.decode(errors="replace"), err.decode(errors="replace")
    return Completed(argv=tuple(argv), returncode=child.returncode, stdout=said, stderr=complained)


def _start(
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
            env=_environment(env),
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


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    # The group is the child's own (start_new_session), so this reaches its descendants and nobody else.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is None:
        _signal_group(child, signal.SIGTERM)
        try:
            child.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            _signal_group(child, signal.SIGKILL)
            child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
