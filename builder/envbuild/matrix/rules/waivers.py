"""What the day decides: objections that begin after an end of support, and waivers that hold until a day."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from envbuild.matrix.merge import near
from envbuild.matrix.rules.problem import Problem
from envbuild.model import Environment, Severity, Waiver

WAIVER = "WAIVER"
# An end of support this near is said, so that there is time to move.
AHEAD = datetime.timedelta(days=90)

Found = list[tuple[str, Problem]]


def dated(problem: Problem, today: datetime.date) -> Problem | None:
    """The problem as it is on a day: an info ahead of the end, nothing long before it."""
    if problem.ends is None or today > problem.ends:
        return problem
    if today < problem.ends - AHEAD:
        return None
    return dataclasses.replace(problem, severity=Severity.INFO)


def apply(found: Found, env: Environment, today: datetime.date, *, known: Sequence[str]) -> Found:
    """What is left of the rules' objections, and what is to be said of the waivers themselves.

    A warning that a valid waiver names becomes an info that says until when and why. Errors stay; so do warnings whose
    waiver has run out, beside an error about the waiver.

    Args:
        found: Rule ids and objections.
        known: The ids of all rules.
    """
    judged: Found = []
    for rule, problem in found:
        waiver = next((each for each in env.waivers if _names(each, rule, problem) and today <= each.until), None)
        if waiver is None or problem.severity is Severity.ERROR:
            judged.append((rule, problem))
            continue
        said = f"; waived until {waiver.until}: {waiver.reason}"
        judged.append(
            (rule, dataclasses.replace(problem, severity=Severity.INFO, waived=said, fix="nothing to do until then"))
        )
    for index, waiver in enumerate(env.waivers):
        named = [problem for rule, problem in found if _names(waiver, rule, problem)]
        judged += [(WAIVER, each) for each in _about(waiver, index, named, today, known)]
    return judged


def _about(
    waiver: Waiver, index: int, named: list[Problem], today: datetime.date, known: Sequence[str]
) -> list[Problem]:
    what = f"{waiver.rule} at {waiver.key}" if waiver.key else waiver.rule
    if today > waiver.until:
        ended = Problem(
            key=("waivers", index, "until"),
            message=f"the waiver of {what} ended on {waiver.until}: {waiver.reason}",
            fix="repair what it waived, or give it a new day and a reason that still holds",
        )
        return [ended]
    if any(problem.severity is Severity.ERROR for problem in named):
        message = f"{what} is an error here, and errors cannot be waived"
        return [_warning(("waivers", index, "rule"), message, "repair the error, and remove the waiver")]
    if not named:
        guess = near(waiver.rule, known) if waiver.rule not in known else ""
        why = f"there is no rule {waiver.rule}{guess}" if waiver.rule not in known else "the rule does not object there"
        message = f"the waiver of {what} waives nothing: {why}"
        return [_warning(("waivers", index, "key" if waiver.key else "rule"), message, "remove the waiver")]
    return []


def _warning(key: tuple[str | int, ...], message: str, fix: str) -> Problem:
    return Problem(key=key, message=message, fix=fix, severity=Severity.WARNING)


def _names(waiver: Waiver, rule: str, problem: Problem) -> bool:
    if waiver.rule != rule:
        return False
    path = ".".join(map(str, problem.key))
    return not waiver.key or path == waiver.key or path.startswith(f"{waiver.key}.")
