"""A program that has this terminal and its streams, and is overheard."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from types import FrameType, TracebackType

from envbuild.errors import EngineError
from envbuild.process.child import environment

_CHUNK = 1 << 16
_LAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Tap:
    """One stream: what the program writes into comes out of ``source`` and goes on to ``target``."""

    number: int
    source: int
    target: int
    terminal: bool


class Tapped:
    """Starts a program as a shell does, and hands over what it writes on the way to where it was going.

    A stream that is a terminal stays one for the program (a second one is put in its place, so that colours and
    progress bars are as ever), and two streams that go to the same place keep their order. Standard input and the
    process group are this program's own, so Ctrl-C reaches it by itself, and so do SIGQUIT, SIGUSR1 and SIGUSR2, which
    a scheduler sends to the group; SIGTERM and SIGHUP are passed on while this is used as a context.

    Args:
        on_output: Gets 1 or 2, for stdout or stderr, and bytes, from threads of their own; what it raises is lost.
        stdout: The descriptor that the program's stdout goes to.

    Raises:
        EngineError: The program cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        on_output: Callable[[int, bytes], None],
        env: Mapping[str, str] | None = None,
        stdout: int = 1,
    ) -> None:
        self._on_output = on_output
        self._taps: list[_Tap] = []
        out = self._tap(1, stdout)
        err = out if _same(stdout, 2) else self._tap(2, 2)
        try:
            self._child = subprocess.Popen(list(argv), env=environment(env), stdout=out, stderr=err)
        except OSError as error:
            for tap in self._taps:
                os.close(tap.source)
            raise EngineError(f"cannot start {argv[0]}: {error.strerror}") from error
        finally:
            for descriptor in {out, err}:
                os.close(descriptor)
        self.pid = self._child.pid
        self._pumps = [Thread(target=self._pump, args=(tap,), daemon=True) for tap in self._taps]
        for pump in self._pumps:
            pump.start()
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def _tap(self, number: int, target: int) -> int:
        """The end that the program gets."""
        if os.isatty(target):
            source, end = pty.openpty()
            with contextlib.suppress(termios.error):
                mode = termios.tcgetattr(end)
                # Lines get their carriage return on the real terminal.
                mode[1] &= ~termios.OPOST
                termios.tcsetattr(end, termios.TCSANOW, mode)
            tap = _Tap(number, source, target, True)
            _resize(tap)
        else:
            source, end = os.pipe()
            tap = _Tap(number, source, target, False)
        self._taps.append(tap)
        return end

    def _pump(self, tap: _Tap) -> None:
        try:
            while True:
                try:
                    data = os.read(tap.source, _CHUNK)
                except OSError:  # a terminal whose last user has left
                    return
                if not data:
                    return
                rest = memoryview(data)
                while rest:
                    rest = rest[_write(tap.target, rest) :]
                with contextlib.suppress(Exception):
                    self._on_output(tap.number, data)
        except OSError:
            # Nobody reads any more: the program hears of it as it would without us.
            return
        finally:
            os.close(tap.source)

    def __enter__(self) -> Tapped:
        def pass_on(number: int, frame: FrameType | None) -> None:
            self.signal(number)

        def resize(number: int, frame: FrameType | None) -> None:
            for tap in self._taps:
                _resize(tap)

        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            self._before[number] = signal.signal(number, lambda number, frame: None)
        if any(tap.terminal for tap in self._taps):
            self._before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resize)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def signal(self, number: int) -> None:
        """Tell the program."""
        with contextlib.suppress(OSError):
            self._child.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Its exit code as a shell gives it (128 and a signal's number), or None after so many seconds."""
        try:
            code = self._child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def drain(self) -> None:
        """Wait for its last words; what it has left behind may hold its streams open, and is not waited for."""
        for pump in self._pumps:
            pump.join(_LAST_SECONDS)


def _write(target: int, data: memoryview) -> int:
    try:
        return os.write(target, data)
    except BlockingIOError:
        # Somebody else who has this stream, too, made it so; who reads it is only slow.
        select.select([], [target], [])
        return 0


def _resize(tap: _Tap) -> None:
    if tap.terminal:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(tap.target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(tap.source, termios.TIOCSWINSZ, size)


def _same(first: int, second: int) -> bool:
    try:
        one, other = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return first == second or (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)
