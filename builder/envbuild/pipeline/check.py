"""Everything that can be said of rows without building: rules and locks."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.matrix import check
from envbuild.model import Finding
from envbuild.pipeline.locks import judge_lock
from envbuild.pipeline.workbench import Workbench


def check_rows(bench: Workbench, names: Iterable[str]) -> list[Finding]:
    """All findings of the named rows: every rule, and locks that are broken, stale, unresolved or missing.

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
    finding = judge_lock(bench, bench.matrix.get(name))[1]
    return [finding] if finding else []
