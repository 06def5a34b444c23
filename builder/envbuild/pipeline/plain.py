"""pull --image-only: any image by its name, with the same transfer, and no question about evidence."""

from __future__ import annotations

import platform
import time

from envbuild.engines import ImageInfo
from envbuild.engines.incoming import Incoming
from envbuild.errors import GateError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.net import Missing
from envbuild.pipeline import unpacking
from envbuild.pipeline.arriving import arriving
from envbuild.pipeline.moving import Mover
from envbuild.pipeline.remote import blobs
from envbuild.pipeline.resolving import Remote, look_up
from envbuild.pipeline.workbench import Workbench
from envbuild.registry import parse
from envbuild.registry.reference import mirrored

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def pull_plain(bench: Workbench, ref: str, *, dry_run: bool = False) -> tuple[Remote, ImageInfo | None]:
    """Pull an image as ``docker pull`` does, and give it the name that was asked for.

    Args:
        ref: A reference; the site's mirrors stand in for its registry.

    Raises:
        InputError: It is no reference.
        GateError: There is no such image, or none for this machine (exit 5).
        NetworkError: The registry (exit 3).
        EngineError: The engine or the disk (exit 3).
    """
    reference = parse(ref)
    asked = f"{mirrored(reference.repository, bench.site.base.mirrors)}{str(reference)[len(reference.repository) :]}"
    mover = Mover(sink=bench.sink, verb="fetching")
    began = time.monotonic()
    mover.event(PhaseStarted(phase="pull", detail=asked))
    machine = _MACHINES.get(platform.machine(), platform.machine())
    try:
        image = look_up(bench, asked, (f"linux/{machine}",), mover.event)
    except Missing as error:
        raise GateError(f"there is no {asked}") from error
    if dry_run:
        return image, None
    with arriving(bench, image.identity.diff_ids):
        there = unpacking.layers_there(bench.engine, image.identity.diff_ids)
        incoming = Incoming(manifest=image.manifest, config=image.config, skipped=there)
        info = unpacking.unpack(bench.engine, incoming, image.there, blobs(bench), mover)
        if reference.tag is not None:
            bench.engine.tag(info.id, f"{reference.repository}:{reference.tag}")
    for layer in image.manifest.layers:
        blobs(bench).remove(layer.digest)
    mover.event(PhaseDone(phase="pull", seconds=time.monotonic() - began, detail=info.id[:19]))
    return image, info
