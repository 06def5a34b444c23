"""What was measured, as values and as a table. A figure is a ratio inside one run: absolute times are the machine's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_HEADS = ("measure", "ours", "against", "ratio", "limit", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Our time against a reference time, round by round.

    Attributes:
        ours: Seconds, one value for each round.
        reference: Seconds, one value for each round; rounds of both alternate, so each pair saw the same machine.
        against: What the reference is, in words.
        limit: The median of the rounds' ratios may be this at most.
        bytes: It is of sizes, not of times.
    """

    name: str
    ours: tuple[float, ...]
    reference: tuple[float, ...]
    against: str
    limit: float
    note: str = ""
    bytes: bool = False

    @property
    def ratios(self) -> tuple[float, ...]:
        """One for each round."""
        return tuple(one / other for one, other in zip(self.ours, self.reference, strict=True))

    @property
    def ok(self) -> bool:
        """Whether the limit is kept."""
        return statistics.median(self.ratios) <= self.limit

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        verdict = "ok" if self.ok else "over"
        shown = _megabytes if self.bytes else _seconds
        return (
            self.name, _spread(self.ours, shown), _spread(self.reference, shown),
            _spread(self.ratios, _plain), _plain(self.limit), verdict,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        unit = "bytes" if self.bytes else "seconds"
        return {
            "name": self.name,
            "against": self.against,
            f"ours_{unit}": [round(value, 4) for value in self.ours],
            f"reference_{unit}": [round(value, 4) for value in self.reference],
            "ratios": [round(value, 4) for value in self.ratios],
            "ratio": round(statistics.median(self.ratios), 4),
            "limit": self.limit,
            "ok": self.ok,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Something that is so, or is not. There is nothing to take a median of."""

    name: str
    yes: bool
    against: str
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is so."""
        return self.yes

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        return (self.name, "yes" if self.yes else "no", "", "", "yes", "ok" if self.yes else "no")

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"name": self.name, "against": self.against, "yes": self.yes, "ok": self.ok, "note": self.note}


Measure = Ratio | Answer


def table(measures: Iterable[Measure]) -> str:
    """For a terminal."""
    rows = [_HEADS, *(measure.cells() for measure in measures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths).rstrip())
    return "\n".join(lines)


def markdown(measures: Iterable[Measure]) -> str:
    """For a document."""
    rows = [_HEADS, ("---",) * len(_HEADS), *(measure.cells() for measure in measures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def notes(measures: Iterable[Measure]) -> list[str]:
    """What each measure is compared with, and what was seen on the way."""
    return [
        f"{measure.name}: against {measure.against}." + (f" {measure.note}" if measure.note else "")
        for measure in measures
    ]


def _spread(values: Sequence[float], shown: Callable[[float], str]) -> str:
    middle = shown(statistics.median(values))
    return f"{middle} ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else middle


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 10 else f"{value:.3f} s"


def _plain(value: float) -> str:
    return f"{value:.3f}" if value < 0.5 else f"{value:.2f}"
