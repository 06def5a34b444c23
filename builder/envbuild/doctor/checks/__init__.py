"""The checks: one file each, one list. A new check is a file and an entry here."""

from __future__ import annotations

from envbuild.doctor.checks import glibc, libstdcxx
from envbuild.doctor.view import Check

CHECKS: tuple[Check, ...] = (
    glibc.CHECK,
    libstdcxx.CHECK,
)

__all__ = ["CHECKS"]
