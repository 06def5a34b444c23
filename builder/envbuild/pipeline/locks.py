"""A row's lock: found, judged, made."""

from __future__ import annotations

from pathlib import Path

from envbuild import project
from envbuild.errors import EnvbuildError, InputError
from envbuild.lock import Missing, images, read, resolve, stale, unresolved, write
from envbuild.model import Environment, Finding, Lock, LockedBase, Severity
from envbuild.pipeline.findings import FindingsError
from envbuild.pipeline.workbench import Workbench

RULE = "lock"
LOCK_SECONDS = 300.0


def find_lock(bench: Workbench, env: Environment, *, committed: bool = False) -> tuple[Path, Lock] | None:
    """The row's lock where there is one: the one that builds use, or, ``committed``, the one in ``images/``.

    Raises:
        FindingsError: It is not as envbuild wrote it.
    """
    path = project.existing_lock(bench.project, env.name)
    if committed:
        own = bench.project.images / env.name / project.LOCK_FILE
        path = own if own.is_file() else None
    try:
        return (path, read(path)) if path else None
    except InputError as error:
        fix = f"envbuild lock {env.name}"
        found = _finding(env, Severity.ERROR, error.message, fix)
        raise FindingsError(error.message, (found,), hint=f"A lock is not edited; make a new one: {fix}") from error


def judge_lock(bench: Workbench, env: Environment, *, committed: bool = False) -> tuple[Lock | None, Finding | None]:
    """The row's lock where it is one of the row as it is now, and what is to say of it.

    An error: it is broken or stale. An info: there is none, or it is unresolved.
    """
    fix = f"envbuild lock {env.name}"
    try:
        found = find_lock(bench, env, committed=committed)
    except FindingsError as error:
        return None, error.findings[0]
    if found is None:
        return None, _finding(env, Severity.INFO, "the wheels are not locked yet; build locks first", fix)
    lock = found[1]
    if (finding := stale(lock, env, env.platforms[0])) is not None:
        return None, finding
    if not lock.resolved:
        return lock, _finding(env, Severity.INFO, unresolved_text(lock), f"where they can be had: {fix}")
    return lock, None


def unresolved_text(lock: Lock) -> str:
    """What an unresolved lock says, requirements with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for line in lock.missing:
        requirement, _, reason = line.partition(": ")
        by_reason.setdefault(reason, []).append(requirement)
    missing = "; ".join(f"{', '.join(each)}: {reason}" for reason, each in by_reason.items())
    return f"the lock is unresolved, so there is no target id yet; missing: {missing}"


def no_lock(env: Environment, lock: Lock | None) -> FindingsError:
    """What to say where a resolved lock is needed, and there is none or an unresolved one."""
    fix = f"envbuild lock {env.name}"
    message = unresolved_text(lock) if lock else "the row has no lock"
    short = f"{env.name} has {'an unresolved lock, and so no target id' if lock else 'no lock'}"
    hint = f"Where the wheels can be had: {fix}" if lock else f"Make one: {fix}"
    return FindingsError(short, (_finding(env, Severity.ERROR, message, fix),), hint=hint)


def make_lock(
    bench: Workbench, env: Environment, *, timeout: float = LOCK_SECONDS, allow_unresolved: bool = False
) -> tuple[Path, Lock]:
    """Resolve a row's wheels and the digests of its images, and write its lock.

    Args:
        bench: The surroundings.
        env: The row.
        timeout: Limit of the resolution, in seconds.
        allow_unresolved: Where wheels cannot be had, write that down, unless the lock that is there still fits.

    Raises:
        Missing: Wheels of the row cannot be had here (exit 2, or 3 where no index answers).
        InputError: The row's requirements contradict one another.
        EngineError: The resolver fails, or the lock cannot be written.
    """
    try:
        found = find_lock(bench, env)
    except FindingsError:
        # Making a new one is how a broken one is mended.
        found = None
    before = found[1] if found else None
    platform, pip = env.platforms[0], bench.pip_for(env)
    base = _images(bench, env, before)
    path = project.lock_path(bench.project, env.name)
    try:
        lock = resolve(
            env, platform=platform, pip=pip, site=bench.site, timeout=timeout, glibc=_glibc(bench, env), base=base
        )
    except Missing as error:
        if not allow_unresolved:
            raise
        if before is not None and before.resolved and stale(before, env, platform) is None:
            kept = f"{error.message}\nthe lock that is there still fits the row, and was kept"
            raise Missing(error, error.missing, message=kept) from None
        lock = unresolved(env, platform=platform, missing=error.missing, base=base)
    write(path, lock)
    return path, lock


def would_resolve(bench: Workbench, env: Environment, *, timeout: float = LOCK_SECONDS) -> bool:
    """Whether the row's wheels can be had here; writes nothing."""
    try:
        resolve(
            env,
            platform=env.platforms[0],
            pip=bench.pip_for(env),
            site=bench.site,
            timeout=timeout,
            glibc=_glibc(bench, env),
        )
    except EnvbuildError:
        return False
    return True


def _images(bench: Workbench, env: Environment, before: Lock | None) -> LockedBase:
    """The row's images by digest: what it names, what the registry says now, or what the lock before knew."""
    declared = images(env)
    known = before.base if before else None
    digest, toolkit = declared.digest, declared.toolkit_digest
    if digest is None:
        kept = known.digest if known and known.image == declared.image else None
        digest = _digest(bench, declared.image, kept)
    if declared.toolkit_image is not None and toolkit is None:
        kept = known.toolkit_digest if known and known.toolkit_image == declared.toolkit_image else None
        toolkit = _digest(bench, declared.toolkit_image, kept)
    return declared.model_copy(update={"digest": digest, "toolkit_digest": toolkit})


def _digest(bench: Workbench, image: str, kept: str | None) -> str | None:
    from envbuild.registry import reference

    told = bench.manifest_of(image)
    if told.digest is None:
        # The reason is this machine's, and may change: it is told, and not written down.
        registry = reference.repository(image).partition("/")[0]
        if told.silent:
            so = f"{registry}: {told.reason}; its images are locked by tag, or by the digest that their lock had"
        else:
            so = f"{image} {f'keeps its digest {kept[:19]}' if kept else 'is locked by its tag'}: {told.reason}"
        bench.tell_once(so)
    return told.digest or kept


def _glibc(bench: Workbench, env: Environment) -> tuple[int, int]:
    """The C library of the row's base; wheels that want a newer one do not run there."""
    bootstrap = env.base.bootstrap
    known = bench.facts.release_of_image(env.family, env.base.image) or (
        bench.facts.release_of_suite(env.family, bootstrap.suite) if bootstrap else None
    )
    major, minor = (known.glibc if known else "2.28").split(".")
    return int(major), int(minor)


def _finding(env: Environment, severity: Severity, message: str, fix: str) -> Finding:
    return Finding(rule=RULE, severity=severity, subject=env.name, message=message, fix=fix, source="lock.json")
