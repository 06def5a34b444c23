"""What the collector saw of a machine, as types. The collector writes it as JSON, on any Python from 3.6.

Everything may be missing: what could not be read is None (or an empty list), and ``errors`` says why. Fields that
this version does not know are dropped, so that the facts of a newer collector can still be read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envbuild.doctor.collection.base import Failure, Seen
from envbuild.doctor.collection.libraries import Libraries, Loader, Native
from envbuild.doctor.collection.machine import (
    Bench,
    Cpu,
    Disk,
    Distribution,
    Interface,
    Machine,
    Memory,
    NumaNode,
    NvmePath,
    Owner,
    Shm,
    System,
)
from envbuild.doctor.collection.tools import Alternative, Compile, Damage, Interpreter, Libaio, Package, Tool, Toolkit
from envbuild.doctor.collection.training import DeepSpeed, Gpu, GpuDevice, Import, Op, Torch

SCHEMA = "envbuild.collection/1"


class Collection(Seen):
    """One machine, or one image, at one time.

    Attributes:
        taken: UTC, ISO 8601.
        collector: Version of the collector; ``seconds`` how long it took, by part.
        image: The image reference it ran in, when envbuild ran it in one.
        environment: Environment variables of interest, masked.
    """

    schema_name: Literal["envbuild.collection/1"] = Field(alias="schema")
    taken: str
    collector: str = ""
    seconds: dict[str, float] = Field(default_factory=dict)
    image: str | None = None
    errors: tuple[Failure, ...] = ()
    machine: Machine = Machine()
    environment: dict[str, str] = Field(default_factory=dict)
    interpreter: Interpreter | None = None
    damaged: tuple[Damage, ...] = ()
    tools: tuple[Tool, ...] = ()
    compiles: tuple[Compile, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    gpu: Gpu = Gpu()
    torch: Torch | None = None
    deepspeed: DeepSpeed | None = None
    ops: tuple[Op, ...] = ()
    libraries: Libraries = Libraries()
    nvme: tuple[NvmePath, ...] = ()
    libaio: Libaio | None = None
    bench: Bench | None = None
    system: System = System()


__all__ = [
    "SCHEMA",
    "Alternative",
    "Bench",
    "Collection",
    "Compile",
    "Cpu",
    "Damage",
    "DeepSpeed",
    "Disk",
    "Distribution",
    "Failure",
    "Gpu",
    "GpuDevice",
    "Import",
    "Interface",
    "Interpreter",
    "Libaio",
    "Libraries",
    "Loader",
    "Machine",
    "Memory",
    "Native",
    "NumaNode",
    "NvmePath",
    "Op",
    "Owner",
    "Package",
    "Seen",
    "Shm",
    "System",
    "Tool",
    "Toolkit",
    "Torch",
]
