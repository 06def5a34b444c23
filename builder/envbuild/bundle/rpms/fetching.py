"""The packages of a plan into the cache: some at a time, each taken up where an earlier run left it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuild import store
from envbuild.bundle.rpms.addresses import local
from envbuild.bundle.rpms.planning import Plan
from envbuild.bundle.rpms.telling import Brake, shared, step
from envbuild.bundle.rpms.transport import Wanted
from envbuild.bundle.rpms.types import Package
from envbuild.errors import EngineError
from envbuild.events import Sink, discard

_LINES = 6
# The largest packages of a distribution have some GB (CUDA, firmware).
_LARGEST = 16 << 30
# Progress is told again after so many seconds, or when the whole has grown by this share.
_SECONDS, _SHARE = 2.0, 0.05
# What a disk should keep free beside what is written to it.
_RESERVE = 64 << 20
KEY = "rpm-packages"


def fetch(plan: Plan, *, cache: Path, sink: Sink = discard) -> Mapping[str, Path]:
    """Bring every package here; returns its file by its full name. Files of local repositories stay where they are.

    Raises:
        NetworkError: One does not come.
        BundleError: What comes is something else, from every mirror.
        EngineError: The disk, which is looked at first.
    """
    found = {each.id: each for each in plan.metadata}
    folder = cache / "packages"

    def one(package: Package) -> Path:
        algorithm, digest = package.checksum
        addresses = found[package.repository].addresses(package.location)
        wanted = Wanted(name=str(package.nevra), checksum=package.checksum, size=package.bytes or None, limit=_LARGEST)
        path = folder / digest[:2] / f"{algorithm}-{digest}.rpm"
        got = found[package.repository].way.fetch(addresses, path, wanted, moved=tally.moved)
        tally.arrived()
        return got

    missing = [package for package in plan.packages if not _here(plan, package, folder)]
    _room(folder, sum(package.bytes for package in missing))
    with step(shared(sink), KEY, f"{len(plan.packages)} packages, {size(plan.bytes)}") as tell:
        tally = _Tally(tell, len(plan.packages), plan.bytes)
        with ThreadPoolExecutor(_LINES) as pool:
            # The largest first: nobody waits for one of them in the end.
            jobs = {each: pool.submit(one, each) for each in sorted(plan.packages, key=lambda each: -each.bytes)}
            try:
                return {str(package.nevra): jobs[package].result() for package in plan.packages}
            except BaseException:
                # The pool waits for what runs: it ends at its next piece.
                tally.stop()
                for job in jobs.values():
                    job.cancel()
                raise


def _here(plan: Plan, package: Package, folder: Path) -> bool:
    algorithm, digest = package.checksum
    if (folder / digest[:2] / f"{algorithm}-{digest}.rpm").is_file():
        return True
    return any(each.id == package.repository and local(each.base) is not None for each in plan.metadata)


def _room(folder: Path, need: int) -> None:
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if need and free < need + _RESERVE:
        raise EngineError(
            f"{place}: {size(need)} are needed for the packages, and {size(free)} are free",
            hint="Free some space (envbuild prune), or set [paths] cache to a folder on another disk.",
        )
    store.make_folder(folder)


def size(count: int) -> str:
    """A number of bytes, for people."""
    value, units = float(count), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("the last unit takes whatever is left")


class _Tally:
    """How far all of them have come. Told from several threads."""

    def __init__(self, tell: Callable[[str], None], count: int, total: int) -> None:
        self._tell, self._count, self._total = tell, count, total
        self._lock = threading.Lock()
        self._bytes = self._told = self._arrived = 0
        self._told_at = time.monotonic()
        self._brake = Brake()

    def moved(self, count: int) -> None:
        self._brake.moved(count)
        with self._lock:
            self._bytes += count
            now = time.monotonic()
            if self._bytes - self._told >= _SHARE * self._total or now - self._told_at >= _SECONDS:
                self._told, self._told_at = self._bytes, now
                done = f"{self._arrived} of {self._count} packages, {size(self._bytes)} of {size(self._total)}"
                self._tell(done)

    def arrived(self) -> None:
        with self._lock:
            self._arrived += 1

    def stop(self) -> None:
        self._brake.set()
