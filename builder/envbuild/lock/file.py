"""``lock.json``: read, write, compare with the row, and hand to pip."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild import store
from envbuild.errors import InputError
from envbuild.lock.ask import images, inputs_digest
from envbuild.model import Environment, Finding, Lock, LockedPackage, LockGroup, Severity

CHECKSUM = "checksum"
_HINT = "a lock is written by envbuild, not by hand; make a new one with: envbuild lock ENV"


def read(path: Path) -> Lock:
    """The lock at ``path``.

    Raises:
        InputError: It is missing, not a lock (it lists every problem), or not as envbuild wrote it.
    """
    try:
        document = store.read_json(path)
    except InputError as error:
        raise InputError(error.message, hint=_HINT) from error
    said = document.pop(CHECKSUM, None) if isinstance(document, dict) else None
    try:
        lock = Lock.model_validate(document)
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, problem['loc'])) or 'document'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise InputError("\n".join(lines), hint=_HINT) from error
    names = [package.name for package in lock.packages]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path}: more than one entry for {', '.join(doubled)}", hint=_HINT)
    if said != _checksum(document):
        how = "has no checksum" if said is None else "has changed since envbuild wrote it (its checksum is another one)"
        raise InputError(f"{path}: it {how}: edited, or merged from two", hint=_HINT)
    return lock


def write(path: Path, lock: Lock) -> None:
    """Write a lock atomically; equal locks are equal bytes.

    Raises:
        EngineError: As ``store.write_atomic``.
    """
    store.write_atomic(path, text(lock))


def text(lock: Lock) -> str:
    """The content of ``lock.json``, a package's hashes in one line each so that a review shows what changed."""
    return json.dumps(document_of(lock), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def document_of(lock: Lock) -> dict[str, Any]:
    """The lock as JSON-able values, with the checksum of all the others."""
    document = lock.model_dump(mode="json", by_alias=True)
    return {**document, CHECKSUM: _checksum(document)}


def _checksum(document: object) -> str:
    """Of the values, not of the bytes: spaces and the order of keys say nothing."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def stale(lock: Lock, env: Environment, platform: str) -> Finding | None:
    """A finding when ``lock`` is not a lock of this row as it is now, for ``platform``; else None."""
    reasons: list[str] = []
    for what, have, want in (
        ("row", lock.environment, env.name),
        ("platform", lock.platform, platform),
        ("Python", lock.python, env.python),
    ):
        if have != want:
            reasons.append(f"its {what} is {have}, not {want}")
    if lock.resolved:
        reasons += _other_versions(lock, env)
    base, wanted_base = lock.base, images(env)
    if base is not None and (base.image, base.toolkit_image) != (wanted_base.image, wanted_base.toolkit_image):
        reasons.append("the row stands on other images since it was made")
    if not reasons and lock.inputs != inputs_digest(env, platform):
        reasons.append("the row's packages, pins, extras or base have changed since it was made")
    if not reasons:
        return None
    return Finding(
        rule="lock",
        severity=Severity.ERROR,
        subject=env.name,
        message=f"the lock of {env.name} is stale: {'; '.join(reasons)}",
        fix=f"envbuild lock {env.name}",
        source="lock.json",
    )


def _other_versions(lock: Lock, env: Environment) -> Iterator[str]:
    """What the lock holds of the row's own packages in another version; a digest of the inputs may lie."""
    local = f"+{env.torch.build}" if env.torch.index == "pytorch" else ""
    versions = {package.name: package.version for package in lock.packages}
    for name, wanted in (
        ("torch", f"{env.torch.version}{local}"),
        ("torchvision", env.torch.torchvision and f"{env.torch.torchvision}{local}"),
        ("torchaudio", env.torch.torchaudio and f"{env.torch.torchaudio}{local}"),
        ("deepspeed", env.deepspeed.version),
    ):
        if wanted and versions.get(name) != wanted:
            yield f"it has {name} {versions.get(name, 'not at all')}, and the row wants {wanted}"


def requirements_txt(packages: Iterable[LockedPackage], group: LockGroup) -> str:
    """The packages of one group for ``pip install --require-hashes -r``; empty for an empty group."""
    lines: list[str] = []
    for package in sorted(packages, key=lambda package: package.name):
        if package.group == group:
            hashes = (f"    --hash={digest}" for digest in sorted(package.hashes))
            lines.append(" \\\n".join((f"{package.name}=={package.version}", *hashes)) + "\n")
    return "".join(lines)
