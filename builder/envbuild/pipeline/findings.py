"""Findings that end a command."""

from __future__ import annotations

from collections.abc import Iterable

from envbuild.errors import BUNDLE, GATE, BundleError, EnvbuildError, GateError
from envbuild.model import Finding, Severity

_CODES = {GATE: GateError.code, BUNDLE: BundleError.code}


class FindingsError(EnvbuildError):
    """The input has findings of severity error (exit 1), or the image has them (exit 5), or a bundle (exit 6)."""

    exit_code = 1
    code = "findings"

    def __init__(self, message: str, findings: tuple[Finding, ...], *, hint: str = "", exit_code: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings
        self.exit_code = exit_code
        self.code = _CODES.get(exit_code, self.code)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that stop a build."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)
