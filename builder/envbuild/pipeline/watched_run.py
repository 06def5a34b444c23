"""Runs a training under watch, or goes along with one that runs already."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import envbuild
from envbuild import process, store
from envbuild.pipeline.profile_wish import profiler_folder
from envbuild.pipeline.watched import Watch, Watched, Wish
from envbuild.watching import proc
from envbuild.watching.types import Alert

_GRACE = 30.0


def variables(folder: Path, interval: float) -> dict[str, str]:
    """What the command's environment has besides its own: the beacon, as the profiler's hook."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (f"{profiler_folder()}/shim", os.environ.get("PYTHONPATH", "")))),
        "ENVBUILD_PROFILE": str(folder),
        "ENVBUILD_PROFILER": str(Path(envbuild.__file__).parent / "beacon"),
        "ENVBUILD_WATCH_SECONDS": f"{max(0.2, min(1.0, interval / 2)):g}",
        "ENVBUILD_WATCH_PID": str(os.getpid()),
    }


def watch_command(
    argv: tuple[str, ...], wish: Wish, log: Path, tell: Callable[[Alert], None], *, stdout: int = 1
) -> tuple[int, Watched]:
    """Run a command with this terminal, and watch it to its end; returns its exit code and how it went.

    Args:
        log: Gets a copy of its words.

    Raises:
        EngineError: It cannot be started, or a file cannot be written.
    """
    with store.scratch(store.home() / "runs", "watch-") as folder, log.open("ab") as copy:
        # The threads that pass the words on append, and this one takes: a deque needs no lock for that.
        said: deque[tuple[int, bytes]] = deque()

        def hear(number: int, data: bytes) -> None:
            said.append((number, data))
            with contextlib.suppress(OSError):
                copy.write(data)
                copy.flush()

        child = process.Tapped(argv, on_output=hear, env=variables(folder, wish.patience.interval), stdout=stdout)
        with child:
            stop = _Stop(child.pid)
            watch = Watch(child.pid, folder, wish, tell, stop)
            pause = min(0.5, wish.patience.interval / 2)
            while (code := child.wait(pause)) is None:
                _listen(watch, said)
                watch.beat()
                stop.over()
            stop.left()
        child.drain()
        _listen(watch, said)
        return code, watch.close()


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
        stream = opened.enter_context(follow.open("rb")) if follow is not None else None
        while began is not None:
            now = proc.stat(pid)
            if now is None or now.started != began.started or now.state in ("Z", "X"):
                break
            if stream is not None and (data := stream.read(1 << 20)):
                watch.hear(1, data)
            watch.beat()
            stop.over()
            time.sleep(min(0.5, wish.patience.interval / 2))
        stop.left()
        if stream is not None:
            watch.hear(1, stream.read())
    return watch.close()


class _Stop:
    """Ends a training: its first process is asked, and after a while all that is left is ended.

    A rank that was stopped by a signal hears of nothing, and launchers leave such ones behind.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._until: float | None = None
        self._members: list[proc.Stat] = []

    def __call__(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + _GRACE
            self._members = proc.tree(self._root)
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
