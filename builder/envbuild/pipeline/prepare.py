"""From a row's name to a rendered target: check, lock, plan, render. Builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envbuild import plan as plans
from envbuild import project, render
from envbuild.errors import EnvbuildError
from envbuild.events import Note
from envbuild.lock import read, resolve, stale, write
from envbuild.matrix import check
from envbuild.model import Environment, Finding, Lock, Severity
from envbuild.pipeline.workbench import Workbench
from envbuild.plan import Plan
from envbuild.render import Rendering


class FindingsError(EnvbuildError):
    """The input has findings of severity error (exit 1), or the image has them (exit 5)."""

    exit_code = 1
    code = "findings"

    def __init__(self, message: str, findings: tuple[Finding, ...], *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings
        self.exit_code = exit_code
        if exit_code == 5:
            self.code = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A row, ready to build: its lock, its Plan and its rendered build context."""

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


def errors(findings: tuple[Finding, ...] | list[Finding]) -> tuple[Finding, ...]:
    """Those that stop a build."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


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


def find_lock(bench: Workbench, env: Environment) -> tuple[Path, Lock] | None:
    """The row's lock where there is one; the project's own is preferred to the user's."""
    path = project.existing_lock(bench.project, env.name)
    return (path, read(path)) if path else None


def make_lock(bench: Workbench, env: Environment, *, timeout: float = 300) -> tuple[Path, Lock]:
    """Resolve a row's wheels and write its lock.

    Raises:
        InputError: No set of wheels satisfies the row.
        EngineError: No index answers.
    """
    pip = bench.pip_for(env)
    lock = resolve(env, platform=env.platforms[0], pip=pip, site=bench.site, timeout=timeout, glibc=_glibc(bench, env))
    path = project.lock_path(bench.project, env.name)
    write(path, lock)
    return path, lock


def _glibc(bench: Workbench, env: Environment) -> tuple[int, int]:
    """The C library of the row's base; wheels that want a newer one do not run there."""
    bootstrap = env.base.bootstrap
    known = bench.facts.release_of_image(env.family, env.base.image) or (
        bench.facts.release_of_suite(env.family, bootstrap.suite) if bootstrap else None
    )
    major, minor = (known.glibc if known else "2.28").split(".")
    return int(major), int(minor)


def prepare(bench: Workbench, name: str, *, lock_missing: bool = False, checked: bool = True) -> Target:
    """Everything up to the rendered target.

    Args:
        bench: The surroundings.
        name: The row.
        lock_missing: Resolve and write the lock when there is none, as ``build`` does.
        checked: Refuse rows that break a rule.

    Raises:
        FindingsError: A rule is broken or the lock is stale.
        InputError: No such row, or no lock.
    """
    env = bench.matrix.get(name)
    bench.read_site()
    if checked:
        require_clean(bench, env)
    found = find_lock(bench, env)
    if found is None:
        if not lock_missing:
            raise FindingsError(
                f"{name} has no lock",
                (
                    Finding(
                        rule="lock",
                        severity=Severity.ERROR,
                        subject=name,
                        message="the row has no lock",
                        fix=f"envbuild lock {name}",
                    ),
                ),
                hint=f"Make one: envbuild lock {name}",
            )
        bench.sink(Note(message=f"{name} has no lock yet: resolving its wheels first"))
        found = make_lock(bench, env)
    path, lock = found
    finding = stale(lock, env, lock.platform)
    if finding is not None:
        raise FindingsError(f"{path}: {finding.message}", (finding,), hint=finding.fix)
    plan = plans.make(env, lock, bench.facts)
    rendering = render.render(plan, bench.project.templates)
    return Target(env=env, lock=lock, lock_path=path, plan=plan, rendering=rendering)
