"""What a reader of upstream hands over: facts that it has seen, and what it could not see."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuild.facts.types import Facts
from envbuild.facts.upstream import Upstream

Value = str | tuple[str, ...]
Step = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A fact that upstream proves today.

    Attributes:
        file: The facts file it belongs to, without ``.yaml``.
        path: Keys down to the fact's mapping; a number is a place in a list (one past the end: a new entry).
        values: What was read, by key.
        source: Where.
        before: The key of the same mapping that a new fact stands before; at the end without one.
    """

    file: str
    path: tuple[Step, ...]
    values: Mapping[str, Value]
    source: str
    before: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A fact that stays as it is because it was not read.

    Attributes:
        failed: Whether it should have been readable: the file is damaged, or has changed its shape.
    """

    subject: str
    reason: str
    hint: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something upstream says that no fact can hold yet: for a person to look at."""

    subject: str
    message: str


@dataclass(slots=True)
class Notebook:
    """What one refresh works with, and what its readers write down. Lists only grow, from any thread.

    Attributes:
        deep: Whether large libraries are read too (``--download``).
    """

    upstream: Upstream
    facts: Facts
    deep: bool = False
    readings: list[Reading] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def missed(self, subject: str, reason: str, *, hint: str = "", failed: bool = False) -> None:
        """Write down that something was not read."""
        self.unread.append(Unread(subject=_line(subject), reason=_line(reason), hint=hint, failed=failed))

    def remark(self, subject: str, message: str) -> None:
        """Write down something for a person."""
        self.remarks.append(Remark(subject=_line(subject), message=_line(message)))


def _line(text: str) -> str:
    """One line without control characters: names from upstream go to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value of a fact that a refresh would write.

    Attributes:
        kind: ``added``, ``changed`` (another value), ``proven`` (the mark was lower), or ``renewed`` (the date only).
        old: None where there was none.
        was: The mark before.
    """

    file: str
    fact: str
    key: str
    kind: str
    old: str | None
    new: str
    source: str
    date: datetime.date
    was: str | None = None
