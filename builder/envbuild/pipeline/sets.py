"""The rows of a release: each with the image that deserves its name, here or in the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envbuild import store
from envbuild.errors import GateError
from envbuild.model import Finding
from envbuild.pipeline import performance
from envbuild.pipeline.locate import locate, own_target, require_level
from envbuild.pipeline.names import names
from envbuild.pipeline.prepare import FindingsError, errors, prepare
from envbuild.pipeline.prove import proven
from envbuild.pipeline.release import EngineShelf, Entry, RegistryShelf, Shelf, move, name_of
from envbuild.pipeline.remote import need_registry
from envbuild.pipeline.resolving import resolve
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release that could be made: its name, its rows, and where."""

    name: str
    place: str
    entries: tuple[Entry, ...]
    shelf: Shelf

    @property
    def tags(self) -> tuple[str, ...]:
        """Its names, those that move last. An image that lacks the tag of its content gets that one too."""
        return tuple(f"{each.repository}:{tag}" for tag in (self.name, "validated") for each in self.entries)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "release": self.name,
            "place": self.place,
            "rows": [
                {"environment": each.environment, "repository": each.repository, "image": each.image}
                for each in self.entries
            ],
            "tags": list(self.tags),
        }


def plan(bench: Workbench, name: str, rows: Sequence[str], *, remote: bool) -> Release:
    """Look at every row's image before a name moves.

    Args:
        name: The release's name.
        remote: Names of the registry, not of the engine; the images have been pushed.

    Raises:
        InputError: The name cannot be one, or no registry is configured.
        GateError: A row has no image, one with too little evidence, or one that is not known to be as fast as the row
            requires (exit 5).
        FindingsError: The evidence in the registry is not good enough (exit 5); it tells of all rows.
    """
    checked = name_of(name)
    if remote:
        entries, repositories = _remote(bench, rows)
        return Release(name=checked, place=need_registry(bench), entries=entries, shelf=RegistryShelf(repositories))
    return Release(
        name=checked, place=bench.engine.endpoint, entries=_local(bench, rows), shelf=EngineShelf(bench.engine)
    )


def carry_out(bench: Workbench, release: Release) -> tuple[str, ...]:
    """Move the names; see ``release.move``."""
    return move(release.shelf, release.place, release.name, release.entries, bench.sink)


def _local(bench: Workbench, rows: Sequence[str]) -> tuple[Entry, ...]:
    entries = []
    for row in rows:
        ref, info, env = locate(bench, row, None)
        found, target = proven(info, env), own_target(env, info)
        if found is None or target is None:
            raise GateError(
                f"{ref} has no evidence as {row}, as the row is today, from the current suite",
                hint=f"Prove it first: envbuild smoke {row}. No name was moved.",
            )
        require_level(env, found[0], ref, again=row)
        performance.require(bench, env, info, ref, again=row)
        wanted = names(env, target[:8], bench.site.registry.name)
        entries.append(Entry(environment=row, repository=wanted.repository, image=info.id, own=wanted.id_tag))
    return tuple(entries)


def _remote(bench: Workbench, rows: Sequence[str]) -> tuple[tuple[Entry, ...], dict[str, Repository]]:
    entries: list[Entry] = []
    repositories: dict[str, Repository] = {}
    against: list[Finding] = []
    for row in rows:
        env = bench.matrix.get(row)
        target = prepare(bench, row, checked=False)
        wanted = names(env, target.rendering.id8, need_registry(bench))
        with store.scratch(bench.cache, "set-") as scratch:
            found = resolve(bench, env, wanted.proven, Wanted(), scratch, bench.sink)
        against += found.verified.findings
        repositories[wanted.repository] = found.image.there
        entries.append(
            Entry(
                environment=row,
                repository=wanted.repository,
                image=found.image.manifest.descriptor.digest,
                own=wanted.id_tag,
            )
        )
    if errors(against):
        raise FindingsError(
            f"the release is not made: {len(errors(against))} reason(s)", tuple(against),
            hint="No name was moved.", exit_code=5,
        )  # fmt: skip
    return tuple(entries), repositories
