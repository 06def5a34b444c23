"""Domain types that every room shares.

Input from outside (rows, records) is pydantic, frozen, and refuses unknown keys. Every text that can
reach a Dockerfile or a shell is held to a pattern here, once, so that no later code has to quote it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?"
Version = Annotated[str, StringConstraints(pattern=rf"^{_VERSION}$", max_length=40)]
MajorMinor = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)]
ImageRef = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]+([._:/-]{1,2}[a-zA-Z0-9_]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$", max_length=250
    ),
]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
# PEP 508 without markers and URLs: a name, extras, and version clauses.
Requirement = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._,-]+\])?"
        r"((~=|===?|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+(,(~=|===?|!=|<=?|>=?)[A-Za-z0-9.*+!_-]+)*)?$",
        max_length=200,
    ),
]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$", max_length=60)]
# One printable line, without what a shell or a Dockerfile would expand.
EnvValue = Annotated[str, StringConstraints(pattern=r"""^[^\x00-\x1f\x7f-\x9f"'\\$`\u2028\u2029]*$""", max_length=400)]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$", max_length=500)]
Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(KiB|MiB|GiB)$")]


class Frozen(BaseModel):
    """The base of everything that is read from outside."""

    # Built when first used: a run needs few of the models that it imports.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Mark(str, Enum):
    """How far a fact has been checked."""

    VERIFIED = "verified"
    PARTIAL = "partial"
    UNVERIFIED = "unverified"


class Severity(str, Enum):
    """How bad a finding is; only errors change an exit code."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Level(str, Enum):
    """What has been seen of an image (or claimed of a row), weakest first."""

    DECLARED = "declared"
    DERIVED = "derived"
    BUILT = "built"
    CPU = "cpu"
    GPU_MIG = "gpu-mig"
    GPU = "gpu"

    @property
    def rank(self) -> int:
        """Position in the order of strength; a higher one is stronger evidence."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One judgement: what is wrong, where, why it matters, what to do, and who says so."""

    rule: str
    severity: Severity
    subject: str
    message: str
    fix: str = ""
    source: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None


class Source(Frozen):
    """Where a fact comes from, when it was looked at, and how far that carries."""

    mark: Mark
    source: Line
    date: datetime.date
    note: Line = ""


class Bootstrap(Frozen):
    """A minimal root made from a package mirror in place of a base image."""

    suite: Name = Field(description="Release code name, such as bookworm.")
    components: tuple[Name, ...] = ("main",)
    packages: tuple[Word, ...] = Field((), description="Packages beyond the minimal set.")


class Base(Frozen):
    """The image a row starts from."""

    image: ImageRef = Field(
        description="Registry reference with a tag, such as docker.io/library/debian:bookworm-slim."
    )
    digest: Digest | None = Field(None, description="Manifest digest; wins over the tag where it is known.")
    toolkit_image: ImageRef | None = Field(
        None, description="Image with the CUDA toolkit (a -devel one), used to compile ops and then dropped."
    )
    toolkit_digest: Digest | None = None
    bootstrap: Bootstrap | None = Field(None, description="How to make the base without a registry.")


class Gcc(Frozen):
    """The host compiler: the one that builds the ops and stays in the image."""

    version: MajorMinor
    package: Annotated[str, StringConstraints(pattern=r"^(gcc|devtoolset)[a-z0-9.+-]*$", max_length=60)] = Field(
        description="Package of the C compiler, such as gcc-12; that of the C++ compiler is derived from it."
    )


class Torch(Frozen):
    """The PyTorch build."""

    version: Version
    build: Annotated[str, StringConstraints(pattern=r"^(cpu|cu[0-9]{2,3})$")] = Field(
        description="Build variant: cpu or cuNNN."
    )
    index: Literal["pytorch", "pypi"] = Field(
        "pytorch", description="Who ships this build: PyTorch's own index (local version +build) or PyPI."
    )
    torchvision: Version | None = None
    torchaudio: Version | None = None


class Cuda(Frozen):
    """The CUDA toolkit that compiles the ops."""

    version: MajorMinor
    toolkit: Literal["image", "wheels", "none"] = Field(
        description="Where nvcc comes from: the base's -devel image, NVIDIA's wheels, or nowhere (no CUDA op)."
    )


class DeepSpeed(Frozen):
    """DeepSpeed and the ops compiled ahead of time."""

    version: Version
    ops: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")], ...] = Field(
        description="Names in DeepSpeed's op registry, such as cpu_adam."
    )


class Extra(Frozen):
    """A package beyond torch and DeepSpeed."""

    requirement: Requirement
    build: bool = Field(False, description="Compile from source against the row's torch, ahead of time.")


class Environment(Frozen):
    """One row of the matrix with every default filled in. Nothing reads YAML after this."""

    name: Name
    summary: Line
    accelerator: Literal["cpu", "cuda"]
    family: Name
    base: Base
    python: MajorMinor
    gcc: Gcc
    torch: Torch
    deepspeed: DeepSpeed
    cuda: Cuda | None = None
    nccl: Version | None = None
    gpus: tuple[Name, ...] = ()
    cpu_baseline: Literal["x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a"] = "x86-64-v3"
    platforms: tuple[Literal["linux/amd64", "linux/arm64"], ...] = Field(("linux/amd64",), min_length=1)
    fabric: Literal["verbs", "none"] = "none"
    requires: Literal["cpu", "gpu"] = Field(description="Level of evidence below which nothing is tagged.")
    packages: tuple[Word, ...] = Field((), description="Operating system packages beyond what the row needs anyway.")
    pins: tuple[Requirement, ...] = Field((), description="Constraints on wheels, such as pydantic<2.")
    extras: tuple[Extra, ...] = ()
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, description="Environment variables of the image.")
    shm_size: Size = Field("1GiB", description="/dev/shm for smoke and run.")
    memlock: Literal["unlimited"] | Size = Field("unlimited", description="RLIMIT_MEMLOCK for smoke and run.")
    sources: dict[str, Source] = Field(description="Evidence for the row's facts, by key path.")

    @property
    def torch_version(self) -> str:
        """What ``torch.__version__`` says, such as ``2.13.0+cpu``."""
        return f"{self.torch.version}+{self.torch.build}"

    @property
    def required_level(self) -> Level:
        """The level of evidence that the row's tag stands for."""
        return Level(self.requires)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageIdentity:
    """What an image is, whatever an engine calls it.

    Attributes:
        config_digest: ``sha256:...`` of the exported image config's bytes.
        diff_ids: ``sha256:...`` of each uncompressed layer, lowest first.
    """

    config_digest: str
    diff_ids: tuple[str, ...]


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
