"""Findings in the order in which they are worth reading: roots first, each with its echoes behind it.

Which check's error explains which others is said by the checks themselves (``Check.explains``). Here it is followed
from error to error, so that a chain of causes ends at its root, and a circle of checks that accuse one another ends at
the one that comes first in the list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envbuild.doctor.view import Check
from envbuild.model import Finding, Severity

_SEVERITIES = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A root, and the findings that go away with it (their ``explained_by`` is its rule)."""

    root: Finding
    echoes: tuple[Finding, ...] = ()


def groups(found: Iterable[Finding], checks: Sequence[Check]) -> tuple[Group, ...]:
    """Every finding once, in a group of its own or as an echo. The same findings in any order give the same answer."""
    ordered = sorted(dict.fromkeys(found), key=lambda each: _key(each, checks))
    reach = _reach(ordered, checks)
    root_of = _roots(len(ordered), reach)
    made = []
    for place, finding in enumerate(ordered):
        if root_of[place] != place:
            continue
        echoes = tuple(
            dataclasses.replace(ordered[other], explained_by=finding.rule)
            for other, root in enumerate(root_of)
            if root == place and other != place
        )
        made.append(Group(root=dataclasses.replace(finding, explained_by=""), echoes=echoes))
    # Sorting is stable: among equals the order of the checks stays.
    return tuple(sorted(made, key=lambda each: (_SEVERITIES[each.root.severity], not each.echoes)))


def flat(grouped: Iterable[Group]) -> tuple[Finding, ...]:
    """All of them in reading order, each echo directly behind its root."""
    return tuple(finding for group in grouped for finding in (group.root, *group.echoes))


def belongs(rule: str, name: str) -> bool:
    """Whether a rule is this one, or one of the check of this name."""
    return rule == name or rule.startswith(f"{name}.")


def check_of(rule: str, checks: Sequence[Check]) -> Check | None:
    """The check that found it; of two whose names fit, the longer name."""
    fitting = [check for check in checks if belongs(rule, check.name)]
    return max(fitting, key=lambda check: len(check.name), default=None)


def _key(finding: Finding, checks: Sequence[Check]) -> tuple[object, ...]:
    check = check_of(finding.rule, checks)
    # What no check of the list has found (a check that broke down, a rule of the matrix) comes last.
    place = checks.index(check) if check is not None else len(checks)
    where = (finding.file or "", finding.line or 0, finding.column or 0)
    said = (finding.fix, finding.source, finding.why, finding.evidence, finding.command, finding.explained_by)
    return (
        _SEVERITIES[finding.severity], place, finding.rule, finding.subject, finding.message, where, said
    )  # fmt: skip


def _reach(ordered: Sequence[Finding], checks: Sequence[Check]) -> list[set[int]]:
    """For each finding the ones that it explains, whether at first or at second hand."""
    direct: list[set[int]] = []
    for finding in ordered:
        check = check_of(finding.rule, checks)
        explains = check.explains if check is not None and finding.severity is Severity.ERROR else ()
        direct.append(
            {
                place
                for place, other in enumerate(ordered)
                if other.rule != finding.rule
                and (
                    any(belongs(other.rule, name) for name in explains)
                    # A check may have said so itself, where it knows more than a list can say.
                    or (other.explained_by == finding.rule and finding.severity is Severity.ERROR)
                )
            }
        )
    reached = []
    for place, finding in enumerate(ordered):
        seen: set[int] = set()
        waiting = [place]
        while waiting:
            fresh = direct[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        # Nor does a rule explain itself in a circle: two libraries that are too old are two roots.
        reached.append({other for other in seen if ordered[other].rule != finding.rule})
    return reached


def _roots(count: int, reach: Sequence[set[int]]) -> list[int]:
    """For each finding its root: the first one that explains it and is explained by nobody, but in a circle."""
    causes = [{other for other in range(count) if place in reach[other]} for place in range(count)]
    # Nobody outside of a circle explains one of its members: the first of them stands for the circle.
    roots = [place for place in range(count) if all(other in reach[place] and other > place for other in causes[place])]
    return [
        place if place in roots else next((root for root in roots if place in reach[root]), place)
        for place in range(count)
    ]
