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


class Severity(str, Enum):
    """How bad a finding is; only errors change an exit code."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judgement: what is wrong, where, why it matters, what to do, and who says so.

    Attributes:
        why: Why it matters for ZeRO-3 offload, where the message alone does not say so.
        evidence: What was seen, one line each.
        command: The fix as a command line that is safe to paste; empty where there is none.
        explained_by: Rule of the finding that this one is only an echo of.
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    fix: str = ""
    source: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    why: str = ""
    evidence: tuple[str, ...] = ()
    command: str = ""
    explained_by: str = ""


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
