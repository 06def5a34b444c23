"""What is wrong with a bundle, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuild.evidence.record import printable
from envbuild.model import Finding, Severity

_SHOWN = 20


def about(
    rule: str,
    subject: str,
    message: str,
    fix: str = "",
    *,
    severity: Severity = Severity.ERROR,
    seen: Sequence[str] = (),
) -> Finding:
    """One finding; texts out of the bundle become harmless for a terminal."""
    return Finding(
        rule=f"bundle.{rule}", severity=severity, subject=printable(subject), message=printable(message)[:600], fix=fix,
        source="docs/offline.md", evidence=tuple(printable(line)[:300] for line in seen),
    )  # fmt: skip


def several(
    rule: str, places: Sequence[str], what: str, fix: str, *, severity: Severity = Severity.ERROR
) -> Iterator[Finding]:
    """One finding about many files; none where there are none."""
    if not places:
        return
    shown = [*sorted(places)[:_SHOWN], *([f"... and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else [])]
    first = sorted(places)[0]
    message = f"{first} is {what}" if len(places) == 1 else f"{len(places)} files are {what}, the first {first}"
    yield about(rule, first.partition(":")[0], message, fix, severity=severity, seen=() if len(places) == 1 else shown)
