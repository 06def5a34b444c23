"""Two runs on one machine: waiting for one another, and clearing up after those that were killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from envbuild import store
from envbuild.engines import Run, sweep
from envbuild.events import Note
from envbuild.pipeline.workbench import Workbench


@contextlib.contextmanager
def exclusive(bench: Workbench, target_id: str) -> Iterator[None]:
    """Two runs of one target wait for one another."""
    lock = store.FileLock(store.home() / "targets" / f"{target_id[:16]}.lock")
    lock.acquire(
        on_wait=lambda: bench.sink(Note(message="another run builds this target; waiting for it", level="warning"))
    )
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def running(bench: Workbench) -> Iterator[Run]:
    """This run's identity; leftovers of runs that are gone are removed first."""
    runs, contexts = store.home() / "runs", bench.cache / "contexts"
    with Run(runs, contexts, bench.engine.endpoint) as run:
        for what in sweep(bench.engine, runs, contexts):
            bench.sink(Note(message=f"removed a leftover of a run that ended: {what}"))
        yield run
