"""Bytes as people write them, both ways."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def size(text: str) -> int:
    """Bytes of a size as rows have it, such as 1GiB (``model.words.Size``)."""
    return int(text[:-3]) * _UNITS[text[-3:]]


def amount(count: float) -> str:
    """Bytes in three digits: 64.0 MiB, 1.50 TiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def number(count: float) -> str:
    """A count of parameters: 7.0B, 350M."""
    for step, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= step:
            return f"{count / step:.1f}{unit}" if count < 100 * step else f"{count / step:.0f}{unit}"
    return f"{count:.0f}"
