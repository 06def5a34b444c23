"""What is not in a measurement, and the reason that the measurement gives: never a 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envbuild.profile.document import Launch
from envbuild.report.model import Missing

UNSAID = "not in the measurement, which does not say why"


def reason(launches: Iterable[Launch], figure: str) -> str:
    """Why there is no such figure, by the first launch that says so; what it says of all ranks goes first."""
    said = [each for launch in launches for each in launch.unavailable if _covers(each.figure, figure)]
    return next((each.reason for each in sorted(said, key=lambda each: each.rank is not None)), UNSAID)


def missing(launches: Sequence[Launch], figures: Iterable[tuple[str, str]]) -> tuple[Missing, ...]:
    """Figures that are not there: names for people, and names in the document; what has one reason is one entry."""
    by_reason: dict[str, list[str]] = {}
    for shown, figure in figures:
        by_reason.setdefault(reason(launches, figure), []).append(shown)
    return tuple(Missing(figure=", ".join(names), reason=why) for why, names in by_reason.items())


def partly(launches: Sequence[Launch], figures: Iterable[str]) -> tuple[Missing, ...]:
    """Figures that single ranks lack."""
    return tuple(
        Missing(figure=f"{each.figure} of rank {each.rank}", reason=each.reason)
        for launch in launches
        for each in launch.unavailable
        if each.rank is not None and each.figure in set(figures)
    )


def _covers(said: str, figure: str) -> bool:
    """Readers name a figure by its place, or a whole group by its beginning."""
    return said == figure or figure.startswith(f"{said}.")
