"""push: a proven image into the site's registry, with everything that lets another machine believe it.

The order is what makes it safe to be killed: blobs, manifest by its digest, evidence that refers to it, and only then
the names. A rerun finds what is there and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import GateError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.evidence import Binding
from envbuild.model import Environment, Level
from envbuild.pipeline import attached, performance
from envbuild.pipeline.locate import locate, own_target, require_level
from envbuild.pipeline.materials import bill
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.names import derived_names, names
from envbuild.pipeline.packing import Layers, Packing, config_descriptor
from envbuild.pipeline.prepare import prepare
from envbuild.pipeline.prove import proven
from envbuild.pipeline.remote import blobs, need_registry, repository
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Blobs, Descriptor, Manifest, Repository, parse, push_blob
from envbuild.registry.manifests import OCI_MANIFEST, digest_of, dump

# Layers are sent while others are packed; more at once only share the line.
_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be pushed how.

    Attributes:
        candidate: Push an image that has not all its proof yet, under a name that says so.
        allow_level: Push at this level although the row requires more; the name then says so.
    """

    candidate: bool = False
    allow_level: Level | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a push would do.

    Attributes:
        tags: The names it gets, the one that moves last.
        records: The evidence that goes with it.
        compared: What it has shown beside baselines; goes with it, too.
    """

    env: Environment
    info: ImageInfo
    ref: str
    repository: str
    tags: tuple[str, ...]
    records: tuple[Path, ...]
    compared: tuple[Path, ...]
    lock: Path | None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "environment": self.env.name,
            "image": self.ref,
            "repository": self.repository,
            "tags": list(self.tags),
            "layers": len(self.info.diff_ids),
            "size_bytes": self.info.size,
            "evidence": [str(path) for path in (*self.records, *self.compared)],
            "lock": str(self.lock) if self.lock else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push has done; ``moved`` is in bytes, packed."""

    plan: Plan
    digest: str
    config: str
    moved: int
    signed: bool
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **self.plan.as_dict(),
            "digest": self.digest,
            "config_digest": self.config,
            "moved_bytes": self.moved,
            "signed": self.signed,
            "seconds": round(self.seconds, 3),
        }


def plan(bench: Workbench, reference: str, *, row: str | None, wish: Wish) -> Plan:
    """What a push of a row's image, or of another one, would do.

    Raises:
        GateError: There is no such image, or what is known of it does not allow the name (exit 5).
        InputError: No registry is configured.
    """
    prefix = need_registry(bench)
    ref, info, env = locate(bench, reference, row)
    target_id = own_target(env, info)
    if target_id is not None:
        wanted = names(env, target_id[:8], prefix)
    else:
        wanted = derived_names(ref, env, evidence.digest_of(info.id) or info.id)
        parse(wanted.repository)
    found = proven(info, env)
    records = tuple(path for each, path in evidence.every(info.id, info.diff_ids) if each.environment == env.name)
    if wish.candidate:
        tags: tuple[str, ...] = (wanted.candidate.rpartition(":")[2],)
    else:
        if found is None:
            raise GateError(
                f"{ref} has no evidence of the current suite",
                hint=f"Prove it: envbuild smoke {reference}. Or push it for a proof elsewhere: --candidate",
            )
        level = found[0]
        require_level(env, level, ref, again=reference, allowed=wish.allow_level)
        enough = level.rank >= env.required_level.rank
        if enough:
            performance.require(bench, env, info, ref, again=reference)
        proper = (wanted.proven, wanted.moving) if enough else (wanted.below(level),)
        tags = tuple(each.rpartition(":")[2] for each in proper)
    lock = bench.project.images / env.name / "lock.json"
    return Plan(
        env=env, info=info, ref=ref, repository=wanted.repository, tags=tags, records=records,
        compared=performance.files_of(env.name, info),
        lock=lock if target_id is not None and lock.is_file() and _is_of(bench, env, target_id) else None,
    )  # fmt: skip


def push(bench: Workbench, planned: Plan) -> Pushed:
    """Do it.

    Raises:
        GateError: The name is taken by another image (exit 5).
        NetworkError, EngineError: The registry, the engine or the disk (exit 3).
    """
    began = time.monotonic()
    mover = Mover(sink=bench.sink, verb="sending")
    there = repository(bench, parse(f"{planned.repository}:{planned.tags[0]}"), mover.event)
    own = blobs(bench)
    mover.event(PhaseStarted(phase="push", detail=f"{planned.ref} to {there.name}"))
    known = _taken(there, planned)
    if known is None:
        manifest, config = _image(bench, planned, there, own, mover)
        subject = there.put_manifest(manifest, OCI_MANIFEST)
    else:
        subject, config = known.descriptor, known.config.digest
    signed = _beside(bench, planned, there, own, subject, config)
    # Somebody else may have pushed meanwhile: another image (then nothing moves), or the same one, packed otherwise.
    other = _taken(there, planned)
    if other is not None and other.descriptor.digest != subject.digest:
        subject = other.descriptor
        signed = _beside(bench, planned, there, own, subject, config)
    if signed and not any(evidence.envelope_of(path).is_file() for path in planned.records):
        prove_again = f"envbuild smoke {planned.env.name} --key FILE"
        mover.note(f"none of the evidence is signed, so nobody can pull it; see it again: {prove_again}", "warning")
    for tag in planned.tags:
        _give(there, subject, tag)
    mover.event(PhaseDone(phase="push", seconds=time.monotonic() - began, detail=subject.digest[:19]))
    return Pushed(
        plan=planned, digest=subject.digest, config=config, moved=mover.moved, signed=signed,
        seconds=time.monotonic() - began,
    )  # fmt: skip


def _is_of(bench: Workbench, env: Environment, target_id: str) -> bool:
    """Whether the lock in the project is the one that the image was built from: an older image had another."""
    return prepare(bench, env.name, checked=False).rendering.target_id == target_id


def _taken(there: Repository, planned: Plan) -> Manifest | None:
    """The manifest that the name which never moves has already; the same image is fine.

    Raises:
        GateError: It is another image.
    """
    tag = planned.tags[0]
    found = there.resolve(tag)
    if found is None:
        return None
    manifest = there.manifest(found.digest)
    own = evidence.digest_of(planned.info.id)
    if isinstance(manifest, Manifest) and manifest.config.digest in (own, planned.info.id):
        return manifest
    if tag.startswith("candidate-"):
        return None  # a candidate may be built again
    raise GateError(
        f"{there.name}:{tag} is another image there ({found.digest[:19]}); it is never overwritten",
        hint="The same inputs were built twice, on two machines: pull that one (envbuild pull), or remove its tag.",
    )


def _image(bench: Workbench, planned: Plan, there: Repository, own: Blobs, mover: Mover) -> tuple[bytes, str]:
    """Send layers and config; returns the manifest's bytes and the config's digest."""
    layers = Layers(folder=own.folder)
    order = tuple(dict.fromkeys(planned.info.diff_ids))
    packed: dict[str, Descriptor] = {}
    with ThreadPoolExecutor(_LINES) as pool:
        sent: list[Future[None]] = []

        def send(diff_id: str, blob: Descriptor) -> None:
            packed[diff_id] = blob
            number = order.index(diff_id) + 1
            sent.append(pool.submit(_send, there, own, blob, f"layer {number}/{len(order)}", mover))

        for diff_id in order:
            blob = layers.get(diff_id)
            if blob is not None and (own.has(blob) or there.has_blob(blob.digest)):
                send(diff_id, blob)
        try:
            config = _config(bench, planned, own, layers, set(order) - set(packed), send)
            for each in sent:
                each.result()
        except BaseException:
            mover.stop()
            for each in sent:
                each.cancel()
            raise
    described = config_descriptor(config)
    own.add(config, described.digest)
    _send(there, own, described, "config", mover)
    # What is in the registry need not lie here too; what it is called is remembered.
    for blob in packed.values():
        own.remove(blob.digest)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": described.as_dict(),
        "layers": [packed[diff_id].as_dict() for diff_id in planned.info.diff_ids],
    }
    return dump(manifest), described.digest


def _config(
    bench: Workbench,
    planned: Plan,
    own: Blobs,
    layers: Layers,
    needed: set[str],
    done: Callable[[str, Descriptor], None],
) -> bytes:
    """The image's config, and on the way every layer that is needed."""
    kept = own.path(evidence.digest_of(planned.info.id) or planned.info.id)
    if not needed and kept.is_file():
        config = kept.read_bytes()
        if f"sha256:{kept.name}" == digest_of(config):
            return config
    return Packing(
        engine=bench.engine, info=planned.info, needed=needed, blobs=own, layers=layers, done=done,
        read=lambda count: None,
    ).run()  # fmt: skip


def _send(there: Repository, own: Blobs, blob: Descriptor, name: str, mover: Mover) -> None:
    mover.start(blob, name)
    sent = push_blob(there, blob, own, moved=lambda count: mover.progress(blob, count), sink=mover.event)
    mover.done(blob, cached=sent.how != "sent")


def _beside(bench: Workbench, planned: Plan, there: Repository, own: Blobs, subject: Descriptor, config: str) -> bool:
    """Attach everything that refers to the image; whether the binding is signed."""
    found = [*map(attached.of_record, planned.records), *map(attached.of_compared, planned.compared)]
    artifacts = [artifact for artifact in found if artifact is not None]
    if planned.lock is not None:
        artifacts.append(attached.of_lock(planned.lock.read_bytes()))
    artifacts.append(attached.of_sbom(bill(bench, planned.ref, planned.info).data))
    key = bench.signing_key
    if key is not None:
        binding = Binding(environment=planned.env.name, manifest=subject.digest, config=config)
        artifacts.append(attached.of_binding(evidence.bind(binding, key)))
    attached.attach(there, subject, artifacts, own)
    return key is not None


def _give(there: Repository, subject: Descriptor, tag: str) -> None:
    """Point a tag at the image, unless it does already."""
    now = there.resolve(tag)
    if now is not None and now.digest == subject.digest:
        return
    manifest = there.manifest(subject.digest)
    there.put_manifest(manifest.raw, manifest.descriptor.media_type, tag)
