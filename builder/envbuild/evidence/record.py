"""One record of evidence: the image, what was run on it, where and when, and every raw figure."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, Field, ValidationError

from envbuild.errors import EngineError
from envbuild.model import Digest, Frozen, ImageIdentity, Level, Line, Name

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A record of a row is some 30 KiB; one with every symbol of every library stays far below this.
MAX_BYTES = 64 * 1024 * 1024


class Identity(Frozen):
    """The image that was looked at."""

    config_digest: Digest
    diff_ids: tuple[Digest, ...]

    @classmethod
    def of(cls, identity: ImageIdentity) -> Identity:
        """From the domain type."""
        return cls(config_digest=identity.config_digest, diff_ids=identity.diff_ids)


class Host(Frozen):
    """Where it was looked at, without the host's or anybody's name.

    Attributes:
        gpus: Each GPU that trained: its name, and what else was measured. No serial number, no UUID.
        driver: Version of the GPU driver.
        cuda: The newest CUDA that the driver knows.
    """

    system: Line
    machine: Line
    cpu: Line
    cpus: int
    memory_bytes: int
    engine: Line
    gpus: tuple[dict[str, Any], ...] = ()
    driver: Line | None = None
    cuda: Line | None = None


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
        long_seconds: How long a long run trained; None for the few steps of a normal one.
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
    started: AwareDatetime
    finished: AwareDatetime
    seconds: dict[str, float]
    long_seconds: float | None = None

    @property
    def seen_on(self) -> str:
        """GPU models and driver in letters that a file name may have; empty below the GPU levels."""
        if self.level.rank < Level.GPU_MIG.rank:
            return ""
        return seen_on([str(gpu.get("name", "")) for gpu in self.host.gpus], self.host.driver)


def seen_on(models: Sequence[str], driver: str | None) -> str:
    """``nvidia-h200-580.95.05`` from the names of GPUs and the version of their driver."""
    slugs = sorted({re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") for model in models})
    version = re.sub(r"[^0-9A-Za-z.]+", "-", driver or "").strip("-.")
    return "-".join(filter(None, ("+".join(filter(None, slugs)), version)))[:120]


def read(path: Path) -> Evidence:
    """Read one record.

    Raises:
        EngineError: It is missing or not what a record looks like.
    """
    try:
        return Evidence.model_validate_json(read_bounded(path, MAX_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])))[:200]
        raise EngineError(
            f"{path}: not a record of evidence: {place}: {first['msg']}", hint="Remove the file and run smoke again."
        ) from error


def printable(text: str) -> str:
    """A text from outside without what a terminal would obey."""
    return _CONTROLS.sub("?", text)


def read_bounded(path: Path, limit: int) -> bytes:
    """A file's bytes; anybody may have put it there, so a huge one or one that never ends is refused.

    Raises:
        EngineError: It is missing, no file, or larger than ``limit`` bytes.
    """
    try:
        # Not blocking: a fifo would wait for a writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise EngineError(f"{path}: not a file", hint="Remove it and run smoke again.")
            # One that grows meanwhile is cut off, and then is not JSON any more.
            data = file.read(limit) if status.st_size <= limit else None
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}") from error
    if data is None:
        raise EngineError(f"{path}: larger than {limit >> 20} MiB", hint="Remove the file and run smoke again.")
    return data
