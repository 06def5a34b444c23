"""What a report is made from: measurements, the baselines beside them, and how far the rows have come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuild.errors import EnvbuildError, InputError
from envbuild.model import Environment
from envbuild.pipeline.standing import Standing, standings
from envbuild.pipeline.workbench import Workbench
from envbuild.profile import baselines
from envbuild.profile.baselines import Baseline
from envbuild.profile.comparing import Asked
from envbuild.report.build import Subject, build
from envbuild.report.history import Given, Matrix, Row
from envbuild.report.judged import Base
from envbuild.report.model import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be reported.

    Attributes:
        given: The measurements; of none the baselines themselves are.
        base: What each is compared with; None for the baseline of its own key.
        row: The only row that the report is about.
        folder: Where the baselines lie.
    """

    given: tuple[Given, ...]
    base: Base | None
    row: str | None
    folder: Path
    asked: Asked


def report(bench: Workbench, wish: Wish) -> Report:
    """Gather it and make the report.

    Raises:
        InputError: There is nothing to report, or there is no such row.
    """
    if wish.row is not None:
        bench.matrix.get(wish.row)
    shelf = baselines.every(wish.folder)
    for broken in shelf.broken:
        bench.tell_once(f"left out: {broken.error.message}", level="warning")
    known = [each.baseline for each in shelf.stored]
    subjects = [_subject(each, wish.base, known) for each in wish.given]
    rows: set[str | None] = (
        {wish.row} if wish.row is not None else {each.given.measurement.key.row for each in subjects}
    )
    chosen = [each for each in known if _belongs(each, rows, wish)]
    if not subjects:
        subjects = [
            Subject(given=Given(name=each.name, measurement=each.measurement), base=wish.base) for each in chosen
        ]
    if not subjects:
        of = f" of the row '{wish.row}'" if wish.row else ""
        raise InputError(
            f"there is nothing to report: no measurement was named, and there is no baseline{of} in {wish.folder}",
            hint="Measure first: envbuild profile IMAGE -o M.json, then envbuild report M.json",
        )
    return build(subjects, known=chosen, matrix=_matrix(bench, wish.row), asked=wish.asked)


def _subject(given: Given, base: Base | None, known: Sequence[Baseline]) -> Subject:
    if base is None:
        own = baselines.of_key(known, given.measurement.key)
        if own is not None and own.measurement != given.measurement:
            base = Base(name=own.name, measurement=own.measurement)
    return Subject(given=given, base=base)


def _belongs(baseline: Baseline, rows: set[str | None], wish: Wish) -> bool:
    if wish.row is not None or wish.given:
        return baseline.measurement.key.row in rows
    return True


def _matrix(bench: Workbench, row: str | None) -> Matrix:
    """The rows as ``list`` has them; a report on measurements does not fail for a matrix that is broken."""
    try:
        bench.read_site()
        chosen = [env for env in bench.matrix.environments.values() if row in (None, env.name)]
        return Matrix(rows=tuple(map(_row, chosen, standings(bench, chosen))))
    except EnvbuildError as error:
        return Matrix(problem=error.message)


def _row(env: Environment, state: Standing) -> Row:
    recorded = state.recorded
    said = f"{recorded.level.value}, {recorded.finished:%Y-%m-%d}" if recorded is not None else None
    if recorded is not None and recorded.current is False:
        said = f"{said}, of older inputs"
    return Row(
        name=env.name, accelerator=env.accelerator, gpus=", ".join(env.gpus),
        cuda=env.cuda.version if env.cuda else None, torch=env.torch_version, deepspeed=env.deepspeed.version,
        requires=env.requires, level=state.level, standing=state.text, recorded=said, image=state.image,
    )  # fmt: skip
