"""Whether a registry's image may be believed, before a layer of it moves: its evidence, and its manifest's binding."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

from envbuild import evidence, store
from envbuild.evidence import PublicKey
from envbuild.judge.suite import suite_hash
from envbuild.model import Environment, Finding, ImageIdentity, Severity
from envbuild.pipeline import attached, objections
from envbuild.pipeline.objections import Subject
from envbuild.pipeline.verify import Verified, answer
from envbuild.pipeline.wanted import Wanted
from envbuild.registry import Blobs, Manifest, Repository

_KINDS = (attached.EVIDENCE, attached.COMPARED, attached.BINDING)


def believe(subject: Subject, there: Repository, manifest: Manifest, own: Blobs, scratch: Path) -> Verified:
    """What the evidence beside an image is worth.

    Args:
        scratch: A folder for the records: nothing comes into the store before the image is here.

    Raises:
        NetworkError: The registry.
        EngineError: The disk.
    """
    paths: list[Path] = []
    beside: list[Path] = []
    bindings: list[bytes] = []
    for number, artifact in enumerate(attached.attached(there, manifest.descriptor, _KINDS, own)):
        envelope = attached.file_of(artifact, attached.ENVELOPE)
        record = attached.file_of(artifact, attached.EVIDENCE)
        if artifact.kind == attached.BINDING:
            bindings += [envelope] if envelope else []
        elif (compared := attached.file_of(artifact, attached.COMPARED)) is not None:
            beside.append(_written(scratch / f"performance-{number}.json", compared, envelope))
        elif record is not None:
            paths.append(_written(scratch / f"evidence-{number}.json", record, envelope))
    found = answer(subject, paths, beside)
    findings = [_told(_lenient(each), scratch) for each in found.findings]
    if subject.keys:
        findings += _unbound(subject, manifest, bindings)
    return dataclasses.replace(found, findings=tuple(findings))


def _written(path: Path, data: bytes, envelope: bytes | None) -> Path:
    store.write_atomic(path, data)
    if envelope is not None:
        store.write_atomic(evidence.envelope_of(path), envelope)
    return path


def subject_of(
    env: Environment, identity: ImageIdentity, ref: str, wanted: Wanted, keys: tuple[PublicKey, ...]
) -> Subject:
    """What the evidence beside an image in a registry is held to, now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return Subject(
        ref=ref, env=env, identity=identity, wanted=wanted, keys=keys, suite=suite_hash(), now=now, remote=True
    )


def _lenient(finding: Finding) -> Finding:
    # Whoever pulls has often another envbuild than whoever proved. What another suite has seen was seen all the same;
    # here it counts as nothing until it is seen again, and `envbuild build` says so.
    return dataclasses.replace(finding, severity=Severity.WARNING) if finding.rule == "verify.suite" else finding


def _told(finding: Finding, scratch: Path) -> Finding:
    # The folder is gone before anybody reads of it.
    return dataclasses.replace(finding, message=finding.message.replace(f"{scratch}/", ""))


def _unbound(subject: Subject, manifest: Manifest, bindings: Sequence[bytes]) -> list[Finding]:
    """Hold the manifest to what its pusher has signed."""
    reasons = []
    for envelope in bindings:
        try:
            binding, _ = evidence.bound(envelope, subject.keys)
        except evidence.Refused as refused:
            reasons.append(refused.reason)
            continue
        if (binding.manifest, binding.config) == (manifest.descriptor.digest, manifest.config.digest):
            return []
        reasons.append(f"a binding is of {binding.manifest[:19]}")
    told = "; ".join(dict.fromkeys(reasons)) or "there is none"
    return [
        objections.finding(
            subject, "verify.binding",
            f"no trusted key has signed that {manifest.descriptor.digest[:19]} is this image's manifest: {told[:300]}",
            fix=f"Push it again with the key: envbuild push {subject.env.name} --key FILE",
        )
    ]  # fmt: skip
