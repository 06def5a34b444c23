"""``lock.json``: read, write, compare with the row, and hand to pip."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from envbuild import store
from envbuild.errors import InputError
from envbuild.lock.ask import inputs_digest
from envbuild.model import Environment, Finding, Lock, LockedPackage, LockGroup, Severity

_HINT = "a lock is written by envbuild, not by hand; make a new one with: envbuild lock ENV"


def read(path: Path) -> Lock:
    """The lock at ``path``.

    Raises:
        InputError: It is missing, or not a lock; it lists every problem.
    """
    try:
        document = store.read_json(path)
    except InputError as error:
        raise InputError(error.message, hint=_HINT) from error
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
    return lock


def write(path: Path, lock: Lock) -> None:
    """Write a lock atomically; equal locks are equal bytes.

    Raises:
        EngineError: As ``store.write_atomic``.
    """
    store.write_atomic(path, text(lock))


def text(lock: Lock) -> str:
    """The content of ``lock.json``, a package's hashes in one line each so that a review shows what changed."""
    return json.dumps(lock.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


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
    local = f"+{env.torch.build}" if env.torch.index == "pytorch" else ""
    versions = {package.name: package.version for package in lock.packages}
    for name, wanted in (
        ("torch", f"{env.torch.version}{local}"),
        ("torchvision", env.torch.torchvision and f"{env.torch.torchvision}{local}"),
        ("torchaudio", env.torch.torchaudio and f"{env.torch.torchaudio}{local}"),
        ("deepspeed", env.deepspeed.version),
    ):
        if wanted and versions.get(name) != wanted:
            reasons.append(f"it has {name} {versions.get(name, 'not at all')}, and the row wants {wanted}")
    if not reasons and lock.inputs != inputs_digest(env, platform):
        reasons.append("the row's packages, pins or extras have changed since it was made")
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


def requirements_txt(packages: Iterable[LockedPackage], group: LockGroup) -> str:
    """The packages of one group for ``pip install --require-hashes -r``; empty for an empty group."""
    lines: list[str] = []
    for package in sorted(packages, key=lambda package: package.name):
        if package.group == group:
            hashes = (f"    --hash={digest}" for digest in sorted(package.hashes))
            lines.append(" \\\n".join((f"{package.name}=={package.version}", *hashes)) + "\n")
    return "".join(lines)
