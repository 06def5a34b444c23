"""pull: a proven image out of a registry, believed before its layers move and looked at again when it is here."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence, store
from envbuild.engines import ImageInfo
from envbuild.engines.incoming import Incoming
from envbuild.errors import GateError, InputError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.evidence.record import MAX_BYTES
from envbuild.judge import archive
from envbuild.model import Environment, Finding, Level, Severity
from envbuild.pipeline import unpacking
from envbuild.pipeline.arriving import arriving
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.names import Names, names, refuse_other_bytes
from envbuild.pipeline.packing import Layers
from envbuild.pipeline.prepare import FindingsError, errors, prepare
from envbuild.pipeline.remote import blobs, need_registry
from envbuild.pipeline.resolving import resolve
from envbuild.pipeline.suits import host_objections
from envbuild.pipeline.verify import Verified
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Descriptor, Manifest, Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be pulled how.

    Attributes:
        wanted: What the evidence has to show.
        locked: By target id: the image of the row's inputs as they are here, not what ``validated`` names.
        candidate: One that waits for its proof.
        verify: Whether evidence is asked for at all.
        any_host: It is for another machine than this one.
    """

    wanted: Wanted
    locked: bool = False
    candidate: bool = False
    verify: bool = True
    any_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a registry has for a row, and whether it may be believed; no layer has moved yet.

    Attributes:
        ref: The name that was resolved.
        there: Layers that the engine has already, from the bottom.
        missing: Layers that have to be moved.
        asked: Its evidence had to be good.
    """

    env: Environment
    ref: str
    manifest: Manifest
    config: bytes
    verified: Verified
    host: tuple[Finding, ...]
    there: int
    missing: tuple[Descriptor, ...]
    tags: tuple[str, ...]
    asked: bool = True

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that speaks against it; what nobody asked for is no error."""
        verified = self.verified.findings
        return (*(verified if self.asked else map(_waived, verified)), *self.host)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        record = self.verified.record
        return {
            "environment": self.env.name,
            "reference": self.ref,
            "digest": self.manifest.descriptor.digest,
            "config_digest": self.manifest.config.digest,
            "level": record.level.value if record else None,
            "signed_by": self.verified.key.id if self.verified.key else None,
            "finished": record.finished.isoformat() if record else None,
            "performance": [each.model_dump(mode="json", by_alias=True) for each, _ in self.verified.compared],
            "layers": len(self.manifest.layers),
            "layers_here": self.there,
            "bytes_to_move": sum(layer.size for layer in self.missing),
            "tags": list(self.tags),
        }


def pull(bench: Workbench, name: str, wish: Wish, *, dry_run: bool = False) -> tuple[Found, ImageInfo | None]:
    """Pull a row's image: resolve it, believe it or not, and only then move what is missing.

    Args:
        dry_run: Stop before a layer moves.

    Raises:
        FindingsError: Something stands against it (exit 5).
        GateError: There is no such image, or its name is taken here by another one (exit 5).
        InputError: No registry is configured, or a key cannot be used.
        NetworkError: The registry (exit 3).
        EngineError: The engine or the disk (exit 3).
    """
    mover = Mover(sink=bench.sink, verb="fetching")
    with store.scratch(bench.cache, "pull-") as scratch:
        found, there = _find(bench, name, wish, mover, scratch)
        _refuse(found)
        _refuse_taken(bench, found)
        return found, None if dry_run else _fetch(bench, found, there, mover)


def _find(bench: Workbench, name: str, wish: Wish, mover: Mover, scratch: Path) -> tuple[Found, Repository]:
    """Resolve a row's image in the registry, and hold its evidence to what is wanted."""
    began = time.monotonic()
    env = _row(bench, name)
    target = prepare(bench, name, checked=False)
    wanted = names(env, target.rendering.id8, need_registry(bench))
    ref = wanted.candidate if wish.candidate else wanted.proven if wish.locked else wanted.moving
    mover.event(PhaseStarted(phase="resolve", detail=ref))
    level = Level.BUILT if wish.candidate and wish.wanted.level is None else wish.wanted.level
    asked = dataclasses.replace(wish.wanted, level=level, performance=ref == wanted.moving)
    resolved = resolve(bench, env, ref, asked, scratch, mover.event)
    manifest, verified = resolved.image.manifest, resolved.verified
    record = verified.record
    host = (
        host_objections(env, record.portability, record.platform)
        if record is not None and bench.engine.local and not wish.any_host
        else []
    )
    there_already = unpacking.layers_there(bench.engine, verified.identity.diff_ids)
    mover.event(PhaseDone(phase="resolve", seconds=time.monotonic() - began, detail=manifest.descriptor.digest[:19]))
    found = Found(
        env=env,
        ref=ref,
        manifest=manifest,
        config=resolved.image.config,
        verified=verified,
        host=tuple(host),
        there=there_already,
        missing=tuple({layer.digest: layer for layer in manifest.layers[there_already:]}.values()),
        tags=_tags(env, wanted, wish, verified, manifest),
        asked=wish.verify,
    )
    return found, resolved.image.there


def _waived(finding: Finding) -> Finding:
    error = finding.severity is Severity.ERROR
    return dataclasses.replace(finding, severity=Severity.WARNING) if error else finding


def _row(bench: Workbench, name: str) -> Environment:
    if name not in bench.matrix.environments and any(sign in name for sign in "/:@"):
        rows = ", ".join(bench.matrix.environments)
        raise InputError(
            f"{name!r} is an image, and a row is pulled by its name",
            hint=f"Rows: {rows}. Without asking for evidence: envbuild pull --image-only {name}",
        )
    return bench.matrix.get(name)


def _refuse(found: Found) -> None:
    """Stop before a layer moves where something stands against the image."""
    against = errors(found.findings)
    if against:
        raise FindingsError(
            f"{found.ref} is not pulled: {len(against)} reason{'' if len(against) == 1 else 's'}",
            found.findings,
            hint="Nothing was downloaded, and nothing was tagged.",
            exit_code=5,
        )


def _refuse_taken(bench: Workbench, found: Found) -> None:
    """A name that is given once is looked at before anything moves, too."""
    existing = bench.engine.image(found.tags[0])
    if existing is not None and existing.diff_ids != found.verified.identity.diff_ids:
        raise GateError(
            f"{found.tags[0]} already names another image ({existing.id[:19]}); it is never overwritten",
            hint=f"If that image should go, remove its name yourself: {bench.engine.kind} rmi {found.tags[0]}",
        )


def _fetch(bench: Workbench, found: Found, there: Repository, mover: Mover) -> ImageInfo:
    """Move the layers that are missing, load the image, look at it again, and only then give it its names."""
    own = blobs(bench)
    began = time.monotonic()
    total = len(found.manifest.layers)
    mover.event(PhaseStarted(phase="pull", detail=f"{total - found.there} of {total} layers"))
    diff_ids = found.verified.identity.diff_ids
    with arriving(bench, diff_ids):
        # Looked at again: who was waited for may have brought them, and who prunes may have taken some away.
        skipped = unpacking.layers_there(bench.engine, diff_ids)
        incoming = Incoming(manifest=found.manifest, config=found.config, skipped=skipped)
        info = unpacking.unpack(bench.engine, incoming, there, own, mover)
        _same(bench, info, found)
        refuse_other_bytes(bench.engine, found.tags[0], info)
        if found.verified.good:
            _adopt(found.verified, info)
        for tag in found.tags:
            bench.engine.tag(info.id, tag)
    # The engine has them; what they are called is remembered for a push.
    for diff_id, layer in zip(info.diff_ids, found.manifest.layers, strict=True):
        Layers(folder=own.folder).remember(diff_id, layer)
        own.remove(layer.digest)
    mover.event(PhaseDone(phase="pull", seconds=time.monotonic() - began, detail=info.id[:19]))
    return info


def _tags(env: Environment, wanted: Names, wish: Wish, verified: Verified, manifest: Manifest) -> tuple[str, ...]:
    """The names that it gets here: what the registry calls it proves nothing, its evidence does."""
    record = verified.record
    if not verified.good or record is None:
        return (f"{wanted.repository}:unverified-{manifest.config.digest[7:15]}",)
    id8 = (record.target_id or manifest.config.digest.removeprefix("sha256:"))[:8]
    own = Names(repository=wanted.repository, id_tag=f"{wanted.id_tag.rpartition('-')[0]}-{id8}")
    if wish.candidate:
        return (own.candidate,)
    enough = record.level.rank >= env.required_level.rank
    if not enough:
        return (own.below(record.level),)
    # Asked for by its content it may come all the same; what is called validated here is as fast as the row requires.
    return (own.proven, own.moving) if verified.fast else (own.proven,)


def _same(bench: Workbench, info: ImageInfo, found: Found) -> None:
    """That the engine's image is the one that was resolved: by its id where that is the config's digest, else whole.

    Raises:
        GateError: It is another one.
    """
    if info.id == found.manifest.config.digest:
        return
    with bench.engine.save(info.id) as stream:
        identity = archive.read(stream, lambda path: False).identity
    if identity.config_digest != found.manifest.config.digest:
        raise GateError(
            f"the engine has made {identity.config_digest[:19]} of {found.manifest.config.digest[:19]}",
            hint="Nothing was tagged.",
        )


def _adopt(verified: Verified, info: ImageInfo) -> None:
    path, record = verified.path, verified.record
    assert path is not None and record is not None
    envelope = evidence.envelope_of(path)
    data = evidence.read_bounded(path, MAX_BYTES)
    evidence.adopt(record, data, envelope.read_bytes() if envelope.is_file() else None, info.id)
    for compared, beside in verified.compared:
        sealed = evidence.read_bounded(evidence.envelope_of(beside), 2 * evidence.MAX_COMPARED)
        evidence.adopt_compared(compared, evidence.read_bounded(beside, evidence.MAX_COMPARED), sealed)
    if record.target_id is not None:
        evidence.remember_built(record.target_id, info.id)
