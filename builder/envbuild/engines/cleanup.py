"""What a run leaves behind when it is killed, and how the next run finds it.

Every run holds a lock that dies with its process. Its containers carry its id and this host's as
labels, its build contexts lie in a folder of that id. What belongs to a run whose lock is free is
debris. What belongs to another host, another user's store or a living run is never touched: only a
lock file that lies in this store and is free says that a run is dead. It names the run's engine, since one
store may be used with several: none of them knows of the others' containers.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Protocol

from envbuild import store
from envbuild.engines.types import ContainerInfo

RUN_LABEL = "io.envbuild.run"
HOST_LABEL = "io.envbuild.host"
_SUFFIX = ".lock"


class Containers(Protocol):
    """The part of an engine that cleaning up needs."""

    @property
    def endpoint(self) -> str:
        """Its address, or its program."""
        ...

    def containers(self, label: str) -> tuple[ContainerInfo, ...]:
        """Every container with this ``key=value`` label."""
        ...

    def remove_container(self, container: str) -> None:
        """End and remove a container; one that is gone already is fine."""
        ...


class Run:
    """One running envbuild: its id, its labels, its temporary folder, and the lock that proves it alive.

    Use as a context manager. The lock file stays behind on purpose: it is what tells the next
    ``sweep`` to look for leftovers, also when removing a container failed at the end of a run.
    """

    def __init__(self, runs: Path, contexts: Path, engine: str = "") -> None:
        """``engine``: its ``endpoint``; where none is named, the run's containers may be any engine's."""
        self.id = secrets.token_hex(8)
        self._engine = engine
        self.folder = contexts / self.id
        self._lock = store.FileLock(runs / f"{self.id}{_SUFFIX}")

    @classmethod
    def begin(cls) -> Run:
        """A run in the user's own store."""
        return cls(_runs(), _contexts())

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """The labels of this run's containers."""
        return ((RUN_LABEL, self.id), (HOST_LABEL, host_id()))

    def __enter__(self) -> Run:
        self._lock.acquire()
        with contextlib.suppress(OSError):
            self._lock.path.write_text(self._engine, encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()


def sweep(engine: Containers, runs: Path | None = None, contexts: Path | None = None) -> list[str]:
    """Remove what dead runs of this store left on this host; returns what was removed, in words.

    Args:
        engine: Where their containers are.
        runs: Folder of the runs' locks; the user's own store by default.
        contexts: Folder of their build contexts; likewise.

    Raises:
        EngineError: The engine or the store failed.
    """
    runs, contexts = runs or _runs(), contexts or _contexts()
    removed: list[str] = []
    leftovers: dict[str, list[ContainerInfo]] | None = None
    for path in sorted(runs.glob(f"*{_SUFFIX}")):
        run = path.name.removesuffix(_SUFFIX)
        lock = store.FileLock(path)
        if not lock.try_acquire():
            continue
        try:
            elsewhere = _engine_of(path) not in ("", engine.endpoint)
            if leftovers is None and not elsewhere:
                leftovers = _by_run(engine.containers(f"{HOST_LABEL}={host_id()}"))
            for container in (leftovers or {}).get(run, []):
                engine.remove_container(container.id)
                removed.append(f"container {container.id[:12]} of run {run}")
            if (contexts / run).is_dir():
                shutil.rmtree(contexts / run, ignore_errors=True)
                removed.append(f"build context of run {run}")
            # Last, and under the lock: a sweep that is itself interrupted leaves the mark for the next one.
            if not elsewhere:
                with contextlib.suppress(OSError):
                    path.unlink()
        finally:
            lock.release()
    return removed


def host_id() -> str:
    """This host, without its name: 12 hex digits of the SHA-256 of its machine id, or of its name where it has none."""
    text = ""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with contextlib.suppress(OSError):
            text = text or path.read_text(encoding="ascii", errors="replace").strip()
    return hashlib.sha256((text or socket.gethostname()).encode()).hexdigest()[:12]


def _engine_of(mark: Path) -> str:
    with contextlib.suppress(OSError):
        return mark.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _runs() -> Path:
    return store.home() / "runs"


def _contexts() -> Path:
    return store.cache() / "contexts"


def _by_run(containers: tuple[ContainerInfo, ...]) -> dict[str, list[ContainerInfo]]:
    runs: dict[str, list[ContainerInfo]] = {}
    for container in containers:
        run = dict(container.labels).get(RUN_LABEL)
        if run:
            runs.setdefault(run, []).append(container)
    return runs
