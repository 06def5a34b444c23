"""From a row's name to a rendered target: check, lock, plan, render. Builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild import plan as plans
from envbuild import render
from envbuild.events import Note
from envbuild.lock import stale
from envbuild.matrix import check
from envbuild.model import Environment, Finding, Lock
from envbuild.pipeline.findings import FindingsError, errors
from envbuild.pipeline.locks import find_lock, make_lock, no_lock
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import Plan
from envbuild.render import Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A row, ready to build: its lock, its Plan and its rendered build context.

    ``env`` is the row with its images by the lock's digests.
    """

    env: Environment
    lock: Lock
    lock_path: Path
    plan: Plan
    rendering: Rendering

    @property
    def repository(self) -> str:
        """The image's name without registry and tag."""
        return f"envbuild/{self.env.name}"

    @property
    def candidate(self) -> str:
        """The only name of an image that has proved nothing."""
        return f"{self.repository}:candidate-{self.rendering.id8}"


def require_clean(bench: Workbench, env: Environment) -> tuple[Finding, ...]:
    """Check a row against the rules; returns the warnings.

    Raises:
        FindingsError: A rule is broken.
    """
    findings = tuple(check(env, bench.facts, bench.matrix))
    if errors(findings):
        raise FindingsError(
            f"{env.name}: {len(errors(findings))} rule(s) broken", findings, hint=f"See: envbuild check {env.name}"
        )
    return findings


def prepare(bench: Workbench, name: str, *, lock_missing: bool = False, checked: bool = True) -> Target:
    """Everything up to the rendered target.

    Args:
        bench: The surroundings.
        name: The row.
        lock_missing: Resolve and write the lock when there is none, or an unresolved one, as ``build`` does.
        checked: Refuse rows that break a rule.

    Raises:
        FindingsError: A rule is broken, or the lock is missing, unresolved, stale or broken.
        Missing: There was no resolved lock, and wheels of the row cannot be had here.
        InputError: No such row.
    """
    env = bench.matrix.get(name)
    bench.read_site()
    if checked:
        require_clean(bench, env)
    found = find_lock(bench, env)
    if found is None or not found[1].resolved:
        lock = found[1] if found else None
        if not lock_missing:
            # A lock of the row as it was says nothing of what is missing now.
            raise no_lock(env, None if lock and stale(lock, env, env.platforms[0]) else lock)
        state = "could not be locked elsewhere" if lock else "has no lock yet"
        bench.sink(Note(message=f"{name} {state}: resolving its wheels first"))
        found = make_lock(bench, env)
    path, lock = found
    finding = stale(lock, env, env.platforms[0])
    if finding is not None:
        raise FindingsError(f"{path}: {finding.message}", (finding,), hint=finding.fix)
    pinned = lock.pin(env)
    plan = plans.make(pinned, lock, bench.facts)
    rendering = render.render(plan, bench.project.templates)
    return Target(env=pinned, lock=lock, lock_path=path, plan=plan, rendering=rendering)


__all__ = ["FindingsError", "Target", "errors", "find_lock", "make_lock", "prepare", "require_clean"]
