"""A proven image as blobs on this disk, for a bundle: out of the engine, or out of a registry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envbuild import evidence
from envbuild.bundle.image import Source
from envbuild.bundle.writing import Draft
from envbuild.engines import ImageInfo
from envbuild.evidence.record import MAX_BYTES
from envbuild.model import Level
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
