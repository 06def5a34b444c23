"""A bundle on its way: a folder beside its final place, that gets its name when everything in it is on the disk.

What it is made of is hashed as it is written: the sums are those of the very bytes. Every file has the same time and
the same permissions whoever makes it, and a killed run leaves a folder that the next one removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import store
from envbuild.bundle import sums
from envbuild.bundle.manifest import File
from envbuild.bundle.putting import FilePart, Told, disk_error, pieces, settle_folders, written
from envbuild.bundle.words import MANIFEST, SUMS
from envbuild.errors import BundleError, EngineError
from envbuild.events import Note, Sink, discard

_LINES = 4
_PLAIN = 0o644


@dataclass(slots=True, kw_only=True)
class Draft:
    """A bundle that is being written. May be written to from several threads.

    Attributes:
        folder: Where it lies until it is whole.
        told: Told of every piece that is written, in bytes.
        base: SHA-256 and size by path of a bundle that the receiver has already: what is the same there is not
            carried, apart from the small files that say what a bundle is.
    """

    folder: Path
    told: Told = lambda count: None
    base: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    _folders: set[Path] = field(default_factory=set)
    _coming: list[Future[File]] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_LINES))

    def write(self, path: str, data: bytes, part: FilePart = "common", *, program: bool = False) -> File:
        """Write a small file.

        Raises:
            BundleError: No bundle can have such a path, or it has one already.
            EngineError: The disk.
        """
        return self.stream(path, (data,), part, program=program)

    def stream(self, path: str, pieces: Iterable[bytes], part: FilePart, *, program: bool = False) -> File:
        """Write a file as its pieces come.

        Raises:
            BundleError: As ``write``.
            EngineError: The disk.
        """
        place = self._place(path)
        file = self._keep(written(place, path, pieces, part, program=program, told=self.told))
        self._leave_out(file)
        return file

    def adopt(self, path: str, sha256: str, part: FilePart) -> File:
        """Take a file that somebody else has written into the folder, and hashed as he did.

        Raises:
            BundleError: As ``write``; or it is not there.
        """
        place = self._place(path)
        try:
            size = place.lstat().st_size
            place.chmod(_PLAIN)
        except OSError as error:
            raise BundleError(f"{path} was not written into the bundle: {error.strerror}") from error
        file = self._keep(File(path=path, bytes=size, sha256=sha256, part=part))
        self._leave_out(file)
        return file

    def _leave_out(self, file: File) -> None:
        """Take a file away that the base has already."""
        if self.base.get(file.path) == (file.sha256, file.bytes) and not always_carried(file.path, file.part):
            store.remove(self.folder / file.path)

    @property
    def carried(self) -> tuple[str, ...]:
        """What lies in the folder, of the files that were written; sorted."""
        return tuple(sorted(path for path in self.files if (self.folder / path).is_file()))

    def copy(self, path: str, source: Path, sha256: str, part: FilePart) -> None:
        """Have a file copied from elsewhere, while others are; ``finish`` waits for it.

        Args:
            sha256: What it has to have: a cache may have been damaged since it was filled.

        Raises:
            BundleError: As ``write``.
        """
        place = self._place(path)
        known = self.base.get(path)
        if known is not None and known[0] == sha256 and not always_carried(path, part):
            self._keep(File(path=path, bytes=known[1], sha256=sha256, part=part))
            return
        self._coming.append(self._pool.submit(self._copied, place, path, source, sha256, part))

    def settle(self) -> None:
        """Wait until everything that was begun is written.

        Raises:
            BundleError: A file is not what it should be.
            EngineError: The disk.
        """
        coming, self._coming = self._coming, []
        try:
            for each in coming:
                self._keep(each.result())
        finally:
            for each in coming:
                each.cancel()

    def close(self) -> None:
        """End what is still being written."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _copied(self, place: Path, path: str, source: Path, sha256: str, part: FilePart) -> File:
        made = written(place, path, pieces(source), part, program=False, told=self.told)
        if made.sha256 != sha256:
            raise BundleError(
                f"{source}: its SHA-256 is {made.sha256[:12]}..., and {sha256[:12]}... was expected",
                hint="It was damaged after it was fetched: remove it and export again.",
            )
        return made

    def _place(self, path: str) -> Path:
        if not sums.is_path(path):
            raise BundleError(f"{path[:100]!r} cannot be the path of a file in a bundle")
        place = self.folder / path
        if place.parent not in self._folders:
            self._folders.add(store.make_folder(place.parent))
        return place

    def _keep(self, file: File) -> File:
        if file.path in self.files:
            raise BundleError(f"{file.path} is written twice: two different files have this name")
        self.files[file.path] = file
        return file


def always_carried(path: str, part: FilePart) -> bool:
    """Whether a file belongs into every bundle: what says what it is and installs it, and the lists of packages."""
    return part == "common" or path.startswith("rpms/repodata/") or path.endswith(".lock")


@contextlib.contextmanager
def drafting(
    target: Path,
    created: str,
    *,
    base: Mapping[str, tuple[str, int]] | None = None,
    told: Told = lambda count: None,
    sink: Sink = discard,
) -> Iterator[Draft]:
    """Write a bundle; it is at its place when this ends well, and not at all otherwise.

    A folder that is there already is replaced if it is a bundle or empty. Two runs for one place wait for one another.

    Args:
        created: The time that every file of it gets, as in the manifest.
        base: As in ``Draft``.

    Raises:
        BundleError: There is something else at its place.
        EngineError: The disk.
    """
    target = target.absolute()
    store.make_folder(target.parent)
    name = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    lock = store.FileLock(store.home() / "locks" / f"bundle-{name}.lock")
    lock.acquire(lambda: sink(Note(message=f"another run writes {target}; waiting for it")))
    work, old = (target.with_name(f".{target.name}.{what}") for what in ("part", "old"))
    try:
        refuse_other(target)
        for leftover in (work, old):
            _remove(leftover)
        store.make_folder(work)
        draft = Draft(folder=work, told=told, base=base or {})
        try:
            yield draft
            draft.settle()
            settle_folders(work, created)
            _swap(work, target, old)
        finally:
            draft.close()
            _remove(work)
        _remove(old)
    finally:
        lock.release()


def refuse_other(target: Path) -> None:
    """That nothing but a bundle or an empty folder lies where one is to be written.

    Raises:
        BundleError: Something else does.
        EngineError: It cannot be looked at.
    """
    if not os.path.lexists(target):
        above = next((parent for parent in target.parents if os.path.lexists(parent)), target)
        if not os.access(above, os.W_OK | os.X_OK):
            raise EngineError(f"cannot make {target}: {above} cannot be written", hint="Name another place with -o.")
        return
    if target.is_symlink() or not target.is_dir():
        raise BundleError(f"{target} exists and is no folder", hint="Name another place with -o.")
    try:
        inside = {entry.name for entry in target.iterdir()}
    except OSError as error:
        raise EngineError(f"cannot read {target}: {error.strerror}") from error
    if inside and not {MANIFEST, SUMS} <= inside:
        raise BundleError(
            f"{target} holds something else than a bundle", hint="It is not replaced: name an empty or a new folder."
        )


def _swap(work: Path, target: Path, old: Path) -> None:
    try:
        if target.exists():
            target.replace(old)
        work.replace(target)
        store.sync_folder(target.parent)
    except OSError as error:
        raise disk_error(target, error) from error


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise EngineError(f"{folder} cannot be removed", hint="It is what an earlier export has left: remove it.")
