"""What was seen in one image, kept by the image's identity.

A file of evidence is written only by running something. Its path says what it proves:
``<store>/evidence/<config digest>/<suite>-<level>.json``; an index maps an engine's own name for an image
(which is no identity: stores differ) to the identity that was read from the exported config.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from envbuild import store
from envbuild.errors import EngineError
from envbuild.model import Digest, Frozen, ImageIdentity, Level, Line, Name


class Identity(Frozen):
    """The image that was looked at."""

    config_digest: Digest
    diff_ids: tuple[Digest, ...]

    @classmethod
    def of(cls, identity: ImageIdentity) -> Identity:
        """From the domain type."""
        return cls(config_digest=identity.config_digest, diff_ids=identity.diff_ids)


class Host(Frozen):
    """Where it was looked at, without the host's or anybody's name."""

    system: Line
    machine: Line
    cpu: Line
    cpus: int
    memory_bytes: int
    engine: Line
    gpus: tuple[dict[str, Any], ...] = ()
    driver: str | None = None


class Evidence(Frozen):
    """One record: the subject, what was run on it, where, when, and every raw figure.

    Attributes:
        suite: SHA-256 of the probes and the judge; another suite's evidence does not count.
        level: What it proves.
        target_id: The declared inputs the image was built from, or None for an image built elsewhere.
        content: The reports of inspection from outside and inside.
        smoke: The raw smoke reports by name, such as ``fp32``.
        seconds: Wall time by phase.
    """

    schema_: Literal["envbuild.evidence/1"] = Field("envbuild.evidence/1", alias="schema")
    kind: Literal["image"] = "image"
    environment: Name
    target_id: str | None
    level: Level
    suite: str
    envbuild: str
    image: Identity
    platform: str
    size_bytes: int
    base: dict[str, Any]
    claims: dict[str, str]
    content: dict[str, Any]
    smoke: dict[str, Any]
    findings: tuple[dict[str, Any], ...]
    host: Host
    started: datetime.datetime
    finished: datetime.datetime
    seconds: dict[str, float]


def save(evidence: Evidence, engine_id: str) -> Path:
    """Write evidence into the store, atomically, and index it by the engine's id of the image.

    Raises:
        EngineError: The store cannot be written.
    """
    path = path_of(evidence.image.config_digest, evidence.suite, evidence.level)
    store.write_json(path, evidence.model_dump(mode="json", by_alias=True))
    store.write_atomic(_index(engine_id), evidence.image.config_digest)
    return path


def path_of(config_digest: str, suite: str, level: Level) -> Path:
    """Where evidence of a level from a suite is kept for an image."""
    return _folder(config_digest) / f"{suite[:12]}-{level.value}.json"


def digest_of(engine_id: str) -> str | None:
    """The config digest of an image that has evidence, by the engine's id; None when it has none."""
    try:
        return _index(engine_id).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def best(engine_id: str, suite: str) -> tuple[Level, Path] | None:
    """The strongest level that the current suite has proven for an image, without reading the record."""
    digest = digest_of(engine_id)
    if digest is None:
        return None
    for level in reversed(Level):
        path = path_of(digest, suite, level)
        if path.is_file():
            return level, path
    return None


def read(path: Path) -> Evidence:
    """Read one record.

    Raises:
        EngineError: It is missing or not what a record looks like.
    """
    try:
        return Evidence.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise EngineError(
            f"{path}: not a record of evidence: {place}: {first['msg']}", hint="Remove the file and run smoke again."
        ) from error


def records(engine_id: str) -> list[Path]:
    """Every record of an image, of any suite, newest first."""
    digest = digest_of(engine_id)
    if digest is None:
        return []
    return sorted(_folder(digest).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)


def _folder(config_digest: str) -> Path:
    return store.home() / "evidence" / config_digest.removeprefix("sha256:")


def _index(engine_id: str) -> Path:
    return store.home() / "evidence" / "index" / engine_id.removeprefix("sha256:")
