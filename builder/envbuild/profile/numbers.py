"""Numbers that JSON has no word for, the same way as the probes write them."""

from __future__ import annotations

import math
from typing import Any

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def write_number(value: float | None) -> float | str | None:
    """NaN and the infinities as ``"nan"``, ``"inf"`` and ``"-inf"``."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def read_number(value: Any) -> Any:
    """What ``write_number`` wrote; anything else as it is."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def in_words(value: Any) -> Any:
    """A value of any depth, with ``write_number`` of what JSON has no word for."""
    if isinstance(value, dict):
        return {name: in_words(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_words(each) for each in value]
    return write_number(value) if isinstance(value, float) else value
