"""The only place that starts a process.

Children run in a process group of their own, so that an interrupted run can end the whole tree, and
with a closed stdin, so that no tool ever waits for an answer that nobody gives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from envbuild.errors import EngineError
from envbuild.process.child import GRACE_SECONDS, end, environment, own, signal_group, start
from envbuild.process.crew import Member, crew
from envbuild.process.tapped import Tapped
from envbuild.process.watching import listen, watch

__all__ = [
    "Completed", "Member", "Server", "Tapped", "TimedOut", "chunks", "crew", "feed", "foreground", "last_words", "own",
    "record", "replace", "run", "stream", "watch", "which", "which_all",
]  # fmt: skip


# How long the output of a program that has ended is waited for, where another one of its group holds on to it.
_LAST_SECONDS = 1.0


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
    most: int | None = None,
) -> Completed:
    """Run a program to its end and return what it printed.

    Args:
        argv: Program and arguments; no shell is involved.
        env: Variables added to the inherited environment.
        cwd: Working folder.
        timeout: Limit in seconds.
        input: Bytes for its stdin; without them stdin is empty.
        most: Bytes after which it is ended: it is somebody else's program.

    Raises:
        EngineError: The program does not exist, or prints more than ``most``.
        TimedOut: It ran longer than ``timeout``.
    """
    if most is not None:
        return _bounded(argv, env, cwd, timeout, input, most)
    child = start(argv, env=env, cwd=cwd, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL)
    try:
        out, err = child.communicate(input=input, timeout=timeout)
    except subprocess.TimeoutExpired:
        end(child)
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s") from None
    except BaseException:
        end(child)
        raise
    return _completed(argv, child, out, err)


def _bounded(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: Path | None,
    timeout: float | None,
    input: bytes | None,
    most: int,
) -> Completed:
    child = start(argv, env=env, cwd=cwd, stdin=subprocess.PIPE)
    said: dict[str, bytes] = {}

    def take(name: str, pipe: IO[bytes]) -> None:
        said[name] = pipe.read(most + 1)
        if len(said[name]) > most:
            signal_group(child, signal.SIGKILL)

    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    readers = [Thread(target=take, args=pair, daemon=True) for pair in (("out", child.stdout), ("err", child.stderr))]
    try:
        for each in readers:
            each.start()
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(input or b"")
        child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s") from None
    finally:
        # What it has left behind may hold its pipes open; the group is its own.
        for each in readers:
            each.join(_LAST_SECONDS)
        signal_group(child, signal.SIGKILL)
        for each in readers:
            each.join()
        end(child)
    if any(len(each) > most for each in said.values()):
        raise EngineError(f"{argv[0]} prints more than {most} bytes")
    return _completed(argv, child, said["out"], said["err"])


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
    code, late = listen(argv, on_line=on_line, env=env, cwd=cwd, timeout=timeout)
    if late and code != 0:
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s")
    return code


def record(
    argv: Sequence[str], *, stdout: Path, stderr: Path, env: Mapping[str, str] | None = None, grace: float
) -> int:
    """Run a program whose words go into two files; returns its exit code (negative: ended by that signal).

    When this process is interrupted the program is told to end, and is waited for, ``grace`` seconds at most.

    Raises:
        EngineError: The program does not exist.
    """
    with stdout.open("wb") as out, stderr.open("wb") as err:
        child = start(argv, env=env, stdout=out, stderr=err)
        try:
            return child.wait()
        finally:
            end(child, grace)


def chunks(argv: Sequence[str], *, size: int = 1 << 20) -> Generator[bytes, None, None]:
    """What a program writes to stdout, piece by piece; a generator that is closed early ends the program.

    Raises:
        EngineError: It failed; the message is what it said.
    """
    with tempfile.TemporaryFile() as said:
        child = start(argv, stderr=said)
        assert child.stdout is not None
        try:
            while data := child.stdout.read(size):
                yield data
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=GRACE_SECONDS)
        finally:
            end(child)
        if child.returncode != 0:
            said.seek(0)
            raise EngineError(last_words(said.read().decode(errors="replace")) or f"{argv[0]} failed")


def feed(argv: Sequence[str], pieces: Iterable[bytes]) -> Completed:
    """Run a program whose stdin is ``pieces``; one that does not want them all is not given them all.

    Raises:
        EngineError: The program does not exist.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = start(argv, stdin=subprocess.PIPE, stdout=out, stderr=err)
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin:
                for piece in pieces:
                    child.stdin.write(piece)
            child.wait()
        except BaseException:
            end(child)
            raise
        out.seek(0)
        err.seek(0)
        return _completed(argv, child, out.read(), err.read())


class Server:
    """A program that talks with whoever is at the other end of a connection."""

    def __init__(self, argv: Sequence[str], connection: int, said: IO[bytes]) -> None:
        """Start it; what it complains about goes to ``said``.

        Raises:
            EngineError: The program does not exist.
        """
        self._child = start(argv, stdin=connection, stdout=connection, stderr=said)

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def end(self) -> None:
        """Have it end."""
        end(self._child)


def last_words(text: str, limit: int = 1000) -> str:
    """What a program said in the end, in one line."""
    return " ".join(text.split())[-limit:]


def foreground(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stop: Callable[[int], object] = lambda pid: None,
) -> int:
    """Run a program as a shell does: it has this terminal and its streams; returns its exit code (128 + a signal's).

    Ctrl-C reaches it by itself, as it is in this terminal's group; SIGTERM and SIGHUP are passed on.

    Args:
        timeout: Limit in seconds. When it is up, ``stop`` is called with the program's number, and ends it in its own
            way, with what it has started; if it goes on, it is killed.

    Raises:
        EngineError: The program cannot be started.
        TimedOut: It ran longer than ``timeout``; it has been ended.
    """
    try:
        child = subprocess.Popen(list(argv), env=environment(env))
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = child.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        try:
            stop(child.pid)
        finally:
            child.kill()
            child.wait()
        raise TimedOut(f"{argv[0]} did not end within {timeout:.0f} s") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def replace(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Become another program: it gets this terminal, its signals and its exit code. Does not return.

    Raises:
        EngineError: The program cannot be started.
    """
    try:
        os.execvpe(argv[0], list(argv), environment(env))
    except OSError as error:
        raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error


def _completed(argv: Sequence[str], child: subprocess.Popen[bytes], out: bytes, err: bytes) -> Completed:
    said, complained = out.decode(errors="replace"), err.decode(errors="replace")
    return Completed(argv=tuple(argv), returncode=child.returncode, stdout=said, stderr=complained)
