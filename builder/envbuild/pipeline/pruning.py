"""prune: what may go without anybody missing it. What a name or evidence still speaks of stays."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence, store
from envbuild.engines import ImageInfo
from envbuild.errors import EnvbuildError
from envbuild.events import Note
from envbuild.executors import every as every_run
from envbuild.pipeline.arriving import arrives
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.runs import running
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV, LABEL_TARGET

_DAY = 24 * 3600.0
# A transfer that broke off is worth something for a while; a log for longer. No run lasts as long as a week.
_BLOBS, _SCRATCH, _LOGS, _SILENT = 1 * _DAY, 7 * _DAY, 30 * _DAY, 180 * _DAY

# Folders in which runs work, and which they take away themselves.
_RUNS = ("pull-", "set-", "provision-", "rpmdb-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that goes.

    Attributes:
        kind: ``image``, ``name``, ``file`` or ``folder``.
        what: An image's id, a tag, or a path.
        size_bytes: What it frees at most: images share layers. 0 for a name.
    """

    kind: str
    what: str
    size_bytes: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"kind": self.kind, "what": self.what, "size_bytes": self.size_bytes, "why": self.why}


def plan(bench: Workbench, *, candidates: bool) -> list[Item]:
    """Everything that may go; an engine that does not answer is told, and its images stay.

    Args:
        candidates: Candidates and unverified images of older inputs too, which have a name.
    """
    found: list[Item] = []
    try:
        found += _images(bench, candidates=candidates)
    except EnvbuildError as error:
        bench.sink(Note(message=f"no images: {error.message}", level="warning"))
    found += [*_files(bench.cache, time.time()), *_cluster(bench.site.executor.folder, time.time())]
    return found


def carry_out(bench: Workbench, items: Sequence[Item]) -> list[Item]:
    """Do it; returns what has gone. What has found a use meanwhile stays, and so does what cannot be removed."""
    gone = []
    if any(item.kind in ("image", "name") for item in items):
        with running(bench):  # removes what dead runs have left
            pass
    still = {*_files(bench.cache, time.time()), *_cluster(bench.site.executor.folder, time.time())}
    for item in items:
        try:
            if _went(bench, item, still):
                gone.append(item)
            else:
                bench.sink(Note(message=f"{item.what} is in use, and stays"))
        except EnvbuildError as error:  # noqa: PERF203 (one that stays keeps nobody else)
            bench.sink(Note(message=f"{item.what} stays: {error.message}", level="warning"))
    return gone


def _went(bench: Workbench, item: Item, still: Container[Item]) -> bool:
    if item.kind in ("file", "folder"):
        if item not in still:
            return False
        if item.kind == "file":
            store.remove(Path(item.what))
        else:
            shutil.rmtree(item.what, ignore_errors=True)
        return True
    # An engine takes an image that is asked for by its id away together with its only name.
    info = bench.engine.image(item.what)
    if info is None:
        return True
    if item not in _of_image(bench, info, candidates=item.kind == "name"):
        return False
    if item.kind == "name":
        bench.engine.untag(item.what)
        return True
    # A pull that has it in its hands has given it neither name nor evidence yet.
    return not arrives(bench, info.diff_ids) and bench.engine.remove_unnamed(item.what)


def _images(bench: Workbench, *, candidates: bool) -> Iterator[Item]:
    for info in bench.engine.every_image():
        yield from _of_image(bench, info, candidates=candidates)


def _of_image(bench: Workbench, info: ImageInfo, *, candidates: bool) -> Iterator[Item]:
    row = dict(info.labels).get(LABEL_ENV)
    if row is None or evidence.every(info.id, info.diff_ids):
        return
    if not info.repo_tags:
        yield Item(
            kind="image", what=info.id, size_bytes=info.size,
            why=f"says it is {row}, has no name and no evidence",
        )  # fmt: skip
    elif candidates and all(map(_waiting, info.repo_tags)) and not _current(bench, row, info):
        for name in info.repo_tags:
            yield Item(kind="name", what=name, size_bytes=info.size, why="a candidate of older inputs, unproven")


def _waiting(name: str) -> bool:
    return name.rpartition(":")[2].startswith(("candidate-", "unverified-"))


def _current(bench: Workbench, row: str, info: ImageInfo) -> bool:
    """Whether an image is of a row's inputs as they are; of one that cannot be worked out, or is another project's,
    it may be."""
    if row not in bench.matrix.environments:
        return True
    try:
        target = prepare(bench, row, checked=False)
    except EnvbuildError:
        return True
    return dict(info.labels).get(LABEL_TARGET) == target.rendering.target_id


def _files(cache: Path, now: float) -> Iterator[Item]:
    for pattern, age, why in (
        ("blobs/sha256/[!.]*", _BLOBS, "a layer of a transfer that was not finished"),
        ("blobs/uploads/*", _BLOBS, "where an upload had got to"),
        ("blobs/sha256/.*.tmp", _BLOBS, "a layer that was not packed to its end"),
        ("sbom/*.json", _LOGS, "what an image is made of, which can be read again"),
        ("logs/*.log", _LOGS, "a log of more than 30 days ago"),
    ):
        for path in sorted(cache.glob(pattern)):
            with contextlib.suppress(OSError):
                status = path.stat()
                old = now - status.st_mtime > age
                if path.is_file() and old and path.suffix != ".lock" and not _held(path):
                    yield Item(kind="file", what=str(path), size_bytes=status.st_size, why=why)
    for path in (path for prefix in _RUNS for path in sorted(cache.glob(f"{prefix}*"))):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink() and now - path.stat().st_mtime > _SCRATCH:
                size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
                yield Item(kind="folder", what=str(path), size_bytes=size, why="of a run that was killed")


def _cluster(shared: Path | None, now: float) -> Iterator[Item]:
    """Runs on a cluster that have ended: their evidence is in the store of whoever followed them."""
    for folder, run in every_run(shared) if shared is not None else ():
        ends = [last.ended if (last := folder.last(number)) else None for number in range(len(run.tasks))]
        with contextlib.suppress(OSError):
            age = now - max(path.stat().st_mtime for path in (folder.path, *folder.path.rglob("*")))
            # One whose node died, or that was cancelled in the queue, says nothing itself; no job lives so long.
            if age > (_LOGS if all(ends) else _SILENT) and folder.own:
                size = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
                yield Item(kind="folder", what=str(folder.path), size_bytes=size, why="a run on the cluster, long over")


def _held(path: Path) -> bool:
    """Whether a transfer has it in its hands."""
    lock = store.FileLock(path.with_name(f"{path.name.removesuffix('.part')}.lock"))
    if not lock.path.exists():
        return False
    if lock.try_acquire():
        lock.release()
        return False
    return True
