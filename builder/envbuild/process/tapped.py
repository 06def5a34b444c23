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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from types import FrameType, TracebackType

from envbuild.errors import EngineError
from envbuild.process.child import environment

_CHUNK = 1 << 16
_LAST_SECONDS = 2.0
# More than a pipe and what was taken from it hold: what comes after that is not of a program that has ended.
_LAST_BYTES = 4 * _CHUNK


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
    a scheduler sends to the group; SIGTERM and SIGHUP are passed on. It is started, and all this holds, when this is
    entered as a context.

    Args:
        on_output: Gets 1 or 2, for stdout or stderr, and bytes, from threads of their own; what it raises is lost.
        stdout: The descriptor that the program's stdout goes to.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        on_output: Callable[[int, bytes], None],
        env: Mapping[str, str] | None = None,
        stdout: int = 1,
    ) -> None:
        self._argv, self._env, self._stdout = list(argv), env, stdout
        self._on_output = on_output
        self._taps: list[_Tap] = []
        self._pumps: list[Thread] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        # Of each stream: how much has passed, and whether its reader is waited for.
        self._passed: dict[int, int] = {}
        self._writing: set[int] = set()

    @property
    def pid(self) -> int:
        """Of the program that was started."""
        assert self._child is not None
        return self._child.pid

    def _start(self) -> None:
        out = self._tap(1, self._stdout)
        err = out if _same(self._stdout, 2) else self._tap(2, 2)
        try:
            self._child = subprocess.Popen(self._argv, env=environment(self._env), stdout=out, stderr=err)
        except OSError as error:
            for tap in self._taps:
                os.close(tap.source)
            raise EngineError(f"cannot start {self._argv[0]}: {error.strerror}") from error
        finally:
            for descriptor in {out, err}:
                os.close(descriptor)
        self._pumps = [Thread(target=self._pump, args=(tap,), daemon=True) for tap in self._taps]
        for pump in self._pumps:
            pump.start()

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
                self._writing.add(tap.number)
                rest = memoryview(data)
                while rest:
                    rest = rest[_write(tap.target, rest) :]
                self._passed[tap.number] = self._passed.get(tap.number, 0) + len(data)
                self._writing.discard(tap.number)
                with contextlib.suppress(Exception):
                    self._on_output(tap.number, data)
        except OSError:
            # Nobody reads any more: the program hears of it as it would without us.
            return
        finally:
            os.close(tap.source)

    def __enter__(self) -> Tapped:
        """Start it.

        Raises:
            EngineError: It cannot be started.
        """

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.signal(number)

        def group(number: int, frame: FrameType | None) -> None:
            # It has got the same, unless it was not there yet.
            if self._child is None:
                self.signal(number)

        def resize(number: int, frame: FrameType | None) -> None:
            for tap in self._taps:
                _resize(tap)

        # Before it is started: from then on whoever ends this program means that one. What is ignored (nohup) stays so,
        # for that one, too.
        for passed in (signal.SIGTERM, signal.SIGHUP):
            self._handle(passed, pass_on)
        for shared in (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            self._handle(shared, group)
        try:
            self._start()
        except BaseException:
            self._restore()
            raise
        for number in self._early:
            self.signal(number)
        if any(tap.terminal for tap in self._taps):
            self._handle(signal.SIGWINCH, resize)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], object]) -> None:
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._before[number] = signal.signal(number, handler)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def signal(self, number: int) -> None:
        """Tell the program; one that is only being started hears of it then."""
        if self._child is None:
            self._early.append(number)
            return
        with contextlib.suppress(OSError):
            self._child.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """Its exit code as a shell gives it (128 and a signal's number), or None after so many seconds."""
        assert self._child is not None
        try:
            code = self._child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def drain(self) -> None:
        """Wait for its last words, as long as who reads them takes for that; what it has left behind may hold its
        streams open, and is not waited for."""
        for tap, pump in zip(self._taps, self._pumps, strict=True):
            until = time.monotonic() + _LAST_SECONDS
            most = self._passed.get(tap.number, 0) + _LAST_BYTES
            while pump.is_alive():
                slow = tap.number in self._writing and self._passed.get(tap.number, 0) < most
                if not slow and time.monotonic() > until:
                    break
                pump.join(0.05)


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
