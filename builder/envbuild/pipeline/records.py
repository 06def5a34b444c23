"""What has been seen of a row's target, here or by whoever committed its record, and whether it counts today."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuild import evidence, store
from envbuild.errors import EngineError
from envbuild.judge.suite import suite_hash
from envbuild.model import Environment, Level
from envbuild.pipeline.proof import claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of evidence, and why it does not count for a row as it is now; empty where it does."""

    path: Path
    level: Level
    finished: datetime.datetime
    target_id: str | None
    against: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether the row needs no new proof because of it."""
        return not self.against


def records(row: Environment, target_id: str | None, committed: Path | None) -> tuple[Record, ...]:
    """The records of a row: the ones of this target in the store, and the committed one.

    Args:
        row: The row as it is now.
        target_id: What it comes to now; None where that is not known.
        committed: Its ``images/<row>/record.json``, where there is one.
    """
    found = []
    for path in [*(_stored(target_id) if target_id else ()), *([committed] if committed else [])]:
        try:
            record = evidence.read(path)
        except EngineError:
            continue
        if record.environment == row.name:
            found.append(
                Record(
                    path=path, level=record.level, finished=record.finished, target_id=record.target_id,
                    against=tuple(_against(record, row, target_id)),
                )
            )  # fmt: skip
    return tuple(found)


def _stored(target_id: str) -> list[Path]:
    try:
        engine_id = (store.home() / "built" / target_id).read_text(errors="replace").strip()
    except OSError:
        return []
    return evidence.records(engine_id)


def _against(record: evidence.Evidence, row: Environment, target_id: str | None) -> Iterator[str]:
    if target_id is None or record.target_id != target_id:
        yield "it is of other inputs"
    now, then = claims(row), record.claims
    differs = [key for key in sorted(now.keys() | then.keys()) if now.get(key) != then.get(key)]
    if differs:
        yield f"the row claims something else now ({', '.join(differs)})"
    if record.suite != suite_hash():
        yield "it was seen by another suite"
    if record.level.rank < row.required_level.rank:
        yield f"it has level {record.level.value}, and the row requires {row.required_level.value}"
