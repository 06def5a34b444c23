"""Findings that end a command."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.errors import EnvbuildError
from envbuild.model import Finding, Severity


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


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that stop a build."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
