"""What was seen in one image, kept by the image's identity.

A file of evidence is written only by running something. Its path says what it proves:
``<store>/evidence/<config digest>/<row>-<suite>-<level>.json``; an index maps an engine's own name for an image
(which is no identity: stores differ) to the identity that was read from the exported config.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
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
        portability: The hosts, CPUs and GPUs that the image runs on.
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
    portability: dict[str, Any]
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
    path = path_of(evidence.image.config_digest, evidence.environment, evidence.suite, evidence.level)
    store.write_json(path, evidence.model_dump(mode="json", by_alias=True))
    store.write_atomic(_index(engine_id), evidence.image.config_digest)
    return path


def path_of(config_digest: str, environment: str, suite: str, level: Level) -> Path:
    """Where evidence of a level, for a row's claims, from a suite is kept for an image."""
    return _folder(config_digest) / f"{environment}-{suite[:12]}-{level.value}.json"


def digest_of(engine_id: str) -> str | None:
    """The config digest of an image that has evidence, by the engine's id; None when it has none."""
    try:
        return _index(engine_id).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def best(
    engine_id: str, diff_ids: tuple[str, ...], *, environment: str, claims: Mapping[str, str], suite: str
) -> tuple[Level, Evidence, Path] | None:
    """The strongest level that an image has proven, for these claims and this suite.

    A record counts when all of it fits: the image's digest and layers, the row and what it claims today, the suite, and
    the level that its name promises. A record that does not, or cannot be read, is as good as none.

    Args:
        engine_id: What the engine calls the image.
        diff_ids: The image's layers, as the engine says.
    """
    digest = digest_of(engine_id)
    if digest is None:
        return None
    for level in reversed(Level):
        path = path_of(digest, environment, suite, level)
        if not path.is_file():
            continue
        try:
            record = read(path)
        except EngineError:
            continue
        said = (record.image.config_digest, record.image.diff_ids, record.environment, record.suite, record.level)
        if said == (digest, diff_ids, environment, suite, level) and record.claims == dict(claims):
            return level, record, path
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


def remember_built(target_id: str, engine_id: str) -> None:
    """Note which image a build of a target gave. Labels are inherited by derived images; this is not.

    Raises:
        EngineError: The store cannot be written.
    """
    store.write_atomic(_built(target_id), engine_id)


def is_built(target_id: str, engine_id: str) -> bool:
    """Whether an image is what a build of the target gave here."""
    try:
        return _built(target_id).read_text(errors="replace").strip() == engine_id
    except OSError:
        return False


def _built(target_id: str) -> Path:
    return store.home() / "built" / target_id
