"""Whether a row's image is up to date: the question that most runs of ``build`` end with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild import evidence
from envbuild.judge.suite import suite_hash
from envbuild.model import Level
from envbuild.pipeline.known import Known, recall

if TYPE_CHECKING:
    from envbuild.engines import ImageInfo
    from envbuild.pipeline.workbench import Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it.

    Attributes:
        status: ``up to date``, ``proven`` (already built, now proven) or ``built``.
        image: The engine's id of the image.
        tags: The names it carries now.
        evidence: The record that allows them.
        reason: Why nothing was run; empty where something was.
    """

    environment: str
    target_id: str | None
    status: str
    image: str
    tags: tuple[str, ...]
    level: Level
    evidence: Path
    seconds: float
    reason: str = ""


def current(bench: Workbench, known: Known, *, touch: bool = True) -> Result | None:
    """The tagged image with evidence from the current suite at the required level, or None.

    With ``touch`` the moving tag is put back on it where it has wandered.
    """
    wanted = known.names(bench.site.registry.name)
    info = bench.engine.image(wanted.proven)
    if info is None or not evidence.is_built(known.target_id, info.id):
        return None
    found = evidence.best(info.id, info.diff_ids, environment=known.row, claims=known.claims, suite=suite_hash())
    if found is None or found[0].rank < known.required_level.rank:
        return None
    key = bench.signing_key
    if key is not None and not evidence.signed_by(found[2], [key.public]).signed:
        # A signature says that its owner's machine saw this: it is not put to what was seen before.
        return None
    if known.performance is not None and not _held(bench, known, info):
        return None
    moving = bench.engine.image(wanted.moving)
    if touch and (moving is None or moving.id != info.id):
        bench.engine.tag(info.id, wanted.moving)
    return Result(
        environment=known.row,
        target_id=known.target_id,
        status="up to date",
        image=info.id,
        tags=(wanted.proven, wanted.moving),
        level=found[0],
        evidence=found[2],
        seconds=0.0,
        reason=_reason(found[1]),
    )


def _held(bench: Workbench, known: Known, info: ImageInfo) -> bool:
    from envbuild.model import Performance
    from envbuild.pipeline import performance

    return performance.known(bench, known.row, Performance.model_validate(known.performance), info).good


def _reason(record: evidence.Evidence) -> str:
    """Evidence counts wherever it was seen: a GPU of the row's on another host, with another driver, is one too."""
    gpus = ", ".join(sorted({str(gpu.get("name", "")) for gpu in record.host.gpus}))
    on = f" on {gpus} (driver {record.host.driver})" if gpus else ""
    when = f"{record.finished:%Y-%m-%d %H:%M} UTC"
    return (
        f"evidence of {when} for this image and suite, level {record.level.value}{on}; not run again (--force runs it)"
    )


def still_current(bench: Workbench, row: str) -> Result | None:
    """The same for a row that has not changed since it was last prepared; None where that is not known.

    None says nothing: prepare the row and ask again.
    """
    known = recall(bench, row)
    return current(bench, known) if known is not None else None
