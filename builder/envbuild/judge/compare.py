"""One claim of a row against what was read outside and inside of the image, and those against one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envbuild.judge.number import show
from envbuild.model import Finding, Severity


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure and where it was read."""

    value: str | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a row says of one thing.

    Attributes:
        rule: Id of the rule that fails.
        what: The thing, as a person calls it.
        expected: What the row says, as text; None where a row does not speak of it.
        accepts: Whether a measured figure is what the row says.
        readings: Each is compared with the row; then all with the first.
    """

    rule: str
    what: str
    expected: str | None
    accepts: Callable[[str], bool]
    readings: tuple[Reading, ...]
    fix: str
    source: str = "the row"

    def findings(self, subject: str) -> list[Finding]:
        """One finding per difference; a figure that is missing is one."""
        told = []
        for reading in self.readings:
            if reading.value is None:
                told.append(f"{self.what} could not be read from {reading.where}")
            elif self.expected is not None and not self.accepts(reading.value):
                claim = f"the row says {self.expected}, the image has {show(reading.value)}"
                told.append(f"{self.what}: {claim} (read from {reading.where})")
        known = [reading for reading in self.readings if reading.value is not None]
        for other in known[1:]:
            if other.value != known[0].value:
                pair = f"{show(known[0].value)} in {known[0].where}, {show(other.value)} in {other.where}"
                told.append(f"{self.what} differs within the image: {pair}")
        return [error(self.rule, subject, message, self.fix, self.source) for message in told]


def error(rule: str, subject: str, message: str, fix: str, source: str = "the row") -> Finding:
    """A finding of severity error."""
    return Finding(rule=rule, severity=Severity.ERROR, subject=subject, message=message, fix=fix, source=source)
