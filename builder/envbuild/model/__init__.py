"""Domain types that every room shares.

Input from outside (rows, records) is pydantic, frozen, and refuses unknown keys. A module is imported when one of its
types is first asked for: pydantic costs more than all that a command does which needs only findings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envbuild.model.finding import Finding, Severity
    from envbuild.model.judgement import ImageIdentity, Level, Mark, Source
    from envbuild.model.lock import Lock, LockedBase, LockedPackage, LockGroup
    from envbuild.model.row import (
        Base,
        Bootstrap,
        Claimed,
        Cuda,
        DeepSpeed,
        Environment,
        Extra,
        Gcc,
        Performance,
        Torch,
        Waiver,
    )
    from envbuild.model.words import (
        Digest,
        DottedNumber,
        EnvName,
        EnvValue,
        Frozen,
        ImageRef,
        Line,
        MajorMinor,
        Name,
        Requirement,
        Size,
        Version,
        Word,
    )

__all__ = [
    "Base",
    "Bootstrap",
    "Claimed",
    "Cuda",
    "DeepSpeed",
    "Digest",
    "DottedNumber",
    "EnvName",
    "EnvValue",
    "Environment",
    "Extra",
    "Finding",
    "Frozen",
    "Gcc",
    "ImageIdentity",
    "ImageRef",
    "Level",
    "Line",
    "Lock",
    "LockGroup",
    "LockedBase",
    "LockedPackage",
    "MajorMinor",
    "Mark",
    "Name",
    "Performance",
    "Requirement",
    "Severity",
    "Size",
    "Source",
    "Torch",
    "Version",
    "Waiver",
    "Word",
]

_HOMES = {
    "finding": ("Finding", "Severity"),
    "judgement": ("ImageIdentity", "Level", "Mark", "Source"),
    "lock": ("Lock", "LockedBase", "LockedPackage", "LockGroup"),
    "row": (
        "Base",
        "Bootstrap",
        "Claimed",
        "Cuda",
        "DeepSpeed",
        "Environment",
        "Extra",
        "Gcc",
        "Performance",
        "Torch",
        "Waiver",
    ),
    "words": (
        "Digest",
        "DottedNumber",
        "EnvName",
        "EnvValue",
        "Frozen",
        "ImageRef",
        "Line",
        "MajorMinor",
        "Name",
        "Requirement",
        "Size",
        "Version",
        "Word",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
