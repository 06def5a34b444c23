"""Put the locked files that only this host can reach into a build context, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import get_args

from envbuild import store
from envbuild.errors import EngineError
from envbuild.lock import local
from envbuild.model import Lock, LockGroup
from envbuild.site.pip import PipSettings

GROUPS: tuple[LockGroup, ...] = get_args(LockGroup)
KEEP = ".keep"


def stage_local(lock: Lock, pip: PipSettings, into: Path, cache: Path | None = None) -> tuple[str, ...]:
    """Put every locked file of local wheel folders and ``file:`` indexes into ``into/GROUP/``.

    A file enters when its name parses as a locked package and version, it can run on the lock's platform, and its
    SHA-256 is in the lock. A source archive enters only where the group compiles, or no wheel of the package does.
    Files are hard links where the file system allows, so that a large wheel costs nothing. Group folders are made
    anew, with a ``.keep`` file so that a build can mount an empty one.

    Returns:
        ``GROUP/FILENAME`` of what was put there, sorted.

    Raises:
        EngineError: The disk is full or ``into`` cannot be written.
    """
    locked = {package.name: package for package in lock.packages}
    remembered = store.cache(cache)
    chosen: dict[str, Path] = {}
    archives: dict[str, dict[str, Path]] = {}
    with_wheel: set[str] = set()
    for candidate in local.candidates(pip, frozenset(locked)):
        package = locked[candidate.name]
        target = f"{package.group}/{candidate.filename}"
        if (
            target in chosen
            or not local.same_version(candidate.version, package.version)
            or not local.runs_on(candidate, lock.python, lock.platform)
        ):
            continue
        # A file that cannot be read may well be had from an index; if not, pip says so.
        with contextlib.suppress(OSError):
            if local.sha256(candidate.path, remembered) not in package.hashes:
                continue
            if candidate.tags or package.group == "ops":
                chosen[target] = candidate.path
                with_wheel.add(package.name)
            else:
                archives.setdefault(package.name, {}).setdefault(target, candidate.path)
    for name, files in archives.items():
        if name not in with_wheel:
            chosen.update(files)
    try:
        for group in GROUPS:
            folder = into / group
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / KEEP).touch()
        for target, path in sorted(chosen.items()):
            _place(path, into / target)
    except OSError as error:
        raise EngineError(
            f"cannot put {error.filename2 or error.filename} into the build context: {error.strerror}",
            hint=f"{into} needs space for the locked wheels of this host",
        ) from error
    return tuple(sorted(chosen))


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, one without hard links, or a file of another user's.
        shutil.copyfile(source, target)
