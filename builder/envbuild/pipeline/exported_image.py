"""The proven image of a row for an export: out of the engine, or else out of the site's registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuild import evidence, store
from envbuild.bundle.image import Source
from envbuild.bundle.writing import Draft
from envbuild.engines import ImageInfo
from envbuild.errors import EngineError, EnvbuildError, GateError
from envbuild.evidence.record import MAX_BYTES
from envbuild.model import Level
from envbuild.pipeline import shipping
from envbuild.pipeline.exported import Wish
from envbuild.pipeline.locate import require_level
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.names import Names, names
from envbuild.pipeline.prepare import FindingsError, Target, errors
from envbuild.pipeline.prove import proven
from envbuild.pipeline.resolving import Remote, resolve
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench

_MAX_EVIDENCE = 2 * MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A proven image that goes into a bundle.

    Attributes:
        reference: The name that it gets where it is loaded; it is given once and never moves.
        size: About how many bytes its archive will have.
        created: As its config says it; empty where it does not.
        info: As the engine has it.
        remote: As the registry has it, where the engine has it not.
        evidence: What it has proved, by file name, where it comes from a registry.
    """

    reference: str
    level: Level
    size: int
    created: str
    info: ImageInfo | None = None
    remote: Remote | None = None
    evidence: Mapping[str, bytes] = field(default_factory=dict)

    def source(self, bench: Workbench) -> Source:
        """The image as blobs on this disk.

        Raises:
            NetworkError: A layer does not come.
            EngineError: The engine or the disk.
        """
        named = shipping.Named(reference=self.reference, level=self.level)
        if self.info is not None:
            return shipping.from_engine(bench, self.info, named)
        assert self.remote is not None
        return shipping.from_registry(bench, self.remote, named)

    def put_evidence(self, draft: Draft, environment: str) -> tuple[str, ...]:
        """Put what it has proved into a bundle; returns the paths."""
        if self.info is not None:
            return shipping.evidence_beside(draft, self.info, environment)
        for name, data in self.evidence.items():
            draft.write(f"images/evidence/{name}", data, "image")
        return tuple(sorted(f"images/evidence/{name}" for name in self.evidence))


def find(bench: Workbench, target: Target, wish: Wish) -> Carried:
    """The row's proven image.

    Raises:
        GateError: There is none, or it has proved less than is wanted (exit 5).
        FindingsError: The registry has one that is not to be believed (exit 5).
        EngineError: Neither engine nor registry answers (exit 3).
    """
    plain = names(target.env, target.rendering.id8, None)
    try:
        found = _of_engine(bench, target, plain, wish)
        problem: EnvbuildError | None = None
    except EngineError as error:
        found, problem = None, error
    if found is not None:
        return found
    if bench.site.registry.name:
        return _of_registry(bench, target, plain, wish)
    if problem is not None:
        raise problem
    raise GateError(
        f"{target.env.name} has no proven image of its current inputs",
        hint=f"envbuild build {target.env.name}, or envbuild pull {target.env.name}",
    )


def _of_engine(bench: Workbench, target: Target, plain: Names, wish: Wish) -> Carried | None:
    wanted = names(target.env, target.rendering.id8, bench.site.registry.name)
    for ref in dict.fromkeys((*wanted.own, wanted.candidate, *plain.own, target.candidate)):
        info = bench.engine.image(ref)
        found = proven(info, target.env) if info is not None else None
        if info is not None and found is not None:
            level = found[0]
            return Carried(
                reference=_name(target, plain, level, ref, wish), level=level, size=info.size, created=info.created,
                info=info,
            )  # fmt: skip
    return None


def _of_registry(bench: Workbench, target: Target, plain: Names, wish: Wish) -> Carried:
    there = names(target.env, target.rendering.id8, bench.site.registry.name)
    ref = there.below(wish.allow_level) if wish.allow_level else there.proven
    mover = Mover(sink=bench.sink, verb="fetching")
    with store.scratch(bench.cache, "export-") as scratch:
        found = resolve(bench, target.env, ref, Wanted(level=wish.allow_level, performance=False), scratch, mover.event)
        if errors(found.verified.findings):
            raise FindingsError(f"{ref} is not to be believed", found.verified.findings, exit_code=5)
        if found.verified.record is None:
            raise GateError(f"{ref} has no evidence")
        level = found.verified.record.level
        return Carried(
            reference=_name(target, plain, level, ref, wish), level=level,
            size=sum(layer.size for layer in found.image.manifest.layers), created=_created(found.image.config),
            remote=found.image, evidence=_records(scratch),
        )  # fmt: skip


def _name(target: Target, plain: Names, level: Level, ref: str, wish: Wish) -> str:
    require_level(target.env, level, ref, again=target.env.name, allowed=wish.allow_level)
    return plain.proven if level.rank >= target.env.required_level.rank else plain.below(level)


def _records(scratch: Path) -> dict[str, bytes]:
    """Records and their signatures, as ``believe`` has left them."""
    found: dict[str, bytes] = {}
    for path in sorted(scratch.glob("evidence-*.json")):
        for each in (path, evidence.envelope_of(path)):
            if each.is_file():
                found[each.name] = evidence.read_bounded(each, _MAX_EVIDENCE)
    return found


def _created(config: bytes) -> str:
    try:
        return str(json.loads(config).get("created") or "")
    except (ValueError, AttributeError, RecursionError):
        return ""
