"""Why not this combination, and what instead: the question, answered from the facts and the matrix's rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.errors import InputError
from envbuild.matrix.answer import Answer, Want, shown
from envbuild.matrix.asking import understand, unknown
from envbuild.matrix.merge import near
from envbuild.matrix.nearest import MOST_CHANGES, nearest
from envbuild.matrix.space import FIELDS, Space, Value, accelerated
from envbuild.model import Environment, Finding, Mark, Severity
from envbuild.pipeline.proof import as_dict
from envbuild.pipeline.workbench import Workbench

_WEAK = re.compile(r"\((partial|unverified) fact\b")
# What makes two rows the same combination; NCCL and the driver follow from these.
_ALIKE = ("gpu", "cuda", "torch", "deepspeed", "gcc", "python", "base")
# A row that differs in more is not close.
_CLOSE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """The shipped row that a combination is, or comes close to; ``differs`` has what that row has instead."""

    name: str
    differs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer with the question that it belongs to."""

    space: Space
    wants: Mapping[str, Want]
    answer: Answer
    rows: tuple[Environment, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules say, and before it what the facts do not know."""
        lacking = [
            Finding(
                rule="UNKNOWN", severity=Severity.ERROR, subject=f"{self.answer.row.name}: {field}",
                message=unknown(self.space.facts, field, self.wants[field]),
                fix="ask for one that they know, or bring them up to date",
            )
            for field in self.answer.unknown
        ]  # fmt: skip
        return (*lacking, *self.answer.findings)


def ask(
    bench: Workbench,
    said: Mapping[str, str],
    *,
    row: str | None = None,
    accelerator: str | None = None,
    keep: Collection[str] = (),
    most: int = MOST_CHANGES,
) -> Answered:
    """Judge what was asked for and find what would do instead.

    Raises:
        InputError: It cannot be understood; there is no such row; a field to keep is none.
    """
    rows = tuple(bench.matrix.environments.values())
    start = bench.matrix.get(row) if row else None
    space, wants = understand(bench.facts, rows, said, start=start, accelerator=accelerator)
    for field in keep:
        if field not in FIELDS:
            raise InputError(
                f"--keep: {field!r} is none of the fields{near(field, FIELDS)}", hint=f"Say one of {', '.join(FIELDS)}."
            )
    answer = nearest(space, wants, keep=keep, most=most)
    return Answered(space=space, wants=wants, answer=answer, rows=rows)


def like(asked: Answered, values: Mapping[str, Value]) -> Like | None:
    """The row of the matrix that is this combination, or for the same GPU the one that differs least."""
    found: list[tuple[int, Like]] = []
    for row in asked.rows:
        if row.accelerator != asked.space.accelerator:
            continue
        own = asked.space.of(row)
        differs = {field: shown(field, own[field]) for field in _ALIKE if own[field] != values[field]}
        near_by = len(differs) <= _CLOSE and _major(own["cuda"]) == _major(values["cuda"])
        if "gpu" not in differs and near_by:
            found.append((len(differs), Like(name=row.name, differs=differs)))
    return min(found, key=lambda each: each[0], default=(0, None))[1]


def fields_of(asked: Answered, values: Mapping[str, Value], row: Environment) -> dict[str, str]:
    """Every field of a combination, as people write it."""
    own: dict[str, Value] = {"nccl": row.nccl, "driver": row.driver}
    told = {field: own.get(field, values[field]) for field in FIELDS if accelerated(asked.space.accelerator, field)}
    return {field: shown(field, value) for field, value in told.items() if value is not None}


def mark_of(finding: Finding) -> str | None:
    """How far the facts under a finding were checked, which its message says where they were not; None without any."""
    if not finding.source:
        return None
    weak = _WEAK.findall(finding.message)
    return Mark(min(weak, key=("unverified", "partial").index)).value if weak else Mark.VERIFIED.value


def document(asked: Answered, most: int) -> dict[str, Any]:
    """For ``--json``."""
    answer = asked.answer
    return {
        "asked": {
            "accelerator": asked.space.accelerator,
            "said": {field: want.text for field, want in asked.wants.items()},
            "values": fields_of(asked, answer.values, answer.row),
            "valid": answer.valid,
            "row": _like(asked, answer.values),
        },
        "findings": [as_dict(finding) | {"mark": mark_of(finding)} for finding in asked.findings],
        "alternatives": [
            {
                "changes": {change.field: {"old": change.old, "new": change.new} for change in each.changes},
                "distance": each.distance,
                "values": fields_of(asked, each.values, each.row),
                "row": _like(asked, each.values),
            }
            for each in answer.alternatives[:most]
        ],
    }


def _major(cuda: str | None) -> str:
    return (cuda or "").partition(".")[0]


def _like(asked: Answered, values: Mapping[str, Value]) -> dict[str, Any] | None:
    found = like(asked, values)
    return {"name": found.name, "is": not found.differs, "differs": dict(found.differs)} if found else None
