"""Runs a training under watch, or goes along with one that runs already."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import envbuild
from envbuild import process, store
from envbuild.pipeline.overheard import Copy, Queue
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.stopping import Stop
from envbuild.pipeline.watched import Watch, Watched, Wish
from envbuild.watching import proc
from envbuild.watching.types import Alert

# Until a container has begun; its image is here.
_UNSEEN = 60.0
# Of a log that is followed: what is read of its past, and at once; so many pieces between two looks.
_PAST, _PIECE, _PIECES = 1 << 16, 1 << 20, 16
# Of what a command says: how long it is read between two looks.
_READING = 0.2
_MARK = "ENVBUILD_PROFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command's words go.

    Attributes:
        log: Gets a copy of them.
        bounded: Of the copy only the beginning and the end are wanted.
        tell: Hears every alert.
        stdout: The descriptor for its stdout.
    """

    log: Path
    tell: Callable[[Alert], None]
    stdout: int = 1
    bounded: bool = False


def variables(out: str, interval: float, *, profiler: str, beacon: str, path: str) -> dict[str, str]:
    """What the command's environment has besides its own: the beacon, as the profiler's hook.

    Args:
        path: The PYTHONPATH that there is.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (f"{profiler}/shim", path))),
        _MARK: out,
        "ENVBUILD_PROFILER": beacon,
        "ENVBUILD_WATCH_SECONDS": f"{max(0.2, min(1.0, interval / 2)):g}",
        "ENVBUILD_WATCH_PID": str(os.getpid()),
    }


def watch_command(argv: tuple[str, ...], wish: Wish, streams: Streams) -> tuple[int, Watched]:
    """Run a command with this terminal, and watch it to its end; returns its exit code and how it went.

    Raises:
        EngineError: It cannot be started, or there can be no folder of its own in ENVBUILD_HOME.
    """
    with store.scratch(store.home() / "runs", "watch-") as folder:
        env = variables(
            str(folder), wish.patience.interval, profiler=str(profiler_folder()), beacon=str(beacon_folder()),
            path=os.environ.get("PYTHONPATH", ""),
        )  # fmt: skip
        return run(argv, wish, streams, folder, env=env)


def beacon_folder() -> Path:
    """The folder of the beacon."""
    return Path(envbuild.__file__).parent / "beacon"


def run(
    argv: tuple[str, ...], wish: Wish, streams: Streams, folder: Path, *, env: dict[str, str],
    container: Mapping[str, str] | None = None,
) -> tuple[int, Watched]:  # fmt: skip
    """Start it and watch it to its end.

    Args:
        folder: Where beacons write.
        container: Variables that nobody has but what it starts in a container, which is looked for by them: the
            engine starts it, and not this command.
    """
    copy, said = Copy(streams.log, bounded=streams.bounded), Queue()

    def hear(number: int, data: bytes) -> None:
        said.put(number, data)
        copy.take(data)

    with contextlib.closing(copy):
        with process.Tapped(argv, on_output=hear, env=env, stdout=streams.stdout) as child:
            stop = Stop(child.pid, {_MARK: env[_MARK]} if _MARK in env else None)
            watch = Watch(child.pid, folder, wish, streams.tell, stop)
            # How a rank ended can be read until its launcher asks: torchrun does so ten times a second.
            pause = 0.05 if container is None else 0.5
            until = time.monotonic() + _UNSEEN
            while (code := child.wait(pause)) is None:
                if container is not None and (pid := proc.marked(container)) is not None:
                    watch.follow(pid)
                    stop.follow(pid)
                    container, pause = None, 0.05
                elif container is not None and time.monotonic() > until:
                    watch.say(_unseen(watch.now()))
                    container = None
                _listen(watch, said, _READING)
                _complain(watch, said, copy, streams.log)
                watch.beat()
                stop.over()
            stop.left()
        child.drain()
        _listen(watch, said, float("inf"))
    _complain(watch, said, copy, streams.log)
    return code, watch.close(code)


def _unseen(at: float) -> Alert:
    return Alert(
        kind="unseen", severity="warning", at=at,
        message="no process of the container can be seen from here: only what it prints is watched",
        evidence=("the engine runs on another host, or the container as another user; watch there, by --pid",),
    )  # fmt: skip


def _listen(watch: Watch, said: Queue, seconds: float) -> None:
    """Read what was said; of a flood no more than there is time for, so that looks go on."""
    until = time.monotonic() + seconds
    while (piece := said.take()) is not None:
        watch.hear(*piece)
        if time.monotonic() > until:
            break


def _complain(watch: Watch, said: Queue, copy: Copy, log: Path) -> None:
    if copy.problem:
        watch.cannot("cannot-write", f"the copy of the command's output ({log}) is not whole: {copy.problem}")
    if said.lost:
        watch.cannot("unread", "the command writes more than can be read here: not every line of it is looked at")


class _Told(KeyboardInterrupt):
    """This program was told to end, by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _heeding() -> Iterator[None]:
    def told(number: int, frame: FrameType | None) -> None:
        raise _Told(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_pid(pid: int, wish: Wish, follow: Path | None, tell: Callable[[Alert], None]) -> tuple[int, Watched]:
    """Watch a process that runs already, until it ends; returns how it went.

    The first number is 0, or 128 and the number of the signal by which this program was told to end before that.

    Args:
        follow: The file that its words go to.
    """
    stop = Stop(pid)
    watch = Watch(pid, None, wish, tell, stop)
    began = proc.stat(pid)
    code = 0
    with contextlib.ExitStack() as opened:
        tail = opened.enter_context(Tail(follow)) if follow is not None else None
        if tail is not None:
            watch.recall(tail.history())
        try:
            with _heeding():
                while began is not None:
                    now = proc.stat(pid)
                    if now is None or now.started != began.started or now.state in ("Z", "X"):
                        break
                    _hear(watch, tail, _PIECES)
                    watch.beat()
                    stop.over()
                    time.sleep(min(0.5, wish.patience.interval / 2))
                stop.left()
                _hear(watch, tail, sys.maxsize)
        except _Told as told:
            code = 128 + told.number
    return code, watch.close()


def _hear(watch: Watch, tail: Tail | None, most: int) -> None:
    while tail is not None and most > 0 and (data := tail.read()):
        watch.hear(1, data)
        most -= 1


class Tail:
    """A file that others append to, from its end on; one that is cut off or replaced is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO = path.open("rb")
        self._from = max(0, os.fstat(self._stream.fileno()).st_size - _PAST)

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stream.close()

    def history(self) -> bytes:
        """The last whole lines of what is there already."""
        self._stream.seek(self._from)
        data = self._stream.read(_PAST)
        return data.partition(b"\n")[2] if self._from else data

    def read(self) -> bytes:
        """What has been added, or a piece of it."""
        with contextlib.suppress(OSError):
            if os.fstat(self._stream.fileno()).st_size < self._stream.tell():
                self._stream.seek(0)
            if data := self._stream.read(_PIECE):
                return data
            # Nothing comes into this one any more where another is in its place.
            if not os.path.samestat(self._path.stat(), os.fstat(self._stream.fileno())):
                fresh = self._path.open("rb")
                self._stream.close()
                self._stream = fresh
                return fresh.read(_PIECE)
        return b""
