"""A proven image as blobs on this disk, for a bundle: out of the engine, or out of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envbuild import evidence, store
from envbuild.bundle.image import Source
from envbuild.bundle.rebuilt import rebuild
from envbuild.bundle.wheels import Own
from envbuild.bundle.writing import Draft
from envbuild.engines import Engine, ImageInfo
from envbuild.errors import InputError
from envbuild.evidence.record import MAX_BYTES
from envbuild.facts import Facts
from envbuild.model import Level, Lock
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.packing import Layers, Packing, config_descriptor
from envbuild.pipeline.remote import blobs
from envbuild.pipeline.resolving import Remote
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import Descriptor
from envbuild.registry.manifests import OCI_MANIFEST, digest_of, dump

_LINES = 4
# An envelope is the record once more, in base64.
_MAX_EVIDENCE = 2 * MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What an image is to be called where it is loaded, and what it has proved."""

    reference: str
    level: Level | None = None


def from_engine(bench: Workbench, info: ImageInfo, named: Named) -> Source:
    """An image of the engine, packed as a push packs it: under the manifest that a push of it would write.

    Raises:
        EngineError: The engine or the disk (exit 3).
    """
    mover = Mover(sink=bench.sink, verb="packing")
    own = blobs(bench)
    layers = Layers(folder=own.folder)
    order = tuple(dict.fromkeys(info.diff_ids))
    packed = {each: blob for each in order if (blob := layers.get(each)) is not None and own.has(blob)}

    def done(diff_id: str, blob: Descriptor) -> None:
        packed[diff_id] = blob
        mover.start(blob, f"layer {order.index(diff_id) + 1}/{len(order)}")
        mover.done(blob, cached=False)

    config = _kept_config(bench, info) if len(packed) == len(order) else None
    if config is None:
        config = Packing(
            engine=bench.engine, info=info, needed=set(order) - set(packed), blobs=own, layers=layers, done=done,
            read=lambda count: None,
        ).run()  # fmt: skip
        own.add(config, digest_of(config))
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config_descriptor(config).as_dict(),
        "layers": [packed[diff_id].as_dict() for diff_id in info.diff_ids],
    }
    return Source(manifest=dump(manifest), config=config, blobs=own, reference=named.reference, level=named.level)


def from_registry(bench: Workbench, image: Remote, named: Named) -> Source:
    """An image of a registry, under the manifest that it has there; what is here already does not move.

    Raises:
        NetworkError: A layer does not come.
        EngineError: The disk.
    """
    mover = Mover(sink=bench.sink, verb="fetching")
    own = blobs(bench)
    layers = list({layer.digest: layer for layer in image.manifest.layers}.values())

    def one(number: int, blob: Descriptor) -> None:
        here = own.has(blob)
        mover.start(blob, f"layer {number}/{len(layers)}")
        own.fetch(image.there, blob, moved=lambda count: mover.progress(blob, count), sink=mover.event)
        mover.done(blob, cached=here)

    with ThreadPoolExecutor(_LINES) as pool:
        coming = [pool.submit(one, number, blob) for number, blob in enumerate(layers, 1)]
        try:
            for each in coming:
                each.result()
        except BaseException:
            mover.stop()
            for each in coming:
                each.cancel()
            raise
    return Source(
        manifest=image.manifest.raw, config=image.config, blobs=own, reference=named.reference, level=named.level
    )


def limits_of(facts: Facts, release: str) -> dict[str, str]:
    """The newest symbol versions that a release's own C and C++ libraries have, such as ``{"GLIBC": "2.28"}``.

    Args:
        release: Its name in the facts, such as ``el8``.

    Raises:
        InputError: Nothing is known of it.
    """
    if release not in facts.releases or release not in facts.runtimes:
        raise InputError(f"nothing is known of {release}", hint=f"Known are {', '.join(sorted(facts.runtimes))}.")
    runtime = facts.runtimes[release]
    return {"GLIBC": facts.releases[release].glibc, "GLIBCXX": runtime.glibcxx, "CXXABI": runtime.cxxabi}


def own_wheels(
    engine: Engine, info: ImageInfo, lock: Lock, limits: Mapping[str, str], folder: Path
) -> tuple[dict[str, Own], str]:
    """What an image's ops stage has compiled, as wheels, where they run on the target; and what is to be said of them.

    Args:
        limits: Of the target (``limits_of``).
        folder: An empty folder with room for them.

    Raises:
        BundleError: The image has one of them not, or not as it was installed.
        EngineError: The engine or the disk.
    """
    found: dict[str, Own] = {}
    notes: list[str] = []
    for package in lock.packages:
        if package.group != "ops":
            continue
        scratch = store.make_folder(folder / package.name)
        made = rebuild(lambda: engine.save(info.id), package.name, scratch)
        if beyond := made.beyond(limits):
            notes.append(
                f"what the image has compiled of {package.name} needs {', '.join(beyond)}, newer than the target"
            )
        else:
            found[package.name] = made.wheel
            notes.append(made.note(info.id))
    return found, "; ".join(notes)


def evidence_beside(draft: Draft, info: ImageInfo, environment: str) -> tuple[str, ...]:
    """Put what a row's image has proved into a bundle, with its signatures; returns the paths.

    Raises:
        BundleError: Two records have one name.
        EngineError: A record cannot be read, or the disk.
    """
    written: list[str] = []
    for record, path in evidence.every(info.id, info.diff_ids):
        if record.environment != environment:
            continue
        envelope = evidence.envelope_of(path)
        for each in (path, *([envelope] if envelope.is_file() else [])):
            place = f"images/evidence/{each.name.replace('+', '-')}"
            draft.write(place, evidence.read_bounded(each, _MAX_EVIDENCE), "image")
            written.append(place)
    return tuple(sorted(written))


def _kept_config(bench: Workbench, info: ImageInfo) -> bytes | None:
    """The image's config out of the cache, where that is known to be its own."""
    path = blobs(bench).path(evidence.digest_of(info.id) or info.id)
    try:
        config = path.read_bytes()
    except OSError:
        return None
    return config if digest_of(config).removeprefix("sha256:") == path.name else None
