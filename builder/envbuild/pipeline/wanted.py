"""What somebody wants evidence to show, as it is said on a command line."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from envbuild.errors import InputError
from envbuild.judge.versions import capability
from envbuild.model import Level

_LEVELS = (Level.BUILT, Level.CPU, Level.GPU_MIG, Level.GPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What evidence has to show.

    Attributes:
        level: The least level; None is the one that the row requires.
        sm: Compute capability that the image has to have code for; None asks for none.
        max_age: How long ago the image may have been seen at most; None is any time.
        performance: Whether it has to be as fast as its row requires; only what is called ``validated`` has to.
    """

    level: Level | None = None
    sm: tuple[int, int] | None = None
    max_age: datetime.timedelta | None = None
    performance: bool = True


def parse_level(text: str | None) -> Level | None:
    """The level that ``--require`` names.

    Raises:
        InputError: There is no such level.
    """
    if text is None:
        return None
    known = [level.value for level in _LEVELS]
    if text not in known:
        raise InputError(f"--require: {text!r} is not a level of evidence", hint=f"Say {', '.join(known)}.")
    return Level(text)


def parse_sm(text: str | None) -> tuple[int, int] | None:
    """The compute capability that ``--sm`` names: 90, 9.0 or sm_90.

    Raises:
        InputError: It is none.
    """
    if text is None:
        return None
    found = capability(text) if len(text) < 20 and text.isascii() else None
    if found is None:
        raise InputError(f"--sm: {text!r} is not a compute capability", hint="Say it as 90, 9.0 or sm_90.")
    return found


def parse_age(text: str | None) -> datetime.timedelta | None:
    """How long ``--max-age`` allows: days, or ``12h``.

    Raises:
        InputError: It is no such length of time.
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,5})([dh]?)", text)
    if found is None or int(found[1]) == 0:
        raise InputError(f"--max-age: {text!r} is not an age", hint="Say days, such as 30d, or hours, such as 12h.")
    count = int(found[1])
    return datetime.timedelta(hours=count) if found[2] == "h" else datetime.timedelta(days=count)


def duration(age: datetime.timedelta) -> str:
    """An age for people: ``3 days``, ``5 hours``, ``2 minutes``."""
    minutes = max(0, int(age.total_seconds() // 60))
    for size, word in ((24 * 60, "day"), (60, "hour"), (1, "minute")):
        if minutes >= size or size == 1:
            count = minutes // size
            return f"{count} {word}{'' if count == 1 else 's'}"
    raise AssertionError("unreachable")
