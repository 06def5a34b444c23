"""Sizes as people write them."""

from __future__ import annotations

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of ``1GiB`` and its kind; the matrix has already refused anything else."""
    return int(text[:-3]) * _UNITS[text[-3:]]


def format_size(count: float) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_media(count: float) -> str:
    """A size in powers of 1000, as media and networks are sold: what a bundle and its scripts say."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.1f} {unit}" if unit != "B" and count < 9.95 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
