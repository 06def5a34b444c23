"""Bytes as people write them, both ways."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def size(text: str) -> int:
    """Bytes of a size as rows have it, such as 1GiB (``model.words.Size``)."""
    return int(text[:-3]) * _UNITS[text[-3:]]


def amount(count: float) -> str:
    """Bytes in the largest binary unit of which there is one: ``64 MiB``, ``1.5 GiB``, ``112 GiB``."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}" if value < 100 else f"{value:.0f} {unit}"


def limit(count: int | None) -> str:
    """A resource limit in bytes."""
    return "unlimited" if count is None else amount(count)


def number(count: float) -> str:
    """A count of parameters: 7.0B, 350M."""
    for step, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= step:
            return f"{count / step:.1f}{unit}" if count < 100 * step else f"{count / step:.0f}{unit}"
    return f"{count:.0f}"
