"""The verdict on one run of the ZeRO-3 probe: raw numbers in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.judge import placement, training
from envbuild.judge.failure import explain_failure
from envbuild.judge.run import SCHEMA, Dtype, Run
from envbuild.model import Environment, Finding, Severity

__all__ = ["CHECKS", "SCHEMA", "Dtype", "explain_failure", "judge"]

# In the order in which they are told: whether there is a report, whether the step was right, what ran and where.
CHECKS = (*placement.CHECKS[:2], *training.CHECKS, *placement.CHECKS[2:])


def judge(env: Environment, report: Mapping[str, Any], *, dtype: Dtype) -> list[Finding]:
    """Judge a document of the ZeRO-3 probe; no finding means that the step is right on every rank.

    Args:
        env: The row that the image claims to be.
        report: The document, as decoded JSON. What is missing or malformed in it fails; nothing in it raises.
        dtype: What was asked for.
    """
    run = Run.of(env, report, dtype)
    findings = []
    for check in CHECKS:
        problems = list(check.problems(run))
        if problems:
            findings.append(
                Finding(
                    rule=check.rule,
                    severity=Severity.ERROR,
                    subject=env.name,
                    message=f"{check.what}: {'; '.join(problems)}",
                    fix=check.fix,
                    source=check.source,
                )
            )
    return findings
