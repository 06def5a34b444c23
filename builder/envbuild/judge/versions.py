"""What a row's version claims mean for measured ones."""

from __future__ import annotations

import re
from typing import Any


def matches(claim: str, measured: Any) -> bool:
    """Whether a measured version lies in the series that a row names: ``12.2`` holds 12.2 and 12.2.0, not 12.20."""
    return isinstance(measured, str) and (measured == claim or measured.startswith(claim + "."))


def cuda_of(build: str) -> str | None:
    """The CUDA version of a torch build: ``cu118`` is 11.8, ``cu130`` is 13.0, ``cpu`` is None."""
    digits = build.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() and len(digits) > 1 else None


def capability(text: str) -> tuple[int, int] | None:
    """A compute capability from ``9.0``, ``sm_90``, ``sm_90a`` or ``90``; None where it is neither."""
    found = re.fullmatch(r"(?:sm_|compute_)?(\d+)(?:\.(\d)|(\d))[af]?", text)
    return (int(found[1]), int(found[2] or found[3])) if found else None


def upstream(package: str) -> str:
    """The upstream part of a Debian package version: ``1:12.2.0-14+deb12u1`` is 12.2.0."""
    version = package.partition(":")[2] or package
    return version.rpartition("-")[0] or version
