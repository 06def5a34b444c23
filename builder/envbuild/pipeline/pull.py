"""pull: a proven image out of a registry, believed before its layers move and looked at again when it is here."""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence, store
from envbuild.engines import ImageInfo
from envbuild.errors import EngineError, GateError, InputError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.evidence import Evidence, PublicKey
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.model import Environment, Finding, ImageIdentity, Level, Severity
from envbuild.net import Missing
from envbuild.pipeline import attached, objections, unpacking
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.names import Names, names, refuse_other_bytes
from envbuild.pipeline.objections import Subject
from envbuild.pipeline.prepare import FindingsError, errors, prepare
from envbuild.pipeline.remote import blobs, need_registry, repository
from envbuild.pipeline.suits import host_objections
from envbuild.pipeline.verify import Verified, answer
from envbuild.pipeline.wanted import Wanted
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Blobs, Descriptor, Index, Manifest, Repository, parse

_MAX_CONFIG = 8 << 20
_KINDS = (attached.EVIDENCE, attached.BINDING)


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

    wanted: Wanted = Wanted()
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

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that speaks against it."""
        return (*self.verified.findings, *self.host)

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
            "layers": len(self.manifest.layers),
            "layers_here": self.there,
            "bytes_to_move": sum(layer.size for layer in self.missing),
            "tags": list(self.tags),
        }


def find(bench: Workbench, name: str, wish: Wish, mover: Mover) -> tuple[Found, Repository]:
    """Resolve a row's image in the registry and hold its evidence to what is wanted. Moves no layer.

    Raises:
        GateError: The registry has no such image (exit 5).
        InputError: No registry is configured, or a key cannot be used.
        NetworkError: The registry (exit 3).
    """
    env = bench.matrix.get(name)
    target = prepare(bench, name, checked=False)
    wanted = names(env, target.rendering.id8, need_registry(bench))
    tag = (
        f"candidate-{target.rendering.id8}" if wish.candidate
        else wanted.proven.rpartition(":")[2] if wish.locked
        else "validated"
    )  # fmt: skip
    there = repository(bench, parse(f"{wanted.repository}:{tag}"), mover.event)
    mover.event(PhaseStarted(phase="resolve", detail=f"{wanted.repository}:{tag}"))
    began = time.monotonic()
    manifest = _manifest(there, tag, env)
    own = blobs(bench)
    config = _config(there, own, manifest)
    diff_ids = unpacking.layers_of(config)
    if len(diff_ids) != len(manifest.layers):
        raise EngineError(f"{there.name}:{tag}: its config states {len(diff_ids)} layers, its manifest {len(manifest.layers)}")
    identity = ImageIdentity(config_digest=manifest.config.digest, diff_ids=diff_ids)
    verified = _verified(bench, env, identity, f"{wanted.repository}:{tag}", there, manifest, own, wish)
    record = verified.record
    portability = record.portability if record else {}
    host = (
        host_objections(env, portability, record.platform if record else "")
        if bench.engine.local and not wish.any_host
        else []
    )
    count = unpacking.layers_there(bench.engine, diff_ids)
    mover.event(PhaseDone(phase="resolve", seconds=time.monotonic() - began, detail=manifest.descriptor.digest[:19]))
    found = Found(
        env=env,
        ref=f"{wanted.repository}:{tag}",
        manifest=manifest,
        config=config,
        verified=verified,
        host=tuple(host),
        there=count,
        missing=tuple({layer.digest: layer for layer in manifest.layers[count:]}.values()),
        tags=_tags(wanted, wish, verified, manifest),
    )
    return found, there


def refuse(found: Found, wish: Wish) -> None:
    """Stop before a layer moves where something stands against the image.

    Raises:
        FindingsError: Something does (exit 5).
    """
    against = [*(errors(found.verified.findings) if wish.verify else ()), *errors(found.host)]
    if against:
        raise FindingsError(
            f"{found.ref} is not pulled: {len(against)} reason{'' if len(against) == 1 else 's'}",
            found.findings,
            hint="Nothing was downloaded, and nothing was tagged.",
            exit_code=5,
        )


def pull(bench: Workbench, found: Found, there: Repository, mover: Mover) -> ImageInfo:
    """Move the layers that are missing, load the image, look at it again, and only then give it its names.

    Raises:
        GateError: What the engine has made of it is another image, or its name is taken (exit 5).
        NetworkError: The registry (exit 3).
        EngineError: The engine or the disk (exit 3).
    """
    own = blobs(bench)
    began = time.monotonic()
    mover.event(PhaseStarted(phase="pull", detail=f"{len(found.missing)} of {len(found.manifest.layers)} layers"))
    total = len(found.manifest.layers)
    numbered = [
        (f"layer {number}/{total}", layer)
        for number, layer in enumerate(found.manifest.layers, 1)
        if number > found.there
    ]
    unpacking.fetch(there, own, numbered, mover)
    mover.event(PhaseDone(phase="pull", seconds=time.monotonic() - began))
    began = time.monotonic()
    mover.event(PhaseStarted(phase="load", detail="the engine unpacks"))
    info = unpacking.load(bench.engine, found.manifest, found.config, own, skipped=found.there)
    _same(bench, info, found)
    if found.verified.good and found.verified.path is not None:
        _adopt(found.verified, info)
    if found.tags:
        refuse_other_bytes(bench.engine, found.tags[0], info)
    for tag in found.tags:
        bench.engine.tag(info.id, tag)
    for _, layer in numbered:
        own.remove(layer.digest)
    mover.event(PhaseDone(phase="load", seconds=time.monotonic() - began, detail=info.id[:19]))
    return info
