"""An image between the engine's store and its names: nobody else brings it, and nobody clears it away."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

from envbuild import store
from envbuild.events import Note
from envbuild.pipeline.workbench import Workbench


@contextlib.contextmanager
def arriving(bench: Workbench, diff_ids: Sequence[str]) -> Iterator[None]:
    """Be the only run of this user that brings an image; whoever comes second waits.

    Args:
        diff_ids: The image's layers: what it is called depends on the engine.

    Raises:
        EngineError: The disk.
    """
    lock = _lock(bench, diff_ids)
    lock.acquire(lambda: bench.sink(Note(message="another run brings the same image; waiting for it")))
    try:
        yield
    finally:
        lock.release()


def arrives(bench: Workbench, diff_ids: Sequence[str]) -> bool:
    """Whether a run is bringing an image just now.

    Raises:
        EngineError: The disk.
    """
    lock = _lock(bench, diff_ids)
    if not lock.path.exists():
        return False
    if lock.try_acquire():
        lock.release()
        return False
    return True


def _lock(bench: Workbench, diff_ids: Sequence[str]) -> store.FileLock:
    name = hashlib.sha256("\n".join(diff_ids).encode(errors="replace")).hexdigest()
    return store.FileLock(bench.cache / "arriving" / f"{name}.lock")
