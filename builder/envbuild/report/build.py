"""A report from measurements, baselines and rows: which parts it has, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuild.profile.baselines import Baseline
from envbuild.profile.comparing import Asked
from envbuild.report import axis, history, judged, resources, steps
from envbuild.report.history import Given, Matrix
from envbuild.report.judged import Base
from envbuild.report.model import Part, Report, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One measurement, and what it is compared with."""

    given: Given
    base: Base | None = None


def build(
    subjects: Sequence[Subject], *, known: Sequence[Baseline] = (), matrix: Matrix | None = None,
    asked: Asked | None = None,
) -> Report:  # fmt: skip
    """Make the report.

    Args:
        known: Baselines whose history belongs to it.
        matrix: The rows; None where they are not wanted.
        asked: What the comparisons are to decide.
    """
    parts = [_measured(each, f"m{number}", asked or Asked()) for number, each in enumerate(subjects, 1)]
    shared = [history.history([each.given for each in subjects], known)]
    if matrix is not None:
        shared.append(history.matrix(matrix))
    parts.append(Part(id="all", title="The row and the matrix", about="", sections=tuple(shared)))
    names = [each.given.name for each in subjects]
    title = names[0] if len(names) == 1 else f"{len(names)} measurements"
    return Report(title=title, parts=tuple(parts))


def _measured(subject: Subject, name: str, asked: Asked) -> Part:
    measured, base = subject.given.measurement, subject.base
    sections: list[Section | None] = [
        steps.figures(measured, name),
        judged.bottleneck(measured, base, name),
        judged.comparison(measured, base, asked, name),
        steps.breakdown(measured, name),
        axis.section(measured, name),
        resources.memory(measured, name),
        resources.collectives(measured, name),
        steps.learning(measured, base.measurement if base else None, name),
        resources.operators(measured, name),
        resources.exact(measured, name),
        judged.key(measured, base, name),
    ]
    key = measured.key
    about = [key.row, key.model, f"{key.world_size} ranks" if key.world_size else None, key.accelerator]
    return Part(
        id=name, title=subject.given.name, about=", ".join(each for each in about if each),
        sections=tuple(each for each in sections if each is not None),
    )  # fmt: skip
