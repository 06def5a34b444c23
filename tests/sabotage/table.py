"""What the run says at its end: every fault, the finding that must name it, and whether it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sabotage.court import Verdict
from sabotage.sabotage import Sabotage


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    fault: str
    finding: str
    caught: str

    @classmethod
    def of(cls, sabotage: Sabotage, verdict: Verdict | None, error: str = "") -> Row:
        """From a verdict, or from the reason why there is none."""
        if verdict is None:
            caught = f"NO VERDICT: {error.strip().splitlines()[0][:80] if error.strip() else 'interrupted'}"
        elif sabotage.finding is None:
            caught = "passes" if verdict.exit_code == 0 else f"DOES NOT PASS: {', '.join(sorted(verdict.rules))}"
        elif problems := verdict.problems(sabotage):
            caught = f"NO: {problems[0]}"
        else:
            caught = "yes"
        return cls(fault=sabotage.fault, finding=sabotage.finding or "none", caught=caught)


def lines(rows: list[Row]) -> Iterator[str]:
    """The table in Markdown, and a count."""
    table = [Row(fault="fault", finding="finding", caught="caught"), *rows]
    widths = [max(len(getattr(row, name)) for row in table) for name in ("fault", "finding", "caught")]
    for number, row in enumerate(table):
        cells = (row.fault.ljust(widths[0]), row.finding.ljust(widths[1]), row.caught.ljust(widths[2]))
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    faults = [row for row in rows if row.finding != "none"]
    yield f"{sum(row.caught == 'yes' for row in faults)} of {len(faults)} faults caught"
