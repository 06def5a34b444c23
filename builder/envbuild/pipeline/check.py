"""Everything that can be said of rows without building: rules and locks."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.errors import EnvbuildError
from envbuild.lock import stale
from envbuild.matrix import check
from envbuild.model import Finding, Severity
from envbuild.pipeline.prepare import find_lock
from envbuild.pipeline.workbench import Workbench


def check_rows(bench: Workbench, names: Iterable[str]) -> list[Finding]:
    """All findings of the named rows: every rule, and locks that are stale or missing.

    Raises:
        InputError: No such row.
    """
    bench.read_site()
    found: list[Finding] = []
    for name in names:
        env = bench.matrix.get(name)
        found += check(env, bench.facts, bench.matrix)
        found += _lock_findings(bench, name)
    return found


def _lock_findings(bench: Workbench, name: str) -> list[Finding]:
    env = bench.matrix.get(name)
    try:
        lock = find_lock(bench, env)
    except EnvbuildError as error:
        return [Finding(rule="lock", severity=Severity.ERROR, subject=name, message=error.message, fix=error.hint)]
    if lock is None:
        message = "the wheels are not locked yet; build locks first"
        return [
            Finding(rule="lock", severity=Severity.INFO, subject=name, message=message, fix=f"envbuild lock {name}")
        ]
    finding = stale(lock[1], env, lock[1].platform)
    return [finding] if finding else []
