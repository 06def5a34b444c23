"""Every wheel of a row, pinned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from envbuild.model.words import Digest, Frozen, Line, MajorMinor, Name

LockGroup = Literal["tools", "torch", "deps", "ops", "toolkit"]


class LockedPackage(Frozen):
    """One wheel or source archive, pinned by version and hash.

    Attributes:
        group: The build step that installs it. ``tools``: pip and what builds wheels; ``torch``: torch and
            what it needs; ``deps``: everything else at run time; ``ops``: compiled from source in the ops
            stage (DeepSpeed, extras with ``build``); ``toolkit``: CUDA toolkit wheels, ops stage only.
        hashes: ``sha256:...`` of every file that may be installed for it.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.+!]+$", max_length=60)]
    group: LockGroup
    hashes: Annotated[tuple[Digest, ...], Field(min_length=1)]


class Lock(Frozen):
    """Every wheel of a row for one platform; written by ``envbuild lock``, never by hand."""

    schema_: Literal["envbuild.lock/1"] = Field("envbuild.lock/1", alias="schema")
    environment: Name
    platform: Literal["linux/amd64", "linux/arm64"]
    python: MajorMinor
    inputs: Digest = Field(description="SHA-256 of what the resolver was asked; another one means the lock is stale.")
    resolver: Line = Field(description="Program and version that resolved, such as uv 0.9.1.")
    packages: tuple[LockedPackage, ...]
