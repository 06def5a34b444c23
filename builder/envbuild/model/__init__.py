"""Domain types that every room shares.

Input from outside (rows, records) is pydantic, frozen, and refuses unknown keys.
"""

from envbuild.model.judgement import Finding, ImageIdentity, Level, Mark, Severity, Source
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
    "Requirement",
    "Severity",
    "Size",
    "Source",
    "Torch",
    "Version",
    "Waiver",
    "Word",
]
