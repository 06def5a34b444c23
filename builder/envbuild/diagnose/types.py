"""What a diagnosis is made of: values, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line of a log, as a person can read it: no control characters, cut to a readable length, secrets masked.

    Attributes:
        file: Name of the log as it was given; ``-`` is standard input.
        line: Its number in that file, counted from 1 as editors do.
    """

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """Something that a cause explains: the kind and title of its signature, and where it is first seen."""

    kind: str
    title: str
    first: Evidence
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One root cause.

    Attributes:
        certainty: ``sure``, ``likely`` or ``weak``.
        count: How many lines show it; a lower bound where a log is flooded with it.
        captures: What the lines say of the case, the derived values included.
        doctor: Checks of ``envbuild doctor`` that look at the same thing; ``rules`` the same of the matrix's.
    """

    kind: str
    title: str
    cause: str
    certainty: str
    evidence: tuple[Evidence, ...]
    count: int
    explains: tuple[Echo, ...]
    fix: tuple[str, ...]
    command: str
    doctor: tuple[str, ...]
    rules: tuple[str, ...]
    source: str
    captures: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer to one question.

    Attributes:
        causes: Best first; empty where nothing known is found.
        telling: Without a cause, the lines that say most.
        unread: What could not be read, or only in part: name of the log, and why.
        bytes_read: Of all logs, unpacked.
    """

    causes: tuple[Cause, ...]
    telling: tuple[Evidence, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    bytes_read: int = 0


def as_dict(cause: Cause) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "kind": cause.kind,
        "title": cause.title,
        "cause": cause.cause,
        "certainty": cause.certainty,
        "evidence": [evidence_dict(each) for each in cause.evidence],
        "count": cause.count,
        "explains": [
            {"kind": echo.kind, "title": echo.title, "count": echo.count, **evidence_dict(echo.first)}
            for echo in cause.explains
        ],
        "fix": list(cause.fix),
        "command": cause.command,
        "doctor": list(cause.doctor),
        "rules": list(cause.rules),
        "source": cause.source,
        "captures": dict(cause.captures),
    }


def evidence_dict(evidence: Evidence) -> dict[str, Any]:
    """For ``--json``."""
    return {"file": evidence.file, "line": evidence.line, "text": evidence.text}
