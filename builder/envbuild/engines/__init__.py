"""Container engines: Docker and Podman, behind one protocol."""

from __future__ import annotations

from envbuild.engines.argv import run_argv
from envbuild.engines.choosing import Candidate, Kind, Wish, candidates, connect, nobody
from envbuild.engines.cleanup import Run, sweep
from envbuild.engines.docker import DockerEngine
from envbuild.engines.engine import Engine
from envbuild.engines.gpufaults import GpuFault, GpuStartError, known_fault
from envbuild.engines.podman import PodmanEngine
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
    "Candidate",
    "ContainerInfo",
    "ContainerResult",
    "ContainerSpec",
    "DockerEngine",
    "Engine",
    "EngineInfo",
    "GpuFault",
    "GpuStartError",
    "ImageInfo",
    "Kind",
    "Mount",
    "PodmanEngine",
    "RemoteAnswer",
    "Run",
    "Wish",
    "candidates",
    "connect",
    "known_fault",
    "nobody",
    "run_argv",
    "sweep",
]
