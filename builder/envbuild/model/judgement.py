"""How far something has been checked, how bad it is, and what has been seen."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import Enum

from envbuild.model.words import Frozen, Line


class Mark(str, Enum):
    """How far a fact has been checked."""

    VERIFIED = "verified"
    PARTIAL = "partial"
    UNVERIFIED = "unverified"


class Level(str, Enum):
    """What has been seen of an image (or claimed of a row), weakest first."""

    DECLARED = "declared"
    DERIVED = "derived"
    BUILT = "built"
    CPU = "cpu"
    GPU_MIG = "gpu-mig"
    GPU = "gpu"

    @property
    def rank(self) -> int:
        """Position in the order of strength; a higher one is stronger evidence."""
        return list(Level).index(self)


class Source(Frozen):
    """Where a fact comes from, when it was looked at, and how far that carries."""

    mark: Mark
    source: Line
    date: datetime.date
    note: Line = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIdentity:
    """What an image is, whatever an engine calls it.

    Attributes:
        config_digest: ``sha256:...`` of the exported image config's bytes.
        diff_ids: ``sha256:...`` of each uncompressed layer, lowest first.
    """

    config_digest: str
    diff_ids: tuple[str, ...]
