"""The tables of ``envbuild.toml`` about where work runs: ``[executor]`` and ``[slurm]``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from envbuild.model import Frozen, Line
from envbuild.site.section import Section

# Slurm's own units: minutes, minutes:seconds, hours:minutes:seconds, and each with days before it.
_TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+(?::\d\d){0,2}")


def _time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise ValueError("has to be a time as Slurm writes it: 90 (minutes), 1:30:00, or 2-12 (days-hours)")
    return value


def _option(value: str) -> str:
    if not re.match(r"--[a-z]", value):
        raise ValueError(f"'{value}' is no option of sbatch: write it whole, such as --exclusive or --mem=64G")
    taken = next((name for name in _OWN if re.match(rf"{name}(?:=|$)", value)), None)
    if taken is not None:
        raise ValueError(f"{taken} is envbuild's own: a run is found again by it")
    return value


# What a submission says itself; said twice, the second one would win without a word.
_OWN = ("--array", "--job-name", "--output", "--error", "--open-mode", "--signal", "--parsable", "--wrap",
        "--requeue", "--no-requeue", "--wait", "--chdir")  # fmt: skip

# One word of a command line of sbatch, which takes lists with commas and expressions with & and |.
Wanted = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][^\s\x00-\x1f'\"`$\\;]*$", max_length=200)]
Time = Annotated[str, AfterValidator(_time)]
Option = Annotated[Line, AfterValidator(_option)]


class Share(Frozen):
    """What one kind of work asks Slurm for; a key that is left out is the site's own."""

    partition: Wanted | None = None
    gres: Wanted | None = Field(default=None, description="Such as gpu:h100:8.")
    constraint: Wanted | None = None
    time: Time | None = None
    options: tuple[Option, ...] = Field(default=(), description="More options of sbatch, behind the site's.")

    @field_validator("options", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _words(value)


class ExecutorSection(Section):
    """Where builds and proofs run."""

    kind: Literal["local", "slurm", "k8s"] = "local"
    folder: Path | None = Field(default=None, description="A folder that this host and the nodes share.")
    home: Path | None = Field(default=None, description="The store on a node; FOLDER/nodes/NODE without it.")
    envbuild: Line | None = Field(default=None, description="The program on the nodes; else this one, by its path.")
    setup: tuple[Line, ...] = Field(default=(), description="Lines of shell that a node runs before it.")
    at_once: Annotated[int, Field(ge=1, le=10_000)] | None = Field(default=None, description="Tasks at a time.")

    @field_validator("setup", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class SlurmSection(Section):
    """What jobs ask Slurm for; ``rows`` wins over ``gpus``, which wins over the rest."""

    partition: Wanted | None = None
    account: Wanted | None = None
    qos: Wanted | None = None
    time: Time | None = None
    constraint: Wanted | None = None
    options: tuple[Option, ...] = Field(default=(), description="More options of sbatch.")
    container: Literal["docker", "podman", "pyxis", "enroot", "apptainer"] = Field(
        default="docker", description="What opens an image where ranks run on several nodes."
    )
    interface: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,=^-]*$", max_length=60)] | None = (
        Field(default=None, description="The network interface that nodes reach one another by.")
    )
    gpus: dict[Wanted, Share] = Field(default_factory=dict, description="By a GPU's name in the matrix, such as h100.")
    rows: dict[Wanted, Share] = Field(default_factory=dict, description="By a row's name.")

    @field_validator("options", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _words(value)


# Names of Kubernetes' objects (RFC 1123), and keys and values of its labels.
Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Key = Annotated[str, StringConstraints(pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
Value = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]


class Gpus(Frozen):
    """How a cluster is asked for a GPU of the matrix."""

    count: Annotated[int, Field(ge=1, le=64)] = Field(description="How many a node has.")
    selector: dict[Key, Value] = Field(default_factory=dict, description="Labels of the nodes that have it.")


class KubernetesSection(Section):
    """What manifests say; nothing is submitted."""

    namespace: Label | None = None
    pull_secret: Label | None = Field(default=None, description="The secret that a pod pulls images with.")
    gpus: dict[Wanted, Gpus] = Field(default_factory=dict, description="By a GPU's name in the matrix, such as h100.")


def _words(value: object) -> object:
    """Options that a variable gives in one text."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value
