"""Runs a training under watch, or goes along with one that runs already."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import envbuild
from envbuild import process, store
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.watched import Watch, Watched, Wish
from envbuild.watching import proc
from envbuild.watching.types import Alert

_GRACE = 30.0
# Until a container has begun; its image is here.
_UNSEEN = 60.0
# Of a log that is followed: what is read of its past, and at once; so many pieces between two looks.
_PAST, _PIECE, _PIECES = 1 << 16, 1 << 20, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command's words go.

    Attributes:
        log: Gets a copy of them.
        tell: Hears every alert.
        stdout: The descriptor for its stdout.
    """

    log: Path
    tell: Callable[[Alert], None]
    stdout: int = 1


def variables(out: str, interval: float, *, profiler: str, beacon: str, path: str) -> dict[str, str]:
    """What the command's environment has besides its own: the beacon, as the profiler's hook.

    Args:
        path: The PYTHONPATH that there is.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (f"{profiler}/shim", path))),
        "ENVBUILD_PROFILE": out,
        "ENVBUILD_PROFILER": beacon,
        "ENVBUILD_WATCH_SECONDS": f"{max(0.2, min(1.0, interval / 2)):g}",
        "ENVBUILD_WATCH_PID": str(os.getpid()),
    }


def watch_command(argv: tuple[str, ...], wish: Wish, streams: Streams) -> tuple[int, Watched]:
    """Run a command with this terminal, and watch it to its end; returns its exit code and how it went.

    Raises:
        EngineError: It cannot be started, or a file cannot be written.
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
    with streams.log.open("ab") as copy:
        # The threads that pass the words on append, and this one takes: a deque needs no lock for that.
        said: deque[tuple[int, bytes]] = deque()

        def hear(number: int, data: bytes) -> None:
            said.append((number, data))
            with contextlib.suppress(OSError):
                copy.write(data)
                copy.flush()

        child = process.Tapped(argv, on_output=hear, env=env, stdout=streams.stdout)
        with child:
            stop = _Stop(child.pid)
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
                _listen(watch, said)
                watch.beat()
                stop.over()
            stop.left()
        child.drain()
        _listen(watch, said)
        return code, watch.close(code)


def _unseen(at: float) -> Alert:
    return Alert(
        kind="unseen", severity="warning", at=at,
        message="no process of the container can be seen from here: only what it prints is watched",
        evidence=("the engine runs on another host, or the container as another user; watch there, by --pid",),
    )  # fmt: skip


def _listen(watch: Watch, said: deque[tuple[int, bytes]]) -> None:
    while said:
        watch.hear(*said.popleft())


def watch_pid(pid: int, wish: Wish, follow: Path | None, tell: Callable[[Alert], None]) -> Watched:
    """Watch a process that runs already, until it ends.

    Args:
        follow: The file that its words go to.
    """
    stop = _Stop(pid)
    watch = Watch(pid, None, wish, tell, stop)
    began = proc.stat(pid)
    with contextlib.ExitStack() as opened:
        tail = opened.enter_context(Tail(follow)) if follow is not None else None
        if tail is not None:
            watch.recall(tail.history())
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
    return watch.close()


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


class _Stop:
    """Ends a training: its first process is asked, and after a while all that is left is ended.

    A rank that was stopped by a signal hears of nothing, and launchers leave such ones behind.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._container: int | None = None
        self._until: float | None = None
        self._members: list[proc.Stat] = []

    def follow(self, container: int) -> None:
        """What it is for runs in a container; who started that passes signals on."""
        self._container = container

    def __call__(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + _GRACE
            self._members = proc.tree(self._root) + (proc.tree(self._container) if self._container else [])
            with contextlib.suppress(OSError):
                os.kill(self._root, signal.SIGTERM)

    def over(self) -> None:
        """Its time may be up."""
        if self._until is not None and time.monotonic() > self._until:
            self.left()

    def left(self) -> None:
        """End what is left, the children first; nothing where nobody was asked to end."""
        for member in reversed(self._members):
            now = proc.stat(member.pid)
            if now is not None and now.started == member.started:
                with contextlib.suppress(OSError):
                    os.kill(member.pid, signal.SIGKILL)
