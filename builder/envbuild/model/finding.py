"""A judgement, and how bad it is. Without pydantic, whose import costs more than a small file's lint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad a finding is; only errors change an exit code."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judgement: what is wrong, where, why it matters, what to do, and who says so.

    Attributes:
        why: Why it matters for ZeRO-3 offload, where the message alone does not say so.
        evidence: What was seen, one line each.
        command: The fix as a command line that is safe to paste; empty where there is none.
        explained_by: Rule of the finding that this one is only an echo of.
    """

    rule: str
    severity: Severity
    subject: str
    message: str
    fix: str = ""
    source: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    why: str = ""
    evidence: tuple[str, ...] = ()
    command: str = ""
    explained_by: str = ""
