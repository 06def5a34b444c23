"""Reading raw figures: what is missing or no number never looks like a good one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def number(value: Any) -> float | None:
    """A finite number, or None. Probes write NaN and infinities as texts; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def count(value: Any) -> int | None:
    """A whole number that is not negative, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def numbers(value: Any) -> list[float] | None:
    """A list that holds finite numbers only, or None."""
    if not isinstance(value, list):
        return None
    read = [number(item) for item in value]
    return [item for item in read if item is not None] if None not in read else None


def counts(value: Any) -> list[int] | None:
    """A list that holds whole numbers from 0 only, or None."""
    if not isinstance(value, list):
        return None
    read = [count(item) for item in value]
    return [item for item in read if item is not None] if None not in read else None


def tally(value: Any) -> dict[str, int] | None:
    """A mapping from names to whole numbers, or None."""
    if not isinstance(value, Mapping) or any(count(item) is None for item in value.values()):
        return None
    return dict(value)


def show(value: Any) -> str:
    """A figure as a person reads it; what is missing says so."""
    if value is None:
        return "missing"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = plain(str(value))
    return text if len(text) <= 200 else text[:197] + "..."


def plain(text: str) -> str:
    """One line of anybody's output: no escape sequence of it reaches a terminal."""
    return _CONTROLS.sub(" ", text)
