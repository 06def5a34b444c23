"""The shipped rows, and how a case is made from one."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from envbuild import facts
from envbuild.matrix import Matrix, check, load
from envbuild.model import Environment, Finding, Severity

FACTS = facts.load()
MATRIX: Matrix = load(Path(__file__).parents[2] / "matrix.yaml")
TODAY = datetime.date(2026, 11, 30)
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

V100, A100, H200, B200, CPU = "v100-cu113", "a100-cu118", "h200-cu130", "b200-cu132", "cpu"
CENTOS7 = {"family": "centos7", "base": {"image": "docker.io/library/centos:7"}}

# Rule, severity, row, changes, and what the fix (of an error) or the finding names.
Broken = tuple[str, Severity, str, dict[str, Any], str]
Kept = tuple[str, str, dict[str, Any]]


def vary(row: str, changes: dict[str, Any]) -> Environment:
    """A shipped row with some values changed."""
    data = MATRIX.get(row).model_dump()
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = data
        for parent in parents:
            node = node[parent]
        node[last] = value
    return Environment.model_validate(data)


def of_rule(rule: str, row: str, changes: dict[str, Any]) -> list[Finding]:
    """What one rule has against a changed row."""
    found = check(vary(row, changes), FACTS, today=TODAY)
    return [finding for finding in found if finding.rule == rule]
