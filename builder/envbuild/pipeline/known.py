"""What a row came to when it was last prepared, kept by the content of everything that decides it.

Matrix, facts, rules and rendering take 150 ms, more than all else that a build with nothing to do does. What comes of
them depends on files alone: while those are the same, byte for byte, it need not be worked out again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

import envbuild
from envbuild import project, store
from envbuild.errors import EnvbuildError
from envbuild.model import Level
from envbuild.pipeline.names import Names, names

if TYPE_CHECKING:
    from envbuild.pipeline.prepare import Target
    from envbuild.pipeline.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """As much of a target as it takes to see whether it is up to date.

    Attributes:
        row: The row's name.
        repository: Name of its images, without the registry's prefix: that one is the site's.
        requires: The level of evidence that the row requires.
        claims: What evidence has to be of, to count for the row.
        performance: What it requires of its speed, as the row says it.
    """

    row: str
    target_id: str
    repository: str
    id_tag: str
    requires: str
    claims: dict[str, str]
    performance: dict[str, Any] | None = None

    @classmethod
    def of(cls, target: Target) -> Known:
        """From the target itself."""
        from envbuild.pipeline.prove import claims

        plain = names(target.env, target.rendering.id8, None)
        return cls(
            row=target.env.name,
            target_id=target.rendering.target_id,
            repository=plain.repository,
            id_tag=plain.id_tag,
            requires=target.env.required_level.value,
            claims=claims(target.env),
            performance=asked.model_dump(mode="json") if (asked := target.env.performance) is not None else None,
        )

    @property
    def required_level(self) -> Level:
        """The level of evidence that the row requires."""
        return Level(self.requires)

    def names(self, registry: str | None) -> Names:
        """The names of its image."""
        prefix = f"{registry.rstrip('/')}/" if registry else ""
        return Names(repository=f"{prefix}{self.repository}", id_tag=self.id_tag)


def recall(bench: Workbench, row: str) -> Known | None:
    """What the row came to, or None when anything that decides it has changed, or was never seen."""
    path = place(bench, row)
    try:
        found = Known(**json.loads(path.read_bytes())) if path else None
        return found if found and found.row == row and found.required_level else None
    except (OSError, ValueError, TypeError):
        return None


def remember(bench: Workbench, target: Target, asked: Path | None) -> None:
    """Keep what a row that breaks no rule came to. Only a saving of time, so a cache that is closed stops nothing.

    Args:
        bench: The surroundings.
        target: The row, prepared.
        asked: ``place`` of the row before it was prepared. Where it is another one now, a file has changed meanwhile,
            and nobody knows which of its contents was read.
    """
    if asked is not None and asked == place(bench, target.env.name):
        with contextlib.suppress(EnvbuildError):
            store.write_json(asked, dataclasses.asdict(Known.of(target)))


def place(bench: Workbench, row: str) -> Path | None:
    """Where a row is remembered as everything that decides it is now; None where that cannot be read."""
    try:
        return bench.cache / "known" / f"{_fingerprint(bench, row)[:32]}.json"
    except (OSError, ValueError, EnvbuildError):
        return None


def _fingerprint(bench: Workbench, row: str) -> str:
    digest = hashlib.sha256()

    def take(*said: str | bytes) -> None:
        for each in said:
            content = each if isinstance(each, bytes) else each.encode(errors="surrogateescape")
            digest.update(f"{len(content)} ".encode())
            digest.update(content)

    # The day, because a rule may speak of one.
    take(row, sys.version, datetime.date.today().isoformat())
    for path in _inputs(bench.project, row):
        take(str(path), path.read_bytes())
    # Whoever reads and renders: another version of a library may do it otherwise.
    take(*sorted(path.name for path in Path(pydantic.__file__).parents[1].glob("*.dist-info")))
    return digest.hexdigest()


def _inputs(found: project.Project, row: str) -> Iterator[Path]:
    """The matrix, the row's lock, the templates, the facts, and envbuild itself."""
    yield found.matrix
    lock = project.existing_lock(found, row)
    if lock is not None:
        yield lock
    yield from project.files_below(found.templates)
    for folder in found.facts:
        yield from sorted(folder.glob("*.yaml"))
    package = Path(envbuild.__file__).parent
    yield from (path for path in sorted(package.rglob("*")) if path.suffix == ".py")
