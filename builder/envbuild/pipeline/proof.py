"""What is wanted of a proof, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.model import Environment, Finding, Level
from envbuild.pipeline.gates import ALL
from envbuild.pipeline.smoking import SMOKE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How a proof is wanted.

    Attributes:
        timeout: Limit of the smoke, in seconds; a long run has its own time on top.
        gpus: ``all``, ``none``, or GPUs by UUID or index.
        force: Run again although there is evidence.
        long_seconds: Train for so long, not only some steps.
        allow_level: A level below the row's that is enough.
    """

    timeout: float = SMOKE_SECONDS
    gpus: tuple[str, ...] = ALL
    force: bool = False
    long_seconds: float | None = None
    allow_level: Level | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What an image has shown, and where that is written.

    Attributes:
        engine_id: The image that was looked at.
        missing: What stood in the way of a higher level.
        reused: Nothing was run: the evidence was there.
        compared: What it has shown beside the baselines of its row, where the row requires that.
    """

    engine_id: str
    level: Level
    path: Path
    record: evidence.Evidence
    missing: tuple[Finding, ...] = ()
    reused: bool = False
    compared: tuple[evidence.Compared, ...] = ()


def claims(env: Environment) -> dict[str, str]:
    """What the row says of the image, for the record."""
    said = {
        "python": env.python,
        "gcc": env.gcc.version,
        "torch": env.torch_version,
        "deepspeed": env.deepspeed.version,
        "ops": ",".join(env.deepspeed.ops),
        "cuda": env.cuda.version if env.cuda else None,
        "nccl": env.nccl,
        "gpus": ",".join(env.gpus) or None,
        "cpu_baseline": env.cpu_baseline,
        # What passes with one shared memory need not pass with another.
        "shm_size": env.shm_size,
        "memlock": env.memlock,
    }
    return {name: value for name, value in said.items() if value}


def as_dict(finding: Finding) -> dict[str, Any]:
    """A finding as JSON carries it; without a place, evidence and the like where there is none."""
    fields: dict[str, Any] = {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "message": finding.message,
        "fix": finding.fix,
        "source": finding.source,
    }
    if finding.file is not None:
        fields |= {"file": finding.file, "line": finding.line, "column": finding.column}
    more = {"why": finding.why, "command": finding.command, "explained_by": finding.explained_by}
    fields |= {name: value for name, value in more.items() if value}
    if finding.evidence:
        fields["evidence"] = list(finding.evidence)
    return fields
