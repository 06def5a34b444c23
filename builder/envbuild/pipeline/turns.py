"""Taking turns: what the machine has room for once is done by one run at a time, in whatever order they come."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import time
from collections.abc import Iterator

from envbuild import store
from envbuild.events import Note
from envbuild.pipeline.room import builds_at_once
from envbuild.pipeline.smoking import Device
from envbuild.pipeline.workbench import Workbench

# How often a run that waits for one of several places looks again, in seconds.
_LOOK_AGAIN = 0.5


@contextlib.contextmanager
def building(bench: Workbench) -> Iterator[None]:
    """A place to build an image in, given back at the end; as many as the engine's CPUs suffice for."""
    places = builds_at_once(bench.engine.info().cpus)
    with _place(bench, _name("builds", bench), places, "other rows are being built; waiting for their turn to end"):
        yield


@contextlib.contextmanager
def measuring(bench: Workbench) -> Iterator[None]:
    """Every place to build in, given back at the end: while times are compared nobody begins to compile beside it.

    Places are taken one behind the other in one order, so two that want all of them do not wait for one another.
    """
    folder, name = store.home() / "locks", _name("builds", bench)
    with contextlib.ExitStack() as taken:
        for index in range(builds_at_once(bench.engine.info().cpus)):
            lock = store.FileLock(folder / _file(name, index))
            lock.acquire(lambda: bench.sink(Note(message="other rows are built or compared; waiting for them to end")))
            taken.callback(lock.release)
        yield


@contextlib.contextmanager
def training(bench: Workbench, device: Device) -> Iterator[None]:
    """A place to train in, given back at the end.

    On GPUs there is one: their memory and their speed are part of what is seen. On CPUs there are as many as give each
    rank two cores: ranks that wait for one another do so by spinning (DeepSpeed's shared-memory collectives), and on
    cores that they do not have for themselves they spin most of the time.
    """
    if device.accelerator == "cuda":
        name, places, where = _name("gpus", bench), 1, "GPUs"
    else:
        cpus = bench.engine.info().cpus
        name, places, where = _name("cpus", bench), max(1, cpus // (2 * max(1, device.ranks))), "CPUs"
    with _place(bench, name, places, f"the {where} are taken by another run's training; waiting for it"):
        yield


def _name(what: str, bench: Workbench) -> str:
    # By engine: two of them may be two machines. A local one is this host's, and hosts may share a store.
    where = f"{platform.node()} {bench.engine.endpoint}" if bench.engine.local else bench.engine.endpoint
    return f"{what}-{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def _file(name: str, index: int) -> str:
    return f"{name}{f'-{index}' if index else ''}.lock"


@contextlib.contextmanager
def _place(bench: Workbench, name: str, places: int, waiting: str) -> Iterator[None]:
    folder = store.home() / "locks"
    locks = [store.FileLock(folder / _file(name, index)) for index in range(places)]
    taken = next((lock for lock in locks if lock.try_acquire()), None)
    if taken is None:
        bench.sink(Note(message=waiting))
        if places == 1:
            # The kernel keeps the queue.
            locks[0].acquire()
            taken = locks[0]
    while taken is None:
        time.sleep(_LOOK_AGAIN)
        taken = next((lock for lock in locks if lock.try_acquire()), None)
    try:
        yield
    finally:
        taken.release()
