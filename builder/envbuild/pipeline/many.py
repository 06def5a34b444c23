"""Several rows in one run: which ones, how many at once, and what came of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envbuild.errors import INTERRUPTED
from envbuild.pipeline import diffing
from envbuild.pipeline.revisions import NoMatrix
from envbuild.pipeline.sides import revision, side
from envbuild.pipeline.workbench import Workbench

INTERRUPTED_ROW, NOT_BEGUN, FAILED = "interrupted", "not begun", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one row.

    Attributes:
        status: That of its image (``built``, ``proven``, ``up to date``), else ``failed``, ``interrupted`` or
            ``not begun``.
        seconds: Wall time; 0 where nothing was run.
        image: Its image as ``--json`` shows it; empty where there is none.
        error: Its error as ``--json`` shows it; empty where there is none.
        told: The error as people read it, line by line.
        node: The node of a cluster that did it, and its job; empty on this host.
    """

    row: str
    status: str
    exit_code: int
    seconds: float = 0.0
    image: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    node: str = ""
    job: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``: an image as a single row gives it, with its exit code and its error."""
        none: dict[str, Any] = {
            "target_id": None,
            "id": None,
            "tags": [],
            "level": None,
            "evidence": None,
            "reason": "",
            "written": [],
        }
        return {
            **none, **self.image, "environment": self.row, "status": self.status, "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code, "error": self.error or None,
            **({"node": self.node or None, "job": self.job} if self.job else {}),
        }  # fmt: skip


def worst(outcomes: Iterable[Outcome]) -> int:
    """The exit code of them all: the highest, so that an interruption counts most, then the gate, then the build."""
    return max((outcome.exit_code for outcome in outcomes), default=0)


def stopped(row: str, status: str, seconds: float = 0.0) -> Outcome:
    """A row that an interruption ended, or kept from beginning."""
    return Outcome(row=row, status=status, exit_code=INTERRUPTED, seconds=seconds)


def changed_since(bench: Workbench, asked: str, names: list[str]) -> list[str]:
    """Those of the rows whose image, or proof, is another one than at a git revision.

    All of them at a revision from before there was a matrix.

    Raises:
        InputError: The project is in no git repository, or that has no such revision.
    """
    try:
        with revision(bench, asked) as before, side(bench, None, strict=True) as after:
            return [
                row.name
                for row in diffing.compare(before, after)
                if row.name in names and row.status != "removed" and row.effect != diffing.NOTHING
            ]
    except NoMatrix:
        return names
