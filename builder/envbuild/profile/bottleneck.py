"""What holds a training back: rules over one measurement, ranked by the share of the step that each explains.

Every threshold is a convention of this tool where no source stands beside it. A rule that lacks its figures abstains
and says which: silence is no clean bill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuild.profile import rules_machine, rules_offload, rules_ranks
from envbuild.profile.again import start_of
from envbuild.profile.document import Measurement
from envbuild.profile.view import Abstained, Answer, Cleared, Found, View

Confidence = Literal["high", "medium", "low"]
_ORDER = {"high": 0, "medium": 1, "low": 2}

RULES: tuple[tuple[str, Callable[[View], Answer]], ...] = (
    ("data", rules_machine.data),
    ("communication", rules_ranks.communication),
    ("transport", rules_ranks.transport),
    ("straggler", rules_ranks.straggler),
    ("copies", rules_machine.copies),
    ("optimizer", rules_offload.optimizer),
    ("swap", rules_offload.swap),
    ("memory", rules_machine.memory),
    ("checkpoint", rules_machine.checkpoint),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings, worst first; what was looked at and is not it; what could not be looked at."""

    found: tuple[Found, ...]
    cleared: tuple[Cleared, ...]
    abstained: tuple[Abstained, ...]


def diagnose(measurement: Measurement, baseline: Measurement | None = None, *, target: str | None = None) -> Diagnosis:
    """Ask every rule.

    Args:
        baseline: What it was like before; some rules see more with it.
        target: The image that the proposed command lines are about, in place of what was measured.
    """
    view = View.of(measurement, baseline, start=start_of(measurement, target))
    answers = [(name, rule(view)) for name, rule in RULES]
    found = [answer for _, answer in answers if isinstance(answer, Found)]
    cleared = [answer for _, answer in answers if isinstance(answer, Cleared)]
    abstained = [answer for _, answer in answers if isinstance(answer, Abstained)]
    if not found:
        answer = rules_machine.compute(view)
        found += [answer] if isinstance(answer, Found) else []
        abstained += [answer] if isinstance(answer, Abstained) else []
    return Diagnosis(found=_ranked(found), cleared=tuple(cleared), abstained=tuple(abstained))


def _ranked(found: Sequence[Found]) -> tuple[Found, ...]:
    """By the share of the step; what is of low confidence comes behind everything else."""
    return tuple(
        sorted(
            found, key=lambda each: (each.confidence == "low", -(each.share or 0), _ORDER[each.confidence], each.rule)
        )
    )
