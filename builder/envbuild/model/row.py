"""One row of the matrix, as everything behind the loader sees it."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from envbuild.model.judgement import Level, Source
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
        description="Package of the C compiler, such as gcc-12, gcc-toolset-11-gcc or devtoolset-9-gcc; that of the "
        "C++ compiler is derived from it."
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


class Claimed(Frozen):
    """A figure that somebody gave and that the evidence contradicts; the row carries what the evidence says."""

    value: Line = Field(description="What was said.")
    by: Line = Field(description="Who said it, and where.")
    contradicted: Line = Field(description="What contradicts it.")


class Waiver(Frozen):
    """A finding that a row lives with for a while, with the reason and the day on which that ends."""

    rule: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]{1,11}$")] = Field(
        description="The rule whose warning is waived, such as R21; errors cannot be waived."
    )
    key: Line = Field("", description="Key path that the waiver is limited to, such as base.image; all without it.")
    reason: Line = Field(min_length=1)
    until: datetime.date = Field(description="The last day on which it holds; from the next on it is an error.")


class Performance(Frozen):
    """What has to be shown of an image's speed before it is called ``validated``; no input of the image."""

    baseline: Literal["required"] = Field(
        description="No regression against the row's baselines of the machine that proves it; see docs/profile.md."
    )
    delta: Annotated[str, StringConstraints(pattern=r"^([1-9][0-9]?(\.[0-9]{1,2})?|0\.([1-9][0-9]?|0[1-9]))%$")] = (
        Field("5%", description="The change of the step time that matters, such as 5%.")
    )
    rounds: int = Field(10, ge=5, le=1000, description="Rounds of two launches; 5 are the fewest that can decide.")

    @property
    def share(self) -> float:
        """``delta`` as a number."""
        return float(self.delta.removesuffix("%")) / 100


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
    driver: DottedNumber | None = Field(None, description="The oldest NVIDIA driver that the row is meant to run on.")
    performance: Performance | None = Field(
        None, description="What is required of its speed, besides the evidence, before an image is called validated."
    )
    claimed: dict[str, Claimed] = Field(
        default_factory=dict, description="What others said of the row and evidence contradicts, by key path."
    )
    waivers: tuple[Waiver, ...] = ()
    sources: dict[str, Source] = Field(description="Evidence for the row's facts, by key path.")

    @property
    def torch_version(self) -> str:
        """What ``torch.__version__`` says, such as ``2.13.0+cpu``."""
        return f"{self.torch.version}+{self.torch.build}"

    @property
    def required_level(self) -> Level:
        """The level of evidence that the row's tag stands for."""
        return Level(self.requires)
