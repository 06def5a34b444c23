"""The verdict on one run of the ZeRO-3 probe: raw numbers in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.judge import course, placement, setting, training
from envbuild.judge.failure import explain_failure
from envbuild.judge.run import FIRST_PASS, SCHEMA, Check, Expected, Gpus, Run
from envbuild.model import Finding, Severity

__all__ = ["CHECKS", "SCHEMA", "Expected", "Gpus", "explain_failure", "judge"]

# In the order in which they are told, so that a fault comes before what follows from it: whether there is a report
# and of which run, where it ran, whether the step was right, how it was done, and what else was tried.
CHECKS = (*setting.CHECKS, *training.CHECKS, *placement.CHECKS, *course.CHECKS)


def judge(expected: Expected, report: Mapping[str, Any]) -> list[Finding]:
    """Judge a document of the ZeRO-3 probe; no finding means that training is right on every rank.

    Args:
        expected: What the run is held to: the row that the image claims to be, or a bare host.
        report: The document, as decoded JSON. What is missing or malformed in it fails; nothing in it raises.
    """
    run = Run.of(expected, report)
    findings = []
    for check in (*CHECKS, *(course.LONG_CHECKS if expected.seconds else ())):
        problems = list(_problems(check, run))
        if problems:
            findings.append(
                Finding(
                    rule=check.rule,
                    severity=Severity.ERROR,
                    subject=expected.subject,
                    message=f"{check.what}: {'; '.join(problems)}",
                    fix=check.fix,
                    source=check.source,
                )
            )
    return findings


def _problems(check: Check, run: Run) -> list[str]:
    if not check.passes:
        return list(check.problems(run))
    return [
        problem if name == FIRST_PASS else f"{name} pass, {problem}"
        for name in check.passes
        if run.has(name)
        for problem in check.problems(run.of_pass(name))
    ]
