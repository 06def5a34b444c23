"""The bill of materials of an image: made once, from the image as the engine exports it, and kept in the cache.

The proof of an image makes it on the way (``bills``); where that was elsewhere, the image is read here.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from envbuild import evidence, sbom, store
from envbuild.engines import ImageInfo
from envbuild.events import PhaseDone, PhaseStarted, StepDone, StepLine, StepStarted
from envbuild.pipeline import bills
from envbuild.pipeline.locate import locate
from envbuild.pipeline.names import is_reference
from envbuild.pipeline.sizes import format_size
from envbuild.pipeline.workbench import Workbench

_PREFIX = "envbuild:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What an image is made of.

    Attributes:
        image: The name it was asked for by.
        data: The CycloneDX document.
        document: The same, decoded.
        cached: It was there already.
        seconds: What it took.
    """

    image: str
    data: bytes
    document: dict[str, Any]
    cached: bool
    seconds: float

    @property
    def digest(self) -> str:
        """The image's, of its config."""
        return str(self.document["metadata"]["component"]["version"])

    @property
    def counts(self) -> dict[str, int]:
        """How many parts there are of each kind: ``deb``, ``rpm``, ``pypi``, ``op``, ``os``."""
        found = Counter(str(part["bom-ref"]).partition(":")[0] for part in self.document.get("components", ()))
        return dict(sorted(found.items()))

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of the image, and may lack here."""
        properties = self.document.get("properties", ())
        return tuple(str(each["value"]) for each in properties if each["name"] == f"{_PREFIX}incomplete")


def find(bench: Workbench, reference: str) -> tuple[str, ImageInfo]:
    """The image of a row, or one by its name: that need not be of any row.

    Raises:
        GateError: There is no such image (exit 5).
        InputError: No image could have that name.
    """
    if reference not in bench.matrix.environments and is_reference(reference):
        info = bench.engine.image(reference)
        if info is not None:
            return reference, info
    ref, info, _ = locate(bench, reference, None)
    return ref, info


def bill(bench: Workbench, ref: str, info: ImageInfo) -> Bill:
    """The bill of an image, from the cache or from its export.

    Raises:
        EngineError: The engine failed, the export cannot be read, or the cache cannot be written.
    """
    began = time.monotonic()
    path = bills.place(bench.cache, evidence.digest_of(info.id) or info.id)
    data = bills.kept(path)
    if data is not None:
        return _bill(ref, data, began, cached=True)
    bench.sink(PhaseStarted(phase="sbom", detail=f"what is in {ref}"))
    data = _made(bench, info)
    store.write_atomic(path, data)
    made = _bill(ref, data, began, cached=False)
    bench.sink(PhaseDone(phase="sbom", seconds=made.seconds, detail=f"{sum(made.counts.values())} parts"))
    return made


def _made(bench: Workbench, info: ImageInfo) -> bytes:
    name = "read the image's packages from outside"
    scratch = store.make_folder(bench.cache)
    bench.sink(StepStarted(key=name, name=name))
    began, status = time.monotonic(), "error"
    try:
        with bench.engine.save(info.id) as stream:
            found = sbom.read(
                stream, scratch, lambda count: bench.sink(StepLine(key=name, text=f"{format_size(count)} read"))
            )
        status = "done"
    finally:
        bench.sink(StepDone(key=name, name=name, status=status, seconds=time.monotonic() - began))
    return sbom.dump(found)


def _bill(ref: str, data: bytes, began: float, *, cached: bool) -> Bill:
    return Bill(image=ref, data=data, document=json.loads(data), cached=cached, seconds=time.monotonic() - began)
