"""Runs the checks. One that breaks down is a finding, and stops no other."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from envbuild.doctor.checks import CHECKS
from envbuild.doctor.view import Check, View
from envbuild.model import Finding, Severity

BROKEN = "broken-check"


def run(view: View, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Everything that the checks say of a machine, check by check. What is the root of what is for ``order`` to say."""
    return [finding for check in checks for finding in _findings(check, view)]


def _findings(check: Check, view: View) -> list[Finding]:
    try:
        return list(check.look(view))
    except Exception as error:  # whatever a check stumbles over, the others have something to say
        return [_broken(check, error)]


def _broken(check: Check, error: Exception) -> Finding:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return Finding(
        rule=f"{BROKEN}.{check.name}",
        severity=Severity.WARNING,
        subject=check.name,
        message=f"the check `{check.name}` broke down, so what it looks at is not known: "
        f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
        fix="report it with the collected facts: this is a fault of envbuild, not of the machine",
        evidence=(f"{place.filename.rpartition('/')[2]}, line {place.lineno}, in {place.name}",),
        source="the check itself",
    )
