"""Evidence of a bare host: an interpreter that was proven outside a container. It never counts for an image."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from envbuild import store
from envbuild.evidence.record import Host, seen_on
from envbuild.model import Frozen, Level, Name


class HostEvidence(Frozen):
    """One record of a run outside a container.

    Attributes:
        fingerprint: Which interpreter on which host, as a hash of both: it names neither.
        environment: The row it was held to, or None.
        content: What its modules say of themselves.
        smoke: The raw smoke reports by name.
    """

    schema_: Literal["envbuild.evidence/1"] = Field("envbuild.evidence/1", alias="schema")
    kind: Literal["host"] = "host"
    fingerprint: str
    environment: Name | None
    level: Level
    suite: str
    envbuild: str
    claims: dict[str, str]
    content: dict[str, Any]
    smoke: dict[str, Any]
    findings: tuple[dict[str, Any], ...]
    host: Host
    started: datetime.datetime
    finished: datetime.datetime
    seconds: dict[str, float]
    long_seconds: float | None = None


def fingerprint(interpreter: Path, host: str) -> str:
    """A name for an interpreter on a host, from which neither can be read."""
    return hashlib.sha256(f"{interpreter}\0{host}".encode(errors="surrogateescape")).hexdigest()[:32]


def save_host(evidence: HostEvidence) -> Path:
    """Write it into the store, atomically, apart from the evidence of images.

    Raises:
        EngineError: The store cannot be written.
    """
    on = seen_on([str(gpu.get("name", "")) for gpu in evidence.host.gpus], evidence.host.driver)
    parts = (evidence.environment or "any", evidence.suite[:12], evidence.level.value, on if evidence.host.gpus else "")
    path = store.home() / "evidence" / "host" / evidence.fingerprint / f"{'-'.join(filter(None, parts))}.json"
    store.write_json(path, evidence.model_dump(mode="json", by_alias=True))
    return path
