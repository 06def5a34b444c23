"""What a rule says about a row, and words that several rules share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envbuild.facts import Fact
from envbuild.facts.versions import neighbours
from envbuild.matrix.tree import KeyPath
from envbuild.model import Mark, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One objection of a rule.

    Attributes:
        key: Path of the value in the row that is wrong, or that nothing is known about.
        fix: Concrete values that would pass.
        facts: What the objection stands on; how well it stands becomes part of the finding's text.
    """

    key: KeyPath
    message: str
    fix: str
    severity: Severity = Severity.ERROR
    facts: tuple[Fact, ...] = ()


def unknown(key: KeyPath, what: str, unjudged: str, *, known: Iterable[str] = (), near: str = "") -> Problem:
    """The facts do not know a value, so something about the row is unverified.

    Args:
        what: The value, such as ``torch 2.99.0``.
        unjudged: What could not be judged for that reason, such as ``its NCCL``.
        known: Versions that the facts do know, to name the nearest ones; ``near`` is the version asked for.
    """
    nearest = " and ".join(neighbours(near, known)) if near else ", ".join(known)
    return Problem(
        key=key,
        severity=Severity.WARNING,
        message=f"{what} is unknown to the facts, so {unjudged} is unverified",
        fix=f"check it by hand, or use what the facts know: {nearest}" if nearest else "check it by hand",
    )


def qualification(facts: tuple[Fact, ...]) -> str:
    """`` (unverified: ...)`` for facts that are not fully checked; empty when all are."""
    weak = {fact.mark.value: fact for fact in facts if fact.mark is not Mark.VERIFIED}
    return "".join(f" ({mark} fact{': ' + fact.note if fact.note else ''})" for mark, fact in weak.items())


def either(*ways: str) -> str:
    """Ways to repair something, as one text; empty ones are left out."""
    return ", or ".join(way for way in ways if way)
