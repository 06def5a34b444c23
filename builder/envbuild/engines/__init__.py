"""Container engines. Today there is one: Docker."""

from __future__ import annotations

from envbuild.engines.argv import run_argv
from envbuild.engines.cleanup import Run, sweep
from envbuild.engines.docker import DockerEngine, connect
from envbuild.engines.gpufaults import GpuFault, GpuStartError, known_fault
from envbuild.engines.types import (
    BuildRequest,
    ContainerInfo,
    ContainerResult,
    ContainerSpec,
    EngineInfo,
    ImageInfo,
    Mount,
    RemoteAnswer,
)

__all__ = [
    "BuildRequest",
    "ContainerInfo",
    "ContainerResult",
    "ContainerSpec",
    "DockerEngine",
    "EngineInfo",
    "GpuFault",
    "GpuStartError",
    "ImageInfo",
    "Mount",
    "RemoteAnswer",
    "Run",
    "connect",
    "known_fault",
    "run_argv",
    "sweep",
]
