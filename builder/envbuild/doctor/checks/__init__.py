"""The checks: one file each, one list. A new check is a file and an entry here."""

from __future__ import annotations

from envbuild.doctor.view import Check

CHECKS: tuple[Check, ...] = ()

__all__ = ["CHECKS"]
