"""Everything that can be said of rows without building: rules and locks."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.errors import InputError
from envbuild.matrix import check
from envbuild.model import Environment, Finding, Severity
from envbuild.pipeline import performance
from envbuild.pipeline.locks import judge_lock
from envbuild.pipeline.performance_told import first, none, required
from envbuild.pipeline.workbench import Workbench


def check_rows(bench: Workbench, names: Iterable[str]) -> list[Finding]:
    """All findings of the named rows: every rule, locks that are broken, stale, unresolved or missing, and baselines
    that are required and missing.

    Raises:
        InputError: No such row.
    """
    bench.read_site()
    found: list[Finding] = []
    for name in names:
        env = bench.matrix.get(name)
        found += check(env, bench.facts, bench.matrix)
        found += _lock_findings(bench, name)
        found += _without_baseline(bench, env)
    return found


def _without_baseline(bench: Workbench, env: Environment) -> list[Finding]:
    """A row that requires a baseline and has none: its next image gets the name of its content, and no other."""
    if env.performance is None:
        return []
    try:
        if performance.baselines_of(bench, env.name):
            return []
        why, fix = none(env, performance.folder_of(bench)), first(env.name)
    except InputError as error:
        why, fix = error.message, "Bring the file back from git, or move it away."
    place = bench.matrix.place(env, ("performance",))
    return [
        Finding(
            rule="BASELINE", severity=Severity.WARNING, subject=f"environments.{env.name}.performance",
            message=f"{required(env.performance)} is required, and {why}; nothing of it is called validated so",
            fix=fix, file=place.file, line=place.line, column=place.column,
        )
    ]  # fmt: skip


def _lock_findings(bench: Workbench, name: str) -> list[Finding]:
    finding = judge_lock(bench, bench.matrix.get(name))[1]
    return [finding] if finding else []
