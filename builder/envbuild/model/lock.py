"""Every wheel of a row, pinned."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from envbuild.model.row import Environment
from envbuild.model.words import Digest, Frozen, ImageRef, Line, MajorMinor, Name

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


class LockedBase(Frozen):
    """The images that a row stands on, by the manifest digests that their tags had when the row was locked.

    Attributes:
        digest: Of the index, where the image is one for several platforms; None where no registry answered.
        toolkit_image: The image with the CUDA toolkit; None where the toolkit comes from elsewhere.
    """

    image: ImageRef
    digest: Digest | None = None
    toolkit_image: ImageRef | None = None
    toolkit_digest: Digest | None = None


class Lock(Frozen):
    """Every wheel of a row for one platform, and the images it stands on; written by ``envbuild lock``, never by hand.

    A row whose wheels could not be had where it was locked is ``unresolved``: it says what is missing and guesses
    nothing.
    """

    schema_: Literal["envbuild.lock/1"] = Field("envbuild.lock/1", alias="schema")
    environment: Name
    platform: Literal["linux/amd64", "linux/arm64"]
    python: MajorMinor
    inputs: Digest = Field(description="SHA-256 of what the resolver was asked; another one means the lock is stale.")
    resolver: Line = Field(description="Program and version that resolved, such as uv 0.9.1.")
    base: LockedBase | None = None
    status: Literal["resolved", "unresolved"] = "resolved"
    missing: tuple[Line, ...] = Field((), description="What could not be had, one requirement a line, with the reason.")
    packages: tuple[LockedPackage, ...]

    @model_validator(mode="after")
    def _whole(self) -> Lock:
        if self.status == "unresolved" and (self.packages or not self.missing):
            raise ValueError("an unresolved lock has no packages, and says what is missing")
        if self.status == "resolved" and self.missing:
            raise ValueError("a resolved lock misses nothing")
        return self

    @property
    def resolved(self) -> bool:
        """Whether it holds the wheels."""
        return self.status == "resolved"

    def pin(self, env: Environment) -> Environment:
        """``env`` with the digests of this lock where the row itself names none, for the very same images."""
        known = self.base
        if known is None:
            return env
        base, changes = env.base, {}
        if base.digest is None and known.image == base.image:
            changes["digest"] = known.digest
        if base.toolkit_digest is None and known.toolkit_image == base.toolkit_image:
            changes["toolkit_digest"] = known.toolkit_digest
        return env.model_copy(update={"base": base.model_copy(update=changes)})
