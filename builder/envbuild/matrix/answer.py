"""What is asked of a combination, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.matrix.space import Value
from envbuild.model import Environment, Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What was asked of one field.

    Attributes:
        text: As it was said.
        values: The values that it admits, the best one first; none when the facts know none.
        literals: What may stand for it where the facts know none.
    """

    text: str
    values: tuple[Value, ...]
    literals: tuple[Value, ...] = ()

    @property
    def candidates(self) -> tuple[Value, ...]:
        """What a row may hold that does as was asked."""
        return self.values or self.literals


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field that is not what was asked for."""

    field: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A valid combination. ``distance`` counts known versions between what was asked for and what it has."""

    row: Environment
    changes: tuple[Change, ...]
    distance: int
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is to be said of a combination.

    Attributes:
        row: The combination, with the fields that were not asked for filled in as well as can be.
        findings: Everything the rules say of that row.
        unknown: The fields whose asked value the facts do not know.
        alternatives: The nearest valid combinations, nearest first; empty when the row itself is valid.
    """

    row: Environment
    values: Mapping[str, Value]
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def valid(self) -> bool:
        """Whether everything asked for is known, and no rule is broken."""
        return not self.unknown and not any(each.severity is Severity.ERROR for each in self.findings)


def shown(field: str, value: Value) -> str:
    """A value as people write it."""
    if value is None:
        return "any"
    return {"gpu": ",", "torch": "+"}[field].join(value) if field in ("gpu", "torch") else str(value)
