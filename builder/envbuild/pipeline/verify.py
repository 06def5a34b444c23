"""Whether an image is what somebody who is trusted has seen: its evidence, held to what the asker wants."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild import evidence
from envbuild.engines import ImageInfo
from envbuild.errors import EngineError
from envbuild.events import PhaseDone, PhaseStarted
from envbuild.evidence import Compared, Evidence, Identity, PublicKey, Seal, State
from envbuild.evidence.record import printable
from envbuild.judge import archive
from envbuild.judge.suite import suite_hash
from envbuild.model import Finding, ImageIdentity, Level, Severity
from envbuild.pipeline import objections, performance
from envbuild.pipeline.build import locate
from envbuild.pipeline.objections import Subject
from envbuild.pipeline.performance_told import told
from envbuild.pipeline.prepare import errors
from envbuild.pipeline.wanted import Wanted, duration
from envbuild.pipeline.workbench import Workbench

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The answer.

    Attributes:
        ref: The image's name.
        record: The record that answers best; None where there is none that can be read.
        key: The trusted key that signed it; None when none did.
        findings: Every reason not to believe it; one of severity error is enough.
        compared: What trusted keys have signed of it beside baselines, and the files that say so.
        fast: Whether it is as fast as its row requires; without such a requirement it is.
    """

    ref: str
    environment: str
    identity: ImageIdentity
    required: Level
    findings: tuple[Finding, ...]
    record: Evidence | None = None
    path: Path | None = None
    key: PublicKey | None = None
    age: datetime.timedelta | None = None
    compared: tuple[tuple[Compared, Path], ...] = ()
    fast: bool = True

    @property
    def good(self) -> bool:
        """Whether nothing stands against it."""
        return not errors(self.findings)


@dataclass(slots=True, kw_only=True)
class _Candidate:
    path: Path
    record: Evidence | None
    seal: Seal
    findings: list[Finding] = field(default_factory=list)


def verify(bench: Workbench, reference: str, *, row: str | None, wanted: Wanted) -> Verified:
    """Answer for one image. Its identity is read from its exported config: an engine's own name for it is none.

    Args:
        bench: The surroundings.
        reference: An image, or the name of a row, which means its candidate or its proven image.
        row: The row whose claims count; without it the image's label says.
        wanted: What the evidence has to show.

    Raises:
        InputError: A key cannot be used, or nobody knows which row the image claims to be.
        GateError: There is no such image.
        EngineError: The engine failed, or its export cannot be read.
    """
    keys = bench.trusted_keys
    ref, info, env = locate(bench, reference, row)
    subject = Subject(
        ref=ref, env=env, identity=_identity(bench, ref, info), wanted=wanted, keys=keys, suite=suite_hash(),
        now=datetime.datetime.now(datetime.timezone.utc),
    )  # fmt: skip
    return answer(subject)


def answer(subject: Subject, records: Sequence[Path] | None = None, compared: Sequence[Path] | None = None) -> Verified:
    """Hold evidence of an image to what is wanted, and report on what comes closest.

    Args:
        subject: The image, and what is wanted.
        records: The records; everything that the store has about the image without them.
        compared: The same of comparisons with baselines.
    """
    paths = evidence.stored(subject.identity.config_digest) if records is None else records
    seen = [_examine(subject, path) for path in paths]
    mine = [each for each in seen if _row_of(each) == subject.env.name]
    best = min(mine, key=_shortcoming, default=None)
    findings = [] if best is None else list(best.findings)
    if best is None:
        others = sorted({row for each in seen if (row := _row_of(each)) is not None})
        findings.append(
            objections.finding(
                subject, "verify.none",
                f"there is no evidence of this image ({subject.identity.config_digest[:19]}) as {subject.env.name}"
                + (f"; there is as {', '.join(others)}" if others else ""),
                fix=f"Prove it: {subject.proving()}. Or bring the evidence from where it was proven.",
            )
        )  # fmt: skip
        if not subject.keys:
            findings.append(objections.no_key(subject))
    # What somebody has changed is told even where another record is good.
    findings += [
        objections.finding(subject, "verify.tampered", each.seal.reason, fix="Remove it.", severity=Severity.WARNING)
        for each in mine
        if each is not best and each.seal.state is State.TAMPERED
    ]
    beside = evidence.compared_paths(subject.identity.config_digest) if compared is None else compared
    said, doubt = performance.believed(subject.env, Identity.of(subject.identity), beside, subject.keys)
    if doubt:
        findings.append(objections.to_performance(subject, doubt))
    return Verified(
        ref=subject.ref,
        environment=subject.env.name,
        identity=subject.identity,
        required=subject.level,
        findings=tuple(findings),
        record=best.record if best else None,
        path=best.path if best else None,
        key=best.seal.key if best else None,
        age=subject.now - best.record.finished if best and best.record else None,
        compared=said,
        fast=not doubt,
    )


def _examine(subject: Subject, path: Path) -> _Candidate:
    seal = evidence.signed_by(path, subject.keys)
    found = _Candidate(path=path, record=seal.record, seal=seal)
    if found.record is None:
        try:
            found.record = evidence.read(path)
        except EngineError as error:
            fix = objections.again(subject)
            found.findings.append(objections.finding(subject, "verify.tampered", error.message, fix=fix))
    found.findings += objections.to_signature(subject, seal)
    if found.record is not None:
        found.findings += objections.to_record(subject, found.record)
    return found


def _row_of(candidate: _Candidate) -> str | None:
    """The row a record is of; of one that cannot be read, as its name says."""
    if candidate.record is not None:
        return candidate.record.environment
    named = re.match(r"(.+?)-[0-9a-f]{12}-", candidate.path.name)
    return named[1] if named else None


def _shortcoming(candidate: _Candidate) -> tuple[bool, int, int, datetime.timedelta]:
    """Order of candidates: least wrong first, then the strongest, then the newest."""
    record = candidate.record
    if record is None:
        return True, 0, 0, datetime.timedelta()
    return False, len(errors(candidate.findings)), -record.level.rank, _EPOCH - record.finished


def _identity(bench: Workbench, ref: str, info: ImageInfo) -> ImageIdentity:
    began = time.monotonic()
    bench.sink(PhaseStarted(phase="identity", detail=f"reading the whole of {ref}"))
    # By id: the name may move while it is read.
    with bench.engine.save(info.id) as stream:
        identity = archive.read(stream, lambda path: False).identity
    seconds = time.monotonic() - began
    bench.sink(PhaseDone(phase="identity", seconds=seconds, detail=identity.config_digest[:19]))
    return identity


def lines(verified: Verified) -> list[tuple[str, str]]:
    """The answer for people: what was looked at, and what is known of it."""
    record = verified.record
    out = [("image", verified.ref), ("digest", verified.identity.config_digest), ("row", verified.environment)]
    if record is not None and verified.age is not None:
        gpus = ", ".join(str(gpu.get("name", "?")) for gpu in record.host.gpus)
        out += [
            ("level", f"{record.level.value} ({verified.required.value} required)"),
            ("GPU", gpus or "none"),
            ("driver", record.host.driver or "none"),
            ("suite", record.suite[:12]),
            ("signed by", verified.key.id if verified.key else "nobody who is trusted"),
            ("age", f"{duration(verified.age)} ({record.finished:%Y-%m-%d %H:%M})"),
            ("record", str(verified.path)),
        ]
    out += [("performance", told(each)) for each, _ in verified.compared]
    # A record is a file that anybody may have written: no escape sequence of it reaches a terminal.
    return [(name, printable(value)[:300]) for name, value in out]


def as_dict(verified: Verified) -> dict[str, Any]:
    """For ``--json``."""
    record = verified.record
    return {
        "reference": verified.ref,
        "config_digest": verified.identity.config_digest,
        "diff_ids": list(verified.identity.diff_ids),
        "environment": verified.environment,
        "requires": verified.required.value,
        "verified": verified.good,
        "level": record.level.value if record else None,
        "suite": record.suite if record else None,
        "gpus": list(record.host.gpus) if record else [],
        "driver": record.host.driver if record else None,
        "finished": record.finished.isoformat() if record else None,
        "signed_by": verified.key.id if verified.key else None,
        "evidence": str(verified.path) if verified.path else None,
        "performance": [each.model_dump(mode="json", by_alias=True) for each, _ in verified.compared],
    }
