"""Which images there are, here and in the registry: by row, level, age and size."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import EnvbuildError
from envbuild.events import Note
from envbuild.judge.suite import suite_hash
from envbuild.model import Level
from envbuild.net import Missing
from envbuild.pipeline import attached
from envbuild.pipeline.names import names
from envbuild.pipeline.remote import repository
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import LABEL_ENV
from envbuild.registry import Manifest, NotUnderstood, Repository, parse

_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One image.

    Attributes:
        where: ``local`` or ``remote``.
        environment: The row that it says it is.
        repository: Its name without a tag; empty for an image here that has no name.
        image: The engine's id, or the manifest's digest.
        level: The strongest level of its evidence; None where it has none.
        current: Whether that is evidence of the current suite; None where there is none.
        seen: When that was.
        size_bytes: Unpacked here, packed in a registry.
        created: When the image was made, as it says itself.
    """

    where: str
    environment: str
    repository: str
    tags: tuple[str, ...]
    image: str
    level: Level | None
    current: bool | None
    seen: datetime.datetime | None
    size_bytes: int
    created: str = ""

    @property
    def standing(self) -> str:
        """Level and its worth, for people."""
        if self.level is None:
            return "unproven"
        return (
            self.level.value
            + ("" if self.current else ", older suite")
            + (", unchecked" if self.where == "remote" else "")
        )

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "where": self.where,
            "environment": self.environment,
            "repository": self.repository,
            "tags": list(self.tags),
            "image": self.image,
            "level": self.level.value if self.level else None,
            "suite_is_current": self.current,
            "seen": self.seen.isoformat() if self.seen else None,
            "size_bytes": self.size_bytes,
            "created": self.created or None,
        }


def local(bench: Workbench, rows: Sequence[str]) -> list[Listed]:
    """Every image of the engine that says it is one of the rows, derived ones too.

    Raises:
        EngineError: No engine answers.
    """
    found: list[Listed] = []
    for info in bench.engine.every_image():
        row = dict(info.labels).get(LABEL_ENV)
        if row in rows:
            found += _local(info, str(row))
    return sorted(found, key=_order)


def _local(info: ImageInfo, row: str) -> Iterable[Listed]:
    seen = evidence.every(info.id, info.diff_ids)
    best = _best([(record.level, record.suite, record.finished) for record, _ in seen if record.environment == row])
    level, current, when = best
    names_here: dict[str, list[str]] = {}
    for name in info.repo_tags:
        here, _, tag = name.rpartition(":")
        names_here.setdefault(here, []).append(tag)
    for here, tags in (names_here or {"": []}).items():
        yield Listed(
            where="local", environment=row, repository=here, tags=tuple(sorted(tags)), image=info.id, level=level,
            current=current, seen=when, size_bytes=info.size, created=info.created,
        )  # fmt: skip


def remote(bench: Workbench, prefix: str, rows: Sequence[str]) -> list[Listed]:
    """Every tagged image that the registry has of the rows. What its evidence says is shown, and not checked.

    A row whose repository cannot be read is told, and the others are listed.

    Raises:
        EnvbuildError: No row's repository can be read; what is wrong with the first.
    """
    failed: dict[str, EnvbuildError] = {}

    def one(row: str) -> list[Listed]:
        env = bench.matrix.get(row)
        reference = parse(names(env, "", prefix).repository)
        try:
            return _remote(repository(bench, reference, bench.sink), row)
        except EnvbuildError as error:
            failed[row] = error
            return []

    with ThreadPoolExecutor(_LINES) as pool:
        listed = sorted((each for found in pool.map(one, rows) for each in found), key=_order)
    against = [(row, failed[row]) for row in rows if row in failed]
    if against and len(against) == len(rows):
        raise against[0][1]
    for row, error in against:
        bench.sink(Note(message=f"{row}: {error.message}", level="warning"))
    return listed


def _remote(there: Repository, row: str) -> list[Listed]:
    by_digest: dict[str, list[str]] = {}
    for tag in there.tags():
        if not tag.startswith("sha256-") and (found := there.resolve(tag)) is not None:
            by_digest.setdefault(found.digest, []).append(tag)
    listed = []
    for digest, tags in by_digest.items():
        try:
            manifest = there.manifest(digest)
        except (Missing, NotUnderstood):
            continue  # it has just gone, or is nothing that a row could be: the others are listed
        if not isinstance(manifest, Manifest):
            continue
        told = [said for each in there.referrers(digest) if (said := attached.told(each.annotations)) is not None]
        level, current, when = _best(told)
        size = manifest.config.size + sum(layer.size for layer in manifest.layers)
        listed.append(
            Listed(
                where="remote", environment=row, repository=there.name, tags=tuple(sorted(tags)), image=digest,
                level=level, current=current, seen=when, size_bytes=size,
            )
        )  # fmt: skip
    return listed


def _best(
    told: Sequence[tuple[Level, str, datetime.datetime]],
) -> tuple[Level | None, bool | None, datetime.datetime | None]:
    """The evidence that says most: of the current suite first, then the strongest, then the newest."""
    suite = suite_hash()
    best = max(told, key=lambda each: (each[1] == suite, each[0].rank, each[2]), default=None)
    return (None, None, None) if best is None else (best[0], best[1] == suite, best[2])


def _order(listed: Listed) -> tuple[str, bool, float, str]:
    when = -listed.seen.timestamp() if listed.seen else 0.0
    return listed.environment, "validated" not in listed.tags, when, listed.image
